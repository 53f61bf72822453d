"""Results as documents: Markdown for readers, JSON for programs."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.comparison.contenders import contender
from benchmarks.comparison.measurements import Measurements
from benchmarks.comparison.tables import Table
from benchmarks.comparison.targets import Check


def to_json(measured: Measurements, checks: Sequence[Check]) -> dict[str, Any]:
    return {**asdict(measured), "targets": [asdict(check) for check in checks]}


def to_markdown(measured: Measurements, tables: Sequence[Table], picture: str | None) -> str:
    parts = ["# The sandbox beside others\n"]
    parts.append("Made by `benchmarks/sandbox.py`; run it to get your own.\n")
    if picture is not None:
        parts.append(f"![Median time of one execution, by runner]({picture})\n")
    parts += [table.to_markdown() for table in tables]
    parts.append("## Machine\n")
    parts.append("".join(f"- {name}: {value}\n" for name, value in measured.machine.items()))
    if notes := notes_on(measured):
        parts.append("## Left out or failed\n")
        parts.append("".join(f"- {note}\n" for note in notes))
    return "\n".join(parts)


def notes_on(measured: Measurements) -> list[str]:
    """Return one line for each runner that was not measured, or had errors."""
    left_out = [
        f"{contender(name).label} was left out: {why}"
        for name, why in (measured.skipped or {}).items()
    ]
    failed = [
        f"{contender(name).label} failed at least once, first with: {' '.join(why.split())}"
        for name, why in (measured.failures or {}).items()
    ]
    return left_out + failed
