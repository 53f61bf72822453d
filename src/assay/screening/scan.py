"""Scans code before it runs and reports what a policy flags.

Python is scanned by its syntax tree, JavaScript and shell scripts for a few unambiguous
patterns. `ModuleRules` is the policy of an executor on the Python modules that programs may
import.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.errors import PolicyError
from assay.contracts.events import ScreenFinding
from assay.contracts.execution import Command, Program, PythonCode
from assay.screening.python_scan import look_at_python
from assay.screening.rules import Remark, ScreeningPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One flagged pattern. Repetition in it is bounded, so that no text takes long."""

    name: str
    """The name by which a policy may allow it."""
    found_by: re.Pattern[str]
    explanation: str


def _pattern(name: str, found_by: str, explanation: str) -> Pattern:
    return Pattern(name=name, found_by=re.compile(found_by), explanation=explanation)


_MODULE: Final = r"(?:require\s{0,9}\(|import\s{0,9}\(|from|import)\s{0,9}['\"`](?:node:)?"

JAVASCRIPT: Final = (
    _pattern(
        "child_process",
        rf"{_MODULE}child_process['\"`]",
        "imports child_process: starts other programs",
    ),
    _pattern(
        "net",
        rf"{_MODULE}(?:net|tls|dgram|http|https|http2)['\"`]",
        "imports a network module: talks to the network",
    ),
    _pattern("vm", rf"{_MODULE}vm['\"`]", "imports vm: runs code that is made at run time"),
    _pattern("eval", r"(?<![\w.$])eval\s{0,9}\(", "eval runs code that is made at run time"),
    _pattern("Function", r"\bnew\s{1,9}Function\s{0,9}\(", "new Function makes code at run time"),
    _pattern(
        "process.binding",
        r"\bprocess\.(?:binding|_linkedBinding|dlopen|kill|setuid|setgid)\s{0,9}\(",
        "reaches past the runtime: bindings, signals or identities",
    ),
    _pattern(
        "Deno.run",
        r"\b(?:Deno\.(?:run|Command)|Bun\.spawn(?:Sync)?|execSync|spawnSync)\s{0,9}\(",
        "starts other programs",
    ),
    _pattern(
        "constructor",
        r"\.constructor\s{0,9}\.\s{0,9}constructor\b|\.constructor\s{0,9}\(\s{0,9}['\"`]return",
        "climbs to the Function constructor: runs code that is made at run time",
    ),
)

_START: Final = r"(?:^|[;&|(]|\b(?:then|do|else|sudo|exec)\b)[ \t]{0,40}"

SHELL: Final = (
    _pattern(
        "rm",
        _START
        + r"rm(?:[ \t]{1,9}-[-\w]{1,40}){1,5}[ \t]{1,9}(?:--[ \t]{1,9})?"
        + r"['\"]?(?:/|~|\$\{?HOME\}?)(?:/?\*?)['\"]?(?=[\s;&|)]|$)",
        "rm of everything: deletes the root or the home folder",
    ),
    _pattern(
        "pipe-to-shell",
        r"\b(?:curl|wget)\b[^\n|;]{0,400}\|[ \t]{0,9}(?:sudo[ \t]{1,9})?(?:\S{0,40}/)?"
        r"(?:ba|z|k|da)?sh\b",
        "runs what it downloads without looking at it",
    ),
    _pattern(
        "decode-to-shell",
        r"\bbase64\b[^\n|;]{0,200}\|[ \t]{0,9}(?:sudo[ \t]{1,9})?(?:ba|z|k|da)?sh\b",
        "runs what it decodes: the commands cannot be read",
    ),
    _pattern(
        "eval",
        _START + r"eval[ \t]{1,9}['\"]?(?:\$\(|`)",
        "eval of another command's output runs code that is made at run time",
    ),
    _pattern("mkfs", _START + r"mkfs(?:\.\w{1,9})?\b", "makes a file system over what is there"),
    _pattern("dd", r"\bdd\b[^\n;|]{0,200}\bof=/dev/(?!null\b)", "writes to a device"),
    _pattern("device", r">[ \t]{0,9}/dev/(?:sd|hd|vd|nvme|mem|kmem)", "writes to a device"),
    _pattern(
        "fork-bomb",
        r"(\w{1,20}|:)\(\)[ \t]{0,9}\{[ \t]{0,9}\1[ \t]{0,9}\|[ \t]{0,9}\1[ \t]{0,9}&",
        "a fork bomb: starts itself without end",
    ),
    _pattern("dev-tcp", r"/dev/(?:tcp|udp)/", "talks to the network"),
    _pattern("nc", _START + r"(?:nc|ncat|socat|telnet|ssh|scp)\b", "talks to the network"),
    _pattern("sudo", _START + r"(?:sudo|su|doas)\b", "asks for another user's rights"),
    _pattern(
        "chmod",
        r"\bchmod\b(?:[ \t]{1,9}-\w{1,9}){0,3}[ \t]{1,9}\S{1,20}[ \t]{1,9}/(?:[\s;&|]|$)",
        "changes the rights of the root folder",
    ),
)


