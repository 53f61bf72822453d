"""Runs the same goals with and without failure memory, and compares them goal by goal.

    python benchmarks/memory.py [--model scripted|local|NAME] [--attempts 4] [--families 8|NAMES]

The goals (recurring_goals.py) come in families of three that share a trap, and four controls
without one. Both sides take them in the same order. With memory, later goals see the lessons of
earlier ones, from a temporary file. Sandboxes, checks and agent are real.

A repeated failure is a failed attempt with the error type of a failed attempt at an earlier goal of
the same family. For both sides, the output has repeated failures, attempts to success, solved
goals, calls and tokens. Differences are paired by goal, with 95 % bootstrap intervals.

The scripted model has these rules, and no others:
 1. It makes its family's mistake in its first two attempts at a goal, and succeeds in the third.
 2. If a lesson in its prompt names the fix, it succeeds in its first attempt. No goal and no test
    contains the fix: it can only come from the end of an earlier failure.
 3. At a control, which it would solve in its first attempt, any lesson makes it fail once.
"""

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

import anyio
from recurring_goals import RecurringGoal, recurring_goals

from assay.agent.context import RunDeps
from assay.agent.feedback import signatures
from assay.agent.graph import run_graph
from assay.contracts.events import Executed, Planned, RunEvent
from assay.contracts.goal import MemoryUse, RunLimits, RunSpec
from assay.contracts.messages import (
    Message,
    ModelInfo,
    Price,
    Reply,
    Request,
    StopReason,
    Usage,
)
from assay.contracts.ports import LessonStore, Model, OnText, SandboxBackend, ignore_text
from assay.contracts.workspace import Tree, TreeFile
from assay.memory.stored_memory import ResilientMemory
from assay.memory.types import wilson_bounds
from assay.runs.request import limits_of
from assay.settings.load import Settings, load_settings
from assay.tools.workspace import WORKSPACE_TOOLS
from assay.wiring import build_screen, open_backend, open_memory, open_model, settings_apart
from tests.doubles.memory_journal import MemoryJournal

_LESSON = re.compile(
    r"^- .*(?:->|failed with).*$|^\(The same failure before: .*|^\(An earlier failure: .*",
    re.MULTILINE,
)
_MISTAKES = 2
_SAMPLES = 4000
_INFO = ModelInfo(
    context_tokens=64_000,
    max_output_tokens=4_096,
    tool_calls=False,
    price=Price(input_usd=0.0, output_usd=0.0),
)


