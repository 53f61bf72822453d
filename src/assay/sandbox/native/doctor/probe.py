"""Runs one probe in a separate, clean process with a timeout.

The process gets no thread, event loop, environment or descriptor of this one. What it does to
itself ends with it.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from subprocess import DEVNULL, PIPE, CompletedProcess
from typing import Final, Literal

import anyio

from assay.contracts.distribution import DISTRIBUTION, install_command
from assay.sandbox.native.doctor.explain import Finding
from assay.sandbox.native.host.module_boot import boot

_PROBE_WITHIN_S: Final = 5.0
_IMPORT_WITHIN_S: Final = 60.0
_LONGEST_COMPLAINT: Final = 300
_NOT_INSTALLED: Final = 3
_IMPORT: Final = f"""
import importlib, sys
try:
    sys.stdout.write(importlib.import_module(sys.argv[1]).__version__)
except ModuleNotFoundError as error:
    if error.name != sys.argv[1]:
        raise
    sys.exit({_NOT_INSTALLED})
"""
_IMPORT_ENV: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "MPLCONFIGDIR": "/dev/null",  # so that matplotlib writes nothing into a home folder
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a probe process."""

    kind: Literal["done", "refused", "no_effect", "absent", "timed_out", "crashed"]
    detail: str
    errno: int = 0
    version: int = 0


async def attempt(act: str, *, within_s: float = _PROBE_WITHIN_S) -> Outcome:
    """Run one act of `probe_acts.py`; kill the process after the timeout."""
    ended = await _run([sys.executable, "-I", "-S", *boot("doctor.probe_acts"), act], {}, within_s)
    if ended is None:
        return Outcome(kind="timed_out", detail=f"no answer in {within_s:g} s")
    if ended.returncode != 0 or not ended.stdout:
        return Outcome(kind="crashed", detail=_last_words(ended))
    return Outcome(**json.loads(ended.stdout))


async def import_module(name: str) -> Finding:
    """Import a module of the data stack in a clean interpreter."""
    argv = [sys.executable, "-I", "-B", "-c", _IMPORT, name]
    ended = await _run(argv, _IMPORT_ENV, _IMPORT_WITHIN_S)
    if ended is None:
        return Finding(
            name=name,
            status="timed_out",
            detail=f"not imported in {_IMPORT_WITHIN_S:g} s",
            cause="the machine is overloaded, or the module waits for something",
            fix="try again when the machine is idle",
        )
    if ended.returncode == _NOT_INSTALLED:
        return Finding(
            name=name,
            status="missing",
            detail="not installed",
            cause="it comes with an extra",
            fix=install_command("data"),
        )
    if ended.returncode != 0:
        return Finding(
            name=name,
            status="failed",
            detail=_last_words(ended),
            cause="it is installed, and cannot be imported",
            fix=f"pip install --force-reinstall '{DISTRIBUTION}[data]'",
        )
    return Finding(name=name, status="ok", detail=ended.stdout.decode(errors="replace"))


async def _run(
    argv: Sequence[str], env: Mapping[str, str], within_s: float
) -> CompletedProcess[bytes] | None:
    """Return None after a timeout; child processes of the probe die with it."""
    with anyio.move_on_after(within_s):
        return await anyio.run_process(
            argv,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            check=False,
            cwd="/",
            env=env,
            start_new_session=True,
        )
    return None


def _last_words(ended: CompletedProcess[bytes]) -> str:
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    words = lines[-1] if lines else "died without a word"
    return f"{words[:_LONGEST_COMPLAINT]} (exit status {ended.returncode})"
