"""Scans code before it runs and reports what a policy flags.

This is the second barrier. The first is the sandbox, which confines the code in any case; the scan
explains early what the sandbox would refuse late. Code can hide from it, because it reads the
source and follows names, not values.
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
"""A syntax tree needs hundreds of times the memory of its text, and seconds at this size."""
_LARGEST_TEXT: Final = 4 << 20


class Screening:
    """The `Screen` callable of `assay.contracts.ports` for one policy."""

    def __init__(self, policy: ScreeningPolicy) -> None:
        self._policy = policy

    def __call__(self, path: PurePosixPath, content: bytes) -> tuple[ScreenFinding, ...]:
        """Return what the policy flags in a file, by line. Never raises, never runs code.

        Invalid syntax is no finding, because such code does not run. A file in an unsupported
        language yields nothing either; `can_screen` tells the two apart.
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
    """Whether files of this name are scanned: Python closely, JavaScript and shell lightly."""
    return path.suffix.lower() in _PYTHON | _JAVASCRIPT | _SHELL
