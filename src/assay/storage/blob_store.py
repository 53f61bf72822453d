"""Blob store of trees: each content is stored once under its SHA-256.

    blobs/DIGEST.pack   the new contents of one tree: an index line, then all contents; one file,
                        because making a thousand files durable takes long
    trees/DIGEST.json   the paths of one tree, each with the SHA-256 of its content; for a tree that
                        has a layer (`storage/layers.py`), only the differences from it

A file gets its name only when it is durable, so every named file is complete.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from assay.contracts.errors import JournalError
from assay.contracts.workspace import Tree, TreeFile, changes_between
from assay.files import DRAFT, make_folder, write_file
from assay.storage.codec import fields_of, line_of
from assay.storage.layers import LayerStore

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PACK: Final = ".pack"


class _Lenient(BaseModel):
    # A later version may write more than this one knows.
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Entry(_Lenient):
    sha256: str
    executable: bool = False


class _Listing(_Lenient):
    files: Mapping[str, _Entry]
    links: tuple[str, ...] = ()
    layer: str = ""
    """The layer that has all other files; empty: there are no others."""
    removed: tuple[str, ...] = ()
    """Files of the layer that the tree does not have."""


class _Index(_Lenient):
    holds: Mapping[str, tuple[int, int]]
    """By SHA-256: where the content starts, counted from the end of the line, and its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blob:
    pack: Path
    offset: int
    length: int


class BlobStore:
    """The trees stored in the folder of a run. Blocking: called from threads.

    Without `layers`, it uses those of the state folder: a run has the path STATE_DIR/runs/NAME.
    """

    def __init__(self, folder: Path, layers: LayerStore | None = None) -> None:
        self._folder = folder
        self._layers = layers or LayerStore(folder.absolute().parent.parent)
        self._origins: dict[str, Tree] = {}
        self._packs = folder / "blobs"
        self._trees = folder / "trees"
        self._blobs: dict[str, _Blob] | None = None

    def prepare(self) -> None:
        """Create the folders, and remove incomplete files of a crash."""
        for folder in (self._packs, self._trees):
            make_folder(folder)
            for draft in folder.glob(f"{DRAFT}*"):
                draft.unlink(missing_ok=True)

    def store(self, tree: Tree) -> str:
        """Store a tree; may raise `OSError`."""
        if tree.origin is not None and tree.files:
            self._origins.setdefault(tree.origin.layer.digest, tree.base)
        blobs = self._known_blobs()
        fresh: dict[str, bytes] = {}
        listing: dict[str, Any] = {"files": {}, "links": [str(link) for link in tree.links]}
        if tree.origin is not None:
            listing["layer"] = tree.origin.layer.digest
            self._layers.pin(tree.origin.layer.digest, self._folder)
        changes = changes_between(tree.base, tree)
        listing["removed"] = [str(one.path) for one in changes if one.kind == "deleted"]
        for path in (one.path for one in changes if one.kind != "deleted"):
            file = tree.files[path]
            listing["files"][str(path)] = {"sha256": file.sha256, "executable": file.executable}
            if file.sha256 not in blobs:
                fresh[file.sha256] = file.content
        if fresh:
            blobs.update(self._write_pack(tree.digest, fresh))
        content = line_of(listing)
        target = self._trees / f"{tree.digest}.json"
        if not target.is_file() or target.read_bytes() != content:
            write_file(target, content)
        return tree.digest

    def load(self, digest: str) -> Tree:
        """Return a tree after a check of every file.

        Raises:
            JournalError: If it is missing or damaged.
        """
        if not _DIGEST.fullmatch(digest):
            raise JournalError(f"{digest!r} is not the digest of a tree")
        listing = self._listing(digest)
        contents = dict(self._contents({entry.sha256 for entry in listing.files.values()}))
        files = {
            PurePosixPath(path): TreeFile(contents[entry.sha256], entry.executable)
            for path, entry in listing.files.items()
        }
        tree = self._origin(listing.layer).without(map(PurePosixPath, listing.removed))
        tree = replace(tree.with_files(files), links=tuple(map(PurePosixPath, listing.links)))
        if tree.digest != digest:
            raise JournalError(f"the tree {digest[:12]} is not what it was when it was kept")
        return tree

    def _origin(self, layer: str) -> Tree:
        """Return the tree of a layer. All trees of the run share its files."""
        if not layer:
            return Tree()
        if layer not in self._origins:
            self._origins[layer] = self._layers.load(layer)
        return self._origins[layer]

    def _known_blobs(self) -> dict[str, _Blob]:
        if self._blobs is None:
            blobs: dict[str, _Blob] = {}
            for pack in sorted(self._packs.glob(f"*{_PACK}")):
                blobs.update(_read_index(pack))
            self._blobs = blobs
        return self._blobs

    def _write_pack(self, digest: str, contents: Mapping[str, bytes]) -> dict[str, _Blob]:
        holds: dict[str, tuple[int, int]] = {}
        end = 0
        for sha256, content in contents.items():
            holds[sha256] = (end, len(content))
            end += len(content)
        line = line_of({"holds": holds})
        # A new name: the rest of a damaged earlier pack may still be usable.
        number = sum(1 for _ in self._packs.glob(f"{digest}*"))
        pack = self._packs / f"{digest}-{number}{_PACK}"
        write_file(pack, line, *contents.values())
        return {
            sha256: _Blob(pack=pack, offset=len(line) + begin, length=length)
            for sha256, (begin, length) in holds.items()
        }

    def _listing(self, digest: str) -> _Listing:
        try:
            line = (self._trees / f"{digest}.json").read_bytes()
            return _Listing.model_validate(fields_of(line))
        except FileNotFoundError as error:
            raise JournalError(f"the tree {digest[:12]} was not kept") from error
        except OSError as error:
            raise JournalError(
                f"the tree {digest[:12]} cannot be read: {error.strerror}"
            ) from error
        except (ValidationError, JournalError) as error:
            raise JournalError(f"the list of the tree {digest[:12]} is damaged") from error

    def _contents(self, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
        blobs = self._known_blobs()
        by_pack: dict[Path, list[str]] = {}
        for sha256 in wanted:
            if sha256 not in blobs:
                raise JournalError(f"the file {sha256[:12]} is lost")
            by_pack.setdefault(blobs[sha256].pack, []).append(sha256)
        for pack, names in by_pack.items():
            try:
                descriptor = os.open(pack, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise JournalError(f"{str(pack)!r} cannot be read: {error.strerror}") from error
            try:
                for sha256 in names:
                    yield sha256, _read_content(descriptor, sha256, blobs[sha256])
            finally:
                os.close(descriptor)


def _read_content(descriptor: int, sha256: str, blob: _Blob) -> bytes:
    try:
        content = os.pread(descriptor, blob.length, blob.offset)
    except OSError as error:
        raise JournalError(f"the file {sha256[:12]} cannot be read: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise JournalError(f"the file {sha256[:12]} is not what it was when it was kept")
    return content


def _read_index(pack: Path) -> dict[str, _Blob]:
    """Return the index of a pack; a damaged pack counts as empty."""
    try:
        with pack.open("rb") as file:
            line = file.readline()
        index = _Index.model_validate(fields_of(line))
    except (OSError, ValidationError, JournalError):
        return {}
    return {
        sha256: _Blob(pack=pack, offset=len(line) + begin, length=length)
        for sha256, (begin, length) in index.holds.items()
        if begin >= 0 and length >= 0
    }
