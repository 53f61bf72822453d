"""Start of one engine: jail plan, control groups, record, and the launcher process.

The launcher inherits nothing of this process but a few descriptors.
"""

import os
import secrets
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL
from typing import Final

import anyio

from assay.contracts.errors import IsolationUnavailableError, SandboxUnavailableError
from assay.contracts.execution import Isolation
from assay.sandbox.native.guest.jail_plan import JailPlan, RootPlan, Tier
from assay.sandbox.native.host import registry
from assay.sandbox.native.host.engine import Channel, Engine
from assay.sandbox.native.host.program import Stages
from assay.sandbox.native.host.visible_paths import INTERPRETER, LIBRARY, SOURCE, Layout, boot
from assay.sandbox.native.kernel import landlock, seccomp
from assay.sandbox.native.kernel.cgroups import ControlGroups, open_groups


async def start_engine(plan: JailPlan, groups: ControlGroups) -> Engine:
    """Start a launcher and wait for its first zygote; later stages start on their own.

    Raises:
        IsolationUnavailableError: If the kernel refuses to build the jail.
    """
    complaints = _memory_file("assay-complaints", b"")
    try:
        engine = await _start_warden(plan, groups, complaints)
        try:
            await engine.await_stage(0)
        except SandboxUnavailableError as error:
            await engine.close()
            said = os.pread(complaints, 2000, 0).decode(errors="replace").strip()
            raise IsolationUnavailableError(
                f"the native sandbox did not start: {said.rpartition(chr(10))[2] or error}",
                hint="run `assay doctor` to see what this machine can isolate",
            ) from error
        except BaseException:
            with anyio.CancelScope(shield=True):
                await engine.close()
            raise
    finally:
        os.close(complaints)
    return engine


async def _start_warden(plan: JailPlan, groups: ControlGroups, complaints: int) -> Engine:
    pairs = [
        socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for _ in range(2 + len(plan.stages))
    ]
    life_read, life_write = os.pipe2(os.O_CLOEXEC)
    plan_file = _memory_file("assay-plan", plan.to_json())
    passed = (life_read, plan_file, *(theirs.fileno() for _, theirs in pairs))
    try:
        warden = await anyio.open_process(
            [sys.executable, "-I", "-S", *boot("guest.launcher"), *map(str, passed)],
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=complaints,
            cwd="/",
            env={},
            start_new_session=True,
            pass_fds=passed,
        )
    finally:
        os.close(life_read)
        os.close(plan_file)
        for _, theirs in pairs:
            theirs.close()
    mounts, *orders = (Channel(ours) for ours, _ in pairs)
    return Engine(
        warden=warden,
        orders=orders,
        mounts=mounts,
        life=life_write,
        groups=groups,
        tier=plan.tier,
    )


def _memory_file(name: str, content: bytes) -> int:
    descriptor = os.memfd_create(name)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


