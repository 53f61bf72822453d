"""The rules for changes by the agent: stated in the prompt, and enforced by the verifier."""

from pathlib import PurePosixPath

from assay.agent.edits.apply import MayChange
from assay.contracts.goal import Goal
from assay.contracts.workspace import Tree
from assay.verify.judged_tree import matches


def may_change(goal: Goal, protected: tuple[PurePosixPath, ...], pristine: Tree) -> MayChange:
    """Build the function that returns why a path may not be changed, or an empty text."""

    def reason(path: PurePosixPath) -> str:
        if path in protected or any(folder in protected for folder in path.parents):
            return f"`{path}` is a test or belongs to one: it is given, and stays as it is"
        if goal.allowed and not matches(path, goal.allowed):
            allowed = ", ".join(goal.allowed)
            return f"`{path}` is not among the files that may be changed: {allowed}"
        if why := pristine.why_withheld(path):
            return f"`{path}` stays as it is on the person's disk, unseen ({why}): write elsewhere"
        return ""

    return reason
