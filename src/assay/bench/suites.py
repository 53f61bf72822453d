"""Lookup of suites by name or folder."""

from pathlib import Path
from typing import Final

from assay.bench.exercise import Suite
from assay.bench.folder_suite import load_folder
from assay.bench.humaneval import load_humaneval
from assay.bench.polyglot import COMMIT, load_polyglot
from assay.contracts.errors import UsageError

POLYGLOT: Final = "polyglot"
HUMANEVAL: Final = "humaneval"
POLYGLOT_URL: Final = "https://github.com/Aider-AI/polyglot-benchmark"
POLYGLOT_COMMIT: Final = COMMIT


def pulled_to(name: str, cache_dir: Path) -> Path:
    """Return the folder that `assay bench pull` uses for a suite."""
    return cache_dir / "suites" / name


def load_suite(name: str, *, dataset: Path | None, cache_dir: Path, strict: bool = False) -> Suite:
    """Read a suite by name, or one in the folder format by its path.

    Raises:
        UsageError: If it is unknown, missing or damaged.
    """
    if name == POLYGLOT:
        place = dataset or pulled_to(name, cache_dir)
        if not place.is_dir():
            raise UsageError(
                f"the exercises of {name} are not there",
                hint="run `assay bench pull polyglot`, or give a clone with --dataset",
            )
        return load_polyglot(place, strict=strict)
    if name == HUMANEVAL:
        if dataset is None:
            raise UsageError(
                "HumanEval is a file", hint="give it with --dataset HumanEval.jsonl.gz"
            )
        return load_humaneval(dataset)
    folder = Path(name)
    if folder.is_dir():
        return load_folder(folder)
    raise UsageError(
        f"there is no suite {name!r}",
        hint=f"choose {POLYGLOT}, {HUMANEVAL}, or the path of a folder with a suite in it",
    )
