"""Writes the reports of a run next to its results."""

from pathlib import Path
from typing import Final

from assay.bench.html_report import as_html
from assay.bench.leaderboard import as_yaml, leaderboard_entry
from assay.bench.markdown_report import as_markdown
from assay.bench.summary import Summary

REPORTS: Final = ("report.md", "report.html", "report.yaml")


def write_reports(summary: Summary, folder: Path, command: str) -> tuple[Path, ...]:
    """Write all reports; the results themselves are in `results.jsonl`.

    Raises:
        MissingExtraError: If PyYAML is not installed.
    """
    texts = (
        as_markdown(summary),
        as_html(summary),
        as_yaml(leaderboard_entry(summary, command)),
    )
    written: list[Path] = []
    for name, text in zip(REPORTS, texts, strict=True):
        path = folder / name
        partial = path.with_suffix(f"{path.suffix}.partial")
        partial.write_text(text, "utf-8")
        partial.replace(path)
        written.append(path)
    return tuple(written)
