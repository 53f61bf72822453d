"""`assay doctor`: shows what works here, what does not, and how to fix it."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from assay.cli.options import json_option, to_json
from assay.contracts.distribution import install_command
from assay.contracts.errors import ExitCode, MissingExtraError
from assay.contracts.execution import Isolation

if TYPE_CHECKING:
    from rich.console import Console

    from assay.cli.doctor_checks import Sections
    from assay.sandbox.native.doctor.explain import Finding
    from assay.sandbox.native.doctor.probes import OnProgress, Report
    from assay.settings.load import SandboxSettings, Settings

_TURNS_PER_S: Final = 12.5
_STYLES: Final = {
    "ok": "green",
    "info": "cyan",
    "missing": "yellow",
    "failed": "red",
    "timed_out": "red",
}
_GRADES: Final = {
    Isolation.NONE: "no isolation",
    Isolation.RESTRICTED: "Landlock and seccomp; process table and names are the host's",
    Isolation.ISOLATED: "own namespaces, own root, seccomp; only the kernel is the host's",
    Isolation.KERNEL: "a separate kernel in user space",
    Isolation.MACHINE: "a separate virtual machine",
}


@click.command(name="doctor")
@json_option("Print everything as one JSON object.")
def command(*, as_json: bool) -> int:
    """Check what this machine can isolate, and list what is missing.

    Assay tries every part of the sandbox in a separate process, then runs a program in all of it.
    It also checks keys, models, services, extras, toolchains and folders, and shows no key.
    The exit code is 0 if programs can be isolated here, and 4 if not.
    """
    from assay.cli.render.view import open_console

    console = open_console()
    report, sections = _examine(console, silent=as_json)
    if as_json:
        click.echo(to_json(report_fields(report, sections)))
    else:
        show(report, console, sections)
    return ExitCode.ACCEPTED if report.proof else ExitCode.INFRASTRUCTURE


def _examine(console: "Console", *, silent: bool) -> tuple["Report", "Sections"]:
    import anyio

    from assay.settings.load import load_settings, project_notice

    settings = load_settings(project=Path.cwd())
    if notice := project_notice(Path.cwd()):
        click.echo(notice, err=True)
    if silent or not console.is_terminal:
        return anyio.run(_look_at_all, settings, None)
    with progress(console) as tell:
        return anyio.run(_look_at_all, settings, tell)


@contextmanager
def progress(console: "Console") -> Generator["OnProgress"]:
    """Show each name immediately, not only with the spinner's next frame."""
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots", "checking")
    with Live(spinner, console=console, refresh_per_second=_TURNS_PER_S, transient=True) as live:

        def tell(name: str) -> None:
            spinner.update(text=f"checking: {name}")
            live.refresh()

        yield tell


async def _look_at_all(
    settings: "Settings", on_progress: "OnProgress | None"
) -> tuple["Report", "Sections"]:
    """Check the isolation and, concurrently, everything else."""
    import anyio

    from assay.cli.doctor_checks import look_at_everything
    from assay.sandbox.native.doctor.probes import examine
    from assay.wiring import open_backend

    def tell(name: str) -> None:
        if on_progress:
            on_progress(name)

    sections: Sections = {}
    reports: list[Report] = []

    async def look_around() -> None:
        sections.update(await look_at_everything(settings))

    # The data stack has its own check; here it would only slow the start.
    bare = settings.sandbox.model_copy(update={"preload": ()})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look_around)
        report = await examine(
            partial(open_backend, bare),
            wanted=bare.isolation,
            search_path=bare.search_path,
            on_progress=tell,
        )
        tell("docker")
        found = await _look_at_docker(settings.sandbox)
        # The run of a program in all of it stays the last finding.
        *others, whole = report.findings
        reports.append(replace(report, findings=(*others, *found, whole)))
    return reports[0], sections


