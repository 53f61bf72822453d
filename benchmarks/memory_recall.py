"""Measures the recall time of the failure memory with many records.

    python benchmarks/memory_recall.py [--records 100000] [--recalls 200] [--plain] [--file PATH]

Fills a new file with artificial failures (random words from a seed). Then it recalls at each of the
three moments through the port, in a process that has the file open. Prints the time to fill, the
first recall of each moment, which reads all vectors, and p50, p95 and p99 of the later ones. Also
prints how often the expected record came first, with some words replaced. On a busy machine, the
processor time is more reliable. `--plain` disables numpy; `--file` keeps the file, or uses an
existing one.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import anyio

from assay.contracts.lessons import Failure, RecallPoint, RecallQuery
from assay.memory.embedding import HashedEmbedder
from assay.memory.sqlite_store import SqliteStore
from assay.memory.stored_memory import StoredMemory
from assay.memory.types import FACETS, FailureRecord, Scope, record_of

_SEED = 20
_BATCH = 1000
_WORDS = 4000
_EXCHANGED = 0.2
_ERRORS = ("NameError: name '{0}_{1}' is not defined", "KeyError: '{0}_{1}'",
           "AttributeError: '{0}' object has no attribute '{1}_{2}'",
           "ModuleNotFoundError: No module named '{0}{1}'", "ValueError: {0} {1} {2} of {3}",
           "TypeError: {0}_{1}() missing N required positional argument: '{2}'")  # fmt: skip


class Vocabulary:
    """Artificial words of programs, with a skewed frequency distribution."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - artificial text
        syllables = [
            c + v + d for c in "bcdfglmnprstvw" for v in "aeiou" for d in ("", "n", "r", "x")
        ]
        self.words = ["".join(self.random.choices(syllables, k=self.random.randint(1, 3)))
                      for _ in range(_WORDS)]  # fmt: skip
        self.weights = [1 / (rank + 10) for rank in range(_WORDS)]

    def some(self, count: int) -> list[str]:
        return self.random.choices(self.words, self.weights, k=count)

    def failure(self, number: int) -> Failure:
        names = self.some(6)
        said = self.random.choice(_ERRORS).format(*names)
        lines = [
            f"    {a}_{b} = {c}({d}, {e})" for a, b, c, d, e in (self.some(5) for _ in range(12))
        ]
        return Failure(
            goal=f"Write {names[0]}_{names[1]}.py with {names[2]}_{names[3]}: "
            + " ".join(self.some(25)),
            signature=f"{said} (in {names[0]}_{names[1]}.py: {names[4]}_{number})",
            message=said,
            action=f"def {names[4]}_{number}({names[5]}):\n" + "\n".join(lines),
            language="py",
            lesson=f"{said} -> add `{names[1]} = {names[2]}_{number}`",
            run=f"run-{number}",
        )

    def altered(self, text: str) -> str:
        """Replace some of the words, as a different phrasing would."""
        words = text.split(" ")
        return " ".join(
            self.some(1)[0] if self.random.random() < _EXCHANGED else word for word in words
        )


def cue_for(moment: RecallPoint, record: FailureRecord, vocabulary: Vocabulary) -> RecallQuery:
    goal = vocabulary.altered(record.goal)
    match moment:
        case "plan":
            return RecallQuery(moment=moment, goal=goal)
        case "action":
            return RecallQuery(moment=moment, goal=goal, text=vocabulary.altered(record.action))
        case "failure":
            # Half of them unchanged, the rest of a kind that only similarity search finds.
            exact = vocabulary.random.random() < 0.5
            signature = record.signature if exact else f"{record.essence} again"
            return RecallQuery(moment=moment, goal=goal, signature=signature)


async def fill(store: SqliteStore, records: list[FailureRecord]) -> None:
    embedder = HashedEmbedder()
    rest = iter(records)
    while batch := list(islice(rest, _BATCH)):
        store.import_(batch)
        packed = iter(await embedder.embed([one.text(facet) for one in batch for facet in FACETS]))
        store.embed(
            embedder.name, {one.id: {facet: next(packed) for facet in FACETS} for one in batch}
        )


def percentile(sorted_ms: list[float], share: float) -> float:
    return sorted_ms[min(len(sorted_ms) - 1, int(len(sorted_ms) * share))]


async def measure(
    memory: StoredMemory, moment: RecallPoint, wanted: list[FailureRecord], vocabulary: Vocabulary
) -> None:
    wall: list[float] = []
    processor: list[float] = []
    hits = 0
    for record in wanted:
        cue = cue_for(moment, record, vocabulary)
        begun, used = time.perf_counter(), time.process_time()
        lessons = await memory.recall(cue)
        wall.append((time.perf_counter() - begun) * 1000)
        processor.append((time.process_time() - used) * 1000)
        hits += bool(lessons) and lessons[0].id == record.id
    first, wall = wall[0], sorted(wall[1:])
    p50, p95, p99 = (percentile(wall, share) for share in (0.5, 0.95, 0.99))
    print(
        f"{moment:8} first {first:6.0f} ms   p50 {p50:5.1f}   p95 {p95:5.1f}   p99 {p99:5.1f} ms   "
        f"processor p95 {percentile(sorted(processor[1:]), 0.95):5.1f} ms   "
        f"right {hits / len(wanted):.0%}",
        flush=True,
    )


async def make(path: Path, place: Scope, count: int, vocabulary: Vocabulary) -> None:
    begun = time.perf_counter()
    store = SqliteStore(path, place)
    made = (record_of(vocabulary.failure(n), place, time.time()) for n in range(count))
    await fill(store, [replace(one, last_seen=one.last_seen + n) for n, one in enumerate(made)])
    store.close()
    size_mb = (await anyio.Path(path).stat()).st_size / 1e6
    took_s = time.perf_counter() - begun
    print(f"{count} records, {size_mb:.0f} MB, filled in {took_s:.0f} s", flush=True)


async def main(arguments: argparse.Namespace, path: Path) -> None:
    vocabulary = Vocabulary(_SEED)
    place = Scope(project="bench")
    if not await anyio.Path(path).exists():
        await make(path, place, arguments.records, vocabulary)
    store = SqliteStore(path, place)
    memory = StoredMemory(store, place)
    begun = time.perf_counter()
    await memory.recall(RecallQuery(moment="failure", goal="", signature="nothing like it"))
    took_ms = (time.perf_counter() - begun) * 1000
    records = list(store.records())
    load = os.getloadavg()[0]
    print(f"{len(records)} records; opened and asked once: {took_ms:.0f} ms; load {load:.1f}")
    for moment in ("plan", "action", "failure"):
        wanted = vocabulary.random.sample(records, min(arguments.recalls, len(records)))
        await measure(memory, moment, wanted, vocabulary)
    store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--recalls", type=int, default=200)
    parser.add_argument("--plain", action="store_true", help="without numpy")
    parser.add_argument("--file", type=Path, help="kept, and used again")
    options = parser.parse_args()
    if options.plain:
        sys.modules["numpy"] = None  # pyright: ignore[reportArgumentType] - how an import is made to fail
    with tempfile.TemporaryDirectory(prefix="assay-recall-") as scratch:
        anyio.run(main, options, options.file or Path(scratch) / "memory.sqlite")
