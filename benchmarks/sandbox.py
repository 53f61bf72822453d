"""Compares the native sandbox with other installed sandboxes in one run.

    python benchmarks/sandbox.py [--json] [--strict] [--rounds N] [--only NAME ...] [--out DIR]

Docker needs the image from `benchmarks/docker_image.sh`. llm-sandbox must be importable by the
interpreter that runs this script.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.comparison import memory, picture, schedule
from benchmarks.comparison.contenders import NAMES, POOL_SIZE, contender
from benchmarks.comparison.machine import describe_machine
from benchmarks.comparison.measurements import Measurements, Memory
from benchmarks.comparison.report import notes_on, to_json, to_markdown
from benchmarks.comparison.runners import NotInstalledError, Runner
from benchmarks.comparison.tables import Table, build_tables
from benchmarks.comparison.targets import BARE, POOL, check_targets

_RESULTS = Path(__file__).resolve().parent / "results"
_WIDTH = 150
_ROUNDS_PER_BURST = 5


def main() -> int:
    options = _parse(sys.argv[1:])
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        # A separate drawing thread would distort the measurement.
        auto_refresh=False,
    )
    try:
        with progress:
            measured = anyio.run(_measure, options.only, options.rounds, progress)
    except memory.CellsMissingError as error:
        print(f"memory could not be measured: {error}", file=sys.stderr)
        return 1
    checks = check_targets(measured)
    tables = build_tables(measured, checks)
    _write(options.out, measured, tables, to_json(measured, checks))
    if options.json:
        print(json.dumps(to_json(measured, checks)))
    else:
        _show(measured, tables, options.out)
    return 1 if options.strict and not all(check.met for check in checks) else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/sandbox.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit code 1 if a target is missed or not measured"
    )
    parser.add_argument("--rounds", type=_positive, default=50, metavar="N", help="default: 50")
    parser.add_argument(
        "--only",
        nargs="+",
        default=list(NAMES),
        choices=NAMES,
        metavar="NAME",
        help=", ".join(NAMES),
    )
    parser.add_argument(
        "--out", type=Path, default=_RESULTS, metavar="DIR", help="default: benchmarks/results"
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


async def _measure(names: Sequence[str], rounds: int, progress: Progress) -> Measurements:
    task = progress.add_task("starting", total=None)
    step = _stepper(progress, task)
    step("looking at the machine")
    machine = await anyio.to_thread.run_sync(describe_machine)
    step("memory of idle sandboxes")
    held = await _measure_memory(names)
    skipped: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        runners: dict[str, Runner] = {}
        for name in (name for name in NAMES if name in names):
            step(f"{name}: opening")
            try:
                runners[name] = await stack.enter_async_context(contender(name).open())
            except NotInstalledError as reason:
                skipped[name] = str(reason)
        rated = {name: it for name, it in runners.items() if contender(name).counts_rate}
        native = {name: it for name, it in runners.items() if name.startswith("native")}
        bursts = max(2, rounds // _ROUNDS_PER_BURST)
        total = schedule.count_steps(
            list(runners), rounds=rounds, bursts=bursts, measured_rates=len(rated)
        )
        progress.reset(task, total=total)
        latencies, failed_paced = await schedule.measure_paced(runners, rounds, step)
        backlogs, failed_bursts = await schedule.measure_bursts(native, bursts, step)
        rates, failed_rates = await schedule.measure_rates(rated, step)
    return Measurements(
        machine=machine,
        rounds=rounds,
        pause_ms=round(schedule.PAUSE_S * 1e3),
        pool_size=POOL_SIZE,
        latencies=latencies,
        bursts=backlogs,
        rates=rates,
        memory=held,
        skipped=skipped,
        failures=failed_rates | failed_bursts | failed_paced,
    )


async def _measure_memory(names: Sequence[str]) -> list[Memory]:
    held: list[Memory | None] = []
    if POOL in names:
        with suppress(NotInstalledError):
            held.append(await memory.measure_native())
    if BARE in names:
        held.append(await memory.measure_bare())
    return [item for item in held if item is not None]


def _stepper(progress: Progress, task: TaskID) -> Callable[[str], None]:
    def step(what: str) -> None:
        progress.update(task, advance=1, description=f"{what:<44}", refresh=True)

    return step


def _write(out: Path, measured: Measurements, tables: Sequence[Table], values: object) -> None:
    out.mkdir(parents=True, exist_ok=True)
    drawn: str | None = "sandbox.png"
    try:
        picture.draw(measured, out / "sandbox.png")
    except ImportError:
        drawn = None
    (out / "sandbox.json").write_text(json.dumps(values, indent=2) + "\n")
    (out / "sandbox.md").write_text(to_markdown(measured, tables, drawn))


def _show(measured: Measurements, tables: Sequence[Table], out: Path) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    for table in tables:
        console.print(table.to_terminal())
        console.print()
    for note in notes_on(measured):
        console.print(note, markup=False)
    console.print(f"written: sandbox.md, sandbox.png, sandbox.json in {out}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
