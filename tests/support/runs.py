"""Goals, verdicts, outcomes and runs as they really look, for tests of those who read them."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePosixPath
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from assay.contracts.events import (
    ActionKind,
    AttemptStarted,
    BudgetUsed,
    ChecksWritten,
    Executed,
    FilesChanged,
    ModelReplied,
    OutputDelta,
    Planned,
    Reflected,
    RolledBack,
    RunEnded,
    RunEvent,
    RunResumed,
    RunStarted,
    Screened,
    ScreenFinding,
    TextDelta,
    ToolAnswered,
    Verified,
)
from assay.contracts.goal import RunResult, RunSpec, Status
from assay.contracts.messages import Usage
from assay.contracts.verdict import (
    CheckReport,
    Finding,
    Grade,
    TamperKind,
    TestMatrix,
    TestMatrixRow,
    TestResult,
    TestStatus,
    Verdict,
)
from assay.contracts.workspace import FileChange

RUN = "20260301-101500-slugify"
TREE = "4e07408562bedb8b60ce05c1decfe3ad16b72230967de01f640b7e4729b49fce"
CHECK = "pytest -q tests/test_slugify.py"
SOLUTION = PurePosixPath("slugify.py")

DIFF = """\
--- a/slugify.py
+++ b/slugify.py
@@ -1,3 +1,9 @@
-def slugify(text):
-    return text
+import re
+import unicodedata
+
+
+def slugify(text: str, *, separator: str = "-") -> str:
+    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
+    return re.sub(r"[^a-z0-9]+", separator, ascii_text.lower()).strip(separator)
"""

REPLY = (
    "The accents have to be folded before anything else is replaced.\n\n```python slugify.py\n"
    + "\n".join(line[1:] for line in DIFF.splitlines() if line.startswith("+") and "b/" not in line)
    + "\n```\n"
)

TESTS = tuple(
    f"tests/test_slugify.py::test_{name}"
    for name in (
        "lowers_letters",
        "joins_words_with_a_dash",
        "drops_punctuation",
        "folds_accents",
        "keeps_numbers",
        "strips_the_ends",
        "takes_another_separator",
        "gives_nothing_for_nothing",
    )
)
_LETTERS = {
    "p": TestStatus.PASSED,
    "f": TestStatus.FAILED,
    "e": TestStatus.ERROR,
    "s": TestStatus.SKIPPED,
}


def a_spec(
    goal: str = "Write slugify(text, *, separator) so that the tests pass.",
    *,
    checks: tuple[str, ...] = (CHECK,),
    protected: tuple[PurePosixPath, ...] = (PurePosixPath("tests/test_slugify.py"),),
) -> RunSpec:
    """What a person might ask for."""
    return RunSpec(goal=goal, checks=checks, protected=protected)


def statuses(letters: str) -> dict[str, TestStatus]:
    """How the first tests ended: p passed, f failed, e error, s skipped, anything else absent."""
    pairs = zip(TESTS, letters, strict=False)
    return {test: _LETTERS[letter] for test, letter in pairs if letter in _LETTERS}


def a_lattice(*rows: str) -> TestMatrix:
    """One row of letters per attempt, as `statuses` reads them."""
    return TestMatrix(
        rows=tuple(
            TestMatrixRow(attempt=number, statuses=statuses(letters))
            for number, letters in enumerate(rows, start=1)
        )
    )


def a_report(letters: str = "pppppppp", *, command: str = CHECK) -> CheckReport:
    """One run of pytest."""
    tests = tuple(
        TestResult(
            id=test,
            status=status,
            message="" if status is TestStatus.PASSED else "AssertionError: 'Ü' == 'u'",
        )
        for test, status in statuses(letters).items()
    )
    passed = all(test.passed for test in tests)
    return CheckReport(
        command=command,
        runner="pytest",
        passed=passed,
        tests=tests,
        exit_code=0 if passed else 1,
        explanation="" if passed else "not all tests pass",
        output="" if passed else "E  AssertionError: 'Ü' == 'u'\n1 failed",
        canaries_planted=2,
        canaries_caught=2,
        duration_s=0.21,
    )


def a_finding(
    kind: TamperKind = TamperKind.EARLY_EXIT,
    *,
    path: str = "slugify.py",
    explanation: str = "os._exit(0) ends the process before the tests report",
) -> Finding:
    """A forgery that was seen."""
    return Finding(
        kind=kind, severity="forgery", explanation=explanation, path=PurePosixPath(path), line=4
    )


def a_verdict(letters: str = "pppppppp", *findings: Finding) -> Verdict:
    """Accepted if all tests pass and nothing was forged."""
    report = a_report(letters)
    accepted = report.passed and not findings
    failing = sum(not test.passed for test in report.tests)
    rejected = f"{failing} of 8 tests do not pass" if failing else "the proof was forged"
    return Verdict(
        accepted=accepted,
        grade=Grade.PROVEN if accepted else None,
        reason="all 8 tests pass" if accepted else rejected,
        tree=TREE,
        reports=(report,),
        findings=findings,
    )


def usage(calls: int = 4) -> Usage:
    """What that many replies took."""
    return Usage(
        input_tokens=3100 * calls,
        cached_input_tokens=1000 * calls,
        output_tokens=410 * calls,
        calls=calls,
        cost_usd=0.0031 * calls,
    )


def an_outcome(
    status: Status = Status.ACCEPTED,
    *,
    grade: Grade = Grade.PROVEN,
    findings: tuple[Finding, ...] = (),
    test_matrix: TestMatrix | None = None,
) -> RunResult:
    """The end of a run of four attempts; the grade counts only if it was accepted."""
    accepted = status is Status.ACCEPTED
    return RunResult(
        run=RUN,
        status=status,
        grade=grade if accepted else None,
        reason="all 8 tests pass" if accepted else "3 of 8 tests do not pass",
        attempts=4,
        verdict=a_verdict() if accepted else a_verdict("ppppfffp"),
        test_matrix=test_matrix or a_lattice("pepf", "ppppfffp", "pppffffs", "pppppppp"),
        findings=findings,
        changes=(
            FileChange(path=SOLUTION, kind="modified"),
            FileChange(path=PurePosixPath("README.md"), kind="added"),
        ),
        tree=TREE,
        usage=usage(),
        wall_s=83.4,
        certificate="/home/me/project/assay-certificate.json" if accepted else "",
    )


def an_attempt(
    number: int, letters: str, *, test_matrix: TestMatrix, action: ActionKind = "repair"
) -> list[RunEvent]:
    """Everything between the start of an attempt and the independent check."""
    pieces = [REPLY[start : start + 40] for start in range(0, len(REPLY), 40)]
    return [
        AttemptStarted(attempt=number, action=action),
        *(TextDelta(attempt=number, text=piece) for piece in pieces),
        ModelReplied(attempt=number, step=1, text=REPLY, calls=("run",), usage=usage(1)),
        OutputDelta(attempt=number, text="collected 8 items\n"),
        OutputDelta(attempt=number, text="tests/test_slugify.py ...F....\n"),
        ToolAnswered(
            attempt=number,
            step=1,
            tool="run",
            summary=CHECK,
            answer="1 failed, 7 passed",
            failed="f" in letters,
        ),
        FilesChanged(
            attempt=number,
            changes=(FileChange(path=SOLUTION, kind="modified"),),
            diff=DIFF,
            tree=TREE,
        ),
        Screened(attempt=number, findings=(), blocked=False),
        Executed(attempt=number, reports=(a_report(letters),), test_matrix=test_matrix),
        Verified(attempt=number, verdict=a_verdict(letters)),
        BudgetUsed(usage=usage(number), attempts=number, wall_s=20.0 * number, share=0.11 * number),
    ]


def a_run_of_events() -> list[RunEvent]:
    """A whole run with every kind of event in it, taken up again once, and accepted at last."""
    rows = ("pepf", "ppppfffp", "pppffffs", "pppppppp")
    return [
        RunStarted(
            run=RUN,
            spec=a_spec(),
            model="local:qwen2.5-coder-1.5b",
            backend="native",
            isolation="isolated",
            workspace="/home/me/project",
            tree=TREE,
        ),
        TextDelta(attempt=0, text="1. Read the tests."),
        ModelReplied(attempt=0, step=1, text="1. Read the tests.", calls=(), usage=usage(1)),
        Planned(
            steps=("Read the tests.", "Fold accents, then replace.", "Say so in the README."),
            targets=(SOLUTION, PurePosixPath("README.md")),
            checks=(CHECK,),
            lessons=("str.encode('ascii') raises on accents: pass 'ignore'",),
            snippets=("fold_accents",),
        ),
        ChecksWritten(paths=(PurePosixPath("checks/test_readme.py"),), text="def test_it(): ..."),
        *an_attempt(1, rows[0], test_matrix=a_lattice(*rows[:1]), action="sample"),
        Reflected(attempt=1, lesson="unicodedata was not imported", next_action="repair"),
        *an_attempt(2, rows[1], test_matrix=a_lattice(*rows[:2])),
        Reflected(attempt=2, lesson="", next_action="repair"),
        AttemptStarted(attempt=3, action="repair"),
        Screened(
            attempt=3,
            findings=(
                ScreenFinding(
                    path=SOLUTION, line=3, rule="import", explanation="imports subprocess"
                ),
            ),
            blocked=True,
        ),
        *an_attempt(3, rows[2], test_matrix=a_lattice(*rows[:3])),
        RolledBack(attempt=3, to_attempt=2, broke=(TESTS[3], TESTS[7])),
        Reflected(attempt=3, lesson="the separator is not used", next_action="fresh"),
        RunResumed(run=RUN),
        *an_attempt(4, rows[3], test_matrix=a_lattice(*rows), action="fresh"),
        RunEnded(outcome=an_outcome()),
    ]


HOSTILE_PIECES = (
    "\x1b[2J\x1b[H",  # clears the screen
    "\x1b[31m",
    "\x1b]0;title\x07",
    "\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\",
    "\x1bc",
    "\x9b1A",
    "\x1b[",
    "\r",
    "\b\b\b",
    "\x00",
    "\x7f",
    "\u202eevil\u2066",
    "\u200b",
    "\u2028",
    "\ud800",
    "[bold red]x[/]",
    "[/]",
    "[link=file:///etc/passwd]y[/link]",
    ":smile:",
    "```python\n",
    "```\n",
    "漢字",
    "👩‍👩‍👧",
    "\t\t",
    "x" * 3000,
    "\n" * 50,
)
"""What a model or a program might print to do something to a terminal, or to a picture in it."""

CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What must never get through: anything a terminal obeys, but the end of a line."""


