"""Virtual machine of the service: created, filled with Assay's code, and asked for answers.

Only this module asks the SDK for a machine. It packs the bundle of modules that run inside, and
translates errors of the SDK and the network into contract errors, each with its fix.
"""

import base64
import io
import json
import math
import secrets
import shlex
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import httpx

from assay.contracts.errors import AssayError, Dispatch, SandboxUnavailableError, UsageError
from assay.contracts.execution import SandboxSpec
from assay.settings.sections import E2BSettings

if TYPE_CHECKING:
    from e2b import AsyncCommandHandle
    from e2b_code_interpreter import (  # pyright: ignore[reportMissingTypeStubs] - it has none
        AsyncSandbox,
    )


_MODULES: Final = (
    "contracts/distribution.py",
    "contracts/errors.py",
    "contracts/execution.py",
    "contracts/workspace.py",
    "sandbox/output.py",
    "sandbox/native/host/files.py",
    "sandbox/native/kernel/libc.py",
    "sandbox/native/kernel/rmtree.py",
    "sandbox/native/kernel/syscalls.py",
    "sandbox/native/host/memory_use.py",
    "sandbox/native/guest/jail_spec.py",
    "sandbox/native/host/usage_monitor.py",
    "sandbox/e2b/agent/main.py",
    "sandbox/e2b/agent/bootstrap.py",
)
_PACKAGES: Final = (
    "",
    "contracts/",
    "sandbox/",
    "sandbox/e2b/",
    "sandbox/e2b/agent/",
    "sandbox/native/",
    "sandbox/native/guest/",
    "sandbox/native/host/",
    "sandbox/native/kernel/",
)
_START: Final = "from assay.sandbox.e2b.agent.main import main\nmain()\n"

_UNPACK: Final = """
import base64, io, json, os, pwd, sys, zipfile
state, workspace, user, packed = sys.argv[1:]
try:
    if sys.version_info < (3, 11):
        raise SystemExit(json.dumps({"trouble": "old_python"}))
    os.makedirs(state + "/far", mode=0o755)
    zipfile.ZipFile(io.BytesIO(base64.b64decode(packed))).extractall(state + "/far")
    ours = os.geteuid() == 0 and user != "root"
    for path in (workspace, state + "/tmp"):
        os.makedirs(path, exist_ok=True)
        if ours:
            account = pwd.getpwnam(user)
            os.chown(path, account.pw_uid, account.pw_gid)
    if os.listdir(workspace):
        raise SystemExit(json.dumps({"trouble": "not_empty"}))
except KeyError:
    raise SystemExit(json.dumps({"trouble": "no_user"}))
except OSError as error:
    raise SystemExit(json.dumps({"trouble": "refused", "why": str(error)}))
print(json.dumps({"python": sys.executable}), flush=True)
os.execv(sys.executable, [sys.executable, "-ESs", state + "/far", "serve", state + "/socket"])
"""
"""Answers in one line, and waits until the request server runs."""

_ASK = """
import os, sys
try:
    # Not the module around it, which takes longer to load than all the rest.
    import _socket
    asking = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    asking.connect(sys.argv[1] + "/socket")
except (ImportError, OSError):
    os.execv(sys.executable, [sys.executable, "-ESs", sys.argv[1] + "/far", *sys.argv[2:]])
words = (" ".join(sys.argv[2:]) + "\\n").encode()
output = (1).to_bytes(4, sys.byteorder)
sent = asking.sendmsg([words], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, output)])
if sent < len(words):  # sending nothing fails where the answer was given already
    asking.sendall(words[sent:])
asking.recv(1)
"""


def setup_command(*, state: str, workspace: str, user: str) -> str:
    """Return the command that prepares a new machine."""
    words = ("python3", "-ISE", "-c", _UNPACK, state, workspace, user, packed())
    return "exec " + shlex.join(words) + " 2>&1"