@dataclass(slots=True)
class RuleModel:
    """The scripted model for one goal."""

    goal: RecurringGoal
    info: ModelInfo = _INFO
    name: str = "scripted:rules"
    tried: int = 0

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        text = self._text(request)
        on_text(text)
        read = sum(len(message.text) for message in request.messages) // 4
        return Reply(
            message=Message(role="assistant", text=text),
            stop_reason=StopReason.ENDED,
            usage=Usage(calls=1, input_tokens=read, output_tokens=len(text) // 4),
            model=self.name,
        )

    def _text(self, request: Request) -> str:
        said = "\n".join(
            message.text for message in request.messages if message.role != "assistant"
        )
        if "FILE:" not in said:
            return f"1. write `{self.goal.module}`"
        lessons = _LESSON.findall(said)
        self.tried += 1
        right = self._is_right(lessons)
        source = self.goal.right if right else self.goal.wrong
        # The second mistake has a different text, as a real model's would.
        source += "" if right or self.tried == 1 else f"# attempt {self.tried}\n"
        return f"FILE: {self.goal.module}\n```python\n{source}```\nDONE"

    def _is_right(self, lessons: list[str]) -> bool:
        if not self.goal.cure:
            return not lessons or self.tried > 1
        return any(self.goal.cure in lesson for lesson in lessons) or self.tried > _MISTAKES


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    goal: str
    family: str
    solved: bool
    attempts: int
    errors: tuple[str, ...]
    """Result of a goal, with the error type of each failed attempt."""
    lessons: int
    calls: int
    tokens: int
    cost_usd: float | None
    wall_s: float


@dataclass(slots=True, kw_only=True)
class Bench:
    settings: Settings
    backend: SandboxBackend
    open_model: Callable[[RecurringGoal], "AsyncGenerator[Model]"]
    attempts: int
    scratch: Path
    count: int = field(default=0)

    async def run(self, goal: RecurringGoal, memory: LessonStore, use: MemoryUse) -> Result:
        self.count += 1
        events: list[RunEvent] = []
        journal = MemoryJournal(listeners=(events.append,))
        tests = PurePosixPath(f"test_{goal.module}")
        begun = time.monotonic()
        async with asynccontextmanager(self.open_model)(goal) as model:
            parts = RunDeps(
                run=f"bench-{self.count}",
                spec=RunSpec(
                    goal=goal.statement,
                    protected=(tests,),
                    limits=RunLimits(attempts=self.attempts, wall_s=900),
                ),
                pristine=Tree(files={tests: TreeFile(goal.tests.encode())}),
                model=model,
                backend=self.backend,
                limits=limits_of(self.settings.agent),
                journal=journal,
                tools=WORKSPACE_TOOLS,
                screen=build_screen(self.settings.screening),
                screening="warn",
                memory=memory,
                memory_use=use,
            )
            outcome, _ = await run_graph(parts, self.scratch / f"checkpoints-{self.count}")
        return Result(
            goal=goal.name,
            family=goal.family,
            solved=outcome.accepted,
            attempts=outcome.attempts,
            errors=_errors(events),
            lessons=sum(len(event.lessons) for event in events if isinstance(event, Planned)),
            calls=outcome.usage.calls,
            tokens=outcome.usage.input_tokens + outcome.usage.output_tokens,
            cost_usd=outcome.usage.cost_usd,
            wall_s=time.monotonic() - begun,
        )


def _errors(events: list[RunEvent]) -> tuple[str, ...]:
    found: list[str] = []
    for event in events:
        if isinstance(event, Executed) and not all(report.passed for report in event.reports):
            kinds = sorted(one.partition(":")[0] for one in signatures(event.reports))
            found.append(kinds[0] if kinds else "none")
    return tuple(found)


def repeats_of(results: Sequence[Result]) -> list[int]:
    """Count for each goal the failures that an earlier goal of its family had."""
    seen: dict[str, set[str]] = {}
    counts: list[int] = []
    for result in results:
        known = seen.setdefault(result.family, set())
        again = sum(error in known for error in result.errors) if result.family != "control" else 0
        counts.append(again)
        known.update(result.errors)
    return counts


def interval(differences: Sequence[float], seed: int = 7) -> tuple[float, float, float]:
    """Return the mean of paired differences, and its 95 % bootstrap interval."""
    draw = random.Random(seed)  # noqa: S311 - resampling
    count = len(differences)
    means = sorted(sum(draw.choices(differences, k=count)) / count for _ in range(_SAMPLES))
    mean = sum(differences) / count
    return mean, means[int(_SAMPLES * 0.025)], means[int(_SAMPLES * 0.975)]


def conclude(off: list[Result], on: list[Result]) -> bool:
    """Print the comparison; return whether repeats fell by half without losing a goal."""
    before, after = repeats_of(off), repeats_of(on)
    failed_off, failed_on = (sum(len(one.errors) for one in side) for side in (off, on))
    for name, repeats, failures in (("off", before, failed_off), ("on", after, failed_on)):
        low, high = wilson_bounds(sum(repeats), failures)
        rate = sum(repeats) / failures if failures else 0.0
        print(
            f"memory {name:3}  repeated failures {sum(repeats):3} of {failures:3} failures "
            f"= {rate:.0%} [{low:.0%}, {high:.0%}]"
        )
    for name, pairs in (
        ("repeated failures", zip(after, before, strict=True)),
        ("attempts", ((b.attempts, a.attempts) for a, b in zip(off, on, strict=True))),
        ("calls", ((b.calls, a.calls) for a, b in zip(off, on, strict=True))),
        ("tokens", ((b.tokens, a.tokens) for a, b in zip(off, on, strict=True))),
    ):
        values = list(pairs)
        mean, low, high = interval([new - old for new, old in values])
        was, now = (
            sum(side) / len(values) for side in zip(*((o, n) for n, o in values), strict=True)
        )
        print(
            f"{name:18} per goal {was:8.2f} -> {now:8.2f}  "
            f"difference {mean:+.2f} [{low:+.2f}, {high:+.2f}]"
        )
    lost = [a.goal for a, b in zip(off, on, strict=True) if a.solved and not b.solved]
    won = [a.goal for a, b in zip(off, on, strict=True) if b.solved and not a.solved]
    solved_off, solved_on = (sum(one.solved for one in side) for side in (off, on))
    print(f"solved {solved_off} -> {solved_on} of {len(off)}; "
          f"lost: {', '.join(lost) or 'none'}; won: {', '.join(won) or 'none'}")  # fmt: skip
    misled = [one.goal for one in on if one.family == "control" and one.lessons]
    print(f"controls shown a lesson: {', '.join(misled) or 'none'}")
    fell = 1 - sum(after) / sum(before) if sum(before) else 0.0
    print(f"repeated failures fell by {fell:.0%}")
    return fell >= 0.5 and not lost


def show(side: str, result: Result) -> None:
    state = "solved" if result.solved else "-"
    print(
        f"{side:4} {result.goal:28} {state:7} {result.attempts} attempts  "
        f"{result.lessons} lessons  {result.wall_s:5.1f} s  {' '.join(result.errors)}",
        flush=True,
    )


def families_of(chosen: str) -> list[str]:
    """Return the first families, or the named ones."""
    known = list(dict.fromkeys(goal.family for goal in recurring_goals() if goal.cure))
    if chosen.isdecimal():
        return known[: int(chosen)]
    named = chosen.split(",")
    if unknown := set(named).difference(known):
        sys.exit(f"there is no family {', '.join(unknown)}; there are {', '.join(known)}")
    return named


async def main(arguments: argparse.Namespace) -> bool:
    settings = load_settings()
    families = families_of(arguments.families)
    goals = [goal for goal in recurring_goals() if goal.family in (*families, "control")]
    for goal in goals:
        if goal.cure and goal.cure in goal.statement + goal.tests:
            raise AssertionError(f"{goal.name}: the cure {goal.cure!r} is given away")

    async def model_for(goal: RecurringGoal) -> AsyncGenerator[Model]:
        if arguments.model == "scripted":
            yield RuleModel(goal)
            return
        async with open_model(arguments.model, settings=settings.models) as model:
            yield model

    with tempfile.TemporaryDirectory(prefix="assay-memory-") as name:
        scratch = Path(name)
        async with open_backend(settings.sandbox) as backend:
            bench = Bench(
                settings=settings,
                backend=backend,
                open_model=model_for,
                attempts=arguments.attempts,
                scratch=scratch,
            )
            off: list[Result] = []
            on: list[Result] = []
            async with open_memory("all", settings_apart(settings, scratch)) as memory:
                # Interleaved, so that other load affects both.
                for goal in goals:
                    off.append(await bench.run(goal, ResilientMemory(None), "off"))
                    show("off", off[-1])
                    on.append(await bench.run(goal, memory, "all"))
                    show("on", on[-1])
    good = conclude(off, on)
    if arguments.json:
        found = {
            "model": arguments.model,
            "families": families,
            "attempts": arguments.attempts,
            "off": [asdict(one) for one in off],
            "on": [asdict(one) for one in on],
        }
        await anyio.Path(arguments.json).write_text(json.dumps(found, indent=1))
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--attempts", type=int, default=4)
    parser.add_argument("--families", default="8", help="the first so many, or names, by commas")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    sys.exit(0 if anyio.run(main, parser.parse_args()) else 1)
