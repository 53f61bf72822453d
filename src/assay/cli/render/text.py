"""Plain text for a terminal: sanitized and shortened untrusted text, and the events of a run.

An event is one line, without colors or escape sequences.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final, assert_never

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
    TextDelta,
    ToolAnswered,
    Verified,
)
from assay.contracts.goal import RunResult, Status
from assay.contracts.messages import Usage
from assay.contracts.verdict import CheckReport, Finding, Grade, TestStatus, Verdict
from assay.contracts.workspace import FileChange, Withheld
from assay.text.formatting import count

_ESCAPE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # titles, links
    r"|\x1b[ -/]*[0-Z\\^-~]"
)
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, characters that reorder or hide text, and lone surrogates."""

_TAB: Final = 4
_PICTURES: Final = 0x2400
_DELETE: Final = 0x7F
_LONGEST_LINE: Final = 1000
_RAW_PER_SHOWN: Final = 20
"""Characters read for each one shown: the rest may be escape sequences."""


def visible(text: str) -> str:
    """Return the text with every invisible character made visible and none removed."""
    return _UNSEEN.sub(_picture, text).expandtabs(_TAB)


def plain(text: str) -> str:
    """Return the text without escape sequences, and with other characters made visible."""
    return visible(_ESCAPE.sub("", text))


def one_line(text: str, limit: int = 200) -> str:
    """Return the text as one harmless line of at most `limit` characters."""
    words = " ".join(plain(text[: limit * _RAW_PER_SHOWN].replace("\r", "\n")).split())
    return shortened(words, limit)


def shortened(text: str, limit: int) -> str:
    """Cut a text that is too long, and mark the cut."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)].rstrip() + "…"


def last_lines(text: str, count: int) -> list[str]:
    """Return the last lines of a program's output, as a terminal shows them."""
    tail = text[-count * _LONGEST_LINE :].replace("\r\n", "\n").rstrip("\n")
    lines = _ESCAPE.sub("", tail).split("\n")[-count:]
    return [visible(_overwritten(line))[:_LONGEST_LINE] for line in lines] if tail else []


def _overwritten(line: str) -> str:
    """Return the last state of a line with carriage returns, such as a progress bar."""
    return next((part for part in reversed(line.split("\r")) if part), "")


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < ord(" "):
        return chr(_PICTURES + code)
    if code == _DELETE:
        return "␡"
    return f"\\u{code:04x}"


MEANING: Final = {
    Grade.PROVEN: "your own tests pass in a fresh sandbox, and a forgery would have been seen",
    Grade.CHECKED: "checks that failed on the untouched files now pass; the agent wrote them, only "
    "their exit code is known, or there is a doubt",
    Grade.RAN: "it ran and ended well; no check that failed on the untouched files confirms it",
}
"""The meaning of an acceptance, by grade."""

ENDINGS: Final = {
    Status.ACCEPTED: "accepted",
    Status.NOT_ACCEPTED: "not accepted",
    Status.OUT_OF_BUDGET: "out of budget",
    Status.TAMPERED: "not accepted, tampering found",
    Status.INTERRUPTED: "interrupted",
    Status.FAILED: "failed",
}

ACTIONS: Final[dict[ActionKind, str]] = {
    "sample": "an independent sample",
    "hinted": "an independent sample that knows which tests are hard",
    "combine": "functions of two attempts put together",
    "repair": "a repair in the same context",
    "fresh": "a fresh start",
}

_NAMES_SHOWN: Final = 4
_WITHHELD_SHOWN: Final = 10
_MINUTE: Final = 60
_HOUR: Final = 3600
_THOUSAND: Final = 1000
_SMALL_USD: Final = 0.995


