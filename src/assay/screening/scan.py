"""Looks at code before it is run, and names what a policy has against it.

It is the second wall. The first is the sandbox, which holds whatever the code does; this one says
early and in words what the first would refuse late. Whoever wants to hide from it can: it reads
what is written, and follows names, not values.
"""

from pathlib import PurePosixPath
from typing import Final

from assay.contracts.events import ScreenFinding
from assay.screening.python_scan import look_at_python
from assay.screening.remarks import Remark
from assay.screening.rules import ScreeningPolicy
from assay.screening.text_scan import JAVASCRIPT, SHELL, look_at_text

_PYTHON: Final = frozenset({".py", ".pyw"})
_JAVASCRIPT: Final = frozenset({".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx"})
_SHELL: Final = frozenset({".sh", ".bash", ".zsh", ".ksh"})
_MOST_FINDINGS: Final = 50
_LARGEST_PYTHON: Final = 512 << 10
"""A syntax tree takes hundreds of times the memory of its text, and seconds for so much."""
_LARGEST_TEXT: Final = 4 << 20


class Screening:
    """A screen as the ports have it, by one policy."""

    def __init__(self, policy: ScreeningPolicy) -> None:
        self._policy = policy

    def __call__(self, path: PurePosixPath, content: bytes) -> tuple[ScreenFinding, ...]:
        """Return what the policy has against a file, by line. Never raises, never runs anything.

        Code that is no valid program is not a finding: it will not run either. Nor is a file in a
        language that is not read here; `can_screen` tells the two apart.
        """
        if not can_screen(path):
            return ()
        remarks = sorted(set(self._remarks(path, content)), key=lambda remark: remark.line)
        return tuple(
            ScreenFinding(
                path=path, line=remark.line, rule=remark.rule, explanation=remark.explanation
            )
            for remark in remarks[:_MOST_FINDINGS]
        )

    def _remarks(self, path: PurePosixPath, content: bytes) -> list[Remark]:
        suffix = path.suffix.lower()
        largest = _LARGEST_PYTHON if suffix in _PYTHON else _LARGEST_TEXT
        if len(content) > largest:
            told = f"is larger than {largest >> 10} KB, too large to be read before it runs"
            return [Remark(line=1, rule="unreadable", explanation=told)]
        if suffix in _PYTHON:
            return look_at_python(content, self._policy)
        return look_at_text(content, JAVASCRIPT if suffix in _JAVASCRIPT else SHELL, self._policy)


def can_screen(path: PurePosixPath) -> bool:
    """Say whether files of this name are read: Python closely, JavaScript and shell lightly."""
    return path.suffix.lower() in _PYTHON | _JAVASCRIPT | _SHELL