def hostile_texts() -> st.SearchStrategy[str]:
    pieces = st.sampled_from(HOSTILE_PIECES) | st.text(st.characters(), max_size=12)
    return st.lists(pieces, max_size=5).map("".join)


def hostile_events() -> st.SearchStrategy[RunEvent]:
    """Any event of the closed list, with the worst that can stand in it."""
    text = hostile_texts()
    number = st.integers(min_value=0, max_value=2000)
    paths = text.map(PurePosixPath)
    parts: dict[type, st.SearchStrategy[object]] = {
        str: text,
        int: number,
        float: st.floats(min_value=0, max_value=1e9),
        PurePosixPath: paths,
        RunSpec: text.map(a_spec),
        TestStatus: st.sampled_from(TestStatus),
    }
    return st.one_of(*(_built(event, parts) for event in get_args(RunEvent)))


def _built(wanted: Any, parts: dict[type, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Build values of a type from those of the types it is made of."""
    if wanted in parts:
        return parts[wanted]
    if isinstance(wanted, type) and is_dataclass(wanted):
        hints = get_type_hints(wanted)
        given = {field.name: _built(hints[field.name], parts) for field in fields(wanted)}
        return st.builds(wanted, **given)
    made_of = get_args(wanted)
    if get_origin(wanted) is tuple:
        return st.lists(_built(made_of[0], parts), max_size=3).map(tuple)
    if get_origin(wanted) is Mapping:
        key, value = (_built(part, parts) for part in made_of)
        return st.dictionaries(key, value, max_size=6)
    if get_origin(wanted) in {Union, UnionType}:
        return st.one_of(*(_built(part, parts) for part in made_of))
    return st.from_type(cast("type[Any]", wanted))
