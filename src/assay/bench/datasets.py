"""Git clones of suites: their commit, and downloads at a pinned commit."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio

from assay.contracts.errors import AssayError, UsageError

_HASH: Final = re.compile(r"[0-9a-f]{40}")


def commit_of(folder: Path) -> str | None:
    """Return the commit of a clone; None if the folder is not a clone."""
    git = folder / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
    except OSError:
        return None
    if _HASH.fullmatch(head):
        return head
    name = head.removeprefix("ref: ").strip()
    try:
        return (git / name).read_text().strip()
    except OSError:
        return _packed(git, name)


def _packed(git: Path, name: str) -> str | None:
    try:
        lines = (git / "packed-refs").read_text().splitlines()
    except OSError:
        return None
    return next((line[:40] for line in lines if line[40:].strip() == name), None)


async def pull(
    url: str, commit: str, folder: Path, on_notice: Callable[[str], None] = lambda _: None
) -> bool:
    """Ensure a clone at exactly this commit; returns whether a download was needed.

    Downloads only that commit, and renames the result into place when it is complete and has the
    requested commit: git names commits by content.

    Raises:
        UsageError: If the folder has other content, or the commit does not exist.
        AssayError: If git is not installed, or fails.
    """
    if _is_there(folder, commit):
        return False
    if shutil.which("git") is None:
        raise AssayError("git is not installed", hint="run `apt-get install git`")
    on_notice(f"fetching commit {commit[:12]} of {url}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        await _git("init", "--quiet", str(partial))
        await _git("-C", str(partial), "fetch", "--quiet", "--depth", "1", url, commit)
        await _git("-C", str(partial), "checkout", "--quiet", "--detach", "FETCH_HEAD")
        if commit_of(partial) != commit:
            raise UsageError(f"{url} does not have the commit {commit}")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True


def _is_there(folder: Path, commit: str) -> bool:
    if not folder.exists():
        return False
    found = commit_of(folder)
    if found != commit:
        raise UsageError(
            f"{str(folder)!r} is at {found or 'no commit'}, not at {commit}",
            hint="remove it, or name another folder with --to",
        )
    return True


async def _git(*words: str) -> None:
    # No hooks, no prompts: nothing from the repository runs here.
    command = ["git", "-c", "core.hooksPath=/dev/null", *words]
    result = await anyio.run_process(command, check=False, stdin=None)
    if result.returncode != 0:
        told = result.stderr.decode("utf-8", "replace").strip().splitlines()
        raise AssayError(
            f"git failed: {told[-1] if told else f'exit code {result.returncode}'}",
            hint="check the address and the network, or clone it yourself and give --dataset",
        )