def act_command(*, python: str, state: str, act: str, request: str) -> str:
    """Return the command that sends one request."""
    return "exec " + shlex.join((python, "-ISE", f"{state}/far/ask.py", state, act, request))


@cache
def packed() -> str:
    """Return the modules as a zip archive in base64."""
    buffer = io.BytesIO()
    package = files("assay")
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in _PACKAGES:
            # Empty: the real ones import more than is needed.
            archive.writestr(f"assay/{folder}__init__.py", "")
        for name in _MODULES:
            archive.writestr(f"assay/{name}", package.joinpath(name).read_bytes())
        archive.writestr("__main__.py", _START)
        archive.writestr("ask.py", _ASK)
    return base64.b64encode(buffer.getvalue()).decode()


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


_ROOT: Final = "root"
_REQUEST_S: Final = 30.0
_SETUP_S: Final = 60.0
_ENDING_S: Final = 10.0
_EVERYWHERE: Final = "0.0.0.0/0"
_USUAL_PORTS: Final = ("80", "443")
_TROUBLES: Final = {
    "old_python": "its python3 is older than 3.11",
    "no_user": "it has no such user",
    "not_empty": "its workspace folder is not empty",
    "refused": "its workspace folder cannot be made",
}


def address_of(settings: E2BSettings) -> str:
    """Return the URL of the service's API."""
    return settings.api_url or f"https://api.{settings.domain or 'e2b.app'}"


def connection_to(settings: E2BSettings) -> dict[str, Any]:
    """Return the common arguments of every SDK call, with the API key."""
    named = {
        "api_key": settings.api_key.get_secret_value() if settings.api_key else "",
        "domain": settings.domain,
        "api_url": settings.api_url,
        "sandbox_url": settings.sandbox_url,
    }
    return {name: value for name, value in named.items() if value} | {"request_timeout": _REQUEST_S}


def network_for(equipment: SandboxSpec) -> dict[str, Any]:
    """Return the network settings for the service: by default nothing is reachable.

    Raises:
        UsageError: If the service cannot enforce them.
    """
    if equipment.packages or equipment.project:
        raise UsageError(
            "the e2b backend cannot add packages to a sandbox",
            hint="build a template with them, and name it in sandbox.e2b.template",
        )
    if not equipment.hosts:
        return {"allow_internet_access": False}
    hosts: list[str] = []
    for host in equipment.hosts:
        name, _, port = host.partition(":")
        if port and port not in _USUAL_PORTS:
            raise UsageError(
                f"E2B cannot allow {host!r}: it tells hosts apart on ports 80 and 443 only",
                hint=f"allow {name!r}",
            )
        hosts.append(name)
    return {"network": {"allow_out": sorted(set(hosts)), "deny_out": [_EVERYWHERE]}}


