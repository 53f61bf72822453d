"""Commits of accepted changes: only the changed files, on the current branch or on a new one.

The user's staged changes, hooks and working files stay as they are. The commit is prepared in a
separate index. Assay updates the user's index before the branch, so that a crash between the two
leaves a change that is staged.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from assay.contracts.errors import UsageError
from assay.contracts.workspace import FileChange, Tree, TreeFile, changes_between
from assay.storage.git_repository import GitEntry, GitError, GitRepository
from assay.text.diffs import quoted_name
from assay.text.patches import blob_id

_NAMED: Final = 8
_SUBJECT: Final = 72
_BUSY: Final = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")
_NOTHING: Final = "0" * 40
_HEADS: Final = "refs/heads/"
_SUBMODULE: Final = "160000"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTarget:
    """Where a change is committed."""

    ref: str
    head: str
    """The commit that becomes the parent."""
    is_new: bool
    """Whether the branch is created, and folder and index stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCommit:
    """A commit that exists, and that no branch has yet."""

    ref: str
    object_id: str
    previous: str
    """What the branch must have; zeros for a new one."""


def find_target(repository: GitRepository, branch: str) -> CommitTarget:
    """Return where to commit: the new branch, or the current one if the name is empty.

    Raises:
        UsageError: If that is not possible, or git does not know the user's name.
    """
    try:
        head = repository.line("rev-parse", "--verify", "HEAD^{commit}")
    except GitError:
        raise UsageError(
            f"the repository {str(repository.root)!r} has no commit yet",
            hint="make a first commit",
        ) from None
    try:
        repository.run("var", "GIT_AUTHOR_IDENT")
        repository.run("var", "GIT_COMMITTER_IDENT")
    except GitError:
        raise UsageError(
            "git does not know who commits",
            hint="git config --global user.name NAME; git config --global user.email ADDRESS",
        ) from None
    if branch:
        _check_branch(repository, branch)
        return CommitTarget(ref=f"{_HEADS}{branch}", head=head, is_new=True)
    busy = [name for name in _BUSY if (repository.root / ".git" / name).exists()]
    if busy:
        raise UsageError(
            f"a merge or a rebase is in progress in {str(repository.root)!r}",
            hint="finish it, or use --branch NAME",
        )
    try:
        ref = repository.line("symbolic-ref", "-q", "HEAD")
    except GitError:
        raise UsageError("no branch is checked out", hint="use --branch NAME") from None
    if not ref.startswith(_HEADS):
        raise UsageError(f"the current branch is {ref!r}", hint="use --branch NAME")
    return CommitTarget(ref=ref, head=head, is_new=False)


def _check_branch(repository: GitRepository, branch: str) -> None:
    if branch.startswith("-") or not repository.succeeds("check-ref-format", f"{_HEADS}{branch}"):
        raise UsageError(f"--branch {branch!r} is not a name for a branch")
    known = repository.line("for-each-ref", "--format=%(refname)", _HEADS).split("\n")
    ref = f"{_HEADS}{branch}"
    if ref in known:
        raise UsageError(f"the branch {branch!r} exists already", hint="use another name")
    for other in known:
        if other.startswith(f"{ref}/") or (other and ref.startswith(f"{other}/")):
            taken = other.removeprefix(_HEADS)
            raise UsageError(
                f"--branch {branch!r} is not possible beside the branch {taken!r}",
                hint="use another name",
            )


def check_uncommitted(
    repository: GitRepository,
    target: CommitTarget,
    tree: Tree,
    may_change: Callable[[PurePosixPath], bool],
) -> None:
    """Check before a run that no file that it may change has uncommitted changes.

    Untracked files do not count. They are committed as a whole if the run changes them.

    Raises:
        UsageError: If there are such files; it names some.
    """
    found = [
        quoted_name(path) for path in _uncommitted(repository, target, tree) if may_change(path)
    ]
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise UsageError(
            "a commit of the result would take in your uncommitted changes of "
            f"{', '.join(found[:_NAMED])}{more}",
            hint="commit or stash them, or name the files that the run may change with --allow",
        )


def _uncommitted(
    repository: GitRepository, target: CommitTarget, tree: Tree
) -> Iterator[PurePosixPath]:
    """Return the tracked paths whose file or index entry differs from the last commit."""
    committed, indexed = repository.committed(target.head), repository.indexed()
    folder = repository.root / repository.prefix
    for name in sorted(committed.keys() | indexed.keys()):
        if not name.startswith(repository.prefix):
            continue
        path = PurePosixPath(name.removeprefix(repository.prefix))
        was, staged = committed.get(name), indexed.get(name)
        file = tree.files.get(path)
        if was is None or was != staged:
            yield path
        elif file is not None and was.mode != _SUBMODULE:
            if was != _entry_of(file, was):
                yield path
        elif not os.path.lexists(folder / path):
            yield path


