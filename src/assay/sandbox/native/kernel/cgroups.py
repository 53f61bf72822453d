"""Control groups, version 1 or 2, where this process may create them; otherwise none.

Each execution has one group. The supervisor opens the group's entry file, and the first process of
the execution adds itself, so no process is ever moved by another.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PREFIX: Final = "assay-"
_NANOSECONDS: Final = 1e9
_MICROSECONDS: Final = 1e6
_MOST_PROCESSES: Final = 1 << 22
"""The maximum number of pids; the kernel refuses a higher limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUsage:
    """What all processes of an execution have used so far."""

    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    oom_kills: int = 0
    refused_forks: int = 0

    def since(self, before: "GroupUsage") -> "GroupUsage":
        """Return the difference to an earlier usage; the peak stays."""
        return GroupUsage(
            cpu_s=None if self.cpu_s is None else self.cpu_s - (before.cpu_s or 0.0),
            peak_memory_bytes=self.peak_memory_bytes,
            oom_kills=self.oom_kills - before.oom_kills,
            refused_forks=self.refused_forks - before.refused_forks,
        )


class ControlGroup:
    """The group of one execution where there are none: rlimits and the usage monitor keep limits.

    The subclass below is enforced by the kernel.
    """

    def open_entries(self) -> list[int]:
        """Return descriptors; a process that writes `0` to each joins. The caller closes them."""
        return []

    def apply(self, *, memory_bytes: int, processes: int) -> None:
        """Set the limits."""

    def cpu_s(self) -> float:
        return 0.0

    def processes(self) -> int | None:
        """Return the number of processes and threads inside; None if they are not counted."""
        return None

    def usage(self) -> GroupUsage:
        return GroupUsage()

    def forget_peaks(self) -> None:
        """Reset the peak usage, where the kernel supports it."""

    def remove(self) -> None:
        """Remove an empty group."""


class ControlGroups:
    """The groups of an engine that may not create any; the subclass below creates them."""

    enforcing = False
    folders: tuple[str, ...] = ()

    def open_group(self, name: str) -> ControlGroup:
        del name
        return ControlGroup()


class _Group(ControlGroup):
    """One execution's group: three folders in version 1, one folder for all three in version 2."""

    def __init__(self, memory: str, pids: str, cpu: str, *, unified: bool) -> None:
        self._memory, self._pids, self._cpu = memory, pids, cpu
        self._folders = tuple(dict.fromkeys((memory, pids, cpu)))
        self._unified = unified
        for folder in self._folders:
            os.mkdir(folder)

    def open_entries(self) -> list[int]:
        entry = "cgroup.procs" if self._unified else "tasks"
        opened: list[int] = []
        try:
            for folder in self._folders:
                descriptor = os.open(f"{folder}/{entry}", os.O_WRONLY | os.O_CLOEXEC)
                opened.append(descriptor)
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        return opened

    def apply(self, *, memory_bytes: int, processes: int) -> None:
        limit = str(memory_bytes)
        if self._unified:
            _write(f"{self._memory}/memory.max", limit)
            with suppress(FileNotFoundError, PermissionError):
                _write(f"{self._memory}/memory.swap.max", "0")
        else:
            _write(f"{self._memory}/memory.limit_in_bytes", limit)
            with suppress(FileNotFoundError, PermissionError):
                _write(f"{self._memory}/memory.memsw.limit_in_bytes", limit)
        most = str(processes) if processes < _MOST_PROCESSES else "max"
        _write(f"{self._pids}/pids.max", most)

    def cpu_s(self) -> float:
        if self._unified:
            return _counter(f"{self._cpu}/cpu.stat", b"usage_usec") / _MICROSECONDS
        return _number(f"{self._cpu}/cpuacct.usage") / _NANOSECONDS

    def processes(self) -> int | None:
        return _number(f"{self._pids}/pids.current")

    def usage(self) -> GroupUsage:
        if self._unified:
            peak = _number(f"{self._memory}/memory.peak") or _number(
                f"{self._memory}/memory.current"
            )
            oom_kills = _counter(f"{self._memory}/memory.events", b"oom_kill")
        else:
            peak = _number(f"{self._memory}/memory.max_usage_in_bytes")
            oom_kills = _counter(f"{self._memory}/memory.oom_control", b"oom_kill")
        return GroupUsage(
            cpu_s=self.cpu_s(),
            peak_memory_bytes=peak,
            oom_kills=oom_kills,
            refused_forks=_counter(f"{self._pids}/pids.events", b"max"),
        )

    def forget_peaks(self) -> None:
        if not self._unified:
            with suppress(OSError):
                _write(f"{self._memory}/memory.max_usage_in_bytes", "0")

    def remove(self) -> None:
        for folder in self._folders:
            # Busy for a moment longer, or gone with the engine; the launcher removes the rest.
            with suppress(OSError):
                os.rmdir(folder)


