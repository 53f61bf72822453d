"""`assay sandbox selftest`, `list` and `clean`: test a backend, list and remove engines."""

import json
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from assay.cli.confirm import YES, check_ids, confirm
from assay.contracts.errors import AssayError, ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from assay.sandbox.docker.engine import Engine
    from assay.selftest.run import CheckResult, Report, Suite
    from assay.settings.load import SandboxSettings


@click.command()
@click.option(
    "--backend",
    help="Sandbox backend: auto, native, docker, docker+runsc, e2b or remote.  "
    "[default: sandbox.backend]",
)
@click.option(
    "--isolation", help="Minimum isolation level: restricted, isolated, kernel or machine."
)
@click.option(
    "--suite", "suites", multiple=True, help="conformance or hostile (repeatable).  [default: both]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def selftest(suites: tuple[str, ...], as_json: bool, **words: str | None) -> int:  # noqa: FBT001
    """Run the conformance and security suites against a backend."""
    import anyio

    report = anyio.run(_selftest, words, suites, as_json)
    if as_json:
        click.echo(json.dumps(_report_fields(report)))
    else:
        _print_report(report)
    return ExitCode.ACCEPTED if report.passed else ExitCode.NOT_ACCEPTED


async def _selftest(words: dict[str, Any], suites: tuple[str, ...], quiet: bool) -> "Report":  # noqa: FBT001
    from assay.selftest.conformance import PROMISES
    from assay.selftest.run import SUITES, run_suites
    from assay.selftest.security_tests import CASES
    from assay.settings.load import load_settings
    from assay.wiring import open_backend

    chosen: list[Suite] = [suite for suite in SUITES if not suites or suite in suites]
    for unknown in set(suites) - set(SUITES):
        raise UsageError(f"unknown suite {unknown!r}", hint=f"choose from: {', '.join(SUITES)}")
    sizes = {"conformance": len(PROMISES), "hostile": len(CASES)}
    progress = _Progress(sum(sizes[suite] for suite in chosen), quiet=quiet)
    with progress:
        settings = load_settings({"sandbox": words}).sandbox
        # The suites test the backend without the packages and hosts of the settings.
        bare = settings.model_copy(update={"packages": (), "hosts": ()})
        async with open_backend(bare, on_notice=progress.notice) as opened:
            return await run_suites(opened, suites=chosen, on_result=progress.tell)


class _Progress:
    """A bar on a terminal, and failures as lines on stderr."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console(stderr=True, quiet=quiet)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("testing", total=total)

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()

    def notice(self, sentence: str) -> None:
        self._bar.console.print(sentence, markup=False, highlight=False)

    def tell(self, result: "CheckResult") -> None:
        self._bar.update(self._task, advance=1, description=f"{result.suite}: {result.group}")
        if result.status == "failed":
            self._bar.console.print(
                f"failed: {result.suite} · {result.group} · {result.name}\n  {result.detail}",
                markup=False,
                highlight=False,
            )


def _report_fields(report: "Report") -> dict[str, Any]:
    return {
        "backend": report.backend,
        "isolation": report.isolation.value,
        "passed": report.count("passed"),
        "failed": report.count("failed"),
        "not_promised": report.count("not_promised"),
        "checks": [
            {
                "suite": result.suite,
                "group": result.group,
                "name": result.name,
                "status": result.status,
                "seconds": round(result.seconds, 4),
                "detail": result.detail,
            }
            for result in report.results
        ],
    }


def _print_report(report: "Report") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("suite", "group", "passed", "failed", "not promised", box=None)
    rows: dict[tuple[str, str], dict[str, int]] = {}
    for result in report.results:
        row = rows.setdefault((result.suite, result.group), {})
        row[result.status] = row.get(result.status, 0) + 1
    for (suite, group), row in rows.items():
        counts = (str(row.get(name, 0)) for name in ("passed", "failed", "not_promised"))
        table.add_row(suite, group, *counts)
    console = Console()
    console.print(table)
    console.print(
        f"{report.backend} ({report.isolation.value}): {report.count('passed')} held, "
        f"{report.count('failed')} failed, {report.count('not_promised')} not promised",
        highlight=False,
    )


_WHERE = click.option(
    "--backend",
    type=click.Choice(["here", "e2b"]),
    default="here",
    show_default=True,
    help="Engines and containers on this machine, or sandboxes at E2B.",
)


@click.command(name="list")
@_WHERE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_engines(backend: str, as_json: bool) -> None:  # noqa: FBT001
    """List running and orphaned engines of this user, or sandboxes at E2B."""
    if backend == "e2b":
        from assay.cli import e2b

        e2b.list_sandboxes(as_json=as_json)
        return
    import anyio

    from assay.sandbox.native.host import registry
    from assay.settings.load import load_settings

    settings = load_settings().sandbox
    rows = [
        {
            "backend": "native",
            "engine": record.engine,
            "state": "orphaned" if record.orphaned else "running",
            "owner_pid": record.owner.pid,
            "processes": record.processes(),
            "age_s": round(time.time() - record.since, 1),
        }
        for record in registry.read_records(settings.runtime_dir)
    ]
    rows += anyio.run(_container_rows, settings)
    if as_json:
        click.echo(json.dumps(rows))
        return
    if not rows:
        click.echo("no sandbox engine is running, and none was left behind")
    for row in rows:
        what = f"{row['processes']} processes" if "processes" in row else row["image"]
        click.echo(
            f"{row['engine']}  {row['state']}  owner {row['owner_pid']}  "
            f"{what}  {row['age_s']:.0f} s"
        )
    if any(row["state"] == "orphaned" for row in rows):
        click.echo("hint: `assay sandbox clean` removes what was left behind", err=True)


async def _container_rows(settings: "SandboxSettings") -> list[dict[str, Any]]:
    from assay.sandbox.docker.labels import list_containers

    async with _open_engine(settings) as engine:
        found = await list_containers(engine) if engine else ()
    return [
        {
            "backend": "docker",
            "engine": record.name,
            "state": "running" if record.state == "owned" else record.state,
            "owner_pid": record.owner.pid,
            "image": record.image,
            "age_s": round(time.time() - record.since, 1),
        }
        for record in found
    ]


@asynccontextmanager
async def _open_engine(settings: "SandboxSettings") -> "AsyncGenerator[Engine | None]":
    """Connect to Docker if it is there; without it there are no containers."""
    from assay.sandbox.docker.engine import open_engine

    async with AsyncExitStack() as opened:
        try:
            engine = await opened.enter_async_context(open_engine(settings.docker.socket))
        except AssayError:
            if settings.backend.startswith("docker"):
                raise
            engine = None
        yield engine


@click.command()
@_WHERE
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="E2B: also sandboxes with a running owner.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@YES
def clean(
    backend: str, ids: tuple[str, ...], *, everything: bool, dry_run: bool, yes: bool
) -> None:
    """Remove orphans of a crash: all, or only the IDs that `assay sandbox list` shows.

    Without --all, sandboxes with a running owner are not removed.
    """
    if backend == "e2b":
        from assay.cli import e2b

        e2b.clean(ids, everything=everything, dry_run=dry_run, yes=yes)
        return
    if everything:
        raise UsageError("--all is for --backend e2b", hint="leave it out")
    import anyio

    from assay.sandbox.native.host import registry
    from assay.settings.load import load_settings

    settings = load_settings().sandbox
    runtime_dir = settings.runtime_dir
    orphans = {
        record.engine: record for record in registry.read_records(runtime_dir) if record.orphaned
    }
    containers = [
        row["engine"] for row in anyio.run(_container_rows, settings) if row["state"] == "orphaned"
    ]
    names = [*orphans, *containers]
    if ids:
        check_ids(ids, names)
        names = [name for name in names if name in ids]
    if not names:
        click.echo("nothing was left behind")
        return
    if dry_run:
        for name in names:
            click.echo(f"would remove {name}")
        return
    confirm(f"Remove {', '.join(names)}?", yes=yes)
    for name in names:
        if name in orphans:
            registry.clean(runtime_dir, orphans[name])
            click.echo(f"removed {name}")
    wanted = frozenset(names).intersection(containers)
    if wanted:
        for name in anyio.run(_clean_containers, settings, wanted):
            click.echo(f"removed {name}")


async def _clean_containers(settings: "SandboxSettings", names: frozenset[str]) -> list[str]:
    from assay.sandbox.docker.labels import remove_orphans

    async with _open_engine(settings) as engine:
        return [one.name for one in await remove_orphans(engine, names)] if engine else []
