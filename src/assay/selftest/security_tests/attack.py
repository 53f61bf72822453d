"""Type of an attack: an attempt that must find nothing, and a control that must find something.

Both use the same detector. The attack points it at a forbidden target, the control at a permitted
one: a detector that cannot fire proves nothing.

Canaries are objects of the host that any local process can reach, but no sandbox may.
"""

import ctypes
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import anyio
from anyio.abc import Process

from assay.contracts.execution import DEFAULT_SPEC, Isolation, Limits, Reason, SandboxSpec
from assay.contracts.ports import SandboxBackend
from assay.selftest.checks import Check
from assay.selftest.programs import describe, python, run_alone

_IPC_CREAT = 0o1000
_IPC_RMID = 0
_UNTOUCHED = b"nobody may change this"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCanaries:
    """The canaries on the host for one attack."""

    secret: str
    """A secret of the host: a program that prints it has read it there."""
    directory: Path
    secret_file: Path
    writable_file: Path
    """Any user of this machine can write it."""
    listeners: dict[str, socket.socket]
    victim: Process
    """A process of the host; the secret is in its environment."""
    victim_mark: str
    """A marker in the victim's command line."""
    shm_key: int
    """The key of a shared memory segment of the host; 0 if there is none."""

    def facts(self) -> dict[str, object]:
        """Return the data that an attacker may know: all locations, but not the secret."""
        return {
            "directory": str(self.directory),
            "secret_file": str(self.secret_file),
            "writable_file": str(self.writable_file),
            "unix_path": str(self.directory / "socket"),
            "datagram_path": str(self.directory / "datagrams"),
            "abstract_name": self._address("abstract"),
            "tcp_port": self._port("tcp"),
            "tcp6_port": self._port("tcp6"),
            "udp_port": self._port("udp"),
            "victim_pid": self.victim.pid,
            # Reversed, so that the attacker does not find its own source.
            "victim_mark_reversed": self.victim_mark[::-1],
            "shm_key": self.shm_key,
            "terminals": _device_of("/dev/pts"),
            "home": str(Path.home()),
            "pid": os.getpid(),
        }

    def harm(self) -> list[str]:
        """Return the damage to the host since the canaries were created."""
        visited = [f"something came to the {name} listener" for name in self._visited()]
        return (
            visited
            + self._changed()
            + ([] if self.victim_lives() else ["the victim is dead or stopped"])
        )

    def victim_lives(self) -> bool:
        return self.victim.returncode is None and not _is_unwell(self.victim.pid)

    def touched(self) -> bool:
        return bool(self._changed())

    def _visited(self) -> list[str]:
        return [name for name, listener in self.listeners.items() if _has_visitor(listener)]

    def _changed(self) -> list[str]:
        expected = {self.secret_file: self.secret.encode(), self.writable_file: _UNTOUCHED}
        known = {*expected, self.directory / "socket", self.directory / "datagrams"}
        changed = [
            f"{path.name} was changed or removed"
            for path, content in expected.items()
            if not path.is_file() or path.read_bytes() != content
        ]
        new = [path.name for path in self.directory.iterdir() if path not in known]
        return changed + [f"{name} has appeared" for name in new]

    def _port(self, name: str) -> int:
        listener = self.listeners.get(name)
        return 0 if listener is None else int(listener.getsockname()[1])

    def _address(self, name: str) -> str:
        listener = self.listeners.get(name)
        return "" if listener is None else bytes(listener.getsockname()).decode()


@asynccontextmanager
async def open_canaries() -> AsyncGenerator[HostCanaries]:
    """Create all canaries, and remove them at the end."""
    secret = f"canary-{secrets.token_hex(16)}"
    mark = f"86400.{secrets.randbelow(10**9):09}"
    with ExitStack() as stack:
        directory = stack.enter_context(_open_directory(secret))
        listeners = stack.enter_context(_open_listeners(directory))
        shm_key = stack.enter_context(_shared_memory())
        stack.enter_context(_inheritable(directory / "secret"))
        victim = await anyio.open_process(["sleep", mark], env={"ASSAY_CANARY": secret})
        try:
            yield HostCanaries(
                secret=secret,
                directory=directory,
                secret_file=directory / "secret",
                writable_file=directory / "writable",
                listeners=listeners,
                victim=victim,
                victim_mark=mark,
                shm_key=shm_key,
            )
        finally:
            with suppress(ProcessLookupError):
                victim.kill()
            with anyio.CancelScope(shield=True):
                await victim.aclose()


