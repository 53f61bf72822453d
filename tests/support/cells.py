"""Cells around processes that tests have made, or around none."""

import signal

from assay.sandbox.native.host.jail import Jail, close_all, open_pipes
from assay.sandbox.native.kernel.cgroups import ControlGroup


def cell_of(pidfd: int, group: ControlGroup | None = None, *, slot: str = "1") -> Jail:
    """A cell around a process; the caller closes it."""
    theirs, ours = open_pipes()
    close_all(theirs)
    go, stdin, stdout, stderr, status = ours
    return Jail(
        slot=slot,
        pidfd=pidfd,
        worker=None,
        go=go,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        status=status,
        group=group or ControlGroup(),
        ending_signal=signal.SIGKILL,
    )
