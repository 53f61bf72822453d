"""Patches between two trees in git's format, complete with modes and binary files.

`unified_diff` is for people and models; `git apply` reads these patches byte by byte.
"""

import hashlib
import os
import zlib
from base64 import b85encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final, Literal

from assay.contracts.workspace import FileChange, Tree, TreeFile, changes_between

_CONTEXT: Final = 3
_BINARY_PREFIX: Final = 8000
_MOST_COMPARISONS: Final = 4_000_000
_CHUNK: Final = 52
_SHORT_CHUNK: Final = 26
_NO_OBJECT: Final = "0" * 40
_ESCAPES: Final = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_FIRST_PRINTABLE: Final = 0x20
_LAST_PRINTABLE: Final = 0x7E

_Opcode = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """The patch of one file."""

    change: FileChange
    content: bytes
    added: int = 0
    """Lines; 0 for a binary file."""
    deleted: int = 0
    binary: bool = False


def file_patches(before: Tree, after: Tree) -> Iterator[FilePatch]:
    """Return one patch per changed file; their contents in this order are a whole patch."""
    for change in changes_between(before, after):
        old, new = before.files.get(change.path), after.files.get(change.path)
        yield _file_patch(change, old, new)


def _file_patch(change: FileChange, old: TreeFile | None, new: TreeFile | None) -> FilePatch:
    header = [f"diff --git {_quoted('a', change)} {_quoted('b', change)}"]
    if old is None:
        header.append(f"new file mode {_mode(new)}")
    elif new is None:
        header.append(f"deleted file mode {_mode(old)}")
    elif old.executable != new.executable:
        header += [f"old mode {_mode(old)}", f"new mode {_mode(new)}"]
    was, now = old.content if old else b"", new.content if new else b""
    if was == now and old is not None and new is not None:
        return FilePatch(change=change, content=_lines(header))
    same_mode = old is not None and new is not None and old.executable == new.executable
    mode = f" {_mode(new)}" if same_mode else ""
    header.append(f"index {_object_id(old)}..{_object_id(new)}{mode}")
    if b"\0" in was[:_BINARY_PREFIX] or b"\0" in now[:_BINARY_PREFIX]:
        content = _lines([*header, "GIT binary patch"]) + _literal(now) + _literal(was)
        return FilePatch(change=change, content=content, binary=True)
    if was == now:
        # An empty file that was added or deleted has no hunk.
        return FilePatch(change=change, content=_lines(header))
    header.append(f"--- {'/dev/null' if old is None else _marked('a', change)}")
    header.append(f"+++ {'/dev/null' if new is None else _marked('b', change)}")
    hunks, added, deleted = _hunks(_split(was), _split(now))
    return FilePatch(change=change, content=_lines(header) + hunks, added=added, deleted=deleted)


def _mode(file: TreeFile | None) -> str:
    return "100755" if file and file.executable else "100644"


def _lines(lines: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(line) + b"\n" for line in lines)


def _object_id(file: TreeFile | None) -> str:
    return _NO_OBJECT if file is None else blob_id(file.content)


def blob_id(content: bytes, algorithm: str = "sha1") -> str:
    """Return the object ID that git gives to a file with this content."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    digest.update(b"blob %d\0" % len(content))
    digest.update(content)
    return digest.hexdigest()


def _quoted(side: str, change: FileChange) -> str:
    """Return a name as git writes it: in quotes if it has characters that could mislead."""
    name = f"{side}/{change.path}"
    if name.isprintable() and not {'"', "\\"} & set(name):
        return name
    return f'"{"".join(map(_escaped, os.fsencode(name)))}"'


def _escaped(byte: int) -> str:
    if byte in _ESCAPES:
        return f"\\{_ESCAPES[byte]}"
    return chr(byte) if _FIRST_PRINTABLE <= byte <= _LAST_PRINTABLE else f"\\{byte:03o}"


def _marked(side: str, change: FileChange) -> str:
    """Return a name for the lines of old and new file, where a tab ends a name with spaces."""
    name = _quoted(side, change)
    return f"{name}\t" if " " in name and not name.startswith('"') else name


def _split(content: bytes) -> list[bytes]:
    """Return the lines; only a newline ends one, as for git."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


class _Comparison(SequenceMatcher[bytes]):
    """A comparison that is fast for long files with a common start and end."""

    def __init__(self, old: list[bytes], new: list[bytes]) -> None:
        super().__init__(None, [], [])
        self._known = _opcodes(old, new)

    def get_opcodes(self) -> list[_Opcode]:
        return self._known


def _hunks(old: list[bytes], new: list[bytes]) -> tuple[bytes, int, int]:
    """Return the hunks of a patch with the numbers of added and deleted lines."""
    pieces: list[bytes] = []
    added = deleted = 0
    for group in _Comparison(old, new).get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        pieces.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n".encode())
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                pieces += (_line(b" ", line) for line in old[old_from:old_to])
                continue
            pieces += (_line(b"-", line) for line in old[old_from:old_to])
            pieces += (_line(b"+", line) for line in new[new_from:new_to])
            deleted += old_to - old_from
            added += new_to - new_from
    return b"".join(pieces), added, deleted


def _opcodes(old: list[bytes], new: list[bytes]) -> list[_Opcode]:
    """Compare the lines between the common start and the common end."""
    shorter = min(len(old), len(new))
    start = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    rest = shorter - start
    end = next((at for at in range(rest) if old[-1 - at] != new[-1 - at]), rest)
    middle_old, middle_new = old[start : len(old) - end], new[start : len(new) - end]
    codes: list[_Opcode]
    if len(middle_old) * len(middle_new) > _MOST_COMPARISONS:
        # A comparison line by line would take minutes.
        codes = [("replace", 0, len(middle_old), 0, len(middle_new))]
    else:
        codes = SequenceMatcher(None, middle_old, middle_new, autojunk=False).get_opcodes()
    moved: list[_Opcode] = [("equal", 0, start, 0, start)] if start else []
    moved += [(tag, *(at + start for at in places)) for tag, *places in codes]  # pyright: ignore[reportAssignmentType] - four numbers each
    if end:
        moved.append(("equal", len(old) - end, len(old), len(new) - end, len(new)))
    return moved


def _range(begin: int, end: int) -> str:
    length = end - begin
    if length == 1:
        return str(begin + 1)
    return f"{begin + 1 if length else begin},{length}"


def _line(mark: bytes, line: bytes) -> bytes:
    if line.endswith(b"\n"):
        return mark + line
    return mark + line + b"\n\\ No newline at end of file\n"


def _literal(content: bytes) -> bytes:
    """Return a content in the form of git's binary patches."""
    packed = zlib.compress(content)
    lines = [f"literal {len(content)}".encode()]
    for start in range(0, len(packed), _CHUNK):
        chunk = packed[start : start + _CHUNK]
        size = len(chunk)
        letter = ord("A") + size - 1 if size <= _SHORT_CHUNK else ord("a") + size - 27
        lines.append(bytes([letter]) + b85encode(chunk, pad=True))
    return b"\n".join((*lines, b"", b""))
