"""Measure what a run costs on small and large workspaces, beside `cp -r` and `git worktree add`.

    python benchmarks/workspace.py 100 1000 7000

For each size it creates a tree of Python files, starts `assay run` twice with a scripted model, and
measures the controller's steps on the same tree. It prints one table in Markdown.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio

from assay.contracts.execution import Command, Limits
from assay.contracts.workspace import Tree
from assay.sandbox.tree_io import open_tree, read_changes
from assay.storage.journal import DiskJournal
from assay.storage.layers import LayerStore
from assay.wiring import open_backend

_PER_FOLDER: Final = 20
_LINES: Final = 300
_CALLS: Final = 5
_LIMITS: Final = Limits(memory_mb=1024, disk_mb=1024, processes=256)
_REPLIES: Final[tuple[dict[str, Any], ...]] = (
    {"text": "Look.", "tool_calls": [{"name": "run", "arguments": {"command": "true"}}]},
    {"text": "Done.", "tool_calls": [{"name": "done", "arguments": {}}]},
    {"text": "Done.", "repeat": True},
)


def main() -> None:
    """Print the table for the sizes on the command line."""
    rows: dict[str, list[str]] = {}
    sizes = [int(size) for size in sys.argv[1:]] or [100, 1000, 7000]
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="assay-benchmark-") as scratch:
            for name, value in measure(Path(scratch), size).items():
                rows.setdefault(name, []).append(value)
            # Before the files are removed, which can take a while.
            column = {name: values[-1] for name, values in rows.items()}
            print(f"{size} files: {column}", file=sys.stderr)
    print("| step |", " | ".join(f"{size:,} files" for size in sizes), "|")
    print("|---|" + "---|" * len(sizes))
    for name, values in rows.items():
        print(f"| {name} |", " | ".join(values), "|")


def measure(scratch: Path, size: int) -> dict[str, str]:
    """Return the measured times of one size."""
    folder = scratch / "workspace"
    create_files(folder, size)
    copied_s = timed(lambda: shell("cp", "-r", folder, scratch / "copy"))
    git = scratch / "copy"
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "all")):
        shell("git", "-C", git, "-c", "user.name=a", "-c", "user.email=a@b", *command)
    worktree_s = timed(lambda: shell("git", "-C", git, "worktree", "add", "-q", scratch / "tree"))
    first_s, _, _ = first_request(scratch, folder, "first")
    second_s, cpu_s, memory_mb = first_request(scratch, folder, "second")
    steps = anyio.run(controller_steps, folder, scratch / "steps")
    return {
        "`cp -r`": seconds(copied_s),
        "`git worktree add`": seconds(worktree_s),
        "command to first model request": seconds(first_s),
        "the same, second run": seconds(second_s),
        "CPU time of the second `assay run`, whole": seconds(cpu_s),
        "largest memory of `assay run`": f"{memory_mb:.0f} MB",
        **{name: seconds(value) for name, value in steps.items()},
        "second capture divided by `cp -r`": f"{steps['second capture'] / copied_s:.2f}",
        "sandbox divided by `cp -r`": f"{steps['open a sandbox'] / copied_s:.2f}",
    }


def create_files(folder: Path, size: int) -> None:
    """Create a project with one failing test and this many modules, about 7 KB each."""
    lines = "".join(f"value_{line} = {line}\n" for line in range(_LINES))
    for number in range(size - 2):
        path = folder / f"part_{number // _PER_FOLDER}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"number = {number}\n{lines}")
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "test_calc.py").write_text(
        "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
    )
    # Captures read files again that changed less than two seconds before.
    newest = time.time() + 2.5
    while time.time() < newest:
        time.sleep(0.1)


def first_request(scratch: Path, folder: Path, name: str) -> tuple[float, float, float]:
    """Run `assay run`; return the seconds to the first reply, its CPU time and memory in MB."""
    script, events = scratch / "script.jsonl", scratch / f"{name}.jsonl"
    script.write_text("".join(json.dumps(reply) + "\n" for reply in _REPLIES))
    options = ("--tests", "test_calc.py", "--model", f"scripted:{script}", "--attempts", "1")
    command = [Path(sys.executable).with_name("assay"), "run", "fix add in calc.py", *options]
    command += ["--env", "off", "--baseline-timeout", "0", "--events", events, "--memory", "off"]
    env = {**os.environ, "ASSAY_STATE_DIR": str(scratch / "state")}
    started = time.time()
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        _, _, used = os.wait4(run.pid, 0)
        run.returncode = 0
    (record,) = (
        path
        for path in (scratch / "state" / "runs").glob("*/events.jsonl")
        if path.stat().st_mtime >= started
    )
    entries = [json.loads(line) for line in record.read_text().splitlines()]
    replied = next(one["at"] for one in entries if one["event"]["kind"] == "model_replied")
    return replied - started, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


async def controller_steps(folder: Path, state: Path) -> dict[str, float]:
    """Return the time of each step of the controller, without the programs' own time."""
    layers = LayerStore(state)
    found: dict[str, float] = {}
    started = time.perf_counter()
    layers.capture(folder)
    found["first capture"] = time.perf_counter() - started
    started = time.perf_counter()
    tree = layers.capture(folder)
    found["second capture"] = time.perf_counter() - started
    async with open_backend() as backend, DiskJournal(state / "runs" / "a", layers=layers) as kept:
        await kept.store_tree(tree)
        async with open_tree(backend, _LIMITS, tree):
            pass
        started = time.perf_counter()
        async with open_tree(backend, _LIMITS, tree) as sandbox:
            found["open a sandbox"] = time.perf_counter() - started
            current: Tree = tree
            own_s = 0.0
            for number in range(_CALLS):
                await sandbox.run(Command(argv=("bash", "-c", f"echo {number} > part_0/new.py")))
                started = time.perf_counter()
                current = await read_changes(sandbox, current)
                await kept.store_tree(current)
                own_s += time.perf_counter() - started
            found["read back and store after a tool call"] = own_s / _CALLS
        started = time.perf_counter()
        async with open_tree(backend, _LIMITS, current) as sandbox:
            await sandbox.changes()
        found["sandbox for a check, opened and compared"] = time.perf_counter() - started
    return found


def timed(act: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def shell(*words: object) -> None:
    """Run a command that must succeed."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


def seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


if __name__ == "__main__":
    main()
