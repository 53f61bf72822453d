"""`assay bench pull` and `assay bench toolchains`: the prerequisites of a benchmark."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click

from assay.contracts.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from assay.bench.exercise import Language

_FOLDER: Final = click.Path(file_okay=False, path_type=Path)
LANGUAGES: Final[tuple["Language", ...]] = ("python", "javascript", "go", "rust", "cpp", "java")


def read_languages(text: str) -> tuple["Language", ...]:
    """Parse languages separated by commas.

    Raises:
        UsageError: If one is unknown.
    """
    named = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in named:
        if word not in LANGUAGES:
            raise UsageError(
                f"unknown language {word!r}", hint=f"choose from: {', '.join(LANGUAGES)}"
            )
    return cast("tuple[Language, ...]", named)


@click.command()
@click.argument("suite", type=click.Choice(["polyglot"]))
@click.option("--from", "url", help="Another URL of the repository, or a folder with a clone.")
@click.option("--commit", help="Commit to use instead of the pinned one.")
@click.option("--to", type=_FOLDER, help="Folder to write to.  [default: the cache]")
def pull(suite: str, *, url: str | None, commit: str | None, to: Path | None) -> None:
    """Fetch the exercises of SUITE with git, at the pinned commit."""
    import anyio

    from assay.bench.datasets import pull as pull_clone
    from assay.bench.suites import POLYGLOT_COMMIT, POLYGLOT_URL, pulled_to
    from assay.settings.load import load_settings

    folder = to or pulled_to(suite, load_settings().models.cache_dir / "bench")
    wanted = commit or POLYGLOT_COMMIT
    tell = partial(click.echo, err=True)
    fetched = anyio.run(pull_clone, url or POLYGLOT_URL, wanted, folder, tell)
    said = "is now" if fetched else "was already"
    click.echo(f"{suite} {said} at commit {wanted} in {folder}")


@click.command()
@click.option("--languages", default="", help="Only these languages, separated by commas.")
@click.option("--install", is_flag=True, help="Fetch and install what is missing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def toolchains(*, languages: str, install: bool, as_json: bool) -> int:
    """Show which languages' tests can run in a sandbox here, and what is missing."""
    import anyio

    from assay.bench.toolchains.survey import survey
    from assay.settings.load import load_settings

    tell = partial(click.echo, err=True)
    wanted = read_languages(languages) or LANGUAGES
    found = anyio.run(partial(survey, load_settings(), wanted, install=install, on_notice=tell))
    if as_json:
        click.echo(json.dumps({one.language: one.fields() for one in found}))
    else:
        for one in found:
            click.echo(f"{one.language:11} {one.words}")
            for fix in one.fixes:
                click.echo(f"{'':11} {fix}")
    ready = all(one.ready for one in found)
    return ExitCode.ACCEPTED if ready else ExitCode.INFRASTRUCTURE
