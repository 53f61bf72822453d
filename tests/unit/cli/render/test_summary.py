from io import StringIO
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from rich.console import Console

from assay.cli.render.summary import hints, print_summary
from assay.cli.render.text import MEANING, withheld_line
from assay.contracts.goal import RunResult, Status
from assay.contracts.verdict import Grade, TamperKind
from assay.contracts.workspace import Withheld
from tests.support.runs import CONTROLS, DIFF, RUN, a_finding, an_outcome, hostile_texts


def printed(outcome: RunResult, diff: str = DIFF, *, width: int = 100, **options: object) -> str:
    output = StringIO()
    console = Console(
        file=output, width=width, force_terminal=True, color_system=None, legacy_windows=False
    )
    print_summary(console, outcome, diff, **options)  # pyright: ignore[reportArgumentType] - as named
    return output.getvalue()


@pytest.mark.parametrize("grade", list(Grade))
def test_an_acceptance_says_what_its_grade_means(grade: Grade) -> None:
    first = printed(an_outcome(grade=grade), width=300).splitlines()[0]

    assert first == f"Accepted, {grade.value}: {MEANING[grade]}."


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.ACCEPTED])
def test_nothing_else_sounds_like_an_acceptance(status: Status) -> None:
    text = printed(an_outcome(status))

    assert not text.startswith("Accepted")
    assert "proven" not in text
    assert "3 of 8 tests do not pass" in text


def test_a_summary_has_all_that_a_person_wants_to_know() -> None:
    text = printed(an_outcome(), folder="/runs/1")

    for wanted in (
        "~ slugify.py",
        "+ README.md",
        "+import unicodedata",
        "8 of 8 tests pass",
        "attempts     4",
        "cost         $0.0124 (4 calls, 12.4k tokens read (4.0k cached), 1.6k written)",
        "time         1:23",
        "certificate  /home/me/project/assay-certificate.json",
        f"run          {RUN} in /runs/1",
        "assay verify /home/me/project/assay-certificate.json",
    ):
        assert wanted in text


def test_what_is_only_the_best_is_not_passed_off_as_done() -> None:
    assert "best changes so far" in printed(an_outcome(Status.NOT_ACCEPTED))
    assert "best changes so far" not in printed(an_outcome())


def test_tricks_are_named_once_each_and_the_worst_first() -> None:
    forgery = a_finding(TamperKind.RUNNER_CONFIG, path="conftest.py", explanation="skips all tests")
    outcome = an_outcome(Status.TAMPERED, findings=(forgery, forgery, a_finding()))

    text = printed(outcome)

    assert text.count("runner_config") == 1
    assert "forgery  runner_config  conftest.py:4  skips all tests" in text
    assert "forgery  early_exit     slugify.py:4" in text


def test_a_long_diff_is_cut_and_the_rest_is_counted() -> None:
    text = printed(an_outcome(), "+x\n" * 500, diff_lines=10)

    assert text.count("+x\n") == 10
    assert "(490 lines more)" in text


@pytest.mark.parametrize(
    ("status", "commands"),
    [
        (Status.ACCEPTED, ["verify", "show"]),
        (Status.NOT_ACCEPTED, ["show"]),
        (Status.TAMPERED, ["show"]),
        (Status.OUT_OF_BUDGET, ["resume", "show"]),
        (Status.INTERRUPTED, ["resume", "show"]),
        (Status.FAILED, ["resume", "show"]),
    ],
)
def test_only_commands_that_make_sense_are_suggested(status: Status, commands: list[str]) -> None:
    assert [command.split()[1] for command in hints(an_outcome(status))] == commands


def test_a_command_to_copy_is_in_one_piece_however_narrow_the_terminal() -> None:
    assert "assay verify /home/me/project/assay-certificate.json" in printed(an_outcome(), width=20)


def test_a_model_of_this_machine_is_free() -> None:
    assert "cost         free, ran on this machine (4 calls" in printed(an_outcome(), local=True)


@given(hostile_texts())
def test_no_text_of_a_model_or_program_does_anything_to_the_terminal(text: str) -> None:
    outcome = an_outcome(findings=(a_finding(path=text or "x", explanation=text),))

    assert not CONTROLS.search(printed(outcome, f"+{text}"))


def test_markup_in_a_diff_is_text() -> None:
    assert "+[bold red]x[/] :smile:" in printed(an_outcome(), "+[bold red]x[/] :smile:")


def test_withheld_files_are_named_up_to_a_number_that_fits_a_screen() -> None:
    many = [
        Withheld(path=PurePosixPath(f"keys/{number}.key"), why="secret") for number in range(60)
    ]

    assert withheld_line(many[:3]) == (
        "keys/0.key, keys/1.key, keys/2.key (secret); --include PATH uses one"
    )
    assert "keys/9.key and 50 more, which --json lists (secret)" in withheld_line(many)


def test_the_reason_for_withholding_cannot_control_the_terminal() -> None:
    one = Withheld(path=PurePosixPath("a"), why="\x1b[2Jsecret")

    assert withheld_line((one,)) == "a (secret); --include PATH uses one"
