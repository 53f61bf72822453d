"""Parent side of the embedded model's process: starts it, exchanges messages, ends it.

Messages of the child are validated on arrival. The number of threads follows the physical cores.
"""

import importlib.util
import itertools
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE  # noqa: TID251 - a constant for anyio's processes
from typing import Annotated, Any, Self

import anyio
from anyio.abc import Process
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assay.contracts.errors import MissingExtraError

_MOST = 8
"""Memory limits generation; cores beyond this are better left to the tests."""


def worthwhile_threads(system: Path = Path("/sys")) -> int:
    """Return the number of physical cores that this process may use, at most eight."""
    cores: set[str] = set()
    for processor in os.sched_getaffinity(0):
        siblings = system / f"devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(str(processor))
    quota = _MOST
    with suppress(OSError):
        # The processors that a container's control group allows.
        granted = re.match(r"(\d+) (\d+)", (system / "fs/cgroup/cpu.max").read_text())
        quota = math.ceil(int(granted[1]) / int(granted[2])) if granted else _MOST
    return max(1, min(len(cores), quota, _MOST))


Count = Annotated[int, Field(ge=0)]


class _Heard(BaseModel):
    # The engine may add fields; these ones must have this form.
    model_config = ConfigDict(extra="ignore", frozen=True)


class CachedTokens(_Heard):
    """The part of the prompt that came from the cache."""

    cached_tokens: Count = 0


class EngineUsage(_Heard):
    """The token counts of a reply."""

    prompt_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: CachedTokens = CachedTokens()


class EngineEnd(_Heard):
    """The end of a reply; both fields are missing for a cancelled one."""

    finish: str | None = None
    usage: EngineUsage | None = None
    vectors: tuple[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], ...] = ()
    """The vectors of an embeddings request, in the order of its texts."""


class EngineFault(_Heard):
    """Why there is no reply although the engine still works."""

    type: str = ""
    message: str = "it did not say why"
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class EngineMessage(_Heard):
    """One line. Its fields define its type; `llama_child.py` has the list."""

    ready: bool = False
    failed: str | None = None
    taken: int | None = None
    of: int | None = None
    """The number of the request that the rest belongs to."""
    text: str = ""
    end: EngineEnd | None = None
    error: EngineFault | None = None


_CHILD = Path(__file__).with_name("llama_child.py")
_LOAD_TIMEOUT_S = 300.0
"""A gigabyte from a slow disk takes long."""
_LINE_BYTES = 1 << 22
_LOG_TAIL_BYTES = 2000

# With threads that spin while they wait, generation collapses as soon as another process, such as a
# test, uses one of the cores.
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
    "PATH": os.defpath,
    "LC_ALL": "C.UTF-8",
}


class EngineLostError(Exception):
    """The process has exited, or sent invalid messages."""


