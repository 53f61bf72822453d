"""Child process of the embedded model: runs llama.cpp and speaks JSON lines.

Started by path with `python -I`, so it imports only the standard library and the engine. It
receives all data on standard input and exits when that ends. The first line is the plan, then
requests follow: `{"ask": 1, "body": {…}}` in the form of a chat completion, and `{"drop": 1}`. It
answers `{"ready": true}` or `{"failed": "why"}`, and for each request `{"taken": 1}`, then any
number of `{"of": 1, "text": "…"}` and `{"of": 1}` (still reading), and in the end `{"of": 1, "end":
{…}}` or `{"of": 1, "error": {…}}`. If the plan is for embeddings, a body is an embeddings request,
and the end has the vectors.
"""

import ctypes
import importlib
import json
import os
import queue
import resource
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG = 1
_SOCKET = "engine.sock"
_BATCH_TOKENS = 128
"""Tokens between two chances to stop; larger batches are hardly faster."""
_PROMPT_CACHE_MIB = 256
"""For alternating conversations; a continued one needs no cache."""
_LOG_BYTES = 1 << 20
_OOM_SCORE = "500"

Say = Callable[[dict[str, Any]], None]
Answer = Callable[[Any, int, dict[str, Any], set[int], Say], None]


def main() -> None:
    """Serve until standard input ends."""
    say = _take_over_stdout()
    plan = json.loads(sys.stdin.buffer.readline())
    _be_modest(plan)
    try:
        server = _load(plan)
    except Exception as error:  # noqa: BLE001 - the parent receives every error
        say({"failed": f"{type(error).__name__}: {error}"})
        return
    say({"ready": True})
    _serve(server, _embed if plan["embeddings"] else _answer, say)


def _take_over_stdout() -> Say:
    # The engine may print; its output must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lock = threading.Lock()

    def say(message: dict[str, Any]) -> None:
        with lock:
            try:
                answers.write(json.dumps(message).encode() + b"\n")
                answers.flush()
            except OSError:
                os._exit(0)

    return say


def _be_modest(plan: dict[str, Any]) -> None:
    """Limit this process: it exits with its parent, writes no core and has a memory cap."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != plan["parent_pid"]:
        os._exit(0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # It writes only its log, an unnamed file.
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LOG_BYTES, _LOG_BYTES))
    with suppress(ValueError, OSError):  # a lower limit may already apply
        resource.setrlimit(resource.RLIMIT_DATA, (plan["memory_bytes"], plan["memory_bytes"]))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123 - small
        score.write(_OOM_SCORE)


def _load(plan: dict[str, Any]) -> Any:
    sys.path.append(plan["engine_path"])
    # Imported by name at run time: it is an extra without types, and its folder is known only now.
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = plan["model_path"]
    params.n_ctx = plan["context_tokens"]
    params.n_parallel = 1
    params.n_batch = params.n_ubatch = _BATCH_TOKENS
    if plan["embeddings"]:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        # The engine embeds a text as a whole, or not at all.
        params.n_batch = params.n_ubatch = plan["context_tokens"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = plan["threads"]
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    params.fit_params = False
    params.offline = True
    params.verbosity = 1
    # The engine requires a listener. It gets one that nothing can reach: a socket in a private
    # folder, removed before any request, with a secret key.
    params.hostnames = [_SOCKET]
    params.api_keys = [secrets.token_urlsafe()]
    params.n_threads_http = 1
    params.ui = params.endpoint_slots = params.endpoint_props = False
    server = xllamacpp.Server(params)
    os.unlink(_SOCKET)  # noqa: PTH108 - as short as it can be
    os.chdir("/")
    return server


def _serve(server: Any, answer: Answer, say: Say) -> None:
    dropped: set[int] = set()
    asked: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()

    def answer_all() -> None:
        while True:
            number, body = asked.get()
            answer(server, number, body, dropped, say)

    threading.Thread(target=answer_all, daemon=True).start()
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "ask" in message:
            asked.put((message["ask"], message["body"]))
            say({"taken": message["ask"]})
        else:
            dropped.add(message["drop"])
    # The parent is gone; exiting is faster than unloading.
    os._exit(0)


def _answer(
    server: Any,
    number: int,
    body: dict[str, Any],
    dropped: set[int],
    say: Say,
) -> None:
    end: dict[str, Any] = {}

    def hear(chunk: dict[str, Any]) -> bool:
        """Forward one piece of text; True stops the engine."""
        if number in dropped:
            return True
        if "error" in chunk:
            end["error"] = chunk["error"]
            return True
        text = ""
        for choice in chunk.get("choices", ()):
            text += choice.get("delta", {}).get("content") or ""
            end["finish"] = choice.get("finish_reason") or end.get("finish")
        end["usage"] = chunk.get("usage") or end.get("usage")
        if text:
            say({"of": number, "text": text})
        elif "prompt_progress" in chunk:
            say({"of": number})
        return False

    if number not in dropped:
        try:
            server.handle_chat_completions(body, hear)
        except Exception as error:  # noqa: BLE001 - otherwise later requests would get no answer
            end["error"] = {"type": "invalid_request_error", "message": str(error)}
    dropped.discard(number)
    if "error" in end:
        say({"of": number, "error": end["error"]})
    else:
        say({"of": number, "end": end})


def _embed(
    server: Any,
    number: int,
    body: dict[str, Any],
    dropped: set[int],
    say: Say,
) -> None:
    answer: dict[str, Any] = {}
    try:
        if number not in dropped:
            answer = server.handle_embeddings(body)
    except Exception as error:  # noqa: BLE001 - otherwise later requests would get no answer
        answer = {"error": {"type": "invalid_request_error", "message": str(error)}}
    dropped.discard(number)
    if "error" in answer:
        say({"of": number, "error": answer["error"]})
    else:
        vectors = [one["embedding"] for one in answer.get("data", ())]
        say({"of": number, "end": {"vectors": vectors}})


if __name__ == "__main__":
    main()
