"""Selection of a suite's exercises for a run."""

import hashlib
from dataclasses import dataclass
from fnmatch import fnmatchcase

from assay.bench.exercise import Exercise, Language, Suite
from assay.contracts.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The user's filters of a suite.

    Raises:
        UsageError: If a number is out of range.
    """

    languages: tuple[Language, ...] = ()
    """Empty: all."""
    names: tuple[str, ...] = ()
    """Globs of ids or their last parts; empty: all."""
    limit: int | None = None
    shard: tuple[int, int] = (1, 1)
    """The number of this shard, from 1, and the number of shards."""

    def __post_init__(self) -> None:
        number, count = self.shard
        if not 1 <= number <= count:
            raise UsageError(
                f"there is no shard {number} of {count}", hint="count from 1, as in --shard 1/4"
            )
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit must be a positive number, not {self.limit}")

    def of(self, suite: Suite) -> tuple[Exercise, ...]:
        """Return the selected exercises, in the suite's order.

        A limit selects them by a digest of their ids: always the same ones, from all languages.

        Raises:
            UsageError: If none is left.
        """
        chosen = [exercise for exercise in suite.exercises if self._wants(exercise)]
        by_digest = sorted(chosen, key=lambda one: hashlib.sha256(one.id.encode()).digest())
        kept = by_digest[: self.limit]
        number, count = self.shard
        kept = kept[number - 1 :: count]
        ids = {exercise.id for exercise in kept}
        found = tuple(exercise for exercise in suite.exercises if exercise.id in ids)
        if not found:
            raise UsageError(
                f"no exercise of {suite.name} is left",
                hint="ask for other languages or names; `assay bench list` shows all",
            )
        return found

    def _wants(self, exercise: Exercise) -> bool:
        if self.languages and exercise.language not in self.languages:
            return False
        short = exercise.id.rpartition("/")[2]
        return not self.names or any(
            fnmatchcase(exercise.id, name) or fnmatchcase(short, name) for name in self.names
        )


def read_shard(text: str) -> tuple[int, int]:
    """Parse `2/5`.

    Raises:
        UsageError: If the text has another form.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal()):
        raise UsageError(f"not a shard: {text!r}", hint="write it as in --shard 1/4")
    return int(number), int(count)
