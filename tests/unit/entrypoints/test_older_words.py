import pytest

from assay.contracts.errors import UsageError
from assay.entrypoints.older_words import OlderWords, command_for, written


@pytest.mark.parametrize(
    ("older", "meant"),
    [
        (OlderWords(goal="write a.py"), "assay run -- 'write a.py'"),
        (OlderWords(goal="--all"), "assay run -- --all"),
        (OlderWords(goal="x", model="local"), "assay run --model local -- x"),
        (OlderWords(benchmarks=True), "assay bench run polyglot"),
        (
            OlderWords(benchmarks=True, benchmarks_limit=3, model="local"),
            "assay bench run polyglot --limit 3 --model local",
        ),
    ],
)
def test_older_words_become_a_command(older: OlderWords, meant: str) -> None:
    assert written(command_for(older)) == meant


@pytest.mark.parametrize(
    ("older", "named", "why"),
    [
        (OlderWords(goal="x", benchmarks=True), None, "two things"),
        (OlderWords(benchmarks_limit=3), None, "needs --benchmarks"),
        (OlderWords(goal="x", benchmarks_limit=3), None, "needs --benchmarks"),
        (OlderWords(goal="  "), None, "goal is empty"),
        (OlderWords(model="local"), None, "says nothing to do"),
        (OlderWords(model="local"), "run", "stands before `run`"),
        (OlderWords(goal="x"), "doctor", "there is one already"),
        (OlderWords(benchmarks=True), "bench", "there is one already"),
    ],
)
def test_words_that_do_not_go_together_are_refused(
    older: OlderWords, named: str | None, why: str
) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        command_for(older, named)

    assert refused.value.hint
