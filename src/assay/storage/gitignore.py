"""Evaluation of `.gitignore` files with git's rules, without running git.

Running git is unsafe: the configuration of a repository can name programs that git starts.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from assay.settings.load import git_ignore_file

RULES_FILE: Final = ".gitignore"
_MOST_BYTES: Final = 1 << 20
_INDEX_HEAD: Final = 12
_ENTRY_HEAD: Final = 62
_EXTENDED: Final = 0x4000
_COMPRESSED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of an ignore file."""

    base: str
    """The folder of the file, from the repository root, with a final slash."""
    pattern: re.Pattern[str]
    by_name: bool
    """Whether the pattern applies to the last path component only."""
    folders_only: bool
    negated: bool

    def matches(self, path: str, *, folder: bool) -> bool:
        if (self.folders_only and not folder) or not path.startswith(self.base):
            return False
        inner = path[len(self.base) :]
        return bool(self.pattern.fullmatch(inner.rpartition("/")[2] if self.by_name else inner))


def is_ignored(rules: Sequence[Rule], path: str, *, folder: bool) -> bool:
    """Return whether the last matching rule excludes this path; ignores parent folders."""
    for rule in reversed(rules):
        if rule.matches(path, folder=folder):
            return not rule.negated
    return False


def parse_rules(content: bytes, base: str) -> tuple[Rule, ...]:
    """Parse the rules of an ignore file in the folder `base`."""
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    rules = (_rule(line.removesuffix("\r"), base) for line in text.split("\n"))
    return tuple(rule for rule in rules if rule)


def _rule(line: str, base: str) -> Rule | None:
    line = _without_trailing_spaces(line)
    if not line or line.startswith("#"):
        return None
    negated = line.startswith("!")
    glob = line[1:] if negated else line
    folders_only = glob.endswith("/")
    glob = glob.removesuffix("/")
    by_name = "/" not in glob
    translated = _translated(glob.removeprefix("/"))
    if not glob or translated is None:
        return None
    return Rule(
        base=base,
        pattern=re.compile(translated, re.DOTALL),
        by_name=by_name,
        folders_only=folders_only,
        negated=negated,
    )


def _without_trailing_spaces(line: str) -> str:
    stripped = line.rstrip(" ")
    escapes = len(stripped) - len(stripped.rstrip("\\"))
    return stripped + " " if escapes % 2 and stripped != line else stripped


_STARS: Final = re.compile(r"(?P<before>^|/)\*\*(?P<after>/|$)")
_BRACKET: Final = re.compile(r"\[[!^]?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]", re.DOTALL)
_CLASSES: Final = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "blank": r" \t",
    "xdigit": "0-9a-fA-F",
    "punct": re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
}


def _translated(glob: str) -> str | None:
    """Return a glob as a regular expression; None if it matches nothing in git."""
    made: list[str] = []
    place = 0
    while place < len(glob):
        piece, length = _piece(glob, place)
        if not length:
            return None
        made.append(piece)
        place += length
    return "".join(made)


def _piece(glob: str, place: int) -> tuple[str, int]:
    """Translate the token at a position, and return its length; 0 if it is incomplete."""
    letter = glob[place]
    if stars := _STARS.match(glob, place):
        return _crossing(stars), len(stars[0])
    if letter == "*":
        length = len(glob[place:]) - len(glob[place:].lstrip("*"))
        return "[^/]*", length
    if letter == "?":
        return "[^/]", 1
    if letter == "[":
        found = _BRACKET.match(glob, place)
        return (_bracket(found[0]), len(found[0])) if found else ("", 0)
    if letter == "\\":
        following = glob[place + 1 : place + 2]
        return re.escape(following), 2 if following else 0
    return re.escape(letter), 1


def _crossing(stars: re.Match[str]) -> str:
    """Translate `**` between slashes: any number of folders, including none."""
    if stars["after"]:
        return f"{stars['before']}(?:.*/)?"
    return f"{stars['before']}.+" if stars["before"] else ".*"


