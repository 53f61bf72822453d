"""Describe the files of a workspace for the first message: a listing, or a map of a large tree.

The map has folders with counts, and the definitions most related to the goal, the failing tests
and their tracebacks. Its cost is limited: only files with matching names or text are parsed.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final

from assay.agent.definitions import MAX_BYTES, SOURCE_SUFFIXES, Definition, find_definitions
from assay.contracts.workspace import Tree
from assay.text.formatting import count

_LISTED_FILES: Final = 300
_SHARE_OF_FOLDERS: Final = 0.4
_MOST_FOLDERS: Final = 40
_SUFFIXES_OF_A_FOLDER: Final = 3
_DEEP: Final = 3
_SPLIT_ABOVE: Final = 200
"""Folders with more files are split into their folders."""

_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w{2,}")
_MARKED: Final = re.compile(r"(\w{3,})\(|`(\w{3,})`")
"""Names that are called, or marked as code."""
_WORD: Final = re.compile(r"[A-Za-z]{4,}")
_PARTS_OF_A_NAME: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_COMMON_WORDS: Final = """
about after again also always another args assert because been before being both bool bytes call
called calls case change check class code data default dict does each else error errors every
example exception expected fail fails failing false file files fix float from function given goal
have import into instead item items keep kwargs keys length like list make makes method methods
must name names need never none number object only other pass passes path pytest python raise
raises return returns same self should some string such sure test tests text than that their them
then there these they this those true tuple type unittest used using value values version when
where which while will with without work works write
"""
_COMMON: Final = frozenset(_COMMON_WORDS.split())
_NAME_WEIGHT: Final = 4.0
"""The weight of a word that looks like an identifier."""
_WORD_WEIGHT: Final = 1.0
_MOST_NAMES: Final = 16
"""Identifiers that are searched for in the content of files."""
_READ_BYTES: Final = 96 << 20
"""The content of files that is searched, over all files."""
_PARSED_FILES: Final = 24
_SHOWN_FILES: Final = 8
_SHOWN_DEFINITIONS: Final = 14
_FULLY_SHOWN: Final = 2
_SHOWN_RELATED: Final = 6
"""Definitions of the files after the first two, and only with related names."""
_LEAST_SHARE: Final = 0.2
"""The least score of a file that is shown, as a share of the best one's."""
_WHOLE_NAME: Final = 3
"""Factor for a word that is the whole name of a definition."""
_LEADING_WEIGHT: Final = 12.0
"""The weight of a file to which a traceback or an import of a failing test leads."""


def describe_tree(
    tree: Tree,
    *,
    words: Mapping[str, float],
    leading: Iterable[PurePosixPath] = (),
    shown: frozenset[PurePosixPath] = frozenset(),
    tests: frozenset[PurePosixPath] = frozenset(),
    max_chars: int,
) -> list[str]:
    """Return the sections that describe the tree; none if every file is in `shown`.

    `words` come from `words_of`. `leading` are files that the failures or the tests lead to. The
    definitions of `tests` are left out: the model cannot change them.
    """
    others = sorted(path for path in tree.files if path not in shown)
    if not others:
        return []
    listing = _list_by_folder(others[:_LISTED_FILES])
    if len(others) <= _LISTED_FILES and len(listing) <= int(max_chars * _SHARE_OF_FOLDERS):
        title = "Other files in the workspace" if shown else "Files in the workspace"
        parts = [f"# {title}\n{listing}"]
    else:
        room = int(max_chars * _SHARE_OF_FOLDERS)
        folders = _describe_folders(tree, max_chars=room)
        parts = [f"# The workspace: {count(len(tree.files), 'file')}\n{folders}"]
    room = max_chars - sum(map(len, parts))
    ranked = _rank(tree, words, leading=tuple(leading), without=shown | tests)
    related = _describe_definitions(tree, ranked, words, max_chars=room)
    if related:
        parts.append(f"# Definitions that may be related, with their lines\n{related}")
    return parts