class _Groups(ControlGroups):
    enforcing = True

    def __init__(self, memory: Path, pids: Path, cpu: Path, *, unified: bool) -> None:
        self._homes = (memory, pids, cpu)
        self.folders = tuple(str(home) for home in dict.fromkeys(self._homes))
        self._unified = unified
        for home in dict.fromkeys(self._homes):
            if unified:
                _share_out(home.parent)
            home.mkdir()
            if unified:
                _share_out(home)

    def open_group(self, name: str) -> ControlGroup:
        memory, pids, cpu = (f"{home}/{name}" for home in self._homes)
        return _Group(memory, pids, cpu, unified=self._unified)


def _share_out(folder: Path) -> None:
    """Enable the controllers for the groups below a folder, if they are not enabled."""
    control = folder / "cgroup.subtree_control"
    missing = {b"memory", b"pids"} - set(_read(str(control)).split())
    if missing:
        control.write_text(" ".join(f"+{name.decode()}" for name in sorted(missing)))


def open_groups(engine: str) -> ControlGroups:
    """Create the folders of one engine where the kernel and the permissions allow it."""
    for place in _hierarchies():
        memory, pids, cpu = (folder / f"{_PREFIX}{engine}" for folder in place.folders)
        made: list[Path] = []
        try:
            groups = _Groups(memory, pids, cpu, unified=place.unified)
            made = [memory, pids, cpu]
            probe = groups.open_group("probe")
            probe.apply(memory_bytes=1 << 20, processes=1)
            for entry in probe.open_entries():
                os.close(entry)
            probe.remove()
        except OSError:
            for folder in (*(home / "probe" for home in made), memory, pids, cpu):
                with suppress(OSError):
                    folder.rmdir()
        else:
            return groups
    return ControlGroups()


def folders_of(engine: str) -> tuple[str, ...]:
    """Return the existing folders that `open_groups` has created for an engine."""
    made = (f"{folder}/{_PREFIX}{engine}" for place in _hierarchies() for folder in place.folders)
    return tuple(folder for folder in dict.fromkeys(made) if os.path.isdir(folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hierarchy:
    """A place for groups: one folder per controller, as near to our own group as possible."""

    folders: tuple[Path, Path, Path]
    unified: bool


def _hierarchies() -> list[_Hierarchy]:
    found: list[_Hierarchy] = []
    mounts, own = _mounts(), _own_groups()
    version_1 = {name: _own_or_top(mounts[name], own.get(name, "")) for name in mounts if name}
    if {"memory", "pids", "cpuacct"} <= version_1.keys():
        folders = (version_1["memory"], version_1["pids"], version_1["cpuacct"])
        found.append(_Hierarchy(folders=folders, unified=False))
    if "" in mounts:
        above = _own_and_above(mounts[""], own.get("", ""))
        found += [_Hierarchy(folders=(home, home, home), unified=True) for home in above]
    return found


def _own_and_above(top: Path, own: str) -> list[Path]:
    """Return our own group and those above it that are delegated to us, nearest first.

    Only a group without processes may enable controllers, so our own group rarely qualifies. A
    program that systemd runs for a user finds the slice above it, root finds the top. A process can
    move only below a group whose `cgroup.procs` it may write to.
    """
    nearest = _own_or_top(top, own)
    homes = [nearest, *(folder for folder in nearest.parents if folder.is_relative_to(top))]
    return [home for home in homes if _shares(home) and os.access(home / "cgroup.procs", os.W_OK)]


def _shares(home: Path) -> bool:
    return {b"memory", b"pids"} <= set(_read(f"{home}/cgroup.controllers").split())


def _own_or_top(top: Path, own: str) -> Path:
    """Return the folder of our own group, or the top: in a container, the path may be invisible."""
    return top / own if (top / own).is_dir() else top


def _mounts() -> dict[str, Path]:
    """Return the mount point by controller; the unified hierarchy has the empty name."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            found[""] = Path(before.split()[4])
        elif kind == "cgroup":
            for name in options.split()[-1].split(","):
                found[name] = Path(before.split()[4])
    return found


def _own_groups() -> dict[str, str]:
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path.lstrip("/")))
    return own


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _read(path: str) -> bytes:
    """Return the content of a kernel file; empty if it is missing or unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _number(path: str) -> int:
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def _counter(path: str, name: bytes) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(b" ")
        if key == name:
            return int(value)
    return 0
