"""Find the blocks in a reply of a model and the file that each belongs to.

Reads fenced blocks with the matching end among several candidates, SEARCH/REPLACE hunks, and
unified diffs. The path comes from the fence, the first line, or the text above.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from assay.agent.edits.apply import is_readable, syntax_error, tidy_path, why_unusable

_LANGUAGES: dict[str, tuple[str, ...]] = {
    "py": ("python", "py", "python3", "pyi", "pycon"),
    "js": ("javascript", "js", "jsx", "mjs", "cjs", "node", "ecmascript"),
    "ts": ("typescript", "ts", "tsx"),
    "rs": ("rust", "rs"),
    "go": ("go", "golang"),
    "java": ("java",),
    "kt": ("kotlin", "kt"),
    "c": ("c", "h", "cpp", "c++", "cc", "cxx", "hpp", "hh"),
    "cs": ("csharp", "c#", "cs"),
    "rb": ("ruby", "rb"),
    "php": ("php",),
    "swift": ("swift",),
    "json": ("json", "jsonc", "json5"),
    "yaml": ("yaml", "yml"),
    "toml": ("toml",),
    "html": ("html", "htm", "xml", "svg"),
    "css": ("css", "scss", "less"),
    "sql": ("sql",),
    "md": ("markdown", "md", "mdx"),
    "sh": (
        "bash",
        "sh",
        "shell",
        "zsh",
        "console",
        "shell-session",
        "terminal",
        "cmd",
        "powershell",
    ),
    "txt": ("text", "txt", "plaintext", "output", "log", "stdout"),
    "diff": ("diff", "patch", "udiff"),
}
_FAMILY = {name: family for family, names in _LANGUAGES.items() for name in names}
_SUFFIXES = frozenset(_FAMILY) | frozenset(
    {
        *("cfg", "clj", "cmake", "csv", "dart", "env", "ex", "exs", "erl", "gradle", "graphql"),
        *("gitignore", "hs", "hrl", "in", "ini", "ipynb", "jl", "lock", "lua", "m", "mk", "ml"),
        *("mod", "nim", "pl", "pm", "properties", "proto", "ps1", "pyx", "r", "rst", "scala"),
        *("sol", "sum", "svelte", "tex", "tf", "toml", "tsv", "vue", "zig", "bat", "conf", "j2"),
    }
)
_BARE_NAMES = frozenset(
    {"makefile", "dockerfile", "readme", "license", "gemfile", "rakefile", "procfile", "justfile"}
)
_NOT_FILES = frozenset({"node.js", "vue.js", "next.js", "react.js", "asp.net", "three.js", "d3.js"})
_PATH = re.compile(r"[\w.@+~\-()\[\]$]+(?:[/\\][\w.@+~\-()\[\]$]+)*")
_QUOTED = re.compile(r"[`'\"]([^`'\"\n]+)[`'\"]")
_KEYED = re.compile(r"\b(?:title|file|filename|path|name)\s*=\s*[\"'{]*([^\"'\s}]+)")
_COMMENT = re.compile(
    r"^\s*(?:#+|//+|--|;+|%|/\*+|<!--|\"\"\"|''')\s*(?P<label>(?:path|file|filename)\s*[:=]\s*)?"
    r"[`'\"]?(?P<path>[^\s`'\"]+)[`'\"]?\s*(?:\*/|-->|\"\"\"|''')?\s*$",
    re.IGNORECASE,
)
# The block shows part of a file or program output. Taken as the file, it would destroy it.
_SHOWS_SOMETHING_ELSE = re.compile(
    r"\b(?:currently|existing|original|before|was|snippet|example|usage|output|prints?|running?"
    r"|tests? with|you have|looks like|instead of|given|contains the|error|traceback"
    r"|in|inside|within|to|add|insert|append|call|lines?|after)\b",
    re.IGNORECASE,
)
_MOST_WORDS_ABOVE = 10
_LONGEST_LINE_CHARS = 300


def looks_like_path(token: str) -> bool:
    """Whether a word is a file name, by its suffix or as a well-known name."""
    if "://" in token or token.lower() in _NOT_FILES or not _PATH.fullmatch(token):
        return False
    name = re.split(r"[/\\]", token)[-1]
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    return suffix in _SUFFIXES or name.lower() in _BARE_NAMES


def path_in_directive(rest: str) -> PurePosixPath | None:
    """Return the path after a directive such as `FILE:`; None if there is none."""
    text = rest.strip().rstrip("*_").strip()
    quoted = _QUOTED.match(text)
    if quoted:
        text = quoted[1]
    else:
        text = re.sub(r"\s+\([^)]*\)$", "", text).rstrip(":")
        words = text.split()
        if len(words) > 1 and (looks_like_path(words[0]) or not looks_like_path(words[-1])):
            text = words[0].rstrip(":,;")
    return usable(text)


def path_in_info(info: str) -> PurePosixPath | None:
    """Return the path in the info string of a fence."""
    keyed = _KEYED.search(info)
    if keyed:
        return usable(keyed[1])
    for word in info.strip("{} ").split():
        language, _, rest = word.partition(":")
        for token in (rest, word) if language.lower() in _FAMILY else (word,):
            if looks_like_path(token) or ("/" in token and _PATH.fullmatch(token)):
                return usable(token)
    return None


def path_above(line: str) -> PurePosixPath | None:
    """Return the path in the line above a block; None if the line is about something else."""
    text = line.strip()
    if len(text) > _LONGEST_LINE_CHARS:
        return None
    bare = text.strip("#*_`'\">:- \t").removeprefix("./")
    if looks_like_path(bare):
        return usable(bare)
    tokens = [word.strip("#*_`'\"(),:;") for word in text.split()]
    paths = {token.rstrip(".") for token in tokens if looks_like_path(token.rstrip("."))}
    is_about_it = text.rstrip("*_ ").endswith(":") or bool(
        re.match(r"\W*(?:file|path)", text, re.IGNORECASE)
    )
    too_long = len(tokens) > _MOST_WORDS_ABOVE
    if len(paths) != 1 or not is_about_it or too_long or _SHOWS_SOMETHING_ELSE.search(text):
        return None
    return usable(paths.pop())


def path_in_comment(line: str) -> PurePosixPath | None:
    """Return the path in a block's first line, if that line is a comment with only a path."""
    comment = _COMMENT.match(line) if len(line) <= _LONGEST_LINE_CHARS else None
    if comment is None or not (comment["label"] or looks_like_path(comment["path"])):
        return None
    return usable(comment["path"])


