"""Translates errors of the SDK and the network into contract errors, each with its fix."""

import httpx

from assay.contracts.errors import AssayError, Dispatch, SandboxUnavailableError, UsageError

KEYS = "https://e2b.dev/dashboard?tab=keys"


def unreachable(address: str) -> SandboxUnavailableError:
    """Build the error for a service that does not answer."""
    return SandboxUnavailableError(
        f"E2B cannot be reached at {address}",
        dispatch="never_started",
        hint="check the network, or use --backend native",
    )


def explain(error: Exception, *, dispatch: Dispatch, address: str) -> AssayError:
    """Translate the failure of a call to the service.

    `dispatch` is what is known of a program if the sandbox was lost during the call.
    """
    import e2b

    if isinstance(error, AssayError):
        return error
    if isinstance(error, e2b.NotFoundException | e2b.SandboxNotRunningException):
        return gone(dispatch)
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | OSError):
        return unreachable(address)
    return _refusal(error, dispatch)


def _refusal(error: Exception, dispatch: Dispatch) -> AssayError:
    """Translate the service's rejection of a call."""
    import e2b

    if isinstance(error, e2b.AuthenticationException):
        return UsageError("E2B does not accept the key", hint=f"set E2B_API_KEY to one of {KEYS}")
    if isinstance(error, e2b.RateLimitException):
        return SandboxUnavailableError(
            "E2B allows no more sandboxes or requests right now",
            dispatch=dispatch,
            hint="`assay sandbox clean --backend e2b` ends forgotten ones; or wait a little",
        )
    if isinstance(error, e2b.ServiceBusyException):
        return SandboxUnavailableError(
            "E2B has no room for a sandbox right now", dispatch=dispatch, hint="try again later"
        )
    return SandboxUnavailableError(
        f"E2B failed: {_first_line(error)}", dispatch=dispatch, hint="try again, in a new sandbox"
    )


def gone(dispatch: Dispatch) -> SandboxUnavailableError:
    """Build the error for a sandbox that no longer exists."""
    return SandboxUnavailableError(
        "the E2B sandbox is gone: it was ended, or lived for longer than it may",
        dispatch=dispatch,
        hint="look at what was done before you run it again"
        if dispatch == "outcome_unknown"
        else "open another one",
    )


def explain_opening(error: Exception, *, template: str, address: str) -> AssayError:
    """Explain why a sandbox could not be created."""
    import e2b

    status = getattr(error, "status_code", None)
    no_template = isinstance(error, e2b.NotFoundException | e2b.TemplateException)
    if no_template or (status in {400, 403, 404} and "template" in str(error).lower()):
        return UsageError(
            f"E2B has no template {template!r} for you that can be used",
            hint="set sandbox.e2b.template to one of yours, or leave it out",
        )
    return explain(error, dispatch="never_started", address=address)


def _first_line(error: Exception) -> str:
    words = str(error).strip() or type(error).__name__
    return words.splitlines()[0][:300]
