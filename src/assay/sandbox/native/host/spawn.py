"""Starts the launcher of an engine; it inherits nothing of this process but a few descriptors."""

import os
import socket
import sys
from subprocess import DEVNULL

import anyio

from assay.contracts.errors import IsolationUnavailableError, SandboxUnavailableError
from assay.sandbox.native.guest.jail_plan import JailPlan
from assay.sandbox.native.host.channel import Channel
from assay.sandbox.native.host.engine import Engine
from assay.sandbox.native.host.module_boot import boot
from assay.sandbox.native.kernel.cgroups import ControlGroups


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
