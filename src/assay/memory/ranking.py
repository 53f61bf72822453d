"""Chooses, of the records that came up, the few lessons worth showing at one moment. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from assay.contracts.lessons import Lesson, RecallPoint, RecallQuery
from assay.memory.embedding import similarity
from assay.memory.instructions import without_instructions
from assay.memory.lesson_text import one_line
from assay.memory.types import Facet, FailureRecord, Similar, is_transferable, parts_of
from assay.text.redaction import redact


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is looked at, how alike it must be, and how much is shown."""

    facet: Facet
    least_likeness: float
    most: int


RULES: Final[dict[RecallPoint, Rule]] = {
    "plan": Rule(facet="goal", least_likeness=0.3, most=3),
    "action": Rule(facet="action", least_likeness=0.55, most=1),
    "failure": Rule(facet="failure", least_likeness=0.6, most=1),
}
CANDIDATES: Final = 24
"""Records looked at in full: enough that those without a lesson do not crowd out others."""


def looked_for(cue: RecallQuery) -> str:
    """Return the text that records are compared with; empty if likeness would mean nothing."""
    match cue.moment:
        case "plan":
            return f"{cue.goal} {cue.text}".strip()
        case "action":
            return cue.text
        case "failure":
            if not is_transferable(parts_of(cue.signature)[0]):
                return ""
            return f"{parts_of(cue.signature)[0]} {cue.text}".strip()


def choose(
    cue: RecallQuery, exact: Iterable[FailureRecord], similar: Iterable[Similar]
) -> tuple[FailureRecord, ...]:
    """Return the records to show, the best first: the very same failure before all that are alike.

    Among equals that which has proven its worth comes first, and no lesson is shown twice.
    """
    rule = RULES[cue.moment]
    ranked = [(2 + record.worth, record) for record in exact if _is_about_the_same(cue, record)]
    ranked += [
        (found.likeness * (1 + found.record.worth) / 2, found.record)
        for found in similar
        if found.likeness >= rule.least_likeness
    ]
    ranked.sort(key=lambda pair: (-pair[0], -pair[1].last_seen, pair[1].id))
    chosen: dict[str, FailureRecord] = {}
    for _, record in ranked:
        said = saying(record, cue.moment)
        if said and len(chosen) < rule.most:
            chosen.setdefault(said, record)
    return tuple(chosen.values())


def _is_about_the_same(cue: RecallQuery, record: FailureRecord) -> bool:
    """Whether an equal signature means an equal failure: a failed assertion says too little."""
    return is_transferable(record.essence) or (
        similarity(cue.goal, record.goal) >= RULES["plan"].least_likeness
    )


def to_lesson(record: FailureRecord, moment: RecallPoint) -> Lesson:
    """Say what a record teaches, and by what evidence."""
    judged = record.helped + record.harmed
    told = f"; helped {record.helped} of {judged} times" if judged else ""
    times = "once" if record.seen == 1 else f"{record.seen} times"
    where = f", last in run {record.run}" if record.run else ""
    return Lesson(
        id=record.id,
        # Records of earlier versions were kept with less care.
        text=without_instructions(redact(saying(record, moment))),
        evidence=f"seen {times}{where}{told}",
    )


def saying(record: FailureRecord, moment: RecallPoint) -> str:
    """Return the line to show; empty if there is nothing to say at this moment."""
    if record.lesson:
        return record.lesson
    if moment == "action":
        return one_line(f"code like this failed with: {record.message or record.signature}")
    return ""
