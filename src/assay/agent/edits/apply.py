"""Apply the edits that a model requests to a file tree: all or none.

Paths are normalized, and line ends, BOM and last newline of a file are kept. An edit with a
placeholder such as `...` in place of code is rejected. Files that do not parse afterwards are
noted; the syntax checks run no code.
"""

import ast
import difflib
import json
import re
import tomllib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import assert_never

from assay.agent.edits.match import AlreadyThere, Ambiguous, Found, Missed, locate
from assay.contracts.execution import WORKSPACE
from assay.contracts.workspace import Tree, TreeFile, changes_between

_BOM = "\ufeff"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileText:
    """A file's text with LF line ends and a final LF, and the data to write it back."""

    text: str
    ends: tuple[str, ...]
    """The file's line end for each LF of `text`."""
    bom: bool
    final_newline: bool

    @classmethod
    def read(cls, content: bytes) -> "FileText | None":
        """Return the text of a file; None if it is not UTF-8."""
        try:
            raw = content.decode()
        except UnicodeDecodeError:
            return None
        bom = raw.startswith(_BOM)
        raw = raw.removeprefix(_BOM)
        final_newline = raw.endswith("\n") or not raw
        pieces = raw.split("\n")
        ends = tuple("\r\n" if piece.endswith("\r") else "\n" for piece in pieces[:-1])
        text = plain_ends(raw)
        if not final_newline:
            text, ends = text + "\n", (*ends, _usual(ends))
        return cls(text=text, ends=ends, bom=bom, final_newline=final_newline)

    def with_part(self, start: int, end: int, replacement: str) -> "FileText":
        """Return a copy with one part replaced; lines outside that part keep their line ends."""
        before = self.text.count("\n", 0, start)
        inside = self.text.count("\n", start, end)
        kept, gone, rest = (
            self.ends[:before],
            self.ends[before : before + inside],
            self.ends[before + inside :],
        )
        usual = _usual(gone or self.ends)
        return FileText(
            text=self.text[:start] + replacement + self.text[end:],
            ends=(*kept, *([usual] * replacement.count("\n")), *rest),
            bom=self.bom,
            final_newline=self.final_newline,
        )

    def with_text(self, text: str) -> "FileText":
        """Return a rewritten file with the line ends and BOM of this one."""
        plain = plain_ends(text.removeprefix(_BOM))
        final_newline = plain.endswith("\n") or not plain
        plain = plain if final_newline else plain + "\n"
        ends = (_usual(self.ends),) * plain.count("\n")
        return FileText(text=plain, ends=ends, bom=self.bom, final_newline=final_newline)

    def to_bytes(self) -> bytes:
        """Return the file's content.

        Raises:
            UnicodeEncodeError: If the text has lone surrogates.
        """
        lines = self.text.split("\n")
        whole = "".join(line + end for line, end in zip(lines, (*self.ends, ""), strict=True))
        if not self.final_newline:
            whole = whole.removesuffix("\n").removesuffix("\r")
        return ((_BOM if self.bom else "") + whole).encode()


def plain_ends(text: str) -> str:
    """Return a text with LF line ends."""
    return text.replace("\r\n", "\n")


def _usual(ends: tuple[str, ...]) -> str:
    return "\r\n" if 2 * ends.count("\r\n") > len(ends) else "\n"


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


_LARGEST_CHARS = 4_000_000
_JSON_WITH_COMMENTS = re.compile(r"[tj]sconfig.*\.json|\.eslintrc\.json|devcontainer\.json")


def is_readable(path: PurePosixPath) -> bool:
    """Whether `syntax_error` knows the language of this file."""
    return _parser_for(path) is not None


def syntax_error(path: PurePosixPath, text: str) -> str:
    """Return `line 3: the error`; empty if the file parses or its language is not known."""
    parse = _parser_for(path)
    if parse is None or len(text) > _LARGEST_CHARS:
        return ""
    try:
        parse(text)
    except SyntaxError as error:
        return f"line {error.lineno or 1}: {error.msg}"
    except json.JSONDecodeError as error:
        return f"line {error.lineno}: {error.msg}"
    except ValueError as error:  # tomllib names the line itself; NUL characters and huge numbers
        return str(error)
    except (RecursionError, MemoryError):
        return "it is nested too deeply to be read"
    return ""


def parse_python(text: str) -> ast.Module | None:
    """Return the syntax tree; None if the source does not parse."""
    try:
        return _parse_python(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parse_python(text: str) -> ast.Module:
    with warnings.catch_warnings():
        # An invalid escape is only a warning, not an error.
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _parser_for(path: PurePosixPath) -> Callable[[str], object] | None:
    match path.suffix.lower():
        case ".py" | ".pyi":
            return _parse_python
        case ".json" if not _JSON_WITH_COMMENTS.fullmatch(path.name):
            return json.loads
        case ".toml":
            return tomllib.loads
        case _:
            return None


_LONGEST_NAME_BYTES = 255
_LONGEST_PATH_BYTES = 4095
_DRIVE = re.compile(r"^[A-Za-z]:[\\/]")


def tidy_path(written: str) -> PurePosixPath:
    """Return the intended path, without quotes, `./`, `/app/` and backslashes.

    The result may still be unusable; `why_unusable` gives the reason.
    """
    text = written.strip().strip("`'\"*").strip()
    if "\\" in text and "/" not in text and not _DRIVE.match(text):
        text = text.replace("\\", "/")
    path = PurePosixPath(text)
    return path.relative_to(WORKSPACE) if path.is_relative_to(WORKSPACE) else path


def why_unusable(path: PurePosixPath) -> str:
    """Return why no file of the workspace can have this path; empty if one can."""
    text = str(path)
    longest = max((_size(part) for part in path.parts), default=0)
    reasons = (
        (text in {"", "."}, "the path is empty"),
        (
            path.is_absolute() or bool(_DRIVE.match(text)),
            "the path is absolute; write it relative to the workspace root",
        ),
        (".." in path.parts, "the path contains `..`; write it relative to the workspace root"),
        ("\\" in text, "the path contains a backslash; use `/`"),
        (not text.isprintable(), "the path contains characters that cannot be printed"),
        (
            longest > _LONGEST_NAME_BYTES or _size(text) > _LONGEST_PATH_BYTES,
            "the path is too long",
        ),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


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
    after = tree.with_only(bench.files)
    changed = tuple(change.path for change in changes_between(tree, after))
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
    if len(edits) == 1:
        return f"This edit was not applied ({_name(edits[0])}): {failures[1]}."
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
