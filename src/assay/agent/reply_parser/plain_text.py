"""Parse the plain-text protocol leniently, in one pass over the lines of a reply.

Directives are lines such as `FILE:`, `RUN:` and `READ:`. The result is a `ParsedReply` with the
actions that the model requests.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from assay.agent.edits.apply import (
    DeleteFile,
    Edit,
    ReplaceText,
    WriteFile,
    is_readable,
    syntax_error,
)
from assay.agent.reply_parser.blocks import (
    Fence,
    Hunks,
    closes_hunk,
    fits_language,
    is_diff,
    language_of,
    looks_like_path,
    opens_hunk,
    path_above,
    path_in_comment,
    path_in_directive,
    path_in_info,
    read_diff,
    read_fence,
    read_hunks,
    read_opening,
)
from assay.contracts.messages import ToolCall

Verb = Literal[
    "FILE", "EDIT", "DELETE", "RUN", "PYTHON", "READ", "LIST", "SEARCH",
    "CHECK", "DIFF", "BLOCKED", "DONE",
]  # fmt: skip

TOOL_OF: Mapping[str, str] = {
    "RUN": "run",
    "PYTHON": "python",
    "READ": "read_file",
    "LIST": "list_files",
    "SEARCH": "search",
    "CHECK": "check",
    "DIFF": "git_diff",
}
_NEEDS_NOTHING = frozenset({"LIST", "CHECK", "DIFF"})

_LINE = re.compile(
    r"^\s*(?:[-*+>]\s+|\d+[.)]\s+)?[#*_`\s]*"
    r"(?P<verb>FILE|EDIT|DELETE|RUN|PYTHON|READ|LIST|SEARCH|CHECK|DIFF|BLOCKED)[*_`]*\s*:[*_]*(?:\s+|(?=\S)|$)"
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
        case "CHECK":
            return ({"tests": rest.replace("`", "").replace(",", " ").split()} if rest else {},)
        case "LIST" | "DIFF":
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


@dataclass(frozen=True, slots=True)
class Finish:
    """The model says that it is finished; the independent check decides."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The model says that it cannot continue, and what it needs."""

    reason: str


@dataclass(frozen=True, slots=True)
class Patch:
    """Edits of several files that are applied together, all or none."""

    edits: tuple[Edit, ...]


Action = Edit | Patch | ToolCall | Finish | Blocked


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """The actions that a reply requests."""

    asks: tuple[Action, ...] = ()
    """In the order of the reply."""
    problems: tuple[str, ...] = ()
    """Parse errors, as text for the model."""
    prose: str = ""
    """The text of the reply outside of the actions."""
    call_ids: tuple[str, ...] = ()
    """For native calls: the call ID of each entry of `asks`, by position. Empty for text."""
    problem_ids: tuple[str, ...] = ()
    """For native calls: the call ID of each entry of `problems`, by position. Empty for text."""


CUT_OFF = "the reply was cut off"

_MOST_FENCES = 300
_DEEPEST = 3
_FENCE_ON_SAME_LINE = re.compile(r"^(?P<rest>[^`]*)(?P<fence>`{3,}\w*)$")
_WRAPPED_TEXT = frozenset({"", "text", "plaintext", "txt", "protocol"})


@dataclass(slots=True)
class _Waiting:
    """A directive that waits for its block."""

    verb: str
    path: PurePosixPath | None
    since: list[str] = field(default_factory=list[str])
    """The lines after it."""


