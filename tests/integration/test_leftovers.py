"""Nothing stays: no process, mount, control group, file or descriptor, however it ended."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
import anyio.abc
import pytest

from assay.contracts.execution import Limits
from assay.contracts.ports import SandboxBackend
from tests.support.eventually import eventually
from tests.support.leftovers import (
    Engine,
    engine_of,
    mount_points,
    only_record,
    open_descriptors,
    processes_of,
    remove_engines,
    sandbox_uid,
)
from tests.support.native import open_own, python
from tests.support.ordinary_user import OrdinaryUser

EXECUTIONS = 1000
CLIENTS = 2
SANDBOXES_PER_CLIENT = 5
POOL_SIZE = 2
AT_REST = 3 + 2 * POOL_SIZE
"""Warden, zygote and steward; PID 1 and a worker for each cell that waits."""
BUSY = "sleep 600 & echo started; exec sleep 600"


async def be_a_client(backend: SandboxBackend, number: int, right: list[int]) -> None:
    """Use several sandboxes, one after another, for a share of the executions."""
    share = EXECUTIONS // CLIENTS // SANDBOXES_PER_CLIENT
    for _ in range(SANDBOXES_PER_CLIENT):
        async with backend.open_sandbox(Limits()) as sandbox:
            await sandbox.write_file(PurePosixPath("number"), str(number).encode())
            for turn in range(share):
                source = f"print(int(open('number').read()) * 1000 + {turn})"
                result = await sandbox.run(python(source))
                right.append(int(result.stdout) - number * 1000 - turn)


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


def at_rest(runtime_dir: Path) -> bool:
    engine = engine_of(runtime_dir)
    return len(engine.processes) == AT_REST and engine.slots() in {0, POOL_SIZE}


@pytest.mark.slow
async def test_a_thousand_executions_leave_the_engine_as_it_was_and_then_nothing(
    runtime_dir: Path,
) -> None:
    descriptors, mounts = open_descriptors(), mount_points()
    right: list[int] = []

    async with open_own(runtime_dir, pool_size=POOL_SIZE) as backend:
        assert await eventually(lambda: at_rest(runtime_dir))
        mounts_at_rest = engine_of(runtime_dir).mounts()
        descriptors_at_rest = open_descriptors().keys()

        async with anyio.create_task_group() as clients:
            for number in range(CLIENTS):
                clients.start_soon(be_a_client, backend, number, right)

        assert await eventually(lambda: at_rest(runtime_dir)), engine_of(runtime_dir)
        engine = engine_of(runtime_dir)
        assert await eventually(lambda: engine.mounts() == mounts_at_rest)
        assert await eventually(lambda: len(open_descriptors()) == len(descriptors_at_rest))

    assert right == [0] * EXECUTIONS
    assert await eventually(engine.is_gone), engine.left()
    assert is_empty(runtime_dir)
    # Descriptors of earlier tests may have been closed meanwhile.
    assert open_descriptors().keys() <= descriptors.keys()
    assert mount_points() - mounts == set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody who runs the command, and where that is written down."""

    uid: int
    gid: int
    python: Path
    runtime_dir: Path

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.runtime_dir.parent),
            "LANG": "C.UTF-8",
            "ASSAY_RUNTIME_DIR": str(self.runtime_dir),
        }

    def ids(self) -> dict[str, Any]:
        if self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def assay(self, *words: str) -> str:
        """What an `assay` command that succeeds has to say."""
        done = subprocess.run(
            [self.python, "-m", "assay", *words],
            cwd="/",
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            **self.ids(),
        )
        return done.stdout


@pytest.fixture(params=["as_this_user", "as_an_ordinary_user"])
def person(request: pytest.FixtureRequest) -> Generator[Person]:
    uid, gid, python = os.geteuid(), os.getegid(), Path(sys.executable)
    if request.param == "as_an_ordinary_user":
        user: OrdinaryUser = request.getfixturevalue("user")
        uid, gid, python = user.uid, user.gid, user.python
    # Not pytest's directory: only whoever runs the tests may enter that.
    with tempfile.TemporaryDirectory(prefix="assay-home-") as folder:
        os.chown(folder, uid, gid)
        runtime_dir = Path(folder) / "runtime"
        yield Person(uid=uid, gid=gid, python=python, runtime_dir=runtime_dir)
        remove_engines(runtime_dir)


