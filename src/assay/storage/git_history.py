"""A copy of a repository's history for sandboxes: commits, trees and files that are no secrets.

The copy has no hooks, remotes, credentials, reflogs or configuration of the user, and only the
current branch. A likely secret, or a file that is too large, is replaced by a short text.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from assay.contracts.errors import UsageError
from assay.contracts.workspace import Tree, TreeFile
from assay.storage.git_repository import GitError, GitRepository, open_repository
from assay.storage.withheld_files import secret_by_content, secret_by_name
from assay.text.formatting import count
from assay.text.globs import matches
from assay.text.patches import blob_id

_DEPTHS: Final = (200, 50, 10, 1)
_MOST_BYTES: Final = 32 << 20
_MOST_FILE_BYTES: Final = 1 << 20
_MOST_OBJECTS: Final = 60_000
_HEADS: Final = "refs/heads/"
_SHA1: Final = 40
_WITHHELD: Final = b"Assay withholds this version of the file.\n"
_CONFIG: Final = (
    b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"
    b"\tlogallrefupdates = false\n[gc]\n\tauto = 0\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The files of a `.git` folder, with their paths from the workspace."""

    tree: Tree
    note: str
    """One sentence for the user."""


def copy_history(workspace: Path, tree: Tree, secret_names: tuple[str, ...] = ()) -> History:
    """Copy the history of the repository at this folder; `tree` has the files that were read.

    `secret_names` are globs of more names that are withheld. An empty copy has a note with the
    reason.
    """
    if not os.path.lexists(workspace / ".git"):
        return History(tree=Tree(), note="")
    try:
        repository = open_repository(workspace)
        return _copy(repository, tree, secret_names)
    except UsageError as error:
        return History(tree=Tree(), note=f"the sandbox has no git history: {error}")