class EngineStartError(EngineLostError):
    """The process cannot be started, or cannot load the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """The model to load and its limits."""

    model_path: Path
    context_tokens: int
    threads: int
    embeddings: bool = False
    """Whether it computes embeddings instead of text."""

    def memory_bytes(self) -> int:
        """Return a memory limit that only a faulty process reaches."""
        return self.model_path.stat().st_size * 3 // 2 + (3 << 30)


def find_engine() -> str:
    """Return the folder from which to import the engine.

    Raises:
        MissingExtraError: If it is not installed.
    """
    found = importlib.util.find_spec("xllamacpp")
    if found is None or found.origin is None:
        raise MissingExtraError("the embedded model", extra="local")
    return str(Path(found.origin).parent.parent)


class Engine:
    """One running process with a loaded model."""

    def __init__(self, process: Process, log: int) -> None:
        self._process = process
        self._log = log
        self._received = bytearray()
        self._closed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, plan: EnginePlan) -> Self:
        """Start the process and wait until the model is loaded.

        Raises:
            MissingExtraError: If the engine is not installed.
            EngineStartError: If it cannot load the model.
        """
        settings = {
            "engine_path": find_engine(),
            "model_path": str(plan.model_path.resolve()),
            "context_tokens": plan.context_tokens,
            "threads": plan.threads,
            "embeddings": plan.embeddings,
            "memory_bytes": plan.memory_bytes(),
            "parent_pid": os.getpid(),
        }
        with tempfile.TemporaryDirectory(prefix="assay-engine-") as folder:
            engine = await cls._spawn(folder)
            try:
                await engine.send(settings)
                await engine.wait_until_loaded()
            except BaseException:
                await engine.close()
                raise
        return engine

    @classmethod
    async def _spawn(cls, folder: str) -> Self:
        log = os.memfd_create("assay-engine-log", os.MFD_CLOEXEC)
        try:
            process = await anyio.open_process(
                [sys.executable, "-I", str(_CHILD)],
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                cwd=folder,
                env=_ENVIRONMENT,
                # Ctrl-C is for the parent, which decides how the child ends.
                start_new_session=True,
            )
        except OSError as error:
            os.close(log)
            raise EngineStartError(f"it cannot be started: {error}") from error
        except BaseException:
            os.close(log)
            raise
        return cls(process, log)

    async def wait_until_loaded(self) -> None:
        """Wait until the model is loaded.

        Raises:
            EngineStartError: If it cannot be loaded.
        """
        try:
            answer = await self.receive(timeout_s=_LOAD_TIMEOUT_S)
        except EngineLostError as error:
            raise EngineStartError(f"it did not load the model: {error}") from error
        if not answer.ready:
            raise EngineStartError(f"it cannot load the model: {answer.failed}{self._last_words()}")

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message.

        Raises:
            EngineLostError: If the process has exited.
        """
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        try:
            await self._process.stdin.send(json.dumps(message).encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise EngineLostError(await self._how_it_ended()) from error

    async def receive(self, *, timeout_s: float) -> EngineMessage:
        """Receive one message.

        Raises:
            EngineLostError: If no valid message arrives in time.
        """
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        try:
            with anyio.fail_after(timeout_s):
                while b"\n" not in self._received:
                    if len(self._received) > _LINE_BYTES:
                        raise EngineLostError("it talks nonsense")
                    self._received += await self._process.stdout.receive()
        except TimeoutError as error:
            raise EngineLostError(f"it said nothing for {timeout_s:g} s") from error
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise EngineLostError(await self._how_it_ended()) from error
        line, _, self._received = self._received.partition(b"\n")
        try:
            return EngineMessage.model_validate_json(bytes(line))
        except ValidationError as error:
            raise EngineLostError("it talks nonsense") from error

    async def close(self) -> None:
        """End the process; when this returns, its memory is free."""
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()
        os.close(self._log)

    def _last_words(self) -> str:
        """Return the end of the process's stderr."""
        if self._closed:
            return ""
        size = os.fstat(self._log).st_size
        start = max(0, size - _LOG_TAIL_BYTES)
        text = os.pread(self._log, _LOG_TAIL_BYTES, start).decode(errors="replace").strip()
        return f"; it complained: {text}" if text else ""

    async def _how_it_ended(self) -> str:
        with anyio.move_on_after(5):
            code = await self._process.wait()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return f"it ended with {how}{self._last_words()}"
        return "it closed its end"


class EngineOwner:
    """Owns at most one running engine; its process starts on demand."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._engine: Engine | None = None
        self._turn = anyio.Lock()
        self._numbers = itertools.count(1)
        self.started = anyio.Event()

    @property
    def engine_pid(self) -> int | None:
        """Return the pid of the model process; None if it is not running."""
        return self._engine.pid if self._engine else None

    async def start(self) -> Engine:
        """Start the process; raises the errors of `Engine.start`."""
        self._engine = await Engine.start(self._plan)
        self.started.set()
        return self._engine

    async def close(self) -> None:
        """End the process immediately, if it is running."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()