@asynccontextmanager
async def a_busy_command(person: Person) -> AsyncGenerator[tuple[anyio.abc.Process, Engine]]:
    """An `assay sandbox run` whose program is running two processes, and its engine."""
    # Where the tests run in the background, SIGINT is ignored, and that would be inherited.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = await anyio.open_process(
            [person.python, "-m", "assay", "sandbox", "run", "--", "sh", "-c", BUSY],
            cwd="/",
            env=person.env,
            **person.ids(),
        )
    finally:
        signal.signal(signal.SIGINT, before)
    async with process:
        try:
            assert process.stdout is not None
            with anyio.fail_after(60):
                assert await process.stdout.receive() == b"started\n"
            yield process, engine_of(person.runtime_dir)
        finally:
            # Whoever leaves the block waits for its end.
            if process.returncode is None:
                process.kill()


async def ended(process: anyio.abc.Process) -> int:
    with anyio.fail_after(60):
        return await process.wait()


async def test_a_busy_command_has_what_must_not_be_left(person: Person) -> None:
    """The control for the tests below: what they look for can be found."""
    async with a_busy_command(person) as (process, engine):
        assert len(engine.processes) >= 5
        assert all(mark.alive for mark in engine.processes)
        assert engine.folder.is_dir()
        if os.geteuid() == 0 and person.uid == 0:
            assert len(processes_of(sandbox_uid(process.pid))) >= 4


async def test_an_interrupted_command_leaves_nothing(person: Person) -> None:
    async with a_busy_command(person) as (process, engine):
        process.send_signal(signal.SIGINT)

        assert await ended(process) == 130
        assert process.stderr is not None
        assert (await process.stderr.receive()).strip() == b"error: interrupted"
        assert await eventually(engine.is_gone), engine.left()
        assert is_empty(person.runtime_dir)
        assert processes_of(sandbox_uid(process.pid)) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
async def test_a_command_that_a_signal_ended_leaves_nothing(
    person: Person, number: signal.Signals
) -> None:
    async with a_busy_command(person) as (process, engine):
        process.send_signal(number)

        assert await ended(process) == -number
        assert await eventually(engine.is_gone), engine.left()
        assert is_empty(person.runtime_dir)
        assert processes_of(sandbox_uid(process.pid)) == []


async def end_with_its_launcher(process: anyio.abc.Process, engine: Engine) -> None:
    """Kill a command and its launcher, so that nobody is left who would clean up."""
    os.kill(engine.launcher.pid, signal.SIGSTOP)
    process.kill()
    await ended(process)
    os.kill(engine.launcher.pid, signal.SIGKILL)


async def test_what_a_command_and_its_launcher_left_is_listed_and_removed(
    person: Person,
) -> None:
    async with a_busy_command(person) as (process, engine):
        await end_with_its_launcher(process, engine)
        assert await eventually(lambda: not any(mark.alive for mark in engine.processes))

        (row,) = json.loads(person.assay("sandbox", "list", "--json"))
        name = row["engine"]
        assert person.assay("sandbox", "clean", "--dry-run") == f"would remove {name}\n"
        assert only_record(person.runtime_dir) is not None
        told = person.assay("sandbox", "clean", name, "--yes")

        assert (row["state"], row["owner_pid"], row["processes"]) == ("orphaned", process.pid, 0)
        assert told == f"removed {row['engine']}\n"
        assert engine.left() == []
        assert is_empty(person.runtime_dir)
        assert person.assay("sandbox", "clean", "--yes") == "nothing was left behind\n"
        assert json.loads(person.assay("sandbox", "list", "--json")) == []


async def test_a_running_engine_is_listed_and_not_cleaned_up(person: Person) -> None:
    async with a_busy_command(person) as (process, engine):
        (row,) = json.loads(person.assay("sandbox", "list", "--json"))

        told = person.assay("sandbox", "clean", "--yes")

        assert (row["state"], row["owner_pid"]) == ("running", process.pid)
        assert row["processes"] == len(engine.processes)
        assert told == "nothing was left behind\n"
        assert all(mark.alive for mark in engine.processes)
        assert only_record(person.runtime_dir) is not None
