"""A real llama.cpp server: `python -I llama_server.py WEIGHTS KEY CONTEXT_TOKENS`.

It says its address in one line once the model is loaded, and serves for as long as its parent lives
and keeps its standard input open.
"""

import importlib
import os
import signal
import sys
from typing import Any

from assay.sandbox.native.kernel import libc

_SLOTS = 2
"""Fewer than a promise asks at once: the others have to wait for their turn."""


def main(weights: str, key: str, context_tokens: str) -> None:
    libc.die_with_parent(signal.SIGKILL)
    # The engine may print; what it prints must not end up before the address.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    server = _load(weights, key, int(context_tokens))
    answers.write(f"{server.listening_address}\n")
    answers.flush()
    sys.stdin.read()
    os._exit(0)


def _load(weights: str, key: str, context_tokens: int) -> Any:
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = weights
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # one that is free
    params.api_keys = [key]
    params.n_ctx = context_tokens * _SLOTS
    params.n_parallel = _SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.sampling.temp = 0.0  # for requests that do not say: the same answers in every run
    params.use_jinja = True
    params.offline = True
    params.verbosity = 1
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main(*sys.argv[1:])