def _bracket(text: str) -> str:
    inner = text[1:-1]
    negated = inner.startswith(("!", "^"))
    parts: list[str] = []
    for found in re.finditer(r"\[:(\w+):\]|\\(.)|(.)", inner[1:] if negated else inner, re.DOTALL):
        named, escaped, plain = found.groups()
        if named:
            parts.append(_CLASSES.get(named, ""))
        else:
            parts.append("-" if plain == "-" else re.escape(escaped or plain))
    members = "".join(parts)
    try:
        re.compile(f"[{members}]")
    except re.error:
        return r"(?!)"
    return f"(?!/)[{'^' if negated else ''}{members}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Git's data on a folder: its position in the repository and its tracked files."""

    prefix: str = ""
    """From the repository root to the folder: empty, or with a final slash."""
    rules: tuple[Rule, ...] = ()
    """Rules of the parent folders and of the repository itself."""
    tracked: frozenset[str] = frozenset()
    """Tracked files and their folders, from the repository root."""


def look_up_repository(folder: Path) -> Repository:
    """Find the repository of a folder.

    Rules of parent folders do not apply to a folder that is itself ignored: the user chose it.
    """
    folder = folder.resolve()
    root = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    if root is None:
        return Repository()
    git = _git_folder(root / ".git")
    personal = git_ignore_file()
    rules = parse_rules(_read(personal), "") if personal else ()
    rules += parse_rules(_read(_shared_folder(git) / "info" / "exclude"), "")
    parts = folder.relative_to(root).parts
    place, base = root, ""
    for name in parts:
        rules += parse_rules(_read(place / RULES_FILE), base)
        if is_ignored(rules, base + name, folder=True):
            return Repository()
        place, base = place / name, f"{base}{name}/"
    return Repository(prefix=base, rules=rules, tracked=frozenset(_with_folders(_tracked(git))))


def _git_folder(place: Path) -> Path:
    """Return the folder with the repository's index; worktrees and submodules name it in a file."""
    if place.is_dir():
        return place
    named = _read(place).decode("utf-8", "surrogateescape").removeprefix("gitdir:").strip()
    return place.parent / named.split("\0")[0]


def _shared_folder(git: Path) -> Path:
    """Return the folder that all worktrees of a repository share."""
    named = _read(git / "commondir").decode("utf-8", "surrogateescape").strip()
    return git / named.split("\0")[0]


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return b""


def _with_folders(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        yield path
        while "/" in path:
            path = path.rpartition("/")[0]  # noqa: PLW2901 - one folder up each time
            yield path


def _tracked(git: Path) -> Iterator[str]:
    """Read the names in git's index; an unreadable index tracks nothing."""
    try:
        content = (git / "index").read_bytes()
    except OSError:
        return
    if not content.startswith(b"DIRC"):
        return
    version, entries = (int.from_bytes(content[at : at + 4]) for at in (4, 8))
    place, name = _INDEX_HEAD, b""
    for _ in range(entries):
        flags = int.from_bytes(content[place + 60 : place + 62])
        begin = place + _ENTRY_HEAD + (2 if flags & _EXTENDED else 0)
        kept = b""
        if version == _COMPRESSED:
            dropped, begin = _number(content, begin)
            kept = name[: len(name) - dropped]
        end = content.find(b"\0", begin)
        if end < 0:
            return
        name = kept + content[begin:end]
        yield name.decode("utf-8", "surrogateescape")
        # Entries of older versions are padded to a multiple of eight bytes.
        place = end + 1 if version == _COMPRESSED else place + ((end - place) // 8 + 1) * 8


def _number(content: bytes, place: int) -> tuple[int, int]:
    """Read a variable-length number, as in version 4 of the index."""
    number = content[place] & 0x7F
    while place + 1 < len(content) and content[place] & 0x80:
        place += 1
        number = ((number + 1) << 7) | (content[place] & 0x7F)
    return number, place + 1