def words_of(texts: Iterable[str], *, names: Iterable[str] = ()) -> dict[str, float]:
    """Return the words of texts with weights: identifiers count more than ordinary words.

    `names` are identifiers already, such as those that a failing test uses.
    """
    found: dict[str, float] = {}
    for text in texts:
        marked = {match[1] or match[2] for match in _MARKED.finditer(text)}
        for match in _IDENTIFIER.finditer(text):
            if match[0] in marked or _looks_like_code(match[0]):
                found[match[0]] = _NAME_WEIGHT
        for match in _WORD.finditer(text):
            word = match[0].lower()
            if word not in _COMMON:
                found.setdefault(word, _WORD_WEIGHT)
    for name in names:
        if len(name) > 2 and name.lower() not in _COMMON:  # noqa: PLR2004 - shorter: no information
            found[name] = _NAME_WEIGHT
    return found


def _looks_like_code(name: str) -> bool:
    mixed = name != name.upper() and name[1:] != name[1:].lower()
    return "_" in name.strip("_") or mixed


def _list_by_folder(paths: list[PurePosixPath]) -> str:
    """Return one line for each folder with the names of its files."""
    folders: dict[PurePosixPath, list[str]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(path.name)
    rows = (
        f"- `{folder}/`: {', '.join(names)}" if folder.parts else f"- {', '.join(names)}"
        for folder, names in sorted(folders.items())
    )
    return "\n".join(rows)


def _describe_folders(tree: Tree, *, max_chars: int) -> str:
    """Return a line for each folder with its number of files; large folders are split."""
    # Tuples of names: paths cost far more in a large tree.
    below: Counter[tuple[str, ...]] = Counter()
    suffixes: dict[tuple[str, ...], Counter[str]] = {}
    for path in tree.files:
        parts = path.parts
        suffix = path.suffix or parts[-1]
        for depth in range(1, min(len(parts) - 1, _DEEP) + 1):
            below[parts[:depth]] += 1
            suffixes.setdefault(parts[:depth], Counter())[suffix] += 1
    rows = [_describe_root(tree)]
    folders = sorted(
        folder
        for folder in below
        if all(below[folder[:depth]] > _SPLIT_ABOVE for depth in range(1, len(folder)))
    )
    # The largest folders are the most likely to be worth a line.
    kept = set(sorted(folders, key=lambda folder: -below[folder])[:_MOST_FOLDERS])
    for folder in folders:
        if folder in kept:
            kinds = suffixes[folder].most_common(_SUFFIXES_OF_A_FOLDER)
            named = ", ".join(f"{number} {suffix}" for suffix, number in kinds)
            indent = "  " * (len(folder) - 1)
            rows.append(
                f"{indent}- `{'/'.join(folder)}/`: {count(below[folder], 'file')} ({named})"
            )
    text = ""
    for number, row in enumerate(rows):
        if len(text) + len(row) > max_chars and number:
            return f"{text}- and {count(len(rows) - number, 'folder')} more"
        text += f"{row}\n"
    left = len(folders) - len(kept)
    return text.rstrip() + (f"\n- and {count(left, 'folder')} more" if left else "")


def _describe_root(tree: Tree) -> str:
    names = sorted(str(path) for path in tree.files if len(path.parts) == 1)
    more = f" and {len(names) - _MOST_FOLDERS} more" if len(names) > _MOST_FOLDERS else ""
    listed = ", ".join(f"`{name}`" for name in names[:_MOST_FOLDERS])
    return f"- at the root: {listed or 'no files'}{more}"


def _rank(
    tree: Tree,
    words: Mapping[str, float],
    *,
    leading: tuple[PurePosixPath, ...],
    without: frozenset[PurePosixPath],
) -> list[PurePosixPath]:
    """Return the files whose definitions are worth showing, the most related first."""
    scores: defaultdict[PurePosixPath, float] = defaultdict(float)
    lowered = {word.lower(): weight for word, weight in words.items()}
    sources = [
        path
        for path, file in tree.files.items()
        if path.suffix in SOURCE_SUFFIXES and len(file.content) <= MAX_BYTES and path not in without
    ]
    for path in sources:
        parts = {part.lower() for part in (*path.parts[:-1], path.stem, *path.stem.split("_"))}
        if score := sum(lowered[part] for part in parts if part in lowered):
            scores[path] += score
    names = sorted((name for name in words if words[name] >= _NAME_WEIGHT), key=len, reverse=True)
    for path, score in _scores_by_content(tree, sources, names[:_MOST_NAMES]).items():
        scores[path] += score
    for path in leading:
        if path.suffix in SOURCE_SUFFIXES and path in tree.files and path not in without:
            scores[path] += _LEADING_WEIGHT
    parsed = sorted(scores, key=lambda path: (-scores[path], str(path)))[:_PARSED_FILES]
    for path in parsed:
        found = find_definitions(path.suffix, tree.files[path].content)
        # Each word counts once: many definitions with a common word say little.
        scores[path] += sum(dict(_relation(each, lowered) for each in found).values())
    ranked = sorted(parsed, key=lambda path: (-scores[path], str(path)))[:_SHOWN_FILES]
    return [path for path in ranked if scores[path] >= scores[ranked[0]] * _LEAST_SHARE]


def _scores_by_content(
    tree: Tree, sources: list[PurePosixPath], names: list[str]
) -> Mapping[PurePosixPath, float]:
    """Score files by the names in their text; a name in few files counts more."""
    found: dict[str, list[PurePosixPath]] = {name: [] for name in names}
    needles = [(name, name.encode("utf-8", "replace")) for name in names]
    left = _READ_BYTES
    # Files near the root first, so that a limit leaves out the deepest ones.
    for path in sorted(sources, key=lambda path: len(path.parts)):
        content = tree.files[path].content
        left -= len(content)
        if left < 0:
            break
        for name, needle in needles:
            if needle in content:
                found[name].append(path)
    scores: dict[PurePosixPath, float] = {}
    for paths in found.values():
        weight = math.log(1 + len(sources) / (1 + len(paths)))
        for path in paths:
            scores[path] = scores.get(path, 0.0) + weight
    return scores


def _relation(definition: Definition, lowered: Mapping[str, float]) -> tuple[str, float]:
    """Return the most important word in the name of a definition, and its weight."""
    name = definition.name.rpartition(".")[2].lower()
    if name in lowered:
        return name, lowered[name] * _WHOLE_NAME
    parts = [part.lower() for part in _PARTS_OF_A_NAME.findall(definition.name)]
    weights = [(lowered.get(part, 0.0) / 2, part) for part in parts]
    weight, part = max(weights, default=(0.0, ""))
    return part, weight


def _describe_definitions(
    tree: Tree, ranked: list[PurePosixPath], words: Mapping[str, float], *, max_chars: int
) -> str:
    """Return the definitions of files, those with related names first to be kept."""
    lowered = {word.lower(): weight for word, weight in words.items()}
    text = ""
    for place, path in enumerate(ranked):
        found = find_definitions(path.suffix, tree.files[path].content)
        by_relation = sorted(
            found, key=lambda each: (-_relation(each, lowered)[1], each.is_member, each.first)
        )
        if place < _FULLY_SHOWN:
            kept = set(by_relation[:_SHOWN_DEFINITIONS])
        else:
            related = [each for each in by_relation if _relation(each, lowered)[1]]
            kept = set(related[:_SHOWN_RELATED])
        rows = [_row(each) for each in found if each in kept]
        if not rows:
            continue
        more = [f"  - {len(found) - len(rows)} more"] if len(found) > len(rows) else []
        block = "\n".join([f"- `{path}`", *rows, *more, ""])
        if len(text) + len(block) > max_chars:
            break
        text += block
    return text.rstrip()


def _row(definition: Definition) -> str:
    lines = str(definition.first)
    if definition.last > definition.first:
        lines = f"{lines}-{definition.last}"
    kind = f"{definition.kind} " if definition.kind and not definition.is_member else ""
    return f"  - {kind}`{definition.name}` {lines}"
