"""Directives in a reply: lines such as `FILE:`, `RUN:` and `READ:`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from assay.agent.reply_parser.addresses import looks_like_path

Verb = Literal["FILE", "EDIT", "DELETE", "RUN", "PYTHON", "READ", "LIST", "SEARCH", "DONE"]

TOOL_OF: Mapping[str, str] = {
    "RUN": "run",
    "PYTHON": "python",
    "READ": "read_file",
    "LIST": "list_files",
    "SEARCH": "search",
}

_LINE = re.compile(
    r"^\s*(?:[-*+>]\s+|\d+[.)]\s+)?[#*_`\s]*"
    r"(?P<verb>FILE|EDIT|DELETE|RUN|PYTHON|READ|LIST|SEARCH)[*_`]*\s*:[*_]*(?:\s+|(?=\S)|$)"
    r"(?P<rest>.*)$"
)
_LONGEST_REQUEST_CHARS = 2000
_DONE = re.compile(r"^[\s#*_`>-]*DONE[\s*_`.!]*(?::.*)?$")
_RANGE = re.compile(
    r"^(?P<path>\S+?)(?:[:#]|\s+\[?(?:lines?\s+)?|\[)L?(?P<first>\d+)"
    r"(?:\s*(?:-|\u2013|to|\.\.|,)\s*L?(?P<last>\d+))?\]?$",
    re.IGNORECASE,
)
_SEARCH_IN = re.compile(r"^(?P<pattern>.+?)\s+in\s+(?P<path>\S+)$")
_QUOTED = re.compile(r"^(?P<mark>[`'\"])(?P<inside>.*)(?P=mark)$")
_QUOTED_IN = re.compile(r"^(?P<mark>[`'\"])(?P<pattern>.+)(?P=mark)\s+in\s+(?P<path>\S+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """One directive line."""

    verb: Verb
    rest: str


def read_directive(line: str) -> Directive | None:
    """Return the directive of a line; None if it has none."""
    if _DONE.match(line):
        return Directive(verb="DONE", rest="")
    match = _LINE.match(line)
    if match is None:
        return None
    verb: Verb = match["verb"]  # type: ignore[assignment] # the pattern names the verbs
    return Directive(verb=verb, rest=_trimmed(match["rest"].strip()))


def tool_arguments(verb: str, rest: str) -> tuple[Mapping[str, Any], ...]:
    """Return the arguments of the requested calls: one call, or one for each file to read."""
    if verb not in {"RUN", "PYTHON"}:
        rest = rest[:_LONGEST_REQUEST_CHARS]
    match verb:
        case "RUN":
            return ({"command": re.sub(r"^\$\s+", "", _unquoted(rest, "`"))},)
        case "PYTHON":
            return ({"code": _unquoted(rest, "`") + "\n"},)
        case "READ":
            return tuple(_read_arguments(part) for part in _paths_in(rest))
        case "LIST":
            path = _unquoted(rest, "`'\"")
            return ({"path": path} if path else {},)
        case _:
            return (_search_arguments(rest),)


def _paths_in(rest: str) -> list[str]:
    parts = [part.strip() for part in rest.split(",")]
    several = len(parts) > 1 and all(looks_like_path(_unquoted(part, "`'\"")) for part in parts)
    return parts if several else [rest]


def _read_arguments(rest: str) -> dict[str, Any]:
    text = rest.replace("`", "").strip("'\"* ")
    match = _RANGE.match(text)
    if match is None:
        return {"path": text}
    first = int(match["first"])
    last = int(match["last"]) if match["last"] else first
    return {"path": match["path"], "from_line": first, "to_line": last}


def _search_arguments(rest: str) -> dict[str, Any]:
    quoted = _QUOTED_IN.match(rest)
    if quoted:
        return {"pattern": quoted["pattern"], "path": _unquoted(quoted["path"], "`'\"")}
    if _QUOTED.match(rest):
        return {"pattern": _unquoted(rest, "`'\"")}
    parts = _SEARCH_IN.match(rest)
    path = _unquoted(parts["path"], "`'\"") if parts else ""
    if parts and (looks_like_path(path) or "/" in path or path == "."):
        return {"pattern": _unquoted(parts["pattern"], "`'\""), "path": path}
    return {"pattern": rest}


def _trimmed(rest: str) -> str:
    """Remove the bold or code marks that open before the verb."""
    for mark in ("**", "__", "`"):
        if rest.count(mark) % 2 and rest.endswith(mark):
            rest = rest.removesuffix(mark).rstrip()
    return rest


def _unquoted(text: str, marks: str) -> str:
    match = _QUOTED.match(text.strip())
    if match and match["mark"] in marks and match["mark"] not in match["inside"]:
        return match["inside"].strip()
    return text.strip()
