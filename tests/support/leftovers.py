"""What a sandbox engine has on this machine, and whether any of it is still there."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from assay.sandbox.native.host import registry, usage_monitor
from assay.sandbox.native.host.registry import EngineRecord, ProcessMark

_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Everything of one engine that can be found from outside, as it was at one moment."""

    processes: tuple[ProcessMark, ...]
    """The launcher first, then its descendants."""
    groups: tuple[Path, ...]
    folder: Path

    def left(self) -> list[str]:
        """What is still there."""
        alive = [f"process {process.pid}" for process in self.processes if process.alive]
        paths = [str(path) for path in (*self.groups, self.folder) if path.exists()]
        return alive + paths

    def is_gone(self) -> bool:
        return not self.left()

    @property
    def launcher(self) -> ProcessMark:
        return self.processes[0]

    @property
    def zygote(self) -> ProcessMark:
        return self.processes[1]

    def slots(self) -> int:
        """How many executions have a control group, running or waiting."""
        return sum(entry.is_dir() for entry in self.groups[0].iterdir()) if self.groups else 0

    def mounts(self) -> int:
        """How many mounts the zygote sees."""
        return len(Path(f"/proc/{self.zygote.pid}/mountinfo").read_text().splitlines())


def records_in(runtime_dir: Path) -> list[EngineRecord]:
    """Every engine that is written down in a runtime folder, whoever's that is."""
    found: list[EngineRecord] = []
    for path in runtime_dir.glob("*/engine.json"):
        fields = json.loads(path.read_text())
        launcher = fields["launcher"]
        record = EngineRecord(
            engine=path.parent.name,
            owner=ProcessMark(**fields["owner"]),
            launcher=ProcessMark(**launcher) if launcher else None,
            since=fields["since"],
            remove=tuple(fields["remove"]),
        )
        found.append(record)
    return found


def remove_engines(runtime_dir: Path) -> None:
    """End and remove what a failing test has left."""
    for record in records_in(runtime_dir):
        registry.clean(runtime_dir, record)


def only_record(runtime_dir: Path) -> EngineRecord | None:
    """The record of the one engine there is; None until its launcher is written down."""
    records = records_in(runtime_dir)
    return records[0] if len(records) == 1 and records[0].launcher else None


def engine_of(runtime_dir: Path) -> Engine:
    """The one engine that runs with this runtime folder.

    Raises:
        LookupError: If there is none.
    """
    record = only_record(runtime_dir)
    if record is None or record.launcher is None:
        raise LookupError(f"no engine in {runtime_dir}")
    pids = usage_monitor.process_tree(record.launcher.pid)
    return Engine(
        processes=tuple(registry.mark(pid) for pid in pids),
        groups=tuple(Path(path) for path in record.remove if path.startswith(str(_GROUPS))),
        folder=runtime_dir / record.engine,
    )


def processes_of(uid: int) -> list[int]:
    """Every process on this machine that runs as this user."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                found.append(int(entry.name))
        except FileNotFoundError:
            continue
    return found


def sandbox_uid(owner_pid: int) -> int:
    """As whom an engine of root runs programs."""
    return 1_600_000_000 + owner_pid % (1 << 16)


def mount_points() -> set[str]:
    """Every mount of this process, but for those of containers that others may start meanwhile."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line for line in lines if "docker" not in line and "containerd" not in line}


def open_descriptors() -> dict[str, str]:
    """What this process has open, by number."""
    found: dict[str, str] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except FileNotFoundError:
            continue
    return found
