"""Runs of benchmarks in real sandboxes, for tests."""

import json
from pathlib import Path
from typing import Any

from assay.bench.session import BenchOrder, BenchWatching, run_bench
from assay.bench.summary import Summary, read_summary
from assay.settings import BenchSettings, Settings
from tests.support.undertakings import settings_in

TIMES = frozenset({"model_s", "wall_s", "tests_s", "cpu_s"})


def bench_settings(folder: Path) -> Settings:
    """Keep everything of a benchmark in one folder."""
    bench = BenchSettings(cache_dir=folder / "cache")
    return settings_in(folder).model_copy(update={"bench": bench})


async def measure(folder: Path, out: str, **order: Any) -> Summary:  # noqa: ANN401 - fields of an order
    """Run a benchmark and read what came of it."""
    place = folder / out
    fields: dict[str, Any] = {"gate": False, "jobs": 2, **order}
    await run_bench(BenchOrder(**fields), bench_settings(folder), place, BenchWatching())
    return read_summary(place)


def requests_in(folder: Path) -> list[str]:
    """Return all that a model was told in a run, request by request, in the order of files."""
    return [
        json.dumps(json.loads(line).get("request", {}))
        for path in sorted((folder / "replies").glob("*.jsonl"))
        for line in path.read_text().splitlines()[1:]
    ]


def without_times(fields: Any) -> Any:  # noqa: ANN401 - JSON
    """Return decoded JSON without what differs from run to run."""
    match fields:
        case dict():
            return {
                name: without_times(value) for name, value in fields.items() if name not in TIMES
            }
        case list():
            return [without_times(value) for value in fields]
        case _:
            return fields


def results_in(folder: Path) -> list[Any]:
    """Return the results of a run, sorted, without times."""
    lines = (folder / "results.jsonl").read_text().splitlines()
    return sorted(
        (without_times(json.loads(line)) for line in lines), key=lambda one: one["exercise"]
    )