async def _look_at_docker(settings: "SandboxSettings") -> tuple["Finding", ...]:
    from assay.sandbox.native.doctor.explain import Finding

    needed = settings.backend.startswith("docker")
    try:
        from assay.sandbox.docker.diagnosis import examine_docker
    except MissingExtraError as error:
        status = "failed" if needed else "info"
        fix = error.hint if needed else ""
        return (Finding(name="docker engine", status=status, detail=str(error), fix=fix),)
    return await examine_docker(settings.docker, needed=needed)


def report_fields(report: "Report", sections: "Sections | None" = None) -> dict[str, Any]:
    """Return the report as JSON; its names are stable between versions."""
    proof = report.proof
    return {
        "usable": proof is not None,
        "backend": proof.backend if proof else None,
        "isolation": proof.isolation.value if proof else None,
        "run_ms": round(proof.run_ms, 3) if proof else None,
        "native": report.native.value if report.native else None,
        "limits_kept_by": report.limits_kept_by,
        "findings": [asdict(finding) for finding in report.findings],
        "checks": {
            name: [asdict(finding) for finding in findings]
            for name, findings in (sections or {}).items()
        },
    }


def show(report: "Report", console: "Console", sections: "Sections | None" = None) -> None:
    """Print the findings as tables, then what to do, then the verdict."""
    from rich.text import Text

    _show_table("isolation" if sections else "", report.findings, console)
    for name, findings in (sections or {}).items():
        _show_table(name, _shortened(name, findings), console)
    others = [each for findings in (sections or {}).values() for each in findings]
    # Optional parts may be left out on purpose, so they give no advice.
    isolating = (each for each in report.findings if each.fix != install_command("data"))
    advice = fixes([*isolating, *(each for each in others if each.status != "info")])
    if advice:
        console.print("\nSuggested fixes:")
    for fix, names in advice.items():
        # Not wrapped, so that a command can be copied.
        console.print(Text(f"  {', '.join(names)}: {fix}"), soft_wrap=True)
    console.print()
    for line in verdict(report):
        console.print(Text(line, style="bold"), soft_wrap=True)


def _shortened(title: str, findings: "Sequence[Finding]") -> "list[Finding]":
    """Put extras that are not installed, or keys that are not set, into one line."""
    from assay.sandbox.native.doctor.explain import Finding
    from assay.settings.load import credentials_file

    ways = {
        "extras": ("available", install_command("NAME")),
        "keys": ("not set", f"set one in the environment or in {credentials_file()}"),
    }
    if title not in ways:
        return list(findings)
    name, way = ways[title]
    shown = [each for each in findings if each.status != "info"]
    absent = [each.name for each in findings if each.status == "info"]
    if absent:
        shown.append(Finding(name=name, status="info", detail=", ".join(absent), cause=way))
    return shown


def _show_table(title: str, findings: Iterable["Finding"], console: "Console") -> None:
    from rich.table import Table
    from rich.text import Text

    if title:
        console.print(Text(f"\n{title}", style="bold"))
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        status = Text(finding.status.replace("_", " "), style=_STYLES[finding.status])
        told = ": ".join(filter(None, (finding.detail, finding.cause)))
        table.add_row(Text(finding.name), status, Text(told, overflow="fold"))
    console.print(table)


def fixes(findings: Iterable["Finding"]) -> dict[str, list[str]]:
    """Return each fix once, with the names of the findings it is for."""
    found: dict[str, list[str]] = {}
    for finding in findings:
        if finding.fix:
            found.setdefault(finding.fix, []).append(finding.name)
    return found


def verdict(report: "Report") -> tuple[str, ...]:
    """Say which backend and isolation level programs get, and what enforces the limits."""
    proof = report.proof
    if proof is None:
        return ("This machine cannot isolate programs; Assay will not run any.",)
    grade = proof.isolation
    return (
        f"Programs will run in the {proof.backend} sandbox, {grade.value}: {_GRADES[grade]}.",
        f"Limits are kept by {report.limits_kept_by}. A small program takes {proof.run_ms:.1f} ms.",
    )
