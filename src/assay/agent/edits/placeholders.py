"""Detect placeholders such as `...` that a model wrote in place of code."""

import re
from pathlib import PurePosixPath

_COMMENT = re.compile(r"^(?:#|//|/\*|\*|--|<!--|;|%)(?P<words>.*)$")
_DOTS = re.compile(r"^(?:\.{3,}|…)$")
_DOTTED_WORDS = re.compile(r"^(?:\.{3,}|…)|(?:\.{3,}|…)$")
_CODE = r"(?:code|file|class|module|implementation|program|script|methods?|functions?|imports?)"
_SAYS_SO = re.compile(
    rf"\b(?:rest|remainder) of (?:the |your |this )?{_CODE}|\b{_CODE} (?:goes |is )?here\b"
    rf"|\b(?:{_CODE}|rest|everything|remaining) .{{0,20}}(?:unchanged|as before|the same)\b"
    rf"|\bunchanged {_CODE}|\b{_CODE} (?:is |are )?omitted"
    r"|\bfor brevity\b|^same as (?:before|above)",
    re.IGNORECASE,
)
_SAYS_SO_WITH_DOTS = re.compile(
    r"\b(?:existing|previous|original|other|remaining|unchanged|rest|same|keep|omitted)\b",
    re.IGNORECASE,
)
_LONGEST_LINE_CHARS = 300
_FEW_WORDS = 8
"""A longer comment describes existing code and is no placeholder."""
_DOTS_MEAN_SOMETHING = frozenset({".py", ".pyi", ".md", ".rst", ".txt", ".yaml", ".yml", ".html"})


def left_out_of_search(search: str) -> str:
    """Return the placeholder line in a search text; empty if there is none."""
    for line in search.splitlines():
        if _DOTS.match(line.strip()) or _is_comment_for_left_out(line):
            return line.strip()
    return ""


def left_out_of_replacement(path: PurePosixPath, search: str, replace: str) -> str:
    """Return the new placeholder line in a replacement; empty if there is none."""
    before = {line.strip() for line in search.splitlines()}
    for line in replace.splitlines():
        if line.strip() not in before and _stands_for_others(path, line):
            return line.strip()
    return ""


def left_out_of_file(path: PurePosixPath, before: str, after: str) -> str:
    """Return the placeholder line in a new version that has fewer lines; empty if there is none."""
    if len(after.splitlines()) >= len(before.splitlines()):
        return ""
    known = {line.strip() for line in before.splitlines()}
    for line in after.splitlines():
        if line.strip() in known:
            continue
        # In Python, `...` may be a body, but not without indentation.
        at_margin = bool(_DOTS.match(line.rstrip())) and path.suffix in {".py", ".pyi"}
        if at_margin or _stands_for_others(path, line):
            return line.strip()
    return ""


def _stands_for_others(path: PurePosixPath, line: str) -> bool:
    bare = bool(_DOTS.match(line.strip())) and path.suffix not in _DOTS_MEAN_SOMETHING
    return bare or _is_comment_for_left_out(line)


def _is_comment_for_left_out(line: str) -> bool:
    comment = _COMMENT.match(line.strip()) if len(line) <= _LONGEST_LINE_CHARS else None
    if comment is None:
        return False
    words = comment["words"].removesuffix("*/").removesuffix("-->").strip("#/*;%- \t")
    if _DOTS.match(words):
        return True
    if len(words.split()) > _FEW_WORDS:
        return False
    dotted = bool(_DOTTED_WORDS.search(words))
    return bool(_SAYS_SO.search(words)) or (dotted and bool(_SAYS_SO_WITH_DOTS.search(words)))
