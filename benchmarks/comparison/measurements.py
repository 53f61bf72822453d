"""Measured values: times of executions, executions per second, memory."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

DO_NOTHING: Final = "pass"
PANDAS: Final = "import numpy, pandas"
PROGRAMS: Final = (DO_NOTHING, PANDAS)

Scope = Literal["whole", "run"]
"""The whole life of a sandbox, or only the program in an open sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Statistics of a duration over several executions."""

    count: int
    min_ms: float
    p50_ms: float
    p95_ms: float


def spread_of(times_s: Sequence[float]) -> Spread:
    """The p95 is a measured time (nearest rank), not an interpolation."""
    if not times_s:
        raise ValueError("no times to describe")
    ordered = sorted(times_s)
    p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return Spread(
        count=len(ordered),
        min_ms=ordered[0] * 1e3,
        p50_ms=statistics.median(ordered) * 1e3,
        p95_ms=p95 * 1e3,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Single executions, with pauses in between."""

    runner: str
    program: str
    scope: Scope
    spread: Spread | None
    """None if every execution failed."""
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Consecutive executions, from a pool that was full at the start."""

    runner: str
    program: str
    first: Spread | None
    """Executions that a full pool could serve."""
    rest: Spread | None
    """Executions after those."""
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Throughput of clients that send the next request right after each answer."""

    runner: str
    program: str
    clients: int
    executions: int
    per_s: float
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory per idle sandbox, with this many in the pool."""

    runner: str
    copies: int
    private_mb: float
    proportional_mb: float
    """Proportional set size: each shared page divided by the number of its processes."""
    with_parents_mb: float
    """Proportional, plus a share of the common parent processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """One run of the benchmark."""

    machine: Mapping[str, str]
    rounds: int
    pause_ms: int
    pool_size: int
    latencies: Sequence[Latency] = ()
    bursts: Sequence[Burst] = ()
    rates: Sequence[Rate] = ()
    memory: Sequence[Memory] = ()
    skipped: Mapping[str, str] | None = None
    failures: Mapping[str, str] | None = None
    """The first error of each runner that had one."""

    def p50_ms(self, runner: str, program: str, scope: Scope = "whole") -> float | None:
        for latency in self.latencies:
            if (latency.runner, latency.program, latency.scope) == (runner, program, scope):
                return latency.spread and latency.spread.p50_ms
        return None

    def per_s(self, runner: str, program: str) -> float | None:
        for rate in self.rates:
            if (rate.runner, rate.program) == (runner, program):
                return rate.per_s
        return None

    def private_mb(self, runner: str) -> float | None:
        return next((item.private_mb for item in self.memory if item.runner == runner), None)

    def errors_of(self, *runners: str) -> int:
        counted = (*self.latencies, *self.bursts, *self.rates)
        return sum(item.errors for item in counted if item.runner in runners)


def times_as_long(measured: float | None, reference: float | None) -> float | None:
    """Ratio of the measured time to the reference; None if either is missing."""
    return measured / reference if measured is not None and reference else None
