"""Scans JavaScript and shell scripts lightly: a few unambiguous patterns."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from assay.screening.remarks import Remark
from assay.screening.rules import ScreeningPolicy


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