@contextmanager
def _open_directory(secret: str) -> Generator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="assay-canary-"))
    try:
        directory.chmod(0o777)
        (directory / "secret").write_text(secret)
        (directory / "secret").chmod(0o644)
        (directory / "writable").write_bytes(_UNTOUCHED)
        (directory / "writable").chmod(0o666)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _open_listeners(directory: Path) -> Generator[dict[str, socket.socket]]:
    with ExitStack() as stack:
        listeners: dict[str, socket.socket] = {}

        def listen(name: str, family: int, kind: int, address: object) -> None:
            listener = stack.enter_context(socket.socket(family, kind))
            with suppress(OSError):  # this machine may lack the address family
                listener.bind(address)  # pyright: ignore[reportArgumentType] - of its family
                if kind == socket.SOCK_STREAM:
                    listener.listen()
                listener.settimeout(0)
                listeners[name] = listener

        listen("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        listen("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        listen("unix", socket.AF_UNIX, socket.SOCK_STREAM, str(directory / "socket"))
        listen("datagrams", socket.AF_UNIX, socket.SOCK_DGRAM, str(directory / "datagrams"))
        for name in ("socket", "datagrams"):
            (directory / name).chmod(0o666)
        if socket.has_ipv6:
            listen("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0))
        if sys.platform == "linux":
            name = f"\0assay-canary-{secrets.token_hex(8)}"
            listen("abstract", socket.AF_UNIX, socket.SOCK_STREAM, name)
        yield listeners


@contextmanager
def _inheritable(path: Path) -> Generator[None]:
    """Hold a descriptor that careless programs pass on to child processes."""
    descriptor = os.open(path, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _shared_memory() -> Generator[int]:
    if sys.platform != "linux":
        yield 0
        return
    libc = ctypes.CDLL(None, use_errno=True)
    key = secrets.randbelow(1 << 30) + 1
    segment = int(libc.shmget(key, 4096, _IPC_CREAT | 0o666))
    try:
        yield key if segment >= 0 else 0
    finally:
        if segment >= 0:
            libc.shmctl(segment, _IPC_RMID, None)


def _device_of(path: str) -> int:
    try:
        return Path(path).stat().st_dev
    except OSError:
        return 0


def _has_visitor(listener: socket.socket) -> bool:
    try:
        if listener.type == socket.SOCK_DGRAM:
            return bool(listener.recv(100))
        connection, _ = listener.accept()
    except BlockingIOError:
        return False
    connection.close()
    return True


def _is_unwell(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] in {"Z", "X", "T"}


Group = Literal[
    "resources",
    "host_data",
    "processes",
    "kernel_surface",
    "network",
    "equipment",
    "protocol",
    "host_files",
    "layers",
]

TIGHT = Limits(
    wall_s=8.0,
    cpu_s=8.0,
    memory_mb=128,
    processes=32,
    disk_mb=16,
    open_files=64,
    output_bytes=64 << 10,
)
"""Tight limits, so that an attack on a limit ends soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackContext:
    """The backend under attack, and the canaries that it must protect."""

    backend: SandboxBackend
    canaries: HostCanaries


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The finding of a detector."""

    breached: bool
    evidence: str


Detector = Callable[[AttackContext], Awaitable[Finding]]
"""Raises `AssertionError` if the check was not possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackConfig:
    """Configuration of attacks; shared by the attacks of a module."""

    group: Group
    needs: Isolation = Isolation.RESTRICTED
    not_applicable_from: Isolation | None = None
    moot_because: str = "what it attacks is not the host's"
    limits: Limits = TIGHT
    equipment: SandboxSpec = DEFAULT_SPEC
    endings: frozenset[Reason] = frozenset()
    """How the attacker may end, apart from its own report of failure."""
    by_command: bool = False
    """Run the attacker as a separate command instead of in the preloaded interpreter."""

    def against_the_hosts_kernel(self) -> "AttackConfig":
        """Exclude sandboxes with a separate kernel, which use only their own kernel's memory."""
        because = "it is taken from the sandbox's own kernel, within the walls of the container"
        return replace(self, not_applicable_from=Isolation.KERNEL, moot_because=because)

    def within(self, limits: Limits) -> "AttackConfig":
        return replace(self, limits=limits)

    def ending(self, *reasons: Reason) -> "AttackConfig":
        return replace(self, endings=self.endings | set(reasons))


def build_attack(name: str, *, attack: Detector, control: Detector, config: AttackConfig) -> Check:
    """Build an attack that must find nothing, with a control that must find something."""
    return Check(
        suite="hostile",
        group=config.group,
        name=name,
        run=partial(_run_attack, attack=attack, control=control),
        needs=config.needs,
        not_applicable_from=config.not_applicable_from,
        moot_because=config.moot_because,
    )


def build_attacks(
    rows: Mapping[str, T],
    detector: Callable[[AttackContext, T], Awaitable[Finding]],
    *,
    control: Detector,
    config: AttackConfig,
    name: str = "{name}",
) -> tuple[Check, ...]:
    """Build one attack for each row: its name, and what the detector receives."""
    return tuple(
        build_attack(
            name.format(name=row),
            attack=lambda context, value=value: detector(context, value),
            control=control,
            config=config,
        )
        for row, value in rows.items()
    )


async def _run_attack(backend: SandboxBackend, *, attack: Detector, control: Detector) -> None:
    """Run one attack with its control. Host and backend must work afterwards.

    Raises:
        AssertionError: If the attack succeeded, or its detector cannot fire.
    """
    async with open_canaries() as canaries:
        finding = await control(AttackContext(backend=backend, canaries=canaries))
    assert finding.breached, f"the detector did not fire on its control: {finding.evidence}"
    async with open_canaries() as canaries:
        finding = await attack(AttackContext(backend=backend, canaries=canaries))
        assert not finding.breached, f"breached: {finding.evidence}"
        harm = canaries.harm()
        assert not harm, f"the host was touched: {'; '.join(harm)}"
    result = await run_alone(backend, python("print(6 * 7)"))
    assert result.stdout == "42\n", f"the backend is not well afterwards: {describe(result)}"