def _copy(repository: GitRepository, tree: Tree, secret_names: tuple[str, ...]) -> History:
    try:
        head = repository.line("rev-parse", "--verify", "HEAD^{commit}")
    except GitError:
        return History(tree=Tree(), note="the sandbox has no git history: there is no commit yet")
    if len(head) != _SHA1:
        raise UsageError("its objects are not named by SHA-1")
    safe = {blob_id(file.content) for file in tree.files.values()}
    total = int(repository.line("rev-list", "--count", head))
    for depth in _DEPTHS:
        chosen = _choose(repository, head, depth, safe, secret_names)
        if chosen is not None:
            break
    else:
        raise UsageError("its last commit is too large")
    copied = len(chosen.commits)
    note = (
        "" if copied == total else f"the sandbox has the last {copied} of {count(total, 'commit')}"
    )
    if chosen.withheld:
        withheld = count(len(chosen.withheld), "file")
        kept = f"{withheld} of the git history withheld from the sandbox"
        note = f"{note}; {kept}" if note else kept
    return History(tree=_build(repository, head, chosen, tree), note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The objects of a copy."""

    commits: tuple[str, ...]
    boundary: tuple[str, ...]
    """Commits without their parents."""
    objects: tuple[str, ...]
    withheld: tuple[str, ...]


def _choose(
    repository: GitRepository,
    head: str,
    depth: int,
    safe: set[str],
    secret_names: tuple[str, ...],
) -> _Chosen | None:
    """Return the newest commits with all their objects; None if that is too much."""
    listed = repository.line("rev-list", "--parents", f"--max-count={depth}", head).split("\n")
    parents = {line.split(" ")[0]: line.split(" ")[1:] for line in listed}
    for commit, (_, content) in _contents(repository, parents):
        if secret_by_content(content, None):
            # The commit with the secret and all older ones stay behind.
            names = list(parents)
            parents = {name: parents[name] for name in names[: names.index(commit)]}
            break
    if not parents:
        raise UsageError("the message of its last commit has a likely secret")
    boundary = [name for name, each in parents.items() if not parents.keys() >= set(each)]
    paths: dict[str, str] = {}
    words = ("rev-list", "--objects", "--no-walk=unsorted", "--stdin")
    stdin = "".join(f"{name}\n" for name in parents).encode()
    for line in repository.run(*words, stdin=stdin).split(b"\n"):
        name, _, path = line.partition(b" ")
        if name:
            paths[name.decode()] = os.fsdecode(path)
    if len(paths) > _MOST_OBJECTS:
        return None
    sizes = dict(_sizes(repository, paths))
    blobs = {name: size for name, (kind, size) in sizes.items() if kind == "blob"}
    small = {name: size for name, size in blobs.items() if size <= _MOST_FILE_BYTES}
    if sum(small.values()) > _MOST_BYTES:
        return None
    withheld = {name for name in blobs if name not in small}
    withheld |= {name for name in small if _is_secret_name(paths[name], secret_names)}
    unknown = [name for name in small if name not in withheld and name not in safe]
    for name, (_, content) in _contents(repository, unknown):
        if secret_by_content(content, PurePosixPath(paths[name])):
            withheld.add(name)
    return _Chosen(
        commits=tuple(parents),
        boundary=tuple(boundary),
        objects=tuple(name for name in paths if name not in withheld),
        withheld=tuple(sorted(withheld)),
    )


def _is_secret_name(name: str, secret_names: tuple[str, ...]) -> bool:
    path = PurePosixPath(name)
    above = [parent for parent in path.parents if parent.parts]
    return (
        bool(secret_by_name(path, folder=False))
        or any(secret_by_name(parent, folder=True) for parent in above)
        or any(matches(one, secret_names) for one in (path, *above))
    )


def _sizes(
    repository: GitRepository, names: Iterable[str]
) -> Iterator[tuple[str, tuple[str, int]]]:
    stdin = "".join(f"{name}\n" for name in names).encode()
    for line in repository.run("cat-file", "--batch-check", stdin=stdin).decode().splitlines():
        name, kind, *size = line.split(" ")
        if not size:
            raise UsageError(f"its object {name} is missing")
        yield name, (kind, int(size[0]))


def _contents(
    repository: GitRepository, names: Iterable[str]
) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """Read objects, by their names with their types."""
    stdin = "".join(f"{name}\n" for name in names).encode()
    output = repository.run("cat-file", "--batch", stdin=stdin) if stdin else b""
    start = 0
    while start < len(output):
        end = output.index(b"\n", start)
        name, kind, *size = output[start:end].decode().split(" ")
        if not size:
            raise UsageError(f"its object {name} is missing")
        start = end + 1 + int(size[0]) + 1
        yield name, (kind, output[end + 1 : start - 1])


def _build(repository: GitRepository, head: str, chosen: _Chosen, tree: Tree) -> Tree:
    """Build the `.git` folder of the copy in a temporary folder, and read it."""
    with tempfile.TemporaryDirectory(prefix="assay-history-") as scratch:
        root = Path(scratch).resolve()
        git = root / ".git"
        (git / "objects" / "pack").mkdir(parents=True)
        (git / "refs").mkdir()
        branch = _branch(repository)
        (git / "HEAD").write_text(f"ref: {branch}\n")
        (git / "config").write_bytes(_CONFIG)
        if chosen.boundary:
            (git / "shallow").write_text("".join(f"{name}\n" for name in sorted(chosen.boundary)))
        variables = {"GIT_CEILING_DIRECTORIES": str(root.parent)}
        environment = {**repository.environment, **variables}
        copy = replace(repository, root=root, prefix="", environment=environment)
        stdin = "".join(f"{name}\n" for name in chosen.objects).encode()
        words = ("pack-objects", "--stdout", "--window=0", "--threads=1", "-q")
        copy.run("index-pack", "--stdin", "--fix-thin", stdin=repository.run(*words, stdin=stdin))
        (git / branch).parent.mkdir(parents=True)
        (git / branch).write_text(f"{head}\n")
        if chosen.withheld:
            made = copy.line("hash-object", "-w", "--stdin", stdin=_WITHHELD)
            lines = "".join(f"{made} refs/replace/{name}\n" for name in chosen.withheld)
            (git / "packed-refs").write_text(f"# pack-refs with: sorted\n{lines}")
        copy.run("read-tree", head)
        _hide_absent(copy, repository.root, head, tree)
        return Tree(files=dict(_files_of(root)))


def _branch(repository: GitRepository) -> str:
    try:
        ref = repository.line("symbolic-ref", "-q", "HEAD")
    except GitError:
        ref = ""
    return ref if ref.startswith(_HEADS) and ref.isprintable() else f"{_HEADS}main"


def _hide_absent(copy: GitRepository, folder: Path, head: str, tree: Tree) -> None:
    """Let `git status` ignore the files of the user that are not in the sandbox."""
    absent = [
        name
        for name in copy.committed(head)
        if PurePosixPath(name) not in tree.files and os.path.lexists(folder / name)
    ]
    if absent:
        stdin = b"".join(os.fsencode(name) + b"\0" for name in absent)
        copy.run("update-index", "--skip-worktree", "-z", "--stdin", stdin=stdin)


def _files_of(root: Path) -> Iterator[tuple[PurePosixPath, TreeFile]]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield PurePosixPath(path.relative_to(root)), TreeFile(path.read_bytes())
