"""Schedule of the executions: interleaved, so that other load affects all runners alike."""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio

from benchmarks.comparison.contenders import POOL_SIZE, contender
from benchmarks.comparison.measurements import (
    PROGRAMS,
    Burst,
    Latency,
    Rate,
    Scope,
    Spread,
    spread_of,
)
from benchmarks.comparison.runners import ExecutionFailedError, Runner, Times

PAUSE_S: Final = 0.05
CLIENTS: Final = 2
BURST: Final = 20
RATE_SLICES: Final = 5
RATE_SLICE_S: Final = 1.0
_REFILL_S: Final = 0.3
_SEED: Final = 1

Runners = Mapping[str, Runner]
Entry = tuple[str, str]
"""Name of a runner, and a program."""
Step = Callable[[str], None]
"""Callback before each step, with its description."""


@dataclass(slots=True)
class Attempts:
    """Collects the executions of one series."""

    times_s: dict[tuple[str, str, Scope], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )
    errors: Counter[Entry] = field(default_factory=Counter[Entry])
    failures: dict[str, str] = field(default_factory=dict[str, str])

    async def attempt(self, runner: Runner, entry: Entry) -> Times | None:
        name, program = entry
        try:
            return await runner.execute(program)
        except ExecutionFailedError as error:
            self.errors[entry] += 1
            self.failures.setdefault(name, str(error).strip() or "failed without a word")
            return None

    def keep(self, entry: Entry, times: Times) -> None:
        self.times_s[*entry, "whole"].append(times.whole_s)
        if times.run_s is not None:
            self.times_s[*entry, "run"].append(times.run_s)

    def spread(self, entry: Entry, scope: Scope) -> Spread | None:
        times_s = self.times_s[*entry, scope]
        return spread_of(times_s) if times_s else None


def entries_of_round(names: Sequence[str], number: int) -> list[Entry]:
    """Return every runner and program once, shuffled, so that the order varies between rounds."""
    entries = [
        (name, program)
        for name in names
        for program in PROGRAMS
        if number < contender(name).most_rounds
    ]
    random.Random(_SEED + number).shuffle(entries)  # noqa: S311 - an order, not a secret
    return entries


async def measure_paced(
    runners: Runners, rounds: int, step: Step, *, pause_s: float = PAUSE_S
) -> tuple[list[Latency], dict[str, str]]:
    """Measure single executions, with a pause after each in which a pool can refill."""
    attempts = Attempts()
    for name, runner in runners.items():
        for program in PROGRAMS:
            step(f"{name}: first execution")
            await Attempts().attempt(runner, (name, program))
    for number in range(rounds):
        for entry in entries_of_round(list(runners), number):
            step(f"round {number + 1}: {entry[0]}")
            await anyio.sleep(pause_s)
            if times := await attempts.attempt(runners[entry[0]], entry):
                attempts.keep(entry, times)
    return [
        Latency(
            runner=name,
            program=program,
            scope=scope,
            spread=attempts.spread((name, program), scope),
            errors=attempts.errors[name, program] if scope == "whole" else 0,
        )
        for name in runners
        for program in PROGRAMS
        for scope in ("whole", "run")
        if scope == "whole" or (name, program, scope) in attempts.times_s
    ], attempts.failures


async def measure_bursts(
    runners: Runners, rounds: int, step: Step, *, refill_s: float = _REFILL_S
) -> tuple[list[Burst], dict[str, str]]:
    """Measure consecutive executions, each burst from a full pool, in rotation."""
    first, rest = Attempts(), Attempts()
    entries = [(name, program) for program in PROGRAMS for name in runners]
    for number in range(rounds):
        for entry in entries:
            step(f"burst {number + 1}: {entry[0]}")
            await anyio.sleep(refill_s)
            for position in range(BURST):
                attempts = first if position < POOL_SIZE else rest
                if times := await attempts.attempt(runners[entry[0]], entry):
                    attempts.keep(entry, times)
    bursts = [
        Burst(
            runner=name,
            program=program,
            first=first.spread((name, program), "whole"),
            rest=rest.spread((name, program), "whole"),
            errors=first.errors[name, program] + rest.errors[name, program],
        )
        for name, program in entries
    ]
    return bursts, rest.failures | first.failures


async def measure_rates(runners: Runners, step: Step) -> tuple[list[Rate], dict[str, str]]:
    """Measure clients without pauses, for a second each time, in rotation."""
    attempts = Attempts()
    clients: dict[Entry, list[Client]] = defaultdict(list)
    entries = [(name, program) for program in PROGRAMS for name in runners]
    for number in range(RATE_SLICES):
        for entry in entries:
            step(f"{CLIENTS} clients, {number + 1} of {RATE_SLICES}: {entry[0]}")
            await anyio.sleep(_REFILL_S)
            clients[entry] += await _load(runners[entry[0]], entry, attempts)
    rates = [
        Rate(
            runner=name,
            program=program,
            clients=CLIENTS,
            executions=sum(client.executions for client in clients[name, program]),
            per_s=rate_of(clients[name, program]),
            errors=attempts.errors[name, program],
        )
        for name, program in entries
    ]
    return rates, attempts.failures


@dataclass(slots=True)
class Client:
    """A client that sends requests without pauses for a while."""

    executions: int = 0
    elapsed_s: float = 0.0


def rate_of(clients: Sequence[Client]) -> float:
    """Return executions per second of clients that ran in parallel groups of `CLIENTS`.

    Each count is divided by the client's own time. An execution that is running at the end is
    awaited and counted, while the other clients are idle already.
    """
    elapsed_s = sum(client.elapsed_s for client in clients)
    executions = sum(client.executions for client in clients)
    return CLIENTS * executions / elapsed_s if elapsed_s else 0.0


async def _load(runner: Runner, entry: Entry, attempts: Attempts) -> list[Client]:
    clients = [Client() for _ in range(CLIENTS)]

    async def keep_asking(client: Client) -> None:
        started = time.perf_counter()
        while client.elapsed_s < RATE_SLICE_S:
            if await attempts.attempt(runner, entry):
                client.executions += 1
            client.elapsed_s = time.perf_counter() - started

    async with anyio.create_task_group() as tasks:
        for client in clients:
            tasks.start_soon(keep_asking, client)
    return clients


def count_steps(names: Sequence[str], *, rounds: int, bursts: int, measured_rates: int) -> int:
    """Return the number of steps in the three series, for a progress bar."""
    first = len(names) * len(PROGRAMS)
    paced = sum(len(entries_of_round(names, number)) for number in range(rounds))
    native = sum(name.startswith("native") for name in names)
    return (
        first
        + paced
        + bursts * native * len(PROGRAMS)
        + RATE_SLICES * measured_rates * len(PROGRAMS)
    )
