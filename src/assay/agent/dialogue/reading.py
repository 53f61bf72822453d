"""What a reply amounts to: something to run, or something to say. Pure."""

import re
from dataclasses import dataclass
from typing import Final

_CELL: Final = re.compile(
    r"^(?P<fence>`{3,}|~{3,})[ \t]*(?:python|py|python3|ipython)\b[^\n]*\n"
    r"(?P<code>.*?)(?:^(?P=fence)[`~]*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_FENCE: Final = "```"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One reply, its parts told apart."""

    thought: str
    """What comes before the code; all of it when there is no code."""
    code: str = ""
    """To be run. What a model writes after it is made up, since it has not seen what comes out."""

    @property
    def as_written(self) -> str:
        """Return what the model should remember to have said."""
        if not self.code:
            return self.thought
        before = f"{self.thought}\n\n" if self.thought else ""
        return f"{before}{_FENCE}python\n{self.code}\n{_FENCE}"


def read_reply(text: str) -> Said:
    """Tell the first block of Python from what was said before it."""
    found = _CELL.search(text)
    if found is None or not found["code"].strip():
        return Said(thought=text.strip())
    return Said(thought=text[: found.start()].strip(), code=found["code"].strip("\n"))
