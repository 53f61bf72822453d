"""What is kept of a failure: where it arose, what led to it, what ended it, what that was worth."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from assay.contracts.lessons import Failure
from assay.memory.instructions import without_instructions
from assay.memory.lesson_text import lesson_of, one_line
from assay.memory.scoring import is_harmful, score
from assay.text.redaction import redact

Retired = Literal["", "harmful", "stale"]
"""Why a record is not shown any more; empty while it is."""
Facet = Literal["goal", "action", "failure"]
"""What a record is compared by: one for each moment at which it may be remembered."""
FACETS: Final[tuple[Facet, ...]] = ("goal", "action", "failure")

_MAX_GOAL: Final = 2_000
_MAX_SIGNATURE: Final = 300
_MAX_MESSAGE: Final = 600
_MAX_ACTION: Final = 4_000
_MAX_FIX: Final = 4_000
_MAX_NAME: Final = 100
_ID_CHARS: Final = 16
_TRUSTED: Final = 0.2
"""A lesson that has proven more than this is not replaced by a newer one."""

_PLACE: Final = re.compile(r" \(in (?P<place>[^()]*)\)$")
_LIBRARY: Final = re.compile(
    r"No module named ['\"](?P<missing>[\w.]+)"
    r"|module ['\"](?P<module>[\w.]+)['\"] has no attribute"
    r"|from ['\"](?P<source>[\w.]+)['\"]"
    r"|Cannot find (?:module|package) ['\"](?P<package>@?[\w./-]+)"
)
_OF_ITS_OWN_TEST: Final = frozenset({"AssertionError", "failed", "error", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run takes place: what it may see of the memory, and what it adds to."""

    project: str = ""
    """Empty: no project, so what is learnt is for all."""
    environment: str = ""
    """Digest of interpreter and packages; empty: unknown, and nothing is kept apart by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """One kind of failure at one goal, with everything that is known of it."""

    id: str
    signature: str
    kind: str = ""
    """The type of the error."""
    essence: str = ""
    """Type and normalised message, without the place."""
    frame: str = ""
    """The innermost place in the person's own code."""
    library: str = ""
    language: str = ""
    tool: str = ""
    goal: str = ""
    goal_print: str = ""
    message: str = ""
    action: str = ""
    fix: str = ""
    """The diff that ended it; empty while unknown."""
    lesson: str = ""
    """One line; empty while unknown."""
    run: str = ""
    """The last run it was seen in."""
    environment: str = ""
    project: str = ""
    shared: bool = False
    """Whether other projects may see it."""
    seen: int = 1
    used: int = 0
    helped: int = 0
    harmed: int = 0
    first_seen: float = 0.0
    last_seen: float = 0.0
    last_helped: float = 0.0
    retired: Retired = ""

    @property
    def worth(self) -> float:
        return score(self.helped, self.harmed)

    def text(self, facet: Facet) -> str:
        """Return what this record is found by."""
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
    """One time that a failure happened."""

    at: float
    run: str
    again: bool
    """Whether an earlier run had left the same failure behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Similar:
    """A record, and how close it is to what was looked for: 1 is the same."""

    record: FailureRecord
    likeness: float


def record_of(failure: Failure, place: Place, now: float) -> FailureRecord:
    """Build the record of a failure: cut to size, without secrets, in one place."""
    signature = normal_signature(failure.signature)
    goal = _kept(failure.goal.strip(), _MAX_GOAL)
    essence, frame = parts_of(signature)
    message = without_instructions(one_line(_kept(failure.message, _MAX_MESSAGE), _MAX_MESSAGE))
    fix = _kept(failure.fix, _MAX_FIX)
    language = _kept(failure.language, _MAX_NAME)
    print_ = fingerprint(goal)
    identity = f"{place.project}\0{language}\0{signature}\0{print_}"
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
        environment=failure.environment or place.environment,
        project=place.project,
        shared=not place.project,
        first_seen=now,
        last_seen=now,
    )


def normal_signature(signature: str) -> str:
    """Return a signature as it is kept, and so as it must be looked for."""
    return one_line(_kept(signature, _MAX_SIGNATURE), _MAX_SIGNATURE)


def _kept(text: str, limit: int) -> str:
    """Return what is kept of a text: cut, without secrets, and such as any file can hold."""
    # Cut before as well, so that megabytes are not searched; by less, so that no secret is halved.
    text = text[: 4 * limit].encode("utf-8", "replace").decode().replace("\0", "")
    return redact(text)[:limit]


def parts_of(signature: str) -> tuple[str, str]:
    """Divide a signature into what happened and where."""
    match = _PLACE.search(signature)
    return (signature[: match.start()], match["place"]) if match else (signature, "")


def library_of(text: str) -> str:
    """Return the library that an error names; empty if it names none."""
    match = _LIBRARY.search(text)
    if match is None:
        return ""
    name = next(name for name in match.groups() if name)
    return name if name.startswith("@") else name.partition(".")[0]


def fingerprint(goal: str) -> str:
    """Return what two ways of writing the same goal have in common."""
    words = " ".join(re.findall(r"\w+", goal.lower()))
    return hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:_ID_CHARS]


def is_transferable(essence: str) -> bool:
    """Whether the same failure in two places says more than that both have tests."""
    kind = essence.partition(": ")[0]
    return bool(kind) and kind.rpartition(".")[2] not in _OF_ITS_OWN_TEST


def seen_again(known: FailureRecord, new: FailureRecord) -> FailureRecord:
    """Return what is known once a failure has come back, perhaps with a way to end it."""
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
    """Return a record with one more judgement; one that proves harmful retires."""
    record = replace(
        record,
        helped=record.helped + helped,
        harmed=record.harmed + (not helped),
        last_helped=now if helped else record.last_helped,
    )
    if is_harmful(record.helped, record.harmed):
        return replace(record, retired="harmful")
    return record
