import shlex

import pytest

from assay.cli.main import ShortForm, command_for
from assay.contracts.errors import UsageError


@pytest.mark.parametrize(
    ("short", "meant"),
    [
        (ShortForm(goal="write a.py"), "assay run -- 'write a.py'"),
        (ShortForm(goal="--all"), "assay run -- --all"),
        (ShortForm(goal="x", model="local"), "assay run --model local -- x"),
        (ShortForm(benchmarks=True), "assay bench run polyglot"),
        (
            ShortForm(benchmarks=True, benchmarks_limit=3, model="local"),
            "assay bench run polyglot --limit 3 --model local",
        ),
    ],
)
def test_a_short_form_becomes_a_command(short: ShortForm, meant: str) -> None:
    assert shlex.join(("assay", *command_for(short))) == meant


@pytest.mark.parametrize(
    ("short", "named", "why"),
    [
        (ShortForm(goal="x", benchmarks=True), None, "exclude each other"),
        (ShortForm(benchmarks_limit=3), None, "needs --benchmarks"),
        (ShortForm(goal="x", benchmarks_limit=3), None, "needs --benchmarks"),
        (ShortForm(goal="  "), None, "goal is empty"),
        (ShortForm(model="local"), None, "names no command"),
        (ShortForm(model="local"), "run", "cannot stand before `run`"),
        (ShortForm(goal="x"), "doctor", "cannot be combined with the command"),
        (ShortForm(benchmarks=True), "bench", "cannot be combined with the command"),
    ],
)
def test_words_that_do_not_go_together_are_refused(
    short: ShortForm, named: str | None, why: str
) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        command_for(short, named)

    assert refused.value.hint
