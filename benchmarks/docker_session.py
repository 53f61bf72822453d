"""Compares a warm Docker sandbox with `docker exec python3 -c "import pandas"`.

    python benchmarks/docker_session.py [--backend docker+runsc] [--rounds 20]

Alternates both, so that other load affects both. Requires the setup of `make engine`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack

import anyio

from assay.contracts.execution import Limits, PythonCode
from assay.contracts.ports import Sandbox
from assay.sandbox.docker.backend import DockerBackend
from assay.settings.load import load_settings
from assay.wiring import open_backend

PROGRAM = PythonCode(source=b"import pandas; print(pandas.DataFrame({'a': [1, 2]}).a.sum())")


def check(said: str) -> None:
    if said != "3\n":
        raise SystemExit(f"a wrong answer must not be measured: {said!r}")


async def ours(sandbox: Sandbox) -> float:
    begun = time.perf_counter()
    result = await sandbox.run(PROGRAM)
    took = time.perf_counter() - begun
    check(result.stdout)
    return took


def theirs(container: str) -> float:
    begun = time.perf_counter()
    python = "/opt/assay/venv/bin/python3"
    argv = ["docker", "exec", container, python, "-I", "-c", PROGRAM.source.decode()]
    done = subprocess.run(argv, capture_output=True, check=True)
    took = time.perf_counter() - begun
    check(done.stdout.decode())
    return took


def start_plain(image: str, runtime: str) -> str:
    runtime_words = ["--runtime", runtime] if runtime else []
    argv = ["docker", "run", "--detach", "--rm", "--network", "none", *runtime_words]
    done = subprocess.run(
        [*argv, image, "sleep", "3600"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def remove(container: str) -> None:
    subprocess.run(["docker", "rm", "--force", container], capture_output=True, check=True)


async def measure(backend_name: str, rounds: int) -> dict[str, list[float]]:
    settings = load_settings({"sandbox": {"backend": backend_name}}).sandbox
    took: dict[str, list[float]] = {"assay": [], "docker exec": []}
    async with open_backend(
        settings, on_notice=lambda line: print(line, file=sys.stderr)
    ) as backend:
        if not isinstance(backend, DockerBackend):
            raise SystemExit("this measures Docker")
        with ExitStack() as held:
            plain = start_plain(backend.image, backend_name.partition("+")[2])
            held.callback(remove, plain)
            async with backend.open_sandbox(Limits()) as sandbox:
                await ours(sandbox)  # the first one waits until the libraries are loaded
                theirs(plain)
                for _ in range(rounds):
                    took["docker exec"].append(theirs(plain))
                    took["assay"].append(await ours(sandbox))
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="docker", choices=("docker", "docker+runsc"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    took = anyio.run(measure, options.backend, options.rounds)
    rows = {
        name: {"min_ms": 1000 * min(times), "p50_ms": 1000 * statistics.median(times)}
        for name, times in took.items()
    }
    ratio = rows["docker exec"]["p50_ms"] / rows["assay"]["p50_ms"]
    if options.json:
        print(json.dumps({"backend": options.backend, **rows, "ratio": ratio}))
    else:
        for name, row in rows.items():
            print(f"{name:12}  min {row['min_ms']:8.1f} ms   p50 {row['p50_ms']:8.1f} ms")
        print(f"{options.backend}: {ratio:.1f} times faster at the median of {options.rounds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
