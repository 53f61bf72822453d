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
