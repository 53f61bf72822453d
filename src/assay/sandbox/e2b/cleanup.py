"""Finds Assay's sandboxes at the service, and those whose owner has exited."""

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from assay.sandbox.e2b.errors import explain
from assay.sandbox.e2b.vm import E2BOptions
from assay.sandbox.native.host.registry import ProcessMark, mark

if TYPE_CHECKING:
    from e2b import SandboxInfo

_LABEL: Final = "assay"
_HOST, _PID, _STARTED, _SINCE = "assay_host", "assay_pid", "assay_started", "assay_since"
_PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One sandbox at the service that an Assay process opened."""

    id: str
    host: str
    owner: ProcessMark
    since: float
    """Seconds since the epoch."""

    @property
    def here(self) -> bool:
        return self.host == _this_host()

    @property
    def orphaned(self) -> bool:
        """Whether its owner ran on this machine and has exited; False for other machines."""
        return self.here and not self.owner.alive

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.since)


def labels() -> dict[str, str]:
    """Return the labels that identify sandboxes of this process."""
    owner = mark(os.getpid())
    return {
        _LABEL: "sandbox",
        _HOST: _this_host(),
        _PID: str(owner.pid),
        _STARTED: str(owner.started),
        _SINCE: f"{time.time():.0f}",
    }


def _this_host() -> str:
    """Identify this boot of this machine: pids of an earlier boot mean nothing."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot[:8]}"


async def find(options: E2BOptions) -> list[Leftover]:
    """Return all sandboxes that Assay has opened with this key, oldest first.

    Raises:
        UsageError: If the service rejects the key.
        SandboxUnavailableError: If the service cannot be reached.
    """
    from e2b import AsyncSandbox, SandboxQuery

    found: list[Leftover] = []
    try:
        pages = AsyncSandbox.list(
            query=SandboxQuery(metadata={_LABEL: "sandbox"}), limit=_PAGE, **options.connection()
        )
        while pages.has_next:
            found.extend(_leftover(info) for info in await pages.next_items())
    except Exception as error:
        raise explain(error, dispatch="never_started", address=options.address) from error
    return sorted(found, key=lambda one: one.since)


def _leftover(info: "SandboxInfo") -> Leftover:
    told = info.metadata or {}
    return Leftover(
        id=info.sandbox_id,
        host=told.get(_HOST, "?"),
        owner=ProcessMark(pid=_number(told.get(_PID)), started=_number(told.get(_STARTED))),
        since=float(_number(told.get(_SINCE)) or info.started_at.timestamp()),
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


async def end(options: E2BOptions, leftover: Leftover) -> None:
    """End one of them; one that has already ended is not an error.

    Raises:
        SandboxUnavailableError: If the service cannot be reached.
    """
    from e2b import AsyncSandbox

    try:
        await AsyncSandbox.kill(leftover.id, **options.connection())
    except Exception as error:
        raise explain(error, dispatch="never_started", address=options.address) from error