def event_line(event: RunEvent) -> str:  # noqa: C901, PLR0911 - one case per event
    """Describe an event in one line; empty for streamed pieces of text."""
    match event:
        case TextDelta() | OutputDelta():
            return ""
        case RunStarted():
            withheld = f"; withheld: {withheld_line(event.withheld)}" if event.withheld else ""
            return (
                f"run {one_line(event.run)}: {one_line(event.spec.goal)} "
                f"(model {one_line(event.model)}, sandbox {one_line(event.backend)}, "
                f"{one_line(event.isolation)}, files in {one_line(event.workspace)}){withheld}"
            )
        case RunResumed():
            return f"run {one_line(event.run)} resumes"
        case Planned():
            parts = (
                f"plan: {count(len(event.steps), 'step')}" if event.steps else "",
                f"will write {listed(event.targets)}" if event.targets else "",
                f"decided by {listed(event.checks)}" if event.checks else "",
                f"{count(len(event.lessons), 'lesson')} recalled" if event.lessons else "",
                f"offers {listed(event.snippets)} of earlier runs" if event.snippets else "",
                f"follows {one_line(event.instructions)}" if event.instructions else "",
                one_line(event.baseline),
            )
            return "; ".join(filter(None, parts))
        case ChecksWritten():
            return f"wrote checks that fail on the untouched files: {listed(event.paths)}"
        case AttemptStarted():
            return f"attempt {event.attempt}: {ACTIONS[event.action]}"
        case ModelReplied():
            asked = f"; asks for {listed(event.calls)}" if event.calls else ""
            written = count(event.usage.output_tokens, "token")
            how = "cut off after" if event.cut_off else "replied,"
            return f"{_step(event.attempt, event.step)}: {how} {written}{asked}"
        case ToolAnswered():
            ended = "failed" if event.failed else "done"
            asked = one_line(f"{event.tool} {event.summary}")
            return f"{_step(event.attempt, event.step)}: {asked}: {ended}"
        case FilesChanged():
            return f"attempt {event.attempt}: {changes(event.changes)}"
        case Screened():
            places = [f"{one.path}:{one.line} {one.explanation}" for one in event.findings]
            found = listed(places) if places else "nothing found"
            ended = "screening blocked it" if event.blocked else "screening"
            return f"attempt {event.attempt}: {ended}: {found}"
        case Executed():
            seen = "".join(f"; {one_line(finding(one))}" for one in event.findings)
            return f"attempt {event.attempt}: tried out: {reports(event.reports)}{seen}"
        case Verified():
            return f"attempt {event.attempt}: {verdict(event.verdict)}"
        case RolledBack():
            broke = f" broke {listed(event.broke)}" if event.broke else ""
            return f"attempt {event.attempt}{broke}: back to attempt {event.to_attempt}"
        case Reflected():
            next_action = ACTIONS[event.next_action] if event.next_action else "the run ends"
            learned = f"{one_line(event.lesson)}; " if event.lesson.strip() else ""
            return f"attempt {event.attempt}: {learned}next: {next_action}"
        case BudgetUsed():
            return (
                f"budget: {event.share:.0%} used; {in_words(event.usage)}, {cost(event.usage)}, "
                f"{clock(event.wall_s)}"
            )
        case RunEnded():
            return f"{ending(event.outcome)}: {one_line(event.outcome.reason)}"
        case _:
            assert_never(event)


def _step(attempt: int, step: int) -> str:
    # Before the first attempt there is the plan.
    return f"attempt {attempt}, step {step}" if attempt else f"planning, step {step}"


def ending(outcome: RunResult) -> str:
    """Describe how a run ended, with the grade if it was accepted."""
    grade = f", {outcome.grade.value}" if outcome.grade else ""
    return f"{ENDINGS[outcome.status]}{grade}"


def verdict(told: Verdict) -> str:
    """Describe what the independent check found."""
    if told.accepted:
        graded = f" ({told.grade.value})" if told.grade else ""
        head = f"verified, accepted{graded}"
    else:
        head = "verified, not accepted"
    seen = f"; {listed(finding(one) for one in told.findings)}" if told.findings else ""
    return f"{head}: {one_line(told.reason)}{seen}"


def finding(found: Finding) -> str:
    """Describe a finding: severity, kind and place."""
    place = f" in {found.path}" if found.path else ""
    line = f":{found.line}" if found.path and found.line is not None else ""
    return f"{found.severity} {found.kind.value}{place}{line}: {found.explanation}"