@dataclass(slots=True, kw_only=True)
class Reading:
    """Parser of one reply. Its fields hold the results."""

    lines: list[str]
    tools: frozenset[str]
    sole_target: PurePosixPath | None
    ended: bool
    asks: list[Action] = field(default_factory=list[Action])
    problems: list[str] = field(default_factory=list[str])
    prose: list[str] = field(default_factory=list[str])
    bare: list[Fence] = field(default_factory=list[Fence])
    """Blocks without a known purpose."""
    _waiting: _Waiting | None = None
    _editing: PurePosixPath | None = None
    """The file of the last `EDIT:`; more blocks of hunks may follow."""
    _at: int = 0
    _fences: int = 0
    _depth: int = 0

    def read(self) -> None:
        """Read all lines."""
        while self._at < len(self.lines):
            line = self.lines[self._at]
            directive = read_directive(line)
            if read_opening(line) is not None:
                self._read_fence()
            elif opens_hunk(line):
                self._read_open_hunks()
            elif directive is not None:
                self._follow(self._without_fence(directive))
            else:
                self._at += 1
                (self._waiting.since if self._waiting else self.prose).append(line)
        self._give_up_waiting()

    def _without_fence(self, directive: Directive) -> Directive:
        """Move to the next line if the fence was opened on this one."""
        opened = _FENCE_ON_SAME_LINE.match(directive.rest)
        if opened is None:
            self._at += 1
            return directive
        self.lines[self._at] = opened["fence"]
        return dataclasses.replace(directive, rest=opened["rest"])

    def _follow(self, directive: Directive) -> None:
        self._give_up_waiting()
        self._editing = None
        verb, rest = directive.verb, directive.rest
        if verb == "DONE":
            self.asks.append(Finish())
        elif verb == "BLOCKED" and rest:
            self.asks.append(Blocked(rest[:_LONGEST_REQUEST_CHARS]))
        elif verb in {"FILE", "EDIT", "DELETE"}:
            self._follow_file(verb, rest)
        elif rest or verb in _NEEDS_NOTHING:
            for arguments in tool_arguments(verb, rest):
                self._call(verb, arguments)
        elif verb in {"RUN", "PYTHON"}:
            self._waiting = _Waiting(verb, None)
        else:
            self.problems.append(f"{verb}: needs something after the colon")

    def _follow_file(self, verb: str, rest: str) -> None:
        path = path_in_directive(rest)
        if path is None and rest:
            self.problems.append(f"{verb}: {rest[:200]!r} is not a path inside the workspace")
        elif path is None:
            self.problems.append(f"{verb}: needs a path after the colon")
        if verb != "DELETE":
            self._waiting = _Waiting(verb, path)
        elif path is not None:
            self.asks.append(DeleteFile(path=path))

    def _call(self, verb: str, arguments: Mapping[str, Any]) -> None:
        name = TOOL_OF[verb]
        if name not in self.tools:
            usable_verbs = [verb for verb, tool in TOOL_OF.items() if tool in self.tools]
            others = f" You may use {', '.join(usable_verbs)}." if usable_verbs else ""
            self.problems.append(f"{verb} is not available here.{others}")
            return
        self.asks.append(ToolCall(id=f"text-{len(self.asks) + 1}", name=name, arguments=arguments))

    def _read_fence(self) -> None:
        start = self._at
        self._fences += 1
        if self._fences > _MOST_FENCES:
            self.problems.append(f"only the first {_MOST_FENCES} blocks of the reply were read")
            self._at = len(self.lines)
            return
        waiting = self._waiting
        opening = read_opening(self.lines[start])
        info = opening.info if opening else ""
        if waiting is not None and not _may_have_block(waiting):
            self._give_up_waiting()
            waiting = None
        address = waiting.path if waiting else self._address(info)
        fence = read_fence(self.lines, start, path=address)
        self._at = fence.after
        if waiting is not None:
            self.prose.extend(waiting.since)
            self._waiting = None
            self._take_awaited(waiting, fence)
        else:
            self._take(fence, address)

    def _address(self, info: str) -> PurePosixPath | None:
        inside = path_in_info(info)
        if inside is not None:
            return inside
        above = next((line for line in reversed(self.prose[-3:]) if line.strip()), "")
        path = path_above(above)
        return path if path is not None and fits_language(info, path) else None

    def _take_awaited(self, waiting: _Waiting, fence: Fence) -> None:
        if waiting.verb in {"RUN", "PYTHON"}:
            if self._is_cut_off(fence):
                self.problems.append(f"{CUT_OFF} inside the block of {waiting.verb}: not run")
                return
            text = fence.text
            key, value = ("code", text) if waiting.verb == "PYTHON" else ("command", text.strip())
            self._call(waiting.verb, {key: value})
        elif waiting.path is not None:
            if self._take_hunks(fence, waiting.path):
                self._editing = waiting.path
                return
            if waiting.verb == "EDIT":
                self.problems.append(
                    f"EDIT: {waiting.path} has no SEARCH/REPLACE hunk in its block. Use FILE: to"
                    " write a whole file"
                )
            else:
                self._write(waiting.path, fence)

    def _take(self, fence: Fence, address: PurePosixPath | None) -> None:
        first = next((line for line in fence.body if line.strip()), "")
        if address is None and self._depth < _DEEPEST and self._is_wrapped(fence, first):
            self._read_inside(fence)
            return
        commented = None if address else _path_in_first_line(first, fence)
        if self._take_hunks(fence, address or commented or self._editing or self.sole_target):
            return
        if commented is not None:
            body = fence.body[fence.body.index(first) + 1 :]
            self._write(commented, dataclasses.replace(fence, body=body))
        elif address is not None:
            self._write(address, fence)
        else:
            self.bare.append(fence)

    @staticmethod
    def _is_wrapped(fence: Fence, first: str) -> bool:
        directive = read_directive(first)
        plain = fence.info.strip().lower() in _WRAPPED_TEXT
        return plain and directive is not None

    def _read_inside(self, fence: Fence) -> None:
        inner = Reading(
            lines=list(fence.body),
            tools=self.tools,
            sole_target=self.sole_target,
            ended=self.ended or fence.closed,
        )
        inner._depth = self._depth + 1
        inner.asks = self.asks  # so that calls are numbered through
        inner.read()
        self.problems += inner.problems
        self.prose += inner.prose
        self.bare += inner.bare

    def _take_hunks(self, fence: Fence, path: PurePosixPath | None) -> bool:
        """Read a block of hunks; returns whether it is one."""
        cut_off = self._is_cut_off(fence)
        if any(opens_hunk(line) for line in fence.body):
            inside = path_above(next((line for line in fence.body if line.strip()), ""))
            self._add_hunks(read_hunks(fence.body, complete=not cut_off), path or inside)
            return True
        if is_diff(fence.body) and (language_of(fence.info) == "diff" or path is not None):
            self._add_hunks(read_diff(fence.body), path)
            return True
        return False

    def _read_open_hunks(self) -> None:
        """Read hunks outside of a fence."""
        start = self._at
        end = start
        while end < len(self.lines):
            following = next(
                (i for i in range(end, len(self.lines)) if closes_hunk(self.lines[i])), None
            )
            end = len(self.lines) if following is None else following + 1
            ahead = next((i for i in range(end, len(self.lines)) if self.lines[i].strip()), end)
            if following is None or ahead >= len(self.lines) or not opens_hunk(self.lines[ahead]):
                break
        self._at = end
        waiting, self._waiting = self._waiting, None
        above = next((line for line in reversed(self.prose[-3:]) if line.strip()), "")
        path = waiting.path if waiting else path_above(above) or self.sole_target
        self._add_hunks(read_hunks(self.lines[start:end], complete=self.ended), path)

    def _add_hunks(self, hunks: Hunks, path: PurePosixPath | None) -> None:
        self.problems += hunks.problems
        for hunk in hunks.hunks:
            target = hunk.path or path
            if target is None:
                self.problems.append(
                    "a SEARCH/REPLACE hunk names no file: write EDIT: and its path above it"
                )
                return
            edit = ReplaceText(path=target, search=hunk.search, replace=hunk.replace)
            self.asks.append(edit)

    def _write(self, path: PurePosixPath, fence: Fence) -> None:
        if self._is_cut_off(fence):
            self.problems.append(f"{CUT_OFF} inside {path}: the file is not complete")
            if not fence.text.strip():
                return
        self.asks.append(WriteFile(path=path, text=fence.text))

    def _is_cut_off(self, fence: Fence) -> bool:
        return not fence.closed and not self.ended

    def _give_up_waiting(self) -> None:
        """Resolve a directive that has no block."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        self.prose.extend(waiting.since)
        text = "\n".join(waiting.since).strip("\n") + "\n"
        first = next((line.strip() for line in waiting.since if line.strip()), "")
        if waiting.verb in {"RUN", "PYTHON"}:
            if first:
                self._call(waiting.verb, tool_arguments(waiting.verb, first)[0])
            else:
                self.problems.append(f"{waiting.verb}: needs a command or a fenced block")
            return
        path = waiting.path
        if path is None:
            return
        whole = waiting.verb == "FILE" and first and is_readable(path)
        if whole and not syntax_error(path, text):
            self.asks.append(WriteFile(path=path, text=text))
        else:
            self.problems.append(f"{waiting.verb}: {path} has no fenced block after it")


def _may_have_block(waiting: _Waiting) -> bool:
    """Whether the next block can belong to this directive; a command must be close to it."""
    if waiting.verb in {"RUN", "PYTHON"}:
        return not any(line.strip() for line in waiting.since)
    return True


def _path_in_first_line(first: str, fence: Fence) -> PurePosixPath | None:
    path = path_in_comment(first)
    return path if path is not None and fits_language(fence.info, path) else None
