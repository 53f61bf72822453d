"""Apply the edits that a model requests to a file tree: all or none."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import assert_never

from assay.agent.edits.match import AlreadyThere, Ambiguous, Found, Missed, locate
from assay.agent.edits.newlines import FileText, plain_ends
from assay.agent.edits.placeholders import (
    left_out_of_file,
    left_out_of_replacement,
    left_out_of_search,
)
from assay.agent.edits.syntax import syntax_error
from assay.agent.model_paths import tidy_path, why_unusable
from assay.contracts.workspace import Tree, TreeFile

_MOST_LINES_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """A complete file, which is created or replaced."""

    path: PurePosixPath
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceText:
    """Lines of a file and their replacement. An empty search text creates a file."""

    path: PurePosixPath
    search: str
    replace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """A file to delete."""

    path: PurePosixPath


Edit = WriteFile | ReplaceText | DeleteFile

MayChange = Callable[[PurePosixPath], str]
"""Returns why a file may not be changed, as text for the model; empty if it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The result if all edits were applied."""

    tree: Tree
    changed: tuple[PurePosixPath, ...]
    """Paths whose content changed; an edit that was already applied changes nothing."""
    notes: tuple[str, ...] = ()
    """Notes for the model: how a text was matched, and which file does not parse now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The result if no edit was applied."""

    feedback: str
    """For the model: the failed edits with reasons and near misses, and the valid edits."""


class _RefusalError(Exception):
    """An edit that cannot be applied; the message is for the model."""


@dataclass(slots=True)
class _Bench:
    """The files while edits are applied."""

    files: dict[PurePosixPath, TreeFile]
    links: frozenset[PurePosixPath]
    notes: list[str] = field(default_factory=list[str])
    guesses: dict[PurePosixPath, int] = field(default_factory=dict[PurePosixPath, int])
    """By file: the number of the edit that was applied to merely similar lines."""


def apply_edits(tree: Tree, edits: Sequence[Edit], *, may_change: MayChange) -> Applied | Refused:
    """Apply edits in order, each to the result of the previous ones; a failed edit undoes all."""
    bench = _Bench(files=dict(tree.files), links=frozenset(tree.links))
    failures: dict[int, str] = {}
    for number, edit in enumerate(edits, start=1):
        try:
            _apply(bench, number, edit, may_change)
        except _RefusalError as refusal:
            failures[number] = str(refusal)
    if not failures:
        failures.update(_check_guesses(bench))
    if failures:
        return Refused(feedback=_describe_failures(edits, failures))
    touched = sorted(tree.files.keys() | bench.files.keys())
    changed = tuple(path for path in touched if tree.files.get(path) != bench.files.get(path))
    after = Tree(files=bench.files, links=tree.links)
    return Applied(tree=after, changed=changed, notes=(*bench.notes, *_parse_notes(after, changed)))


def _apply(bench: _Bench, number: int, edit: Edit, may_change: MayChange) -> None:
    path = tidy_path(str(edit.path))
    _check_path(bench, path, may_change)
    match edit:
        case WriteFile():
            _write(bench, path, edit.text)
        case ReplaceText() if path in bench.files:
            _replace(bench, number, path, edit)
        case ReplaceText():
            if edit.search.strip():
                raise _RefusalError(f"there is no such file{_suggest_path(bench, path)}")
            _write(bench, path, edit.replace)
        case DeleteFile():
            if bench.files.pop(path, None) is None:
                bench.notes.append(f"{path}: not there, so there was nothing to delete")
        case _:
            assert_never(edit)


def _check_path(bench: _Bench, path: PurePosixPath, may_change: MayChange) -> None:
    refusal = why_unusable(path)
    if not refusal and not bench.links.isdisjoint((path, *path.parents)):
        refusal = "the path leads over a link, and links are not followed"
    if not refusal and any(parent in bench.files for parent in path.parents):
        refusal = "a file stands where the path needs a directory"
    if (
        not refusal
        and path not in bench.files
        and any(path in place.parents for place in bench.files)
    ):
        refusal = "this is a directory; name a file in it"
    refusal = refusal or may_change(path)
    if refusal:
        raise _RefusalError(refusal)


def _write(bench: _Bench, path: PurePosixPath, text: str) -> None:
    old = bench.files.get(path)
    before = None if old is None else FileText.read(old.content)
    if before is not None:
        line = left_out_of_file(path, before.text, plain_ends(text))
        if line:
            raise _RefusalError(
                f"the new text says {line!r} in place of code that is in the file, and would lose"
                " it. Write the whole file, or change only the lines in question with SEARCH and"
                " REPLACE"
            )
    try:
        content = (
            text.removeprefix("\ufeff").encode()
            if before is None
            else (before.with_text(text).to_bytes())
        )
    except UnicodeEncodeError:
        raise _RefusalError("the text contains halves of characters (surrogates)") from None
    if old is not None and old.content == content:
        bench.notes.append(f"{path}: already applied, the file has this text")
        return
    bench.files[path] = TreeFile(content, executable=old is not None and old.executable)


def _replace(bench: _Bench, number: int, path: PurePosixPath, edit: ReplaceText) -> None:
    old = bench.files[path]
    file = FileText.read(old.content)
    if file is None:
        raise _RefusalError("the file is not UTF-8 text")
    search, replace = plain_ends(edit.search), plain_ends(edit.replace)
    if not search.strip():
        if not file.text.strip():
            _write(bench, path, replace)
            return
        raise _RefusalError(
            "the SEARCH text is empty, but the file is not. To insert lines, search for the line"
            " beside them and repeat it in the replacement; to replace everything, write the file"
        )
    place = locate(file.text, search, replace)
    match place:
        case AlreadyThere():
            bench.notes.append(f"{path}: already applied, the file reads like the replacement")
        case Ambiguous():
            raise _RefusalError(_describe_candidates(file.text, place))
        case Missed():
            raise _RefusalError(_describe_miss(file.text, search, place))
        case Found():
            line = left_out_of_replacement(path, search, replace)
            if line:
                raise _RefusalError(
                    f"the replacement says {line!r} in place of code. It would stand in the file"
                    " just so: write the code itself"
                )
            _put(bench, number, path, (file, place))
        case _:
            assert_never(place)


def _put(bench: _Bench, number: int, path: PurePosixPath, found: tuple[FileText, Found]) -> None:
    file, place = found
    after = file.with_part(place.start, place.end, place.replacement)
    try:
        content = after.to_bytes()
    except UnicodeEncodeError:
        raise _RefusalError("the text contains halves of characters (surrogates)") from None
    bench.files[path] = TreeFile(content, executable=bench.files[path].executable)
    if place.how:
        line = file.text.count("\n", 0, place.start) + 1
        bench.notes.append(f"{path}: line {line}: {place.how}")
    if place.guessed:
        bench.guesses[path] = number


def _check_guesses(bench: _Bench) -> dict[int, str]:
    """Reject an edit of merely similar lines if the file does not parse afterwards."""
    failures: dict[int, str] = {}
    for path, number in bench.guesses.items():
        file = bench.files.get(path)
        text = None if file is None else FileText.read(file.content)
        error = "" if text is None else syntax_error(path, text.text)
        if error:
            failures[number] = (
                "the SEARCH text is only similar to lines of the file, and put there the"
                f" replacement gives a file that does not parse ({error}). Copy the lines to search"
                " for exactly as they are in the file"
            )
    return failures


def _parse_notes(tree: Tree, changed: Sequence[PurePosixPath]) -> list[str]:
    notes: list[str] = []
    for path in changed:
        file = tree.files.get(path)
        text = None if file is None else FileText.read(file.content)
        error = "" if text is None else syntax_error(path, text.text)
        if error:
            notes.append(f"{path}: does not parse, {error}")
    return notes


def _suggest_path(bench: _Bench, path: PurePosixPath) -> str:
    same_name = [str(other) for other in sorted(bench.files) if other.name == path.name]
    names = same_name or difflib.get_close_matches(str(path), map(str, bench.files), n=3)
    if names:
        return f"; did you mean {' or '.join(names[:3])}?"
    return "; to make a new one, write the whole file"


def _describe_candidates(text: str, place: Ambiguous) -> str:
    lines = text.splitlines()
    shown = "\n".join(f"{number:6} | {lines[number - 1]}" for number in place.lines[:8])
    return (
        f"the SEARCH text fits {len(place.lines)} places, which begin at lines"
        f" {', '.join(map(str, place.lines[:8]))}:\n{shown}\n"
        "Search for more lines, so that only one place fits"
    )


def _describe_miss(text: str, search: str, place: Missed) -> str:
    line = left_out_of_search(search)
    if line:
        return (
            f"the SEARCH text says {line!r} in place of lines. Nothing is filled in: search for"
            " fewer lines that follow each other, exactly as they are in the file"
        )
    if place.near is None:
        return "the SEARCH text is not in the file, and nothing like it. Read the file first"
    first, after = place.near.first, min(place.near.after, place.near.first + _MOST_LINES_SHOWN)
    rows = list(enumerate(text.splitlines(), start=1))[first:after]
    shown = "\n".join(f"{number:6} | {row}" for number, row in rows)
    return (
        "the SEARCH text is not in the file. Most like it is (numbers are not part of the file):\n"
        f"{shown}\nCopy the lines to search for exactly as they are"
    )


def _describe_failures(edits: Sequence[Edit], failures: dict[int, str]) -> str:
    parts = [f"{len(failures)} of {len(edits)} edits cannot be applied, so nothing was changed."]
    parts += [
        f"Edit {number} ({_name(edits[number - 1])}): {reason}."
        for number, reason in failures.items()
    ]
    fine = [number for number in range(1, len(edits) + 1) if number not in failures]
    if fine:
        named = ", ".join(f"{number} ({_name(edits[number - 1])})" for number in fine)
        parts.append(
            f"These need no correction: edit {named}. Send them again unchanged, together with"
            " the corrected ones."
        )
    return "\n\n".join(parts)


def _name(edit: Edit) -> str:
    match edit:
        case WriteFile():
            return f"write {edit.path}"
        case ReplaceText():
            return f"replace in {edit.path}"
        case DeleteFile():
            return f"delete {edit.path}"
        case _:
            assert_never(edit)