def reports(told: Iterable[CheckReport]) -> str:
    """Describe check results by their tests, or by their exit code if they have none."""
    return "; ".join(_report(report) for report in told) or "no check was run"


def _report(report: CheckReport) -> str:
    command = one_line(report.command, 60)
    if report.tests:
        passed = sum(test.passed for test in report.tests)
        known = frozenset(report.known_failures)
        missed = [test.id for test in report.tests if test.status is not TestStatus.PASSED]
        failing = [name for name in missed if name not in known]
        rest = f", not {listed(failing)}" if failing else ""
        rest += f", known failures: {listed(report.known_failures)}" if known else ""
        return f"{command}: {passed} of {count(len(report.tests), 'test')} pass{rest}"
    if report.passed:
        return f"{command}: passes"
    why = report.explanation or f"exit code {report.exit_code}"
    return f"{command}: fails, {one_line(why)}"


def changes(made: Iterable[FileChange]) -> str:
    """List the files that were added, modified and deleted."""
    kinds: dict[str, list[PurePosixPath]] = {}
    for change in made:
        kinds.setdefault(change.kind, []).append(change.path)
    told = "; ".join(f"{kind} {listed(paths)}" for kind, paths in sorted(kinds.items()))
    return told or "no file changed"


def listed(things: Iterable[object]) -> str:
    """List the first few of many things."""
    names = [one_line(str(thing), 120) for thing in things]
    rest = len(names) - _NAMES_SHOWN
    # A single further name takes no more room than its count.
    shown = names if rest <= 1 else [*names[:_NAMES_SHOWN], f"{rest} more"]
    return shortened(", ".join(shown), 400)


def withheld_line(withheld: Sequence[Withheld]) -> str:
    """Describe which files the code and the model do not see, and how to change that."""
    names: dict[str, list[str]] = {}
    for one in withheld:
        names.setdefault(one_line(one.why, 120), []).append(one_line(str(one), 120))
    groups: list[str] = []
    for why, each in names.items():
        left = len(each) - _WITHHELD_SHOWN
        more = f" and {left} more, which --json lists" if left > 0 else ""
        groups.append(f"{', '.join(each[:_WITHHELD_SHOWN])}{more} ({why})")
    return f"{'; '.join(groups)}; --include PATH uses one"


_LEAST_USD: Final = 0.0001


def in_words(usage: Usage) -> str:
    """Return the number of model calls, and of tokens read and written."""
    read, written = compact(usage.input_tokens), compact(usage.output_tokens)
    cached = f" ({compact(usage.cached_input_tokens)} cached)" if usage.cached_input_tokens else ""
    thought = f" ({compact(usage.reasoning_tokens)} reasoning)" if usage.reasoning_tokens else ""
    saved = f", the cache saved ${usage.saved_usd:,.4f}" if usage.saved_usd >= _LEAST_USD else ""
    calls = count(usage.calls, "call")
    return f"{calls}, {read} tokens read{cached}, {written} written{thought}{saved}"


def cost(usage: Usage, *, local: bool = False) -> str:
    """Return the price; a small one with more digits, since it is rarely zero."""
    if local:
        return "free, ran on this machine"
    if usage.cost_usd is None:
        return "price unknown"
    if not usage.cost_usd:
        return "free"
    digits = 4 if usage.cost_usd < _SMALL_USD else 2
    return f"${usage.cost_usd:,.{digits}f}"


def compact(number: int) -> str:
    """Return 950, 12.3k, 4.1M."""
    value, suffix = float(number), ""
    for larger in ("k", "M", "G"):
        if value < _THOUSAND:
            break
        value, suffix = value / _THOUSAND, larger
    return f"{value:.1f}{suffix}" if suffix else str(number)


def clock(seconds: float) -> str:
    """Return 4.2 s, 3:07, 1:02:09."""
    if seconds < _MINUTE:
        return f"{max(seconds, 0):.1f} s"
    hours, rest = divmod(int(seconds), _HOUR)
    minutes, left = divmod(rest, _MINUTE)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
