"""Compares one reply of a model with the agent and the same model, on the same goals.

    python benchmarks/agent.py [--model local] [--goals FOLDER] [--attempts 16] [--json FILE]

The same independent check verifies both sides. Prints for each goal whether one reply and whether
the agent solved it; then both rates with 95 % Wilson intervals, and their ratio.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio

from assay.contracts.goal import RunLimits, RunRequest, RunResult
from assay.contracts.verdict import Grade
from assay.runs.request import RunCallbacks
from assay.runs.runner import start_run
from assay.settings.load import Settings, load_settings

_Z = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    goal: str
    once: bool
    agent: bool
    attempts: int
    once_s: float
    agent_s: float
    tokens_once: int
    tokens_agent: int


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate."""
    if not trials:
        return 0.0, 1.0
    rate = successes / trials
    centre = rate + _Z**2 / (2 * trials)
    spread = _Z * math.sqrt(rate * (1 - rate) / trials + _Z**2 / (4 * trials**2))
    return (
        max(0.0, (centre - spread) / (1 + _Z**2 / trials)),
        min(1.0, (centre + spread) / (1 + _Z**2 / trials)),
    )


async def pursue_copy(
    folder: Path, model: str, attempts: int, settings: Settings
) -> tuple[RunResult, float]:
    """Run a goal in a copy of its workspace, with an empty failure memory."""
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as scratch:
        workspace = Path(scratch) / "workspace"
        shutil.copytree(folder / "workspace", workspace)
        tests = tuple(sorted(path.name for path in workspace.glob("test_*.py")))
        request = RunRequest(
            goal=(folder / "goal.md").read_text().strip(),
            workspace=workspace,
            tests=tests,
            model=model,
            limits=RunLimits(attempts=attempts, wall_s=1800),
            memory="off",
        )
        apart = settings.model_copy(update={"state_dir": Path(scratch) / "state"})
        started = time.monotonic()
        outcome = await start_run(request, apart, RunCallbacks())
        return outcome, time.monotonic() - started


async def compare(
    goals: list[Path], model: str, attempts: int, on_result: Callable[[Result], None]
) -> list[Result]:
    settings = load_settings()
    results: list[Result] = []
    for folder in goals:
        once, once_s = await pursue_copy(folder, model, 1, settings)
        agent, agent_s = await pursue_copy(folder, model, attempts, settings)
        result = Result(
            goal=folder.name,
            once=once.grade is Grade.PROVEN,
            agent=agent.grade is Grade.PROVEN,
            attempts=agent.attempts,
            once_s=once_s,
            agent_s=agent_s,
            tokens_once=once.usage.output_tokens,
            tokens_agent=agent.usage.output_tokens,
        )
        results.append(result)
        on_result(result)
    return results


def show(result: Result) -> None:
    marks = {True: "proven", False: "-"}
    print(
        f"{result.goal:16} once: {marks[result.once]:6} ({result.once_s:5.0f} s)   "
        f"agent: {marks[result.agent]:6} ({result.agent_s:5.0f} s, {result.attempts} attempts)",
        flush=True,
    )


def conclude(results: list[Result]) -> None:
    trials = len(results)
    once = sum(result.once for result in results)
    agent = sum(result.agent for result in results)
    for name, successes in (("asked once", once), ("agent", agent)):
        low, high = wilson(successes, trials)
        print(f"{name:11} {successes}/{trials} = {successes / trials:.0%}  [{low:.0%}, {high:.0%}]")
    ratio = f"{agent / once:.2f}" if once else "∞"
    print(f"ratio       {ratio}")
    gained = sum(result.agent and not result.once for result in results)
    lost = sum(result.once and not result.agent for result in results)
    print(f"only the agent: {gained}; only the single reply: {lost}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="local")
    parser.add_argument("--goals", type=Path, default=Path("examples/goals"))
    parser.add_argument("--attempts", type=int, default=16)
    parser.add_argument("--only", action="append", default=[], help="names of goals")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    arguments = parser.parse_args()
    goals = sorted(path.parent for path in arguments.goals.glob("*/goal.md"))
    goals = [path for path in goals if not arguments.only or path.name in arguments.only]
    if not goals:
        print(f"no goals in {arguments.goals}", file=sys.stderr)
        return 2
    results = anyio.run(compare, goals, arguments.model, arguments.attempts, show)
    conclude(results)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
