"""A journal whose writer is killed in the middle of its work."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from anyio import to_thread

from assay.contracts.events import AttemptStarted
from assay.storage.journal import DiskJournal, read_events

WRITER = """
import itertools, sys
from pathlib import Path, PurePosixPath
import anyio
from assay.contracts.events import AttemptStarted
from assay.contracts.workspace import Tree, TreeFile
from assay.storage.journal import DiskJournal

async def write(folder):
    async with DiskJournal(folder) as journal:
        for n in itertools.count(1):
            journal.emit(AttemptStarted(attempt=n, action="sample"), key=f"attempt {n}")
            tree = Tree(files={PurePosixPath("a.py"): TreeFile(b"x" * 100_000 + str(n).encode())})
            digest = await journal.store_tree(tree)
            await journal.keep(f"step {n}", {"tree": digest, "pad": "y" * 20_000})
            print(n, flush=True)

anyio.run(write, Path(sys.argv[1]))
"""


def write_until_killed(folder: Path, steps: int) -> list[int]:
    """Return the steps of which the writer was told that they are kept."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(steps)]
        writer.kill()
        told += [int(line) for line in writer.stdout if line.endswith("\n")]
    assert writer.returncode == -signal.SIGKILL
    return told


@pytest.mark.parametrize("steps", [1, 7, 23])
async def test_what_a_killed_writer_was_told_is_kept_is_there(tmp_path: Path, steps: int) -> None:
    told = await to_thread.run_sync(write_until_killed, tmp_path, steps)

    async with DiskJournal(tmp_path) as journal:
        for step in told:
            kept = await journal.recall(f"step {step}")
            assert kept is not None
            tree = await journal.load_tree(kept["tree"])
            (file,) = tree.files.values()
            assert file.content.endswith(str(step).encode())

    events = [recorded.event for recorded in read_events(tmp_path)]
    assert len(events) >= told[-1]
    assert events == [
        AttemptStarted(attempt=number, action="sample") for number in range(1, len(events) + 1)
    ]
