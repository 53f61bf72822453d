"""Two runs on one folder: the second is refused, or waits."""

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from assay.contracts.errors import UsageError
from assay.storage.lock import hold_workspace
from tests.support.undertakings import tell

HOLD = """
import anyio, sys
from pathlib import Path
from assay.storage.lock import hold_workspace

async def main():
    async with hold_workspace(Path(sys.argv[1]), Path(sys.argv[2])) as note:
        note("brave-otter-0001")
        print("held", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


async def test_a_second_run_is_refused_and_told_who_works_on_the_folder(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()

    async with hold_workspace(workspace, tmp_path / "state") as note:
        note("brave-otter-0001")
        with pytest.raises(UsageError, match=r"run 'brave-otter-0001' \(process \d+\)") as refused:
            await tell(tmp_path, ["never asked"], checks=("true",))

    assert "--wait" in refused.value.hint
    assert not (tmp_path / "state" / "runs").exists()


async def test_a_run_that_waits_gets_its_turn(tmp_path: Path) -> None:
    notices: list[str] = []
    waiting, in_turn = anyio.Event(), anyio.Event()

    def notice(text: str) -> None:
        notices.append(text)
        waiting.set()

    async def second() -> None:
        async with hold_workspace(tmp_path, tmp_path / "state", wait=True, on_notice=notice):
            in_turn.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            async with hold_workspace(tmp_path, tmp_path / "state") as note:
                note("brave-otter-0001")
                tasks.start_soon(second)
                await waiting.wait()
                assert not in_turn.is_set()
            await in_turn.wait()

    assert notices[0].startswith("waiting: run 'brave-otter-0001'")


async def test_a_killed_run_blocks_nobody(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-c", HOLD, str(tmp_path), str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: ASYNC220 - nothing else runs meanwhile
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="brave-otter-0001"):
            async with hold_workspace(tmp_path, state):
                pass
        process.kill()

    async with hold_workspace(tmp_path, state):
        pass
