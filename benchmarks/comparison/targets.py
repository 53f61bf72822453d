"""Performance targets of the native sandbox, compared with the measurements."""

from dataclasses import dataclass
from typing import Final

from benchmarks.comparison.measurements import DO_NOTHING, PANDAS, Measurements, times_as_long

POOL: Final = "native-pool"
ON_DEMAND: Final = "native-on-demand"
BARE: Final = "bare"
DOCKER_RUN: Final = "docker-run"

_MOST_POOL_MS: Final = 5.0
_LEAST_TIMES_DOCKER: Final = 100.0
_LEAST_PER_S: Final = 150.0
_MOST_PRIVATE_MB: Final = 5.0
# Two medians of the same value differ by this much on a machine with other load.
_DEGRADES_WITHIN: Final = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One target, and its measured value."""

    target: str
    wanted: str
    measured: str
    met: bool | None
    """None if it was not measured."""


def check_targets(measured: Measurements) -> tuple[Check, ...]:
    return (
        _pool_is_fast(measured),
        _docker_is_far(measured),
        _on_demand_beats_bare(measured),
        _enough_per_second(measured),
        _little_memory(measured),
        _degrades_gently(measured),
        _nothing_fails(measured),
    )


def _check(target: str, wanted: str, measured: str, *, met: bool | None) -> Check:
    shown = "not measured" if met is None else measured
    return Check(target=target, wanted=wanted, measured=shown, met=met)


def _pool_is_fast(measured: Measurements) -> Check:
    p50 = measured.p50_ms(POOL, PANDAS)
    return _check(
        "pool, pandas imported: open + run + close, p50",
        f"<= {_MOST_POOL_MS:g} ms",
        f"{p50 or 0:.2f} ms",
        met=None if p50 is None else p50 <= _MOST_POOL_MS,
    )


def _docker_is_far(measured: Measurements) -> Check:
    factor = times_as_long(measured.p50_ms(DOCKER_RUN, PANDAS), measured.p50_ms(POOL, PANDAS))
    return _check(
        "pool against `docker run`, pandas imported, p50",
        f">= {_LEAST_TIMES_DOCKER:g} x faster",
        f"{factor or 0:.0f} x",
        met=None if factor is None else factor >= _LEAST_TIMES_DOCKER,
    )


def _on_demand_beats_bare(measured: Measurements) -> Check:
    ours, bare = measured.p50_ms(ON_DEMAND, PANDAS), measured.p50_ms(BARE, DO_NOTHING)
    return _check(
        "on demand, pandas imported, against bare `python3 -c pass`, p50",
        "no slower",
        f"{ours or 0:.2f} ms against {bare or 0:.2f} ms",
        met=None if ours is None or bare is None else ours <= bare,
    )


def _enough_per_second(measured: Measurements) -> Check:
    rate = measured.per_s(POOL, PANDAS)
    return _check(
        "pool, pandas imported, 2 clients",
        f">= {_LEAST_PER_S:g} executions/s",
        f"{rate or 0:.0f}/s",
        met=None if rate is None else rate >= _LEAST_PER_S,
    )


def _little_memory(measured: Measurements) -> Check:
    private = measured.private_mb(POOL)
    return _check(
        "private memory per idle warm sandbox, pandas imported",
        f"<= {_MOST_PRIVATE_MB:g} MB",
        f"{private or 0:.2f} MB",
        met=None if private is None else private <= _MOST_PRIVATE_MB,
    )


def _degrades_gently(measured: Measurements) -> Check:
    rest = {item.runner: item.rest for item in measured.bursts if item.program == PANDAS}
    pool, on_demand = rest.get(POOL), rest.get(ON_DEMAND)
    factor = times_as_long(pool and pool.p50_ms, on_demand and on_demand.p50_ms)
    return _check(
        "pool used up, against on demand under the same load, p50",
        f"<= {_DEGRADES_WITHIN:g} x",
        f"{factor or 0:.2f} x",
        met=None if factor is None else factor <= _DEGRADES_WITHIN,
    )


def _nothing_fails(measured: Measurements) -> Check:
    ran = any(item.runner in {POOL, ON_DEMAND} for item in measured.latencies)
    errors = measured.errors_of(POOL, ON_DEMAND)
    return _check(
        "failed executions of the native sandbox",
        "0",
        str(errors),
        met=errors == 0 if ran else None,
    )
