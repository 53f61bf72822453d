"""Opens and closes many Docker sandboxes, kills their owner at times, and looks for leftovers.

    python benchmarks/docker_churn.py --sessions 500

Exits with 1 if a container, a volume or a folder is left. Requires the setup of `make engine`.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio

from assay.contracts.execution import Limits, PythonCode
from assay.settings.load import load_settings
from assay.wiring import open_backend

TIMEOUT_S = 60.0


async def live(backend_name: str) -> None:
    """Open and close sessions until killed, and report each."""
    words = {"backend": backend_name, "preload": (), "docker": {"warm_containers": 1}}
    async with open_backend(load_settings({"sandbox": words}).sandbox) as backend:
        while True:
            async with backend.open_sandbox(Limits(disk_mb=16)) as sandbox:
                print("opened", flush=True)
                result = await sandbox.run(PythonCode(source=b"print(6 * 7)"))
                if result.stdout != "42\n":
                    raise SystemExit(f"not what was asked for: {result}")
            print("closed", flush=True)


@contextmanager
def owner(backend: str, folder: Path) -> Generator[subprocess.Popen[str]]:
    """Start a process with open sandboxes; it is killed at the end in every case."""
    argv = [sys.executable, __file__, "--live", "--backend", backend]
    env = {**os.environ, "TMPDIR": str(folder), "ASSAY_RUNTIME_DIR": str(folder / "runtime")}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def churn(sessions: int, backend: str, folder: Path, chance: random.Random) -> list[int]:
    """Run this many sessions, and kill the owner with SIGKILL."""
    done = 0
    killed: list[int] = []
    while done < sessions:
        until = min(sessions, done + chance.randrange(5, 30))
        with owner(backend, folder) as process:
            for line in process.stdout or ():
                done += line == "closed\n"
                # During a session as often as between two.
                if done >= until and chance.random() < 0.5:
                    break
            process.send_signal(signal.SIGKILL)
            killed.append(process.pid)
        print(f"{done} sessions, {len(killed)} kills", file=sys.stderr, flush=True)
    return killed


def listed(*words: str) -> set[str]:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def containers_of(owners: list[int]) -> set[str]:
    """Return the containers of these owners: other programs may use the same engine."""
    found: set[str] = set()
    for pid in owners:
        label = f"label=dev.assay.owner.pid={pid}"
        found |= listed("ps", "--all", "--quiet", "--filter", label)
    return found


def nameless_volumes() -> set[str]:
    """Return unnamed volumes, as containers leave them; named ones belong to other programs."""
    return {
        name for name in listed("volume", "ls", "--quiet") if re.fullmatch("[0-9a-f]{64}", name)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--backend", default="docker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--live", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.live:
        anyio.run(live, options.backend)
    volumes_before = nameless_volumes()
    chance = random.Random(options.seed)  # noqa: S311 - repeatable by seed
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        killed = churn(options.sessions, options.backend, Path(folder), chance)
        took_s = time.monotonic() - begun
        # They exit by themselves: the engine closes their stdin when their owner dies.
        deadline = time.monotonic() + TIMEOUT_S
        while (left := containers_of(killed)) and time.monotonic() < deadline:
            # A container that was created but not started when its owner died has no open stdin;
            # the next backend that opens removes it, or this does.
            subprocess.run(
                [sys.executable, "-m", "assay", "sandbox", "clean", "--yes"], check=True, stdout=2
            )
            time.sleep(0.5)
        found = {
            "sessions": options.sessions,
            "kills": len(killed),
            "seconds": round(took_s, 1),
            "containers_left": sorted(left),
            "volumes_left": sorted(nameless_volumes() - volumes_before),
            "folders_left": sorted(str(path) for path in Path(folder).rglob("*")),
        }
    print(json.dumps(found))
    return int(any(found[name] for name in ("containers_left", "volumes_left", "folders_left")))


if __name__ == "__main__":
    sys.exit(main())
