"""The project's instructions for agents: `AGENTS.md`, `CLAUDE.md` or `.assay/instructions.md`."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.workspace import Tree
from assay.text.formatting import cut_middle

NAMES: Final = ("AGENTS.md", "CLAUDE.md", ".assay/instructions.md")
"""The files that may have the instructions; the first one that exists counts."""
MAX_CHARS: Final = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectInstructions:
    """The text of the instructions, and the file that has them."""

    path: str = ""
    """Empty: the project has none."""
    text: str = ""


NO_INSTRUCTIONS: Final = ProjectInstructions()


def find_instructions(tree: Tree, others: dict[str, str]) -> ProjectInstructions:
    """Return the first instructions that have text, shortened if they are too long.

    `others` are the texts of files that are not part of the tree, such as those in `.assay`.
    """
    for name in NAMES:
        text = (tree.text(PurePosixPath(name)) or others.get(name, "")).strip()
        if text:
            return ProjectInstructions(path=name, text=cut_middle(text, max_chars=MAX_CHARS))
    return ProjectInstructions()
