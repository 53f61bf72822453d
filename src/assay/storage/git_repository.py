"""Git on the host: plumbing commands only, and nothing that a repository configures is run.

A workspace can come with a crafted `.git`. Hooks, file system monitors, filters, transports and
other programs are disabled on each command line, which overrides every configuration file.
"""

import os
import shutil
import stat
import subprocess  # noqa: TID251 - git is a program of the host, and its arguments are fixed here
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from assay.contracts.errors import UsageError
from assay.settings.load import git_environment

_TIMEOUT_S: Final = 120.0
_CONFIG_TIMEOUT_S: Final = 10.0
"""A configuration can include a pipe or a device, which git reads for ever."""
_DISABLED: Final = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.alternateRefsCommand=false",
    "core.sshCommand=false",
    "core.gitProxy=",
    "core.askPass=false",
    "core.editor=false",
    "core.pager=cat",
    "credential.helper=",
    "commit.gpgSign=false",
    "gpg.program=false",
    "log.showSignature=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
    "safe.bareRepository=explicit",
    "user.useConfigOnly=true",
    "i18n.commitEncoding=UTF-8",
)
_VARIABLES: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "false",
    "LC_ALL": "C",
}
_MOST_FILTERS: Final = 200
_WALKED: Final = ("objects", "refs", "logs", "info")
_OUTSIDE: Final = ("commondir", "objects/info/alternates", "objects/info/http-alternates")


class GitError(UsageError):
    """A git command that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitEntry:
    """A file in a commit or in the index."""

    mode: str
    object_id: str
    stage: str = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class GitRepository:
    """A repository whose data all lies in one `.git` folder."""

    root: Path
    prefix: str
    """From the root to the workspace: empty, or with a final slash."""
    program: str
    environment: Mapping[str, str]
    timeout_s: float = _TIMEOUT_S
    """For one command."""

    def run(self, *words: str, stdin: bytes = b"", index: Path | None = None) -> bytes:
        """Run a plumbing command and return its output.

        Raises:
            GitError: If it fails.
        """
        disabled = [word for setting in _DISABLED for word in ("-c", setting)]
        variables = {} if index is None else {"GIT_INDEX_FILE": str(index)}
        try:
            done = subprocess.run(  # noqa: S603 - an absolute path and no shell
                [self.program, "--no-pager", *disabled, *words],
                cwd=self.root,
                env={**self.environment, **variables},
                input=stdin,
                capture_output=True,
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise GitError(f"`git {words[0]}` took more than {self.timeout_s:g} s") from None
        except OSError as error:
            raise GitError(f"git cannot be started: {error.strerror}") from error
        if done.returncode:
            text = done.stderr.decode("utf-8", "replace").strip()
            raise GitError(f"`git {words[0]}` failed in {str(self.root)!r}: {text}")
        return done.stdout

    def line(self, *words: str, stdin: bytes = b"", index: Path | None = None) -> str:
        """Return the output of a command as one line of text."""
        return os.fsdecode(self.run(*words, stdin=stdin, index=index)).strip("\n")

    def succeeds(self, *words: str) -> bool:
        """Return whether a command ends without an error."""
        try:
            self.run(*words)
        except GitError:
            return False
        return True

    def committed(self, commit: str) -> dict[str, GitEntry]:
        """Return the files of a commit by their paths from the root."""
        found: dict[str, GitEntry] = {}
        for record in self.run("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0"):
            about, _, name = record.partition(b"\t")
            if name:
                mode, _, object_id = about.decode().split(" ")
                found[os.fsdecode(name)] = GitEntry(mode=mode, object_id=object_id)
        return found

    def indexed(self) -> dict[str, GitEntry]:
        """Return the files of the user's index by their paths from the root."""
        found: dict[str, GitEntry] = {}
        for record in self.run("ls-files", "-s", "-z").split(b"\0"):
            about, _, name = record.partition(b"\t")
            if name:
                mode, object_id, stage = about.decode().split(" ")
                found[os.fsdecode(name)] = GitEntry(mode=mode, object_id=object_id, stage=stage)
        return found


def open_repository(folder: Path) -> GitRepository:
    """Open the repository of a folder.

    Raises:
        UsageError: If there is none, git is missing, it belongs to another user, or a part of it
            leads out of its `.git` folder.
    """
    folder = folder.resolve()
    root = next((one for one in (folder, *folder.parents) if os.path.lexists(one / ".git")), None)
    if root is None:
        raise UsageError(
            f"{str(folder)!r} is not in a git repository",
            hint="create one with `git init` and a first commit",
        )
    program = shutil.which("git", path=os.defpath)
    if program is None:
        raise UsageError("git is not installed", hint="install git")
    if trouble := _redirect(root / ".git"):
        raise UsageError(
            f"{str(root / '.git')!r} {trouble}, and Assay does not follow it out of the repository",
            hint="use a clone whose `.git` folder has all its data",
        )
    environment = {**git_environment(), **_VARIABLES, "GIT_CEILING_DIRECTORIES": str(root.parent)}
    environment |= _without_filters(root, program, environment)
    inner = folder.relative_to(root).as_posix()
    repository = GitRepository(
        root=root,
        prefix="" if inner == "." else f"{inner}/",
        program=program,
        environment=environment,
    )
    if repository.line("rev-parse", "--absolute-git-dir") != str(root / ".git") or (
        repository.line("rev-parse", "--show-toplevel") != str(root)
    ):
        raise UsageError(f"the configuration of {str(root / '.git')!r} leads to another folder")
    return repository


def _without_filters(root: Path, program: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that disable every configured filter.

    Git runs filters even while it writes an index, to compare files that changed just now.
    """
    plain = GitRepository(
        root=root, prefix="", program=program, environment=environment, timeout_s=_CONFIG_TIMEOUT_S
    )
    names = os.fsdecode(plain.run("config", "--list", "--name-only", "-z")).split("\0")
    drivers = {name[7:].rpartition(".")[0] for name in names if name.startswith("filter.")}
    if len(drivers) > _MOST_FILTERS:
        raise UsageError(f"the configuration of {str(root)!r} has {len(drivers)} filters")
    settings = [
        (f"filter.{driver}.{key}", value)
        for driver in sorted(drivers)
        for key, value in (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
    ]
    variables = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = value
    return variables


def _redirect(git: Path) -> str:
    """Return how a `.git` folder leads elsewhere; empty if it does not."""
    if git.is_symlink() or not git.is_dir():
        return "is a link or a file that names another folder"
    for name in _OUTSIDE:
        if os.path.lexists(git / name):
            return f"has the file {name!r} that names another folder"
    with os.scandir(git) as entries:
        paths = [Path(entry.path) for entry in entries if entry.name != "hooks"]
    for folder in _WALKED:
        for parent, folders, files in os.walk(git / folder):
            paths += (Path(parent) / name for name in (*folders, *files))
    for path in paths:
        mode = path.lstat().st_mode
        # A pipe would let git wait; the sockets of git's own monitor are not read here.
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISSOCK(mode)):
            return f"has {path.name!r}, which is a link or no file"
    return ""
