"""Types of the failure memory: records, occurrences and scopes, and the score of a lesson."""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from assay.contracts.lessons import Failure
from assay.memory.lesson_text import lesson_of, one_line, without_instructions
from assay.text.redaction import redact

_Z: Final = 1.96
"""Two-sided 95 %."""
_ENOUGH: Final = 4
"""Judgements before a lesson counts as harmful: fewer prove nothing."""
_UNJUDGED: Final = 0.2
"""The score of a lesson without judgements: about that of one that helped once. With zero, it would
never be shown and so never be judged."""


def wilson_bounds(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a rate; without trials, 0 to 1."""
    if trials <= 0:
        return 0.0, 1.0
    rate = successes / trials
    centre = rate + _Z**2 / (2 * trials)
    spread = _Z * math.sqrt(rate * (1 - rate) / trials + _Z**2 / (4 * trials**2))
    scale = 1 + _Z**2 / trials
    # Exact at both ends, despite rounding.
    low = 0.0 if successes == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if successes == trials else min(1.0, (centre + spread) / scale)
    return low, high


def score(helped: int, harmed: int) -> float:
    """Return the lower bound of a lesson's help rate, between 0 and 1."""
    if helped + harmed == 0:
        return _UNJUDGED
    return wilson_bounds(helped, helped + harmed)[0]


def is_harmful(helped: int, harmed: int) -> bool:
    """Return whether a lesson almost certainly harms more often than it helps."""
    judged = helped + harmed
    return judged >= _ENOUGH and wilson_bounds(helped, judged)[1] < 0.5  # noqa: PLR2004 - a half


Retired = Literal["", "harmful", "stale"]
"""Why a record is no longer shown; empty while it is."""
Facet = Literal["goal", "action", "failure"]
"""The part of a record to compare, for the moment at which it may help."""
FACETS: Final[tuple[Facet, ...]] = ("goal", "action", "failure")

_MAX_GOAL: Final = 2_000
_MAX_SIGNATURE: Final = 300
_MAX_MESSAGE: Final = 600
_MAX_ACTION: Final = 4_000
_MAX_FIX: Final = 4_000
_MAX_NAME: Final = 100
_ID_CHARS: Final = 16
_TRUSTED: Final = 0.2
"""A lesson with a higher score than this is not replaced by a newer one."""

_PLACE: Final = re.compile(r" \(in (?P<scope>[^()]*)\)$")
_LIBRARY: Final = re.compile(
    r"No module named ['\"](?P<missing>[\w.]+)"
    r"|module ['\"](?P<module>[\w.]+)['\"] has no attribute"
    r"|from ['\"](?P<source>[\w.]+)['\"]"
    r"|Cannot find (?:module|package) ['\"](?P<package>@?[\w./-]+)"
)
_OF_ITS_OWN_TEST: Final = frozenset({"AssertionError", "failed", "error", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The scope of a run: the part of the memory that it reads and writes."""

    project: str = ""
    """Empty: no project, so that its lessons apply to all."""
    environment: str = ""
    """Digest of interpreter and packages; empty: unknown, and separates nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The scope and the use of a record."""

    environment: str = ""
    project: str = ""
    shared: bool = False
    """Whether other projects can see it."""
    used: int = 0
    """How often it was shown."""
    helped: int = 0
    harmed: int = 0
    first_seen: float = 0.0
    last_seen: float = 0.0

    @property
    def worth(self) -> float:
        """The score of its help, between 0 and 1."""
        return score(self.helped, self.harmed)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord(Tally):
    """One kind of failure for one goal, with all its data."""

    id: str
    signature: str
    kind: str = ""
    """The type of the error."""
    essence: str = ""
    """Type and normalized message, without the location."""
    frame: str = ""
    """The innermost location in the user's own code."""
    library: str = ""
    language: str = ""
    tool: str = ""
    goal: str = ""
    goal_print: str = ""
    message: str = ""
    action: str = ""
    fix: str = ""
    """The diff that fixed it; empty while unknown."""
    lesson: str = ""
    """One line; empty while unknown."""
    run: str = ""
    """The last run with this failure."""
    seen: int = 1
    last_helped: float = 0.0
    retired: Retired = ""

    def text(self, facet: Facet) -> str:
        """Return the search text of this record."""
        match facet:
            case "goal":
                return self.goal
            case "action":
                return self.action
            case "failure":
                return f"{self.essence} {self.message}"


Vectors = Mapping[Facet, bytes]
"""The packed vectors of one record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One occurrence of a failure."""

    at: float
    run: str
    again: bool
    """Whether an earlier run had the same failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Similar:
    """A record and its similarity to the query; 1 means equal."""

    record: FailureRecord
    likeness: float


def record_of(failure: Failure, scope: Scope, now: float) -> FailureRecord:
    """Build the record of a failure: truncated, without secrets, in one scope."""
    signature = normal_signature(failure.signature)
    goal = _kept(failure.goal.strip(), _MAX_GOAL)
    essence, frame = parts_of(signature)
    message = without_instructions(one_line(_kept(failure.message, _MAX_MESSAGE), _MAX_MESSAGE))
    fix = _kept(failure.fix, _MAX_FIX)
    language = _kept(failure.language, _MAX_NAME)
    print_ = fingerprint(goal)
    identity = f"{scope.project}\0{language}\0{signature}\0{print_}"
    return FailureRecord(
        id=hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:_ID_CHARS],
        signature=signature,
        kind=essence.partition(": ")[0],
        essence=essence,
        frame=frame,
        library=library_of(f"{signature} {message}"),
        language=language,
        tool=_kept(failure.tool, _MAX_NAME),
        goal=goal,
        goal_print=print_,
        message=message,
        action=_kept(failure.action, _MAX_ACTION),
        fix=fix,
        lesson=without_instructions(
            one_line(_kept(failure.lesson, _MAX_MESSAGE)) or lesson_of(signature, message, fix)
        ),
        run=_kept(failure.run, _MAX_NAME),
        environment=failure.environment or scope.environment,
        project=scope.project,
        shared=not scope.project,
        first_seen=now,
        last_seen=now,
    )


def normal_signature(signature: str) -> str:
    """Return a signature in the stored form, which lookups must use too."""
    return one_line(_kept(signature, _MAX_SIGNATURE), _MAX_SIGNATURE)


def _kept(text: str, limit: int) -> str:
    """Return the stored form of a text: truncated, without secrets, valid in any file."""
    # Truncated first too, so that megabytes are not searched; at a larger size, so that no secret
    # is cut.
    text = text[: 4 * limit].encode("utf-8", "replace").decode().replace("\0", "")
    return redact(text)[:limit]


def occurrence_id(record: FailureRecord) -> str:
    """Return the id of one occurrence; a resumed run reports the same one again."""
    identity = f"{record.run}\0{record.id}\0{record.action}".encode("utf-8", "replace")
    return hashlib.sha256(identity).hexdigest()


def parts_of(signature: str) -> tuple[str, str]:
    """Split a signature into the error and its location."""
    match = _PLACE.search(signature)
    return (signature[: match.start()], match["scope"]) if match else (signature, "")


def library_of(text: str) -> str:
    """Return the library that an error names; empty if it names none."""
    match = _LIBRARY.search(text)
    if match is None:
        return ""
    name = next(name for name in match.groups() if name)
    return name if name.startswith("@") else name.partition(".")[0]


def fingerprint(goal: str) -> str:
    """Return a fingerprint that is equal for different wordings of one goal."""
    words = " ".join(re.findall(r"\w+", goal.lower()))
    return hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:_ID_CHARS]


def is_transferable(essence: str) -> bool:
    """Return whether equal failures in two projects mean more than that both have tests."""
    kind = essence.partition(": ")[0]
    return bool(kind) and kind.rpartition(".")[2] not in _OF_ITS_OWN_TEST


def seen_again(known: FailureRecord, new: FailureRecord) -> FailureRecord:
    """Return the record of a repeated failure, perhaps with a fix."""
    relearnt = bool(new.lesson) and new.lesson != known.lesson and known.worth <= _TRUSTED
    lesson = new if relearnt else known
    tally = FailureRecord(id="", signature="") if relearnt else known
    retired = known.retired if known.retired == "harmful" and not relearnt else ""
    return replace(
        known,
        message=new.message,
        action=new.action,
        tool=new.tool or known.tool,
        fix=lesson.fix,
        lesson=lesson.lesson,
        run=new.run,
        environment=new.environment,
        shared=known.shared or new.shared,
        seen=known.seen + 1,
        used=tally.used,
        helped=tally.helped,
        harmed=tally.harmed,
        last_seen=new.last_seen,
        retired=retired,
    )


def judged(record: FailureRecord, *, helped: bool, now: float) -> FailureRecord:
    """Return a record with one more judgement; a harmful one is retired."""
    record = replace(
        record,
        helped=record.helped + helped,
        harmed=record.harmed + (not helped),
        last_helped=now if helped else record.last_helped,
    )
    if is_harmful(record.helped, record.harmed):
        return replace(record, retired="harmful")
    return record