_FIRST_SANDBOX_ID: Final = 1_600_000_000
_SANDBOX_IDS: Final = 1 << 16
_SAFE_LANDLOCK: Final = 6
"""The first Landlock ABI in which a program cannot signal processes outside its own domain."""
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """A started engine and the facts that its sandboxes need."""

    engine: Engine
    tier: Tier
    isolation: Isolation
    groups: ControlGroups
    box_owner: int | None
    """The uid that owns the files of workspaces, if it is not our own."""
    scratch: Path
    """The folder of the workspaces in the Landlock tier."""
    record: registry.EngineRecord
    """What to clean up if the launcher cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationChoice:
    """Which isolation mechanisms may be tried."""

    least: Isolation
    namespaces: bool
    alone_as: int | None
    """The uid of programs if this engine runs in a container that holds one sandbox only."""
    layers: Path | None
    """The folder of the package layers; None if there is no place for them."""


async def start_best(
    layout: Layout, stages: Stages, runtime_dir: Path, choice: IsolationChoice
) -> RunningEngine:
    """Start an engine with namespaces, or with Landlock if namespaces fail and that is enough.

    In a container that holds one sandbox only, a third tier works on kernels that support neither.

    Raises:
        IsolationUnavailableError: If this machine cannot isolate as requested.
    """
    refusal = IsolationUnavailableError("namespaces are switched off in the settings")
    if choice.namespaces:
        try:
            return await _start("namespaces", layout, stages, runtime_dir, layers=choice.layers)
        except IsolationUnavailableError as error:
            refusal = error
    if not Isolation.RESTRICTED.satisfies(choice.least):
        raise refusal
    if landlock.abi_version() < _SAFE_LANDLOCK and choice.alone_as is not None:
        return await _start("contained", layout, stages, runtime_dir, choice.alone_as)
    if landlock.abi_version() < _SAFE_LANDLOCK:
        raise IsolationUnavailableError(
            f"{refusal}; and Landlock, the fallback, needs Linux 6.12 or newer",
            hint=refusal.hint,
        ) from refusal
    return await _start("landlock", layout, stages, runtime_dir)


async def _start(
    tier: Tier,
    layout: Layout,
    stages: Stages,
    runtime_dir: Path,
    programs_as: int | None = None,
    *,
    layers: Path | None = None,
) -> RunningEngine:
    engine_id = f"{os.getpid()}-{secrets.token_hex(4)}"
    folder = runtime_dir / engine_id
    record = registry.EngineRecord(
        engine=engine_id,
        owner=registry.mark(os.getpid()),
        warden=None,
        since=time.time(),
        remove=(str(folder),),
    )
    registry.enter(runtime_dir, record)
    groups = open_groups(engine_id)
    record = replace(record, remove=(*groups.folders, str(folder)))
    registry.write_record(folder, record)
    owner = programs_as or _spare_id()
    try:
        scratch = _make_scratch(folder, owner, tier)
        plan = replace(
            _plan(tier, layout, groups, scratch),
            drop_to_id=owner,
            stages=tuple(tuple(stage) for stage in stages),
            layers=str(layers or ""),
            remove=record.remove,
        )
        engine = await start_engine(plan, groups)
    except IsolationUnavailableError:
        registry.clean(runtime_dir, record)
        raise
    registry.write_record(folder, registry.with_warden(record, engine.warden_pid))
    return RunningEngine(
        engine=engine,
        tier=tier,
        isolation=Isolation.ISOLATED if tier == "namespaces" else Isolation.RESTRICTED,
        groups=groups,
        box_owner=owner,
        scratch=scratch,
        record=record,
    )


def _spare_id() -> int | None:
    return _FIRST_SANDBOX_ID + os.getpid() % _SANDBOX_IDS if os.geteuid() == 0 else None


def _make_scratch(folder: Path, owner: int | None, tier: Tier) -> Path:
    scratch = folder / "boxes"
    scratch.mkdir(mode=0o700)
    if owner is not None and tier != "contained":
        try:
            os.chown(scratch, owner, owner)
        except OSError as error:
            raise IsolationUnavailableError(
                f"root may not hand files to another user here: {error.strerror}",
                hint="run as an ordinary user",
            ) from error
        # Other users may pass through to the workspaces, but cannot list the folder.
        folder.parent.chmod(0o711)
    return scratch


def _plan(tier: Tier, layout: Layout, groups: ControlGroups, scratch: Path) -> JailPlan:
    jailed = tier == "namespaces"
    interpreter, library = (INTERPRETER, LIBRARY) if jailed else (sys.executable, SOURCE)
    devices = tuple(f"/dev/{name}" for name in _DEVICES)
    counted = groups.enforcing
    seccomp_program = seccomp.build_filter(
        own_namespaces=tier != "landlock", counted_memory=counted
    )
    return JailPlan(
        tier=tier,
        root=layout.root if jailed else RootPlan(),
        argv=(interpreter, "-I", *boot("guest.zygote", library)),
        env=tuple((layout.env if jailed else layout.host_env).items()),
        seccomp_hex=seccomp_program.hex(),
        readable=(*layout.readable, *devices) if tier == "landlock" else (),
        scratch=str(scratch),
    )
