"""Sandboxes at the limits of open files that machines commonly have: one alone, and 16 at once."""

import os
import resource
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import pytest

from assay.sandbox.native.kernel.open_files import TOO_FEW_HINT
from tests.support.leftovers import remove_engines
from tests.support.ordinary_user import OrdinaryUser

AT_ONCE: Final = 16
# The host's own limit is not raised here: a program that uses Assay as a library keeps what it has.
_ONE_THEN_MANY: Final = """
import resource, sys
from pathlib import Path
soft, hard, many = map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

import anyio
from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import Limits, PythonCode
from assay.settings.load import SandboxSettings
from assay.wiring import open_backend

HI = PythonCode(source=b"print('hi')")
STAY = PythonCode(source=b"import signal\\nprint('here', flush=True)\\nsignal.pause()")

async def main():
    settings = SandboxSettings(
        backend="native",
        preload=(),
        pool_size=0,
        max_concurrent=many,
        runtime_dir=Path(sys.argv[1]),
    )
    async with open_backend(settings) as backend:
        async with backend.open_sandbox(Limits()) as sandbox:
            print("one:", (await sandbox.run(HI)).stdout, end="", flush=True)
        here, refused = set(), []
        async with anyio.create_task_group() as tasks:
            def settle():
                if len(here) + len(refused) == many:
                    tasks.cancel_scope.cancel()

            async def stay(number):
                def hear(chunk):
                    here.add(number)
                    settle()

                try:
                    async with backend.open_sandbox(Limits()) as sandbox:
                        await sandbox.run(STAY, on_output=hear)
                except SandboxUnavailableError as error:
                    refused.append(f"{error} ({error.hint})")
                    settle()

            for number in range(many):
                tasks.start_soon(stay, number)
        print("many:", len(here))
        for told in refused:
            print("refused:", told)
        async with backend.open_sandbox(Limits()) as sandbox:
            print("after:", (await sandbox.run(HI)).stdout, end="")

anyio.run(main)
"""

# No descriptor is free, then one, and so on: a run needs them at many points.
_EVER_MORE_ROOM: Final = """
import os, resource, sys
from pathlib import Path

import anyio
from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import Limits, PythonCode
from assay.settings.load import SandboxSettings
from assay.wiring import open_backend

HI = PythonCode(source=b"print('hi')")

async def main():
    settings = SandboxSettings(
        backend="native", preload=(), pool_size=1, runtime_dir=Path(sys.argv[1])
    )
    async with open_backend(settings) as backend, backend.open_sandbox(Limits()) as sandbox:
        await sandbox.run(HI)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for room in range(int(sys.argv[2])):
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + room, hard))
            try:
                print((await sandbox.run(HI)).stdout, end="")
            except SandboxUnavailableError as error:
                print("refused:", error.hint or error)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert (await sandbox.run(HI)).stdout == "hi\\n"

anyio.run(main)
"""
_ENOUGH_ROOM: Final = 40

Start = Callable[..., list[str]]


@pytest.fixture(params=["as_this_user", "as_an_ordinary_user"])
def start(request: pytest.FixtureRequest) -> Generator[Start]:
    """Runs a script with these numbers as one of two users; returns the lines that it prints."""
    ordinary = request.param == "as_an_ordinary_user"
    user: OrdinaryUser = request.getfixturevalue("user") if ordinary else _this_user()
    # Not pytest's directory: only whoever runs the tests may enter that.
    with tempfile.TemporaryDirectory(prefix="assay-home-") as folder:
        os.chown(folder, user.uid, user.gid)
        runtime_dir = Path(folder) / "runtime"

        def run(script: str, *numbers: int) -> list[str]:
            words = [str(user.python), "-B", "-c", script, str(runtime_dir), *map(str, numbers)]
            done = user.run(words, env={"HOME": folder})
            assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
            return done.stdout.splitlines()

        yield run
        remove_engines(runtime_dir)


def _this_user() -> OrdinaryUser:
    return OrdinaryUser(
        uid=os.geteuid(), gid=os.getegid(), home=Path.home(), python=Path(sys.executable)
    )


@pytest.mark.parametrize("soft", [256, 512, 1024, 4096])
def test_sandboxes_start_below_a_common_soft_limit(start: Start, soft: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)

    assert start(_ONE_THEN_MANY, soft, hard, AT_ONCE) == [
        "one: hi",
        f"many: {AT_ONCE}",
        "after: hi",
    ]


@pytest.mark.parametrize("hard", [128, 256])
def test_a_low_hard_limit_does_for_all_or_is_named_in_the_error(start: Start, hard: int) -> None:
    one, many, *refused, after = start(_ONE_THEN_MANY, hard, hard, AT_ONCE)

    assert (one, after) == ("one: hi", "after: hi")
    assert int(many.removeprefix("many: ")) + len(refused) == AT_ONCE
    for line in refused:
        assert line.startswith("refused: "), line
        assert "Too many open files" in line
        assert line.endswith(f"({TOO_FEW_HINT})")


def test_wherever_descriptors_run_out_the_error_names_it_and_the_sandbox_stays_usable(
    start: Start,
) -> None:
    outcomes = start(_EVER_MORE_ROOM, _ENOUGH_ROOM)

    assert len(outcomes) == _ENOUGH_ROOM
    assert set(outcomes) == {"hi", f"refused: {TOO_FEW_HINT}"}
