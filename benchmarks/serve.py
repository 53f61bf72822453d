"""Load test of `assay serve` with 200 parallel sessions: lost turns, event loop, memory.

    python benchmarks/serve.py [--chats 200] [--minutes 10]

Starts the service with a scripted model. Each client sends messages until the end, in one session
after the other. Every turn runs a cell in the sandbox of its session. Prints one JSON object at the
end.

The blocking time of the event loop is its longest callback, minus the time in which the kernel gave
the processor to other processes. Clients, service and sandboxes share the processors. The lag
includes that time and other callbacks, so it says more about the machine.
"""

import argparse
import asyncio.events
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx

WORTH_TELLING_MS = 20
TURNS = 20
"""For one session."""
CELL = "```python\nx = globals().get('x', 0) + 1\nprint(x)\n```"


def waited_ns() -> int:
    """Return how long this thread was runnable without running, since its start."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def serve_timed(report: Path) -> None:
    """Run `assay`, and write the longest steps of the event loop at the end."""
    plain = asyncio.events.Handle._run  # noqa: SLF001 - no public hook sees every step
    steps: list[tuple[float, float, float, str]] = []

    def timed(handle: asyncio.events.Handle) -> None:
        before, began = waited_ns(), time.monotonic()
        plain(handle)
        took_ms = (time.monotonic() - began) * 1000
        if took_ms > WORTH_TELLING_MS:
            waited_ms = (waited_ns() - before) / 1e6
            of = getattr(getattr(handle, "_callback", None), "__self__", handle)
            steps.append((took_ms - waited_ms, waited_ms, began, repr(of)[:200]))

    asyncio.events.Handle._run = timed  # noqa: SLF001 - see above
    sys.argv = ["assay", *sys.argv[3:]]
    try:
        runpy.run_module("assay", run_name="__main__", alter_sys=True)
    finally:
        report.write_text(json.dumps(sorted(steps, reverse=True)))


@dataclass
class Tally:
    turns: int = 0
    lost: list[str] = field(default_factory=list[str])
    seconds: list[float] = field(default_factory=list[float])
    memory_mb: list[float] = field(default_factory=list[float])
    lag_s: float = 0.0


def turns_of_a_session() -> list[dict[str, Any]]:
    return [{"text": CELL}, {"text": "Counted."}] * TURNS


async def talk(url: str, until: float, tally: Tally, number: int) -> None:
    """Send messages repeatedly; in each session, each answer must count one higher."""
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:
        session, count = None, 0
        while time.monotonic() < until or count == 0:
            if count == TURNS:
                session, count = None, 0
            began = time.monotonic()
            body = {"message": f"count, {number}"} | ({"session_id": session} if session else {})
            try:
                answer = (await client.post("/chat", json=body)).json()
                session = answer["session_id"]
            except (httpx.HTTPError, KeyError, ValueError) as error:
                tally.lost.append(f"{type(error).__name__}: {error}")
                continue
            count += 1
            tally.turns += 1
            tally.seconds.append(time.monotonic() - began)
            if (answer["observation"], answer["status"]) != (str(count), "answered"):
                tally.lost.append(f"turn {count} saw {answer['observation']!r}")
        kept = (await client.get(f"/v1/sessions/{session}")).json()["turns"]
        if kept != count:
            tally.lost.append(f"{kept} of {count} turns are kept")


async def watch(url: str, pid: int, tally: Tally) -> None:
    """Read the service's metric of its event loop, and the memory of its process."""
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:
        while True:
            text = (await client.get("/metrics")).text
            for line in text.splitlines():
                if line.startswith("assay_event_loop_lag_seconds "):
                    tally.lag_s = max(tally.lag_s, float(line.split()[1]))
            tally.memory_mb.append(memory_of(pid))
            await anyio.sleep(2)


def memory_of(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def load(url: str, pid: int, chats: int, minutes: float) -> Tally:
    tally = Tally()
    until = time.monotonic() + minutes * 60
    async with anyio.create_task_group() as watching:
        watching.start_soon(watch, url, pid, tally)
        async with anyio.create_task_group() as tasks:
            for number in range(chats):
                tasks.start_soon(talk, url, until, tally, number)
        watching.cancel_scope.cancel()
    return tally


def report(tally: Tally, chats: int, took_s: float) -> dict[str, Any]:
    seconds = sorted(tally.seconds)
    memory = tally.memory_mb
    quarter = max(1, len(memory) // 4)
    return {
        "chats": chats,
        "turns": tally.turns,
        "lost": len(tally.lost),
        "first_losses": tally.lost[:5],
        "took_s": round(took_s, 1),
        "turns_per_s": round(tally.turns / took_s, 1),
        "turn_s": {
            "median": round(statistics.median(seconds), 3) if seconds else None,
            "p99": round(seconds[int(len(seconds) * 0.99)], 3) if seconds else None,
        },
        "worst_event_loop_lag_ms": round(tally.lag_s * 1000, 1),
        "memory_mb": {
            "second_quarter": round(statistics.mean(memory[quarter : 2 * quarter] or memory), 1),
            "last_quarter": round(statistics.mean(memory[-quarter:]), 1),
            "most": round(max(memory), 1),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10.0)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assay-http-") as scratch:
        path = Path(scratch) / "script.jsonl"
        lines = turns_of_a_session()
        path.write_text("\n".join(json.dumps(line) for line in lines))
        environment = {
            **os.environ,
            "XDG_STATE_HOME": scratch,
            "ASSAY_SERVE__QUOTA__REQUESTS_PER_MINUTE": "1000000",
        }
        steps = Path(scratch) / "steps.json"
        command = [
            sys.executable,
            __file__,
            "--timed",
            str(steps),
            "serve",
            "--port",
            "0",
            "--json",
        ]
        service = subprocess.Popen(
            [*command, "--model", f"scripted:{path}"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            url = json.loads(service.stdout.readline())["url"] if service.stdout else ""
            began = time.monotonic()
            tally = anyio.run(load, url, service.pid, words.chats, words.minutes)
            told = report(tally, words.chats, time.monotonic() - began)
        finally:
            service.terminate()
            service.wait(120)
        told["longest_steps_ms"] = [
            {"took": round(took, 1), "waited_besides": round(waited, 1), "of": of}
            for took, waited, at, of in json.loads(steps.read_text())
            if at >= began
        ][:5]
    print(json.dumps(told, indent=2))
    return 1 if tally.lost else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--timed"]:
        serve_timed(Path(sys.argv[2]))
    else:
        sys.exit(main())
