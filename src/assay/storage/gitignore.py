"""Decides like git which paths `.gitignore` files exclude, without starting git.

Git itself is not asked: the configuration of a repository can name programs that git starts.
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
    """The folder of the file, from the root of the repository, with a slash at its end."""
    pattern: re.Pattern[str]
    by_name: bool
    """Compared with the last part of a path alone."""
    folders_only: bool
    negated: bool

    def matches(self, path: str, *, folder: bool) -> bool:
        if (self.folders_only and not folder) or not path.startswith(self.base):
            return False
        inner = path[len(self.base) :]
        return bool(self.pattern.fullmatch(inner.rpartition("/")[2] if self.by_name else inner))


def is_ignored(rules: Sequence[Rule], path: str, *, folder: bool) -> bool:
    """Whether the last rule that matches excludes this path; folders above are not looked at."""
    for rule in reversed(rules):
        if rule.matches(path, folder=folder):
            return not rule.negated
    return False


def parse_rules(content: bytes, base: str) -> tuple[Rule, ...]:
    """Read the rules of an ignore file that is in the folder `base`."""
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
    """Return a glob as a regular expression; None if git lets it match nothing."""
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
    """Translate what begins at a place, and say how long it is; 0 if it is not complete."""
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
    """Translate `**` between slashes: any number of folders, also none."""
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
    """What git knows of a folder: where in a repository it is, and which files it tracks there."""

    prefix: str = ""
    """From the root of the repository to the folder: empty, or with a slash at its end."""
    rules: tuple[Rule, ...] = ()
    """Of the folders above, and of the repository itself."""
    tracked: frozenset[str] = frozenset()
    """Files that git tracks, and their folders, from the root of the repository."""


def look_up_repository(folder: Path) -> Repository:
    """Find the repository that a folder is in.

    A folder that is itself ignored was named although it is: the rules above it do not apply.
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
    """Return where a repository keeps its index; for worktrees and submodules a file says it."""
    if place.is_dir():
        return place
    named = _read(place).decode("utf-8", "surrogateescape").removeprefix("gitdir:").strip()
    return place.parent / named.split("\0")[0]


def _shared_folder(git: Path) -> Path:
    """Return where a repository keeps what all its worktrees share."""
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
    """Read the names in git's index; one that cannot be read tracks nothing."""
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
        # Entries of the older versions are filled up to a multiple of eight bytes.
        place = end + 1 if version == _COMPRESSED else place + ((end - place) // 8 + 1) * 8


def _number(content: bytes, place: int) -> tuple[int, int]:
    """Read a number of variable length, as version 4 of the index has it."""
    number = content[place] & 0x7F
    while place + 1 < len(content) and content[place] & 0x80:
        place += 1
        number = ((number + 1) << 7) | (content[place] & 0x7F)
    return number, place + 1
