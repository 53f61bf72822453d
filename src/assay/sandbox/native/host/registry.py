"""Which engines run on this machine, written down so that a crash can be cleaned up after.

One folder per engine, named after its owner and never there without its record. The warden removes
it as its last act; one whose owner is gone has lost its warden too, and `clean` does the warden's
work.
"""

import json
import os
import re
import select
import signal
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from assay.contracts.errors import UsageError
from assay.sandbox.native.guest.launcher import remove_all
from assay.sandbox.native.host import usage_monitor
from assay.sandbox.native.kernel import cgroups
from assay.sandbox.native.kernel.rmtree import remove_tree

_RECORD: Final = "engine.json"
_NAME: Final = re.compile(r"(\d+)-[0-9a-f]+")
"""Process and a random number, see `start.py`."""
_DRAFT: Final = re.compile(r"\.(\d+)-[0-9a-f]+\.(\d+)")
"""The same, and when the process started; only until the record is in it."""
_START_TIME_FIELD: Final = 19
_DEATH_WITHIN_MS: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMark:
    """A process, told apart from a later one with the same number."""

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
    warden: ProcessMark | None
    since: float
    """Seconds since the epoch."""
    remove: tuple[str, ...]
    """Cgroup folders and directories that go with it."""

    @property
    def orphaned(self) -> bool:
        return not self.owner.alive

    def processes(self) -> int:
        """How many processes the engine has, its warden included."""
        if self.warden is None or not self.warden.alive:
            return 0
        return len(usage_monitor.process_tree(self.warden.pid))


def enter(runtime_dir: Path, record: EngineRecord) -> Path:
    """Make an engine's folder, its record in it, below a runtime folder that is ours alone.

    Raises:
        UsageError: If the runtime folder belongs to somebody else or others can write to it.
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
    # In one step: whoever sees the folder knows whose it is, and that it is not yet to be removed.
    return draft.rename(runtime_dir / record.engine)


def _is_ours_alone(folder: Path) -> bool:
    """Anyone could have made a folder of this name in a shared place before us."""
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


def with_warden(record: EngineRecord, pid: int) -> EngineRecord:
    return replace(record, warden=mark(pid))


def mark(pid: int) -> ProcessMark:
    return ProcessMark(pid=pid, started=start_time(pid) or 0)


def start_time(pid: int) -> int | None:
    """When a process started, in the kernel's ticks; None if it is gone or only waits to be."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in {"Z", "X"} else int(fields[_START_TIME_FIELD])
    return None


def read_records(runtime_dir: Path) -> tuple[EngineRecord, ...]:
    """Every engine of this user, oldest first, with what is left of some that have no record."""
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
    """What can be said of a folder without a record that can be read; None if it is not ours."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return None
    if draft := _DRAFT.fullmatch(folder.name):
        owner = ProcessMark(pid=int(draft[1]), started=int(draft[2]))
        if owner.alive:
            return None
    elif name := _NAME.fullmatch(folder.name):
        # Something has taken the record away. While anyone has the number, it may be the owner.
        owner = mark(int(name[1]))
    else:
        return None
    return EngineRecord(
        engine=folder.name,
        owner=owner,
        warden=None,
        since=found.st_mtime,
        remove=(str(folder),),
    )


def _read(path: Path) -> EngineRecord:
    fields = json.loads(path.read_text())
    warden, remove = fields["warden"], fields["remove"]
    if not isinstance(remove, list):
        raise TypeError("not a list of paths")
    return EngineRecord(
        engine=path.parent.name,
        owner=ProcessMark(**fields["owner"]),
        warden=ProcessMark(**warden) if warden else None,
        since=float(fields["since"]),
        remove=tuple(str(name) for name in remove),  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON
    )


def clean(runtime_dir: Path, record: EngineRecord) -> None:
    """End what an orphaned engine left running and remove what it left lying about."""
    if record.warden is not None and record.warden.alive:
        with suppress(ProcessLookupError):
            os.kill(record.warden.pid, signal.SIGKILL)
        _await_death(record.warden)
    # By name too: a crash may have come before the groups were written down.
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
