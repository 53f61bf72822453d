"""`assay sandbox selftest`, `list`, `clean` and `packages`: test a backend, and clean up after it.

`list` and `clean` show and remove engines and containers of this machine or sandboxes at E2B;
`packages` lists and removes the packages that sandboxes fetched.
"""

import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from assay.cli.options import JSON_ARRAY, JSON_OBJECT, YES, to_json
from assay.cli.terminal import check_ids, confirm, open_bar
from assay.contracts.errors import AssayError, ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from assay.sandbox.docker.engine import Engine
    from assay.sandbox.e2b.backend import Leftover
    from assay.sandbox.packages.store import PackageStore
    from assay.selftest.checks import Suite
    from assay.selftest.run import CheckResult, Report
    from assay.settings.load import SandboxSettings
    from assay.settings.sections import E2BSettings


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
@JSON_OBJECT
def selftest(suites: tuple[str, ...], as_json: bool, **words: str | None) -> int:  # noqa: FBT001
    """Run the conformance and security suites against a backend."""
    import anyio

    report = anyio.run(_selftest, words, suites, as_json)
    if as_json:
        click.echo(to_json(_report_fields(report)))
    else:
        _print_report(report)
    return ExitCode.ACCEPTED if report.passed else ExitCode.NOT_ACCEPTED


async def _selftest(words: dict[str, Any], suites: tuple[str, ...], quiet: bool) -> "Report":  # noqa: FBT001
    from assay.selftest.run import SUITES, run_suites
    from assay.settings.load import load_settings
    from assay.wiring import open_backend

    chosen: list[Suite] = [suite for suite in SUITES if not suites or suite in suites]
    for unknown in set(suites) - set(SUITES):
        raise UsageError(f"unknown suite {unknown!r}", hint=f"choose from: {', '.join(SUITES)}")
    total = sum(len(SUITES[suite]) for suite in chosen)
    with _open_progress(total, quiet=quiet) as (notice, tell):
        settings = load_settings({"sandbox": words}).sandbox
        # The suites test the backend without the packages and hosts of the settings.
        bare = settings.model_copy(update={"packages": (), "hosts": ()})
        async with open_backend(bare, on_notice=notice) as opened:
            return await run_suites(opened, suites=chosen, on_result=tell)


