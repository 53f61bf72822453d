"""Questions before something is removed permanently."""

import sys
from collections.abc import Collection, Iterable

import click

from assay.contracts.errors import UsageError

YES = click.option("--yes", is_flag=True, help="Do not ask; required without a terminal.")


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user agrees, or has agreed with `--yes`.

    Raises:
        UsageError: If there is no terminal to ask at.
        click.Abort: If the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "this removes data permanently, and without a terminal Assay cannot ask",
            hint="add --yes",
        )
    click.confirm(question, abort=True, err=True)


def check_ids(ids: Iterable[str], known: Collection[str]) -> None:
    """Check that everything to remove exists.

    Raises:
        UsageError: If something does not.
    """
    for each in ids:
        if each not in known:
            raise UsageError(
                f"nothing of the name {each!r} was left behind",
                hint="`assay sandbox list` shows what was",
            )
