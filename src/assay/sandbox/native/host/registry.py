"""Records which engines run on this machine, so that Assay can clean up after a crash.

Each engine has one folder, named after its owner, which never exists without its record. The
launcher removes it last. If the owner is gone, the launcher is gone too, and `clean` does its work.
"""

import json
import os
import re
import select
import signal
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from assay.contracts.errors import UsageError
from assay.sandbox.native.guest.launcher import remove_all
from assay.sandbox.native.host import usage_monitor
from assay.sandbox.native.kernel import cgroups
from assay.sandbox.native.kernel.rmtree import remove_tree

_RECORD: Final = "engine.json"
_NAME: Final = re.compile(r"(\d+)-[0-9a-f]+")
"""The owner's pid and a random number, see `backend.py`."""
_DRAFT: Final = re.compile(r"\.(\d+)-[0-9a-f]+\.(\d+)")
"""The same, and the owner's start time; used until the record is written."""
_START_TIME_FIELD: Final = 19
_DEATH_WITHIN_MS: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMark:
    """A process, identified by pid and start time, since pids are reused."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """One engine, running or left behind."""

    engine: str
    owner: ProcessMark
    launcher: ProcessMark | None
    since: float
    """Seconds since the epoch."""
    remove: tuple[str, ...]
    """Cgroup folders and directories to remove with it."""

    @property
    def orphaned(self) -> bool:
        return not self.owner.alive

    def processes(self) -> int:
        """Count the processes of the engine, including its launcher."""
        if self.launcher is None or not self.launcher.alive:
            return 0
        return len(usage_monitor.process_tree(self.launcher.pid))


def enter(runtime_dir: Path, record: EngineRecord) -> Path:
    """Create an engine's folder with its record, below a runtime folder that only this user owns.

    Raises:
        UsageError: If the runtime folder belongs to another user, or others can write to it.
    """
    with suppress(OSError):
        runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours_alone(runtime_dir):
        raise UsageError(
            f"the runtime folder {str(runtime_dir)!r} is not safe to use",
            hint="set ASSAY_RUNTIME_DIR to a folder that only you can write to",
        )
    draft = runtime_dir / f".{record.engine}.{record.owner.started}"
    draft.mkdir(mode=0o755)
    write_record(draft, record)
    # Atomic: a process that sees the folder also sees its owner, and does not remove it early.
    return draft.rename(runtime_dir / record.engine)


def _is_ours_alone(folder: Path) -> bool:
    """Check the owner and mode: another user could have created the folder first."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return ours and not found.st_mode & 0o022


def write_record(folder: Path, record: EngineRecord) -> None:
    draft = folder / f".{_RECORD}"
    draft.write_text(json.dumps(asdict(record)))
    draft.rename(folder / _RECORD)


def mark(pid: int) -> ProcessMark:
    return ProcessMark(pid=pid, started=start_time(pid) or 0)


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks; None if it is gone or a zombie."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in {"Z", "X"} else int(fields[_START_TIME_FIELD])
    return None


def read_records(runtime_dir: Path) -> tuple[EngineRecord, ...]:
    """Return every engine of this user, oldest first, including some that lost their record."""
    if not _is_ours_alone(runtime_dir):
        return ()
    records = (_record_of(folder) for folder in runtime_dir.iterdir())
    return tuple(sorted(filter(None, records), key=lambda record: record.since))


def _record_of(folder: Path) -> EngineRecord | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return _read(folder / _RECORD)
    with suppress(OSError):
        return _record_by_name(folder)
    return None


def _record_by_name(folder: Path) -> EngineRecord | None:
    """Derive a record from a folder's name; None if the folder is not an engine's."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return None
    if draft := _DRAFT.fullmatch(folder.name):
        owner = ProcessMark(pid=int(draft[1]), started=int(draft[2]))
        if owner.alive:
            return None
    elif name := _NAME.fullmatch(folder.name):
        # The record is gone. While a process has this pid, it may be the owner.
        owner = mark(int(name[1]))
    else:
        return None
    return EngineRecord(
        engine=folder.name,
        owner=owner,
        launcher=None,
        since=found.st_mtime,
        remove=(str(folder),),
    )


def _read(path: Path) -> EngineRecord:
    fields = json.loads(path.read_text())
    launcher, remove = fields["launcher"], fields["remove"]
    if not isinstance(remove, list):
        raise TypeError("not a list of paths")
    return EngineRecord(
        engine=path.parent.name,
        owner=ProcessMark(**fields["owner"]),
        launcher=ProcessMark(**launcher) if launcher else None,
        since=float(fields["since"]),
        remove=tuple(str(name) for name in remove),  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON
    )


def clean(runtime_dir: Path, record: EngineRecord) -> None:
    """Kill the processes of an orphaned engine and remove its files."""
    if record.launcher is not None and record.launcher.alive:
        with suppress(ProcessLookupError):
            os.kill(record.launcher.pid, signal.SIGKILL)
        _await_death(record.launcher)
    # By name too: the crash may have come before the record listed the groups.
    remove_all((*record.remove, *cgroups.folders_of(record.engine)))
    remove_tree(str(runtime_dir / record.engine))


def _await_death(process: ProcessMark) -> None:
    with suppress(OSError):
        descriptor = os.pidfd_open(process.pid)
        try:
            watched = select.poll()
            watched.register(descriptor, select.POLLIN)
            watched.poll(_DEATH_WITHIN_MS)
        finally:
            os.close(descriptor)
