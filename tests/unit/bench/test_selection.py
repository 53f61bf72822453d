import pytest

from assay.bench.exercise import Exercise, Suite
from assay.bench.suites import Selection, read_shard
from assay.contracts.errors import UsageError
from assay.contracts.workspace import Tree


def a_suite() -> Suite:
    return Suite(
        name="mine",
        source="",
        exercises=tuple(
            Exercise(
                id=f"{language}/{slug}",
                language=language,
                docs="",
                workspace=Tree(),
                solution=(),
                tests=Tree(),
            )
            for language in ("python", "go")
            for slug in ("bowling", "poker", "wordy", "zipper")
        ),
    )


def chosen(**fields: object) -> list[str]:
    return [one.id for one in Selection(**fields).of(a_suite())]  # pyright: ignore[reportArgumentType]


def test_shards_share_nothing_and_are_everything() -> None:
    parts = [chosen(shard=(number, 3)) for number in (1, 2, 3)]
    together = [name for part in parts for name in part]
    assert sorted(together) == sorted(chosen())
    assert len(together) == len(set(together))


def test_a_limit_is_always_the_same_part() -> None:
    assert chosen(limit=3) == chosen(limit=3)
    assert set(chosen(limit=3)) < set(chosen(limit=5))


def test_names_are_globs_of_the_whole_or_the_last_part() -> None:
    assert chosen(names=("wordy",)) == ["python/wordy", "go/wordy"]
    of_go = chosen(names=("go/*",))
    assert of_go == chosen(languages=("go",))
    assert len(of_go) == 4


def test_nothing_left_is_told() -> None:
    with pytest.raises(UsageError, match="no exercise of mine is left"):
        chosen(names=("nobody",))


@pytest.mark.parametrize("text", ["", "1", "a/b", "1/", "-1/2"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a shard"):
        read_shard(text)


@pytest.mark.parametrize("shard", [(0, 2), (3, 2), (1, 0)])
def test_a_shard_that_there_is_not_is_refused(shard: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="there is no shard"):
        Selection(shard=shard)


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="--limit"):
        Selection(limit=0)
