"""Compares the speed of two checkouts in one interleaved run.

    python benchmarks/two_checkouts.py OLD [NEW] [--rounds N] [--batch N] [--only NAME …]

OLD and NEW are folders of checkouts; NEW is this one by default. Both run with the interpreter and
the packages of this one. They alternate, so that both have the same load of the machine:

sandbox     one process with one engine each: latency and throughput of executions
start       `assay --help`
controller  the controller's own time per attempt, from `benchmarks/controller.py` of each checkout
chat        one `assay serve` each with a scripted model: the rate of `POST /chat`
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio

HERE: Final = Path(__file__).resolve()
_SERVE: Final = "--serve"
_WARM_UP: Final = 20
_AT_ONCE: Final = 4
_MOST_WORSE: Final = 0.05
_SETTINGS: Final = ("assay.settings.load", "assay.settings")
"""The module of the sandbox settings, in this checkout and before it moved."""


class Checkout:
    """One checkout, measured by a process that imports Assay from it."""

    def __init__(self, folder: Path) -> None:
        source = folder.resolve() / "src"
        if not (source / "assay").is_dir():
            raise SystemExit(f"{folder} is no checkout: {source / 'assay'} does not exist")
        self.latencies_s: list[float] = []
        self.rates: list[float] = []
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), _SERVE, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(source)},
        )

    def measure(self, batch: int) -> None:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self._process.stdin.write(f"{batch}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a checkout could not be measured; see above")
        latencies_s, rate = json.loads(line)
        self.latencies_s += latencies_s
        self.rates.append(rate)

    def close(self) -> None:
        self._process.communicate()


async def _serve(source: str) -> None:
    from assay import wiring
    from assay.contracts.execution import Limits, PythonCode

    if not Path(wiring.__file__).is_relative_to(source):
        raise SystemExit(f"Assay was imported from {wiring.__file__}, not from {source}")
    settings = _import_settings().SandboxSettings(backend="native")
    program = PythonCode(source=b"print(1)")
    async with (
        wiring.open_backend(settings) as backend,
        backend.open_sandbox(Limits()) as sandbox,
    ):

        async def run() -> float:
            begun = time.perf_counter()
            await sandbox.run(program)
            return time.perf_counter() - begun

        async def run_several(number: int) -> None:
            for _ in range(number):
                await run()

        await run_several(_WARM_UP)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            batch = int(line)
            latencies_s = [await run() for _ in range(batch)]
            begun = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                for _ in range(_AT_ONCE):
                    tasks.start_soon(run_several, batch)
            rate = batch * _AT_ONCE / (time.perf_counter() - begun)
            print(json.dumps([latencies_s, rate]), flush=True)


def _import_settings() -> Any:
    """Return the module that has `SandboxSettings` in this checkout."""
    for name in _SETTINGS:
        with suppress(ModuleNotFoundError):
            return import_module(name)
    raise SystemExit(f"a checkout has none of the modules {', '.join(_SETTINGS)}")


def _compare_sandboxes(old: Path, new: Path, rounds: int, batch: int) -> int:
    checkouts = [Checkout(old), Checkout(new)]
    _alternate([lambda one=one: one.measure(batch) for one in checkouts], rounds)
    for checkout in checkouts:
        checkout.close()
    before, after = ((median(one.latencies_s), median(one.rates)) for one in checkouts)
    return compare(before, after)


def _alternate(turns: list[Callable[[], object]], rounds: int) -> None:
    for number in range(rounds):
        # Each is first as often as second.
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()


def _environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src"), "NO_COLOR": "1"}


def _compare_starts(old: Path, new: Path, rounds: int, batch: int) -> int:
    del batch
    times: dict[Path, list[float]] = {old: [], new: []}

    def start(checkout: Path) -> None:
        begun = time.perf_counter()
        words = [sys.executable, "-m", "assay", "--help"]
        subprocess.run(words, env=_environment(checkout), stdout=subprocess.DEVNULL, check=True)
        times[checkout].append(time.perf_counter() - begun)

    _alternate([lambda: start(old), lambda: start(new)], rounds)
    return compare_times("assay --help", median(times[old]), median(times[new]))


def _compare_controllers(old: Path, new: Path, rounds: int, batch: int) -> int:
    times: dict[Path, list[float]] = {old: [], new: []}

    def work(checkout: Path) -> None:
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            script = checkout.resolve() / "benchmarks" / "controller.py"
            words = [sys.executable, script, "--attempts", str(batch), "--json", report.name]
            subprocess.run(
                words, env=_environment(checkout), stdout=subprocess.DEVNULL, check=False
            )
            kinds = json.load(report).values()
            times[checkout].append(sum(kind["p50_ms"] for kind in kinds) / 1000)

    _alternate([lambda: work(old), lambda: work(new)], max(2, rounds // 10))
    return compare_times("controller", median(times[old]), median(times[new]))


def _compare_chats(old: Path, new: Path, rounds: int, batch: int) -> int:
    rates: dict[Path, list[float]] = {old: [], new: []}
    with ExitStack() as running:
        urls = {one: running.enter_context(_served(one)) for one in (old, new)}

        def ask(checkout: Path) -> None:
            begun = time.perf_counter()
            for _ in range(batch):
                _post(f"{urls[checkout]}/chat", {"message": "hello"})
            rates[checkout].append(batch / (time.perf_counter() - begun))

        _alternate([lambda: ask(old), lambda: ask(new)], rounds)
    return compare_rates("POST /chat", median(rates[old]), median(rates[new]))


@contextmanager
def _served(checkout: Path) -> Iterator[str]:
    """Run `assay serve` of a checkout with a scripted model; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "model.jsonl"
        script.write_text(json.dumps({"text": "I see.", "repeat": True}))
        process = subprocess.Popen(
            [sys.executable, "-m", "assay", "serve", "--port", str(port)],
            env=_environment(checkout)
            | {"XDG_STATE_HOME": folder, "ASSAY_MODELS__DEFAULT": f"scripted:{script}"}
            | {"ASSAY_SERVE__QUOTA__REQUESTS_PER_MINUTE": "1000000"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_for(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        with suppress(urllib.error.URLError):
            _post(f"{url}/chat", {"message": "hello"})
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit("a server did not start")


def _post(url: str, body: dict[str, str]) -> None:
    request = urllib.request.Request(  # noqa: S310 - an address of this machine
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
        answer.read()


def compare(before: tuple[float, float], after: tuple[float, float]) -> int:
    """Print p50 in seconds and executions per second of both; return 1 if one is clearly worse."""
    return max(
        compare_times("sandbox, p50", before[0], after[0]),
        compare_rates("sandbox, throughput", before[1], after[1]),
    )


def compare_times(name: str, before_s: float, after_s: float) -> int:
    """Print two durations; return 1 if the second is clearly longer."""
    change = after_s / before_s - 1
    print(f"{name:20} {before_s * 1e3:8.3f} ms -> {after_s * 1e3:8.3f} ms  ({change:+.1%})")
    return int(change > _MOST_WORSE)


def compare_rates(name: str, before: float, after: float) -> int:
    """Print two rates; return 1 if the second is clearly lower."""
    change = after / before - 1
    print(f"{name:20} {before:8.1f} /s -> {after:8.1f} /s  ({change:+.1%})")
    return int(-change > _MOST_WORSE)


MEASURES: Final[dict[str, Callable[[Path, Path, int, int], int]]] = {
    "sandbox": _compare_sandboxes,
    "start": _compare_starts,
    "controller": _compare_controllers,
    "chat": _compare_chats,
}


def main() -> int:
    if sys.argv[1:2] == [_SERVE]:
        anyio.run(_serve, sys.argv[2])
        return 0
    parser = argparse.ArgumentParser(description="Compare the speed of two checkouts.")
    parser.add_argument("old", type=Path, help="the folder of the checkout to compare with")
    parser.add_argument("new", type=Path, nargs="?", default=HERE.parents[1])
    parser.add_argument("--rounds", type=int, default=40, help="turns of each [default: 40]")
    parser.add_argument("--batch", type=int, default=25, help="programs in a turn [default: 25]")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES))
    options = parser.parse_args()
    measures = [MEASURES[name] for name in options.only]
    worse = [each(options.old, options.new, options.rounds, options.batch) for each in measures]
    return max(worse)


if __name__ == "__main__":
    sys.exit(main())