def _entry_of(file: TreeFile, like: GitEntry) -> GitEntry:
    algorithm = "sha1" if len(like.object_id) == len(_NOTHING) else "sha256"
    mode = "100755" if file.executable else "100644"
    return GitEntry(mode=mode, object_id=blob_id(file.content, algorithm))


def prepare_commit(
    repository: GitRepository, target: CommitTarget, before: Tree, after: Tree, message: str
) -> PreparedCommit:
    """Create a commit with the difference of two trees, which no branch has yet.

    Raises:
        UsageError: If a changed file is not in the last commit as it was before, or git fails.
    """
    changes = changes_between(before, after)
    committed = repository.committed(target.head)
    _check_base(repository, committed, before, changes)
    with tempfile.TemporaryDirectory(prefix="assay-index-") as scratch:
        index = Path(scratch) / "index"
        repository.run("read-tree", target.head, index=index)
        _update_index(repository, after, changes, index=index)
        tree = repository.line("write-tree", index=index)
    encoded = message.encode("utf-8", "replace")
    object_id = repository.line("commit-tree", tree, "-p", target.head, stdin=encoded)
    previous = "0" * len(target.head) if target.is_new else target.head
    return PreparedCommit(ref=target.ref, object_id=object_id, previous=previous)


def _check_base(
    repository: GitRepository,
    committed: Mapping[str, GitEntry],
    before: Tree,
    changes: tuple[FileChange, ...],
) -> None:
    submodules = {name for name, entry in committed.items() if entry.mode == _SUBMODULE}
    troubles: list[str] = []
    for change in changes:
        name = f"{repository.prefix}{change.path}"
        file, entry = before.files.get(change.path), committed.get(name)
        parents = {str(parent) for parent in PurePosixPath(name).parents}
        if submodules & parents:
            troubles.append(f"{quoted_name(change.path)} is in a submodule")
        elif entry is not None and (file is None or entry != _entry_of(file, entry)):
            troubles.append(f"{quoted_name(change.path)} had uncommitted changes")
    if troubles:
        more = f" and {len(troubles) - _NAMED} more" if len(troubles) > _NAMED else ""
        raise UsageError(f"nothing was committed: {'; '.join(troubles[:_NAMED])}{more}")


def _update_index(
    repository: GitRepository,
    after: Tree,
    changes: tuple[FileChange, ...],
    *,
    index: Path | None = None,
) -> None:
    records: list[bytes] = []
    for change in sorted(changes, key=lambda one: one.kind != "deleted"):
        name = os.fsencode(f"{repository.prefix}{change.path}")
        file = after.files.get(change.path)
        if file is None:
            records.append(b"0 " + _NOTHING.encode() + b"\t" + name)
            continue
        made = repository.line("hash-object", "-w", "--no-filters", "--stdin", stdin=file.content)
        mode = "100755" if file.executable else "100644"
        records.append(f"{mode} {made}".encode() + b"\t" + name)
    words = ("update-index", "--add", "--remove", "--replace", "-z", "--index-info")
    repository.run(*words, stdin=b"".join(record + b"\0" for record in records), index=index)


def finish_commit(
    repository: GitRepository, prepared: PreparedCommit, before: Tree, after: Tree
) -> None:
    """Let the branch have a prepared commit; repeating it has no effect.

    Raises:
        UsageError: If the branch has changed meanwhile, or git fails.
    """
    if repository.succeeds("show-ref", "--verify", "--quiet", prepared.ref) and (
        repository.line("rev-parse", "--verify", prepared.ref) == prepared.object_id
    ):
        return
    if set(prepared.previous) != {"0"}:
        _update_index(repository, after, changes_between(before, after))
    words = ("update-ref", "--no-deref", "-m", "assay run", prepared.ref)
    repository.run(*words, prepared.object_id, prepared.previous)


def count_uncommitted(repository: GitRepository, target: CommitTarget, tree: Tree) -> int:
    """Return how many files of a tree the parent commit does not have in this form."""
    committed = repository.committed(target.head)
    names = {path: f"{repository.prefix}{path}" for path in tree.files}
    return sum(
        (was := committed.get(names[path])) is None or was != _entry_of(file, was)
        for path, file in tree.files.items()
    )


def commit_message(goal: str, facts: tuple[str, ...], trailers: Mapping[str, str]) -> str:
    """Return a message with the start of the goal as subject, and trailers at its end."""
    lines = [_printable(line) for line in goal.split("\n")]
    first = next((line for line in lines if line), "Change")
    subject = first if len(first) <= _SUBJECT else f"{first[: _SUBJECT - 1].rstrip()}…"
    body = "\n".join(line for line in lines if line != subject).strip()
    trailer = "\n".join(f"{name}: {value}" for name, value in trailers.items())
    return "\n\n".join(part for part in (subject, body, "\n".join(facts), trailer) if part) + "\n"


def _printable(line: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in line).strip()
