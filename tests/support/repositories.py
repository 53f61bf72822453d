"""Git repositories for tests, made with the git of this machine."""

import subprocess  # noqa: TID251 - a git of the test, not of Assay
from pathlib import Path

GIT = "/usr/bin/git"
NAME = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")


def git(folder: Path, *words: str, **variables: str) -> str:
    """Run git with the configuration of the repository only."""
    done = subprocess.run(
        [GIT, *NAME, *words],
        cwd=folder,
        env={"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip("\n")


def a_repository(folder: Path) -> None:
    """Commit everything in a folder on the branch `main`, and give it an author."""
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.org")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")


def plant_programs(folder: Path, program: Path) -> Path:
    """Let a repository run a program wherever it can; return the file that the program creates."""
    mark = program.with_suffix(".mark")
    program.write_text(f"#!/bin/sh\ntouch '{mark}'\ncat\n")
    program.chmod(0o755)
    hooks = folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    (folder / ".gitattributes").write_text("* filter=evil diff=evil\n")
    git(folder, "add", ".gitattributes")
    git(folder, "commit", "-qm", "attributes")
    for name in ("reference-transaction", "post-index-change", "pre-commit", "post-commit"):
        (hooks / name).write_bytes(program.read_bytes())
        (hooks / name).chmod(0o755)
    included = program.with_suffix(".config")
    included.write_text(f"[core]\n\tfsmonitor = {program}\n\tpager = {program}\n")
    keys = ("filter.evil.clean", "filter.evil.process", "filter.a=b.clean", "diff.evil.textconv")
    more = ("core.fsmonitor", "core.sshCommand", "core.editor", "core.alternateRefsCommand")
    for key in (*keys, *more, "gpg.program", "diff.external"):
        git(folder, "config", key, str(program))
    git(folder, "config", "include.path", str(included))
    git(folder, "config", "commit.gpgSign", "true")
    git(folder, "config", "log.showSignature", "true")
    git(folder, "config", "filter.evil.required", "true")
    mark.unlink(missing_ok=True)
    return mark