@contextmanager
def _open_progress(
    total: int, *, quiet: bool
) -> "Generator[tuple[Callable[[str], None], Callable[[CheckResult], None]]]":
    """Show a bar on a terminal, and failures as lines on stderr."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with open_bar(*columns, silent=quiet) as bar:
        task = bar.add_task("testing", total=total)

        def notice(sentence: str) -> None:
            bar.console.print(sentence, markup=False, highlight=False)

        def tell(result: "CheckResult") -> None:
            bar.update(task, advance=1, description=f"{result.suite}: {result.group}")
            if result.status == "failed":
                name = f"{result.suite} · {result.group} · {result.name}"
                notice(f"failed: {name}\n  {result.detail}")

        yield notice, tell


def _report_fields(report: "Report") -> dict[str, Any]:
    return {
        "backend": report.backend,
        "isolation": report.isolation.value,
        "passed": report.count("passed"),
        "failed": report.count("failed"),
        "not_promised": report.count("not_promised"),
        "checks": [
            asdict(result) | {"seconds": round(result.seconds, 4)} for result in report.results
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
@JSON_ARRAY
def list_engines(backend: str, as_json: bool) -> None:  # noqa: FBT001
    """List running and orphaned engines of this user, or sandboxes at E2B."""
    if backend == "e2b":
        list_e2b(as_json=as_json)
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
        click.echo(to_json(rows))
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
        clean_e2b(ids, everything=everything, dry_run=dry_run, yes=yes)
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


def list_e2b(*, as_json: bool) -> None:
    """Show the sandboxes that Assay has opened with this key."""
    import anyio

    from assay.sandbox.e2b.backend import find_leftovers

    found = anyio.run(find_leftovers, _e2b_settings())
    if as_json:
        click.echo(to_json([_e2b_row(one) for one in found]))
        return
    if not found:
        click.echo("no sandbox of Assay is running at E2B")
    for one in found:
        click.echo(
            f"{one.id}  {_e2b_state(one)}  owner {one.owner.pid} on {one.host}  {one.age_s:.0f} s"
        )
    if any(one.orphaned for one in found):
        click.echo("hint: `assay sandbox clean --backend e2b` ends orphaned sandboxes", err=True)


def clean_e2b(ids: tuple[str, ...], *, everything: bool, dry_run: bool, yes: bool) -> None:
    """End the sandboxes whose owner is gone; with `everything`, all that Assay has opened."""
    import anyio

    from assay.sandbox.e2b.backend import find_leftovers

    settings = _e2b_settings()
    found = anyio.run(find_leftovers, settings)
    wanted = [one for one in found if everything or one.orphaned]
    if ids:
        check_ids(ids, [one.id for one in wanted])
        wanted = [one for one in wanted if one.id in ids]
    elif others := sum(not one.here for one in found if one not in wanted):
        click.echo(f"{others} others have an owner elsewhere; `--all` ends them too", err=True)
    if not wanted:
        click.echo("no orphaned sandboxes")
    elif dry_run:
        for one in wanted:
            click.echo(f"would end {one.id}")
    else:
        confirm(f"End {', '.join(one.id for one in wanted)}?", yes=yes)
        anyio.run(_end_e2b, settings, wanted)


async def _end_e2b(settings: "E2BSettings", wanted: list["Leftover"]) -> None:
    from assay.sandbox.e2b.backend import end_leftover

    for one in wanted:
        await end_leftover(settings, one)
        click.echo(f"ended {one.id}")


def _e2b_state(one: "Leftover") -> str:
    return "orphaned" if one.orphaned else "running" if one.here else "elsewhere"


def _e2b_row(one: "Leftover") -> dict[str, str | int | float]:
    return {
        "sandbox": one.id,
        "state": _e2b_state(one),
        "owner_host": one.host,
        "owner_pid": one.owner.pid,
        "age_s": round(one.age_s, 1),
    }


def _e2b_settings() -> "E2BSettings":
    from assay.sandbox.e2b.backend import check_sdk
    from assay.settings.load import load_settings

    check_sdk()
    settings = load_settings().sandbox.e2b
    if not settings.api_key:
        raise UsageError("the e2b backend needs a key", hint="set E2B_API_KEY")
    return settings


@click.group(name="packages")
def packages_command() -> None:
    """List or remove the packages that were fetched for sandboxes."""


@packages_command.command(name="list")
@JSON_ARRAY
def list_layers(as_json: bool) -> None:  # noqa: FBT001 - click's
    """List all package layers, the most recently used first."""
    layers = _package_store().layers()
    if as_json:
        now = time.time()
        rows = [
            {
                "layer": layer.key,
                "packages": list(layer.pins),
                "python": layer.python,
                "size_bytes": layer.size_bytes,
                "unused_s": round(now - layer.used_at, 1),
            }
            for layer in layers
        ]
        click.echo(to_json(rows))
        return
    if not layers:
        click.echo("no packages were fetched")
    for layer in layers:
        size = f"{layer.size_bytes / 1e6:.1f} MB"
        click.echo(f"{layer.key[:12]}  {size:>9}  Python {layer.python}  {' '.join(layer.pins)}")


@packages_command.command(name="clean")
@YES
def clean_packages(*, yes: bool) -> None:
    """Remove all layers that no sandbox uses; Assay fetches them again when needed."""
    confirm("Remove all fetched packages that no sandbox is using?", yes=yes)
    removed = _package_store().clean()
    freed = sum(layer.size_bytes for layer in removed)
    click.echo(f"removed {len(removed)} layers, {freed / 1e6:.1f} MB")


def _package_store() -> "PackageStore":
    from assay.sandbox.factory import build_package_store
    from assay.settings.load import load_settings

    return build_package_store(load_settings().sandbox)