class Machine:
    """One virtual machine that is ready for programs."""

    def __init__(self, sandbox: "AsyncSandbox", settings: E2BSettings) -> None:
        self.sdk = sandbox
        self.address = address_of(settings)
        self.state = f"/tmp/.assay-{secrets.token_hex(8)}"
        self.python = "python3"
        self._settings = settings
        self._ended = False

    def in_state(self, name: str) -> str:
        return f"{self.state}/{name}"

    def places(self) -> dict[str, Any]:
        """Return the paths that every request contains."""
        return {
            "workspace": str(self._settings.workspace),
            "temporary": self.in_state("tmp"),
            "state": self.state,
            "user": self._settings.user,
            "main_program": self.in_state("far/assay/sandbox/e2b/agent/bootstrap.py"),
        }

    @property
    def workspace(self) -> PurePosixPath:
        return self._settings.workspace

    async def set_up(self) -> None:
        """Install Assay's code in the machine.

        Raises:
            UsageError: If the template is not suitable.
            SandboxUnavailableError: If the machine is gone.
        """
        heard: list[str] = []
        command = setup_command(
            state=self.state, workspace=str(self._settings.workspace), user=self._settings.user
        )
        try:
            with anyio.fail_after(_SETUP_S):
                handle = await self.start(command, heard.append)
                await handle.wait()
        except TimeoutError as error:
            raise SandboxUnavailableError(
                "a fresh E2B sandbox did not become ready", dispatch="never_started"
            ) from error
        except Exception as error:
            answer = _answer(heard)
            if not answer:
                raise self._unsuitable(error, heard) from error
            raise self._refused(answer) from error
        self.python = str(_answer(heard).get("python") or self.python)

    def _unsuitable(self, error: Exception, heard: list[str]) -> Exception:
        from e2b import CommandExitException

        if not isinstance(error, CommandExitException):
            return explain(error, dispatch="never_started", address=self.address)
        words = "".join(heard).strip().splitlines()
        return UsageError(
            f"the template {self._settings.template!r} cannot be used: "
            f"{words[-1][:200] if words else 'it has no python3'}",
            hint="use one with Python 3.11 or newer, such as code-interpreter-v1",
        )

    def _refused(self, answer: dict[str, Any]) -> UsageError:
        trouble = _TROUBLES.get(str(answer.get("trouble")), "it is not as expected")
        return UsageError(
            f"the template {self._settings.template!r} cannot be used: {trouble}",
            hint="see docs/reference/e2b.md for what a template must have",
        )

    async def start(
        self, command: str, on_text: Callable[[str], None]
    ) -> "AsyncCommandHandle[None]":
        """Start one of Assay's commands as root, without waiting for its end.

        Raises:
            SandboxUnavailableError: If the machine is gone.
        """
        try:
            return await self.sdk.commands.run(
                command,
                background=True,
                user=_ROOT,
                cwd="/",
                on_stdout=on_text,
                timeout=0,
                retain_output=False,
            )
        except Exception as error:
            raise explain(error, dispatch="never_started", address=self.address) from error

    async def put(self, path: str, content: bytes) -> None:
        """Write one of Assay's files.

        Raises:
            SandboxUnavailableError: If the machine is gone.
        """
        try:
            files = cast("Any", self.sdk.files)
            await files.write(path, content, user=_ROOT, use_octet_stream=True)
        except Exception as error:
            raise explain(error, dispatch="never_started", address=self.address) from error

    async def is_running(self) -> bool:
        with suppress(Exception), anyio.move_on_after(_ENDING_S):
            return await self.sdk.is_running(request_timeout=_ENDING_S)
        return False

    async def live_on(self) -> None:
        """Restart the timeout after which the service ends the machine."""
        with suppress(Exception):
            await self.sdk.set_timeout(math.ceil(self._settings.timeout_s))

    async def end(self) -> None:
        """End the machine; a second call does nothing."""
        if self._ended:
            return
        self._ended = True
        # A machine that cannot be ended now ends at its timeout.
        with anyio.move_on_after(_ENDING_S, shield=True), suppress(Exception):
            await self.sdk.kill()


def _answer(heard: list[str]) -> dict[str, Any]:
    for line in "".join(heard).splitlines():
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                return cast("dict[str, Any]", found)
    return {}


async def open_machine(
    settings: E2BSettings, equipment: SandboxSpec, metadata: dict[str, str]
) -> Machine:
    """Ask the service for a machine and prepare it. The caller ends it.

    Raises:
        UsageError: If the key, the template or the equipment is not suitable.
        SandboxUnavailableError: If no machine is available.
    """
    from e2b_code_interpreter import (  # pyright: ignore[reportMissingTypeStubs]
        AsyncSandbox,
    )

    network = network_for(equipment)
    try:
        sandbox = await AsyncSandbox.create(
            template=settings.template,
            timeout=math.ceil(settings.timeout_s),
            metadata=metadata,
            **network,
            **connection_to(settings),
        )
    except Exception as error:
        raise explain_opening(
            error, template=settings.template, address=address_of(settings)
        ) from error
    machine = Machine(sandbox, settings)
    try:
        await machine.set_up()
    except BaseException:
        await machine.end()
        raise
    return machine