def usable(text: str) -> PurePosixPath | None:
    """Return a normalized path; None if no file can have it."""
    path = tidy_path(text)
    return None if why_unusable(path) else path


def language_of(info: str) -> str:
    """Return the language family that a fence names; empty if it is not known."""
    word = re.split(r"[\s:{,]", info.strip().strip("{.").lower())[0]
    return _FAMILY.get(word, "")


def fits_language(info: str, path: PurePosixPath) -> bool:
    """Whether a block in this language can be this file; unknown languages match."""
    language, suffix = language_of(info), _FAMILY.get(path.suffix.lstrip(".").lower(), "")
    return not language or not suffix or language == suffix or {language, suffix} == {"js", "ts"}


_OPEN_HUNK = re.compile(
    r"^\s{0,3}(?:<{5,9}|-{5,9})\s*(?:SEARCH|ORIGINAL|HEAD|BEFORE|OLD)\b.*$", re.IGNORECASE
)
_DIVIDE = re.compile(r"^\s{0,3}={5,9}\s*$")
_CLOSE = re.compile(
    r"^\s{0,3}(?:>{5,9}\s*(?:(?:REPLACE|UPDATED|AFTER|NEW)\b.*)?|\+{5,9}\s*REPLACE\b.*)$",
    re.IGNORECASE,
)
_DIFF_FILE = re.compile(r"^\+\+\+\s+(?:b/)?(?P<path>\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """One replacement. `path` is set only if the hunk names its file."""

    search: str
    replace: str
    path: PurePosixPath | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunks:
    """The hunks of a block."""

    hunks: tuple[Hunk, ...] = ()
    problems: tuple[str, ...] = ()


def opens_hunk(line: str) -> bool:
    """Whether a hunk starts at this line."""
    return bool(_OPEN_HUNK.match(line))


def closes_hunk(line: str) -> bool:
    """Whether a hunk ends at this line."""
    return bool(_CLOSE.match(line))


def is_diff(lines: Sequence[str]) -> bool:
    """Whether these lines are a unified diff."""
    headed = any(line.startswith("--- ") for line in lines) and any(
        line.startswith("+++ ") for line in lines
    )
    return any(line.startswith("@@") for line in lines) and (
        headed or any(line[:1] in {"+", "-"} for line in lines)
    )


def read_hunks(lines: Sequence[str], *, complete: bool = True) -> Hunks:
    """Read all hunks of a block; `complete` is false for a block without an end."""
    hunks: list[Hunk] = []
    problems: list[str] = []
    at = 0
    while at < len(lines):
        if not opens_hunk(lines[at]):
            at += 1
            continue
        end = at + 1
        while end < len(lines) and not (opens_hunk(lines[end]) or closes_hunk(lines[end])):
            end += 1
        if end == len(lines) and not complete:
            problems.append("the last SEARCH/REPLACE hunk is cut off, and was left out")
            break
        body = lines[at + 1 : end]
        hunk = _split(body)
        if hunk is None:
            problems.append(
                "a SEARCH/REPLACE hunk needs exactly one line ======= between the lines to search"
                f" for and the lines to put there; this one has {_dividers(body)}"
            )
        else:
            hunks.append(hunk)
        at = end if end < len(lines) and opens_hunk(lines[end]) else end + 1
    return Hunks(hunks=tuple(hunks), problems=tuple(problems))


def _dividers(body: Sequence[str]) -> int:
    return sum(bool(_DIVIDE.match(line)) for line in body)


def _split(body: Sequence[str]) -> Hunk | None:
    dividers = [at for at, line in enumerate(body) if _DIVIDE.match(line)]
    if len(dividers) % 2 == 0:
        return None
    # Content may contain such lines, such as underlined headings: equally many on both sides.
    middle = dividers[len(dividers) // 2]
    return Hunk(search=_text(body[:middle]), replace=_text(body[middle + 1 :]))


def read_diff(lines: Sequence[str]) -> Hunks:
    """Read a unified diff as replacements; its line numbers are ignored."""
    hunks: list[Hunk] = []
    path: PurePosixPath | None = None
    old: list[str] = []
    new: list[str] = []

    def finish() -> None:
        if old != new:
            hunks.append(Hunk(search=_text(old), replace=_text(new), path=path))
        old.clear()
        new.clear()

    inside = False
    for before, line, following in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        # A deleted line that starts with `--` looks like a header, but no `+++` follows it.
        named = _DIFF_FILE.match(line) if before.startswith("--- ") else None
        heads = line.startswith("--- ") and following.startswith("+++ ")
        if named or heads or line.startswith(("@@", "diff ", "index ")):
            finish()
            inside = line.startswith("@@")
            path = usable(named["path"]) if named else path
        elif inside and not line.startswith("\\"):
            if line[:1] != "+":
                old.append(line[1:])
            if line[:1] != "-":
                new.append(line[1:])
    finish()
    problems = () if hunks else ("the diff changes nothing",)
    return Hunks(hunks=tuple(hunks), problems=problems)


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


_OPEN_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<marks>`{3,}|~{3,})(?P<info>.*)$")
_SECTION = re.compile(r"^[#*_`\s]*(?:FILE|EDIT)[*_`]*\s*:\s*\S")
_DONE = re.compile(r"^[\s#*_`>-]*DONE[\s*_`.!]*$")
_MARKDOWN = frozenset({".md", ".markdown", ".mdx"})
_MARKDOWN_INFO = re.compile(r"^(?:markdown|md|mdx)\b", re.IGNORECASE)
_MOST_TRIES = 40
_MOST_INNER_FENCES = 200
_SHORTEST_MARKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The opening line of a fenced block."""

    indent: str
    marks: str
    info: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One fenced block."""

    info: str
    body: tuple[str, ...]
    closed: bool
    after: int
    """The number of the line after it."""

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.body)


def read_opening(line: str) -> Opening | None:
    """Return the opening fence in a line; None if there is none."""
    match = _OPEN_FENCE.match(line)
    if match is None or (match["marks"][0] == "`" and "`" in match["info"]):
        return None
    return Opening(indent=match["indent"], marks=match["marks"], info=match["info"].strip())


def read_fence(lines: Sequence[str], at: int, *, path: PurePosixPath | None) -> Fence:
    """Read the block that opens at this line; `path` is its file, if known."""
    opening = read_opening(lines[at])
    if opening is None:
        raise ValueError("no fence opens here")
    markdown = _is_markdown(opening, path)
    many = _MOST_INNER_FENCES if markdown else _MOST_TRIES if path and is_readable(path) else 1
    closers, limit = _find_closers(lines, at, opening, many)
    if not closers:
        return _without_closer(lines, at, opening, limit)
    if markdown:
        closer = _close_markdown(lines, at, opening, closers)
    else:
        closer = _close_code(lines, at, (opening, closers), path)
    body = _dedented(lines[at + 1 : closer], opening.indent)
    return Fence(info=opening.info, body=body, closed=True, after=closer + 1)


def _is_markdown(opening: Opening, path: PurePosixPath | None) -> bool:
    if path is None:
        return bool(_MARKDOWN_INFO.match(opening.info))
    return path.suffix.lower() in _MARKDOWN


def _find_closers(
    lines: Sequence[str], at: int, opening: Opening, many: int
) -> tuple[list[int], int]:
    """Return the candidate closing lines, and the line at which the search ended.

    A fence inside a hunk counts only if there is no other. The start of the next file ends the
    block, unless the block has a longer fence, which exists to contain such lines.
    """
    closers: list[int] = []
    inside_hunks: list[int] = []
    inside = False
    for i in range(at + 1, len(lines)):
        if len(opening.marks) == _SHORTEST_MARKS and not inside and _begins_file(lines, i):
            return closers or inside_hunks, i
        inside = (inside or opens_hunk(lines[i])) and not closes_hunk(lines[i])
        if _closes(opening, lines[i]):
            (inside_hunks if inside else closers).append(i)
        if len(closers) >= many:
            return closers, i
    return closers or inside_hunks, len(lines)


def _begins_file(lines: Sequence[str], at: int) -> bool:
    if not _SECTION.match(lines[at]):
        return False
    following = next((line for line in lines[at + 1 : at + 4] if line.strip()), "")
    return read_opening(following) is not None or opens_hunk(following)


def _closes(opening: Opening, line: str) -> bool:
    text = line.strip()
    mark = opening.marks[0]
    indented = len(line) - len(line.lstrip()) > len(opening.indent) + 3
    return len(text) >= len(opening.marks) and not text.strip(mark) and not indented


def _without_closer(lines: Sequence[str], at: int, opening: Opening, limit: int) -> Fence:
    body = _dedented(lines[at + 1 : limit], opening.indent)
    closed = limit < len(lines)
    filled = [i for i, line in enumerate(body) if line.strip()]
    if filled and _DONE.match(body[filled[-1]]) and not closed:
        # The text after it says that the model is finished, so only the closing fence is missing.
        return Fence(
            info=opening.info,
            body=body[: filled[-1]],
            closed=True,
            after=limit - len(body) + filled[-1],
        )
    return Fence(info=opening.info, body=body, closed=closed, after=limit)


def _close_code(
    lines: Sequence[str],
    at: int,
    fence: tuple[Opening, list[int]],
    path: PurePosixPath | None,
) -> int:
    """Return the first closing line with which the file parses; docstrings may contain fences."""
    opening, closers = fence
    if path is not None and len(closers) > 1:
        for closer in closers:
            body = _dedented(lines[at + 1 : closer], opening.indent)
            if not syntax_error(path, "\n".join(body) + "\n"):
                return closer
    return closers[0]


def _close_markdown(lines: Sequence[str], at: int, opening: Opening, closers: Sequence[int]) -> int:
    """Return the end of a Markdown file, which may contain fenced blocks."""
    depth = 0
    bare: list[int] = []
    ends = frozenset(closers)
    for i in range(at + 1, closers[-1] + 1):
        if i in ends:
            if depth == 0:
                bare.append(i)
            depth = max(depth - 1, 0)
        else:
            inner = read_opening(lines[i])
            depth += inner is not None and inner.marks[0] == opening.marks[0]
    if not bare:
        return closers[-1]
    # An odd number: pairs around inner blocks without a language, plus the end.
    return bare[-1] if len(bare) % 2 else bare[0]


def _dedented(lines: Sequence[str], indent: str) -> tuple[str, ...]:
    if not indent:
        return tuple(lines)
    return tuple(line.removeprefix(indent) if line.startswith(indent) else line for line in lines)
