"""Runs of benchmarks in real sandboxes, for tests."""

import json
from pathlib import Path
from typing import Any

from assay.bench.bench_run import BenchCallbacks, BenchConfig, run_bench
from assay.bench.summary import Summary, read_summary
from assay.settings.load import ModelSettings, Settings
from tests.support.undertakings import settings_in

TIMES = frozenset({"model_s", "wall_s", "tests_s", "cpu_s"})


def bench_settings(folder: Path) -> Settings:
    """Keep everything of a benchmark in one folder."""
    models = ModelSettings(cache_dir=folder / "cache")
    return settings_in(folder).model_copy(update={"models": models})


async def measure(folder: Path, out: str, **config: Any) -> Summary:
    """Run a benchmark and read what came of it."""
    place = folder / out
    fields: dict[str, Any] = {"validate": False, "jobs": 2, **config}
    await run_bench(BenchConfig(**fields), bench_settings(folder), place, BenchCallbacks())
    return read_summary(place)


def requests_in(folder: Path) -> list[str]:
    """Return all that a model was told in a run, request by request, in the order of files."""
    return [
        json.dumps(json.loads(line).get("request", {}))
        for path in sorted((folder / "replies").glob("*.jsonl"))
        for line in path.read_text().splitlines()[1:]
    ]


def without_times(line: str) -> dict[str, Any]:
    """Return a result without what differs from run to run."""
    fields: dict[str, Any] = json.loads(line)
    for part in (fields, *fields["tries"]):
        for name in TIMES & part.keys():
            del part[name]
    return fields


def results_in(folder: Path) -> list[dict[str, Any]]:
    """Return the results of a run, sorted, without times."""
    lines = (folder / "results.jsonl").read_text().splitlines()
    return sorted(map(without_times, lines), key=lambda one: one["exercise"])