def look_at_text(
    content: bytes, patterns: Sequence[Pattern], policy: ScreeningPolicy
) -> list[Remark]:
    """Return the matches of patterns, except in comment lines."""
    text = content.decode("utf-8", "replace")
    is_shell = patterns is SHELL
    # A continued line is one line; the replacement keeps the length.
    joined = text.replace("\\\n", "  ") if is_shell else text
    comment = re.compile(r"[ \t]{0,200}#" if is_shell else r"[ \t]{0,200}(?://|\*)")
    remarks: list[Remark] = []
    number, place = 1, 0
    for line in joined.split("\n"):
        if not comment.match(line):
            remarks += [
                Remark(line=number, rule="text", explanation=pattern.explanation)
                for pattern in patterns
                if pattern.name not in policy.allow and pattern.found_by.search(line)
            ]
        number += text.count("\n", place, place + len(line) + 1)
        place += len(line) + 1
    return remarks


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


_ALWAYS: Final = "__future__"
_RULES: Final = frozenset({"import", "dynamic_import", "unreadable"})
_PROGRAM: Final = PurePosixPath("program.py")
_HINT: Final = (
    "the lists are the executor's settings executor.allow_modules and executor.deny_modules"
)


@dataclass(frozen=True, kw_only=True)
class _OnlyModules(ScreeningPolicy):
    """The screening policy that checks imported modules only."""

    only: tuple[str, ...] = ()

    @cached_property
    def imports(self) -> Mapping[str, str]:
        return dict.fromkeys(self.deny_imports, "is denied here")

    @cached_property
    def calls(self) -> Mapping[str, str]:
        return {}

    @cached_property
    def builders(self) -> Mapping[str, str]:
        return {}

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        return {}

    def refused_import(self, module: str) -> tuple[str, str] | None:
        """Return the name by which a module is refused, and why; the most specific name decides."""
        parts = module.split(".")
        for length in range(len(parts), 0, -1):
            name = ".".join(parts[:length])
            if name in self.imports:
                return name, self.imports[name]
            if name in self.only or name == _ALWAYS:
                return None
        return (module, "is not among the allowed modules") if self.only else None

    def is_outside(self, path: str) -> bool:
        del path
        return False


class ModuleRules:
    """An allowlist and a denylist of modules; an empty allowlist allows all."""

    def __init__(self, *, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> None:
        self._active = bool(allow or deny)
        self._screen = Screening(_OnlyModules(only=tuple(allow), deny_imports=tuple(deny)))

    def check_work(self, work: Program | str) -> None:
        """Check a program or the source of a cell.

        Raises:
            PolicyError: If it imports a module that is not allowed.
        """
        match work:
            case PythonCode(source=source):
                self.check_file(_PROGRAM, source)
            case str():
                self.check_file(_PROGRAM, work.encode("utf-8", errors="replace"))
            case Command(argv=[program, *arguments]) if _is_python(program) and "-c" in arguments:
                after = arguments[arguments.index("-c") + 1 :]
                self.check_file(_PROGRAM, "".join(after[:1]).encode("utf-8", errors="replace"))
            case Command():
                pass

    def check_file(self, path: PurePosixPath, content: bytes) -> None:
        """Check a file before it is written into a workspace.

        Raises:
            PolicyError: If it is Python and imports a module that is not allowed.
        """
        if not self._active or path.suffix.lower() not in _PYTHON:
            return
        for finding in self._screen(path, content):
            if finding.rule in _RULES:
                where = "" if path is _PROGRAM else f"{str(path)!r:.200}, "
                raise PolicyError(f"{where}line {finding.line}: {finding.explanation}", hint=_HINT)


def _is_python(program: str) -> bool:
    return PurePosixPath(program).name.startswith("python")
