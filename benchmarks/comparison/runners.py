"""The compared ways to run a program, each with a description of what is timed."""

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread

from assay.contracts.errors import AssayError
from assay.contracts.execution import Limits, PythonCode
from assay.contracts.ports import SandboxBackend
from assay.settings.load import SandboxSettings
from assay.wiring import open_backend
from benchmarks.comparison.measurements import PANDAS

IMAGE: Final = "assay-bench-python"
_PRELOADED_WITHIN_S: Final = 120.0
_WAIT_S: Final = 0.05
_IS_PRELOADED: Final = b"import sys; found = 'pandas' in sys.modules\nimport pandas\nprint(found)"


class NotInstalledError(Exception):
    """This runner cannot be measured here; the message has the reason."""


class ExecutionFailedError(Exception):
    """The program failed, so its time means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times of one successful execution."""

    whole_s: float
    run_s: float | None = None
    """The program alone, if it can be separated from its sandbox."""


class Runner(Protocol):
    """Runs a program to its end. Raises ExecutionFailedError if it failed."""

    async def execute(self, program: str) -> Times: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A runner before it is opened: its display name, and what its time includes."""

    name: str
    label: str
    timed: str
    open: Callable[[], AbstractAsyncContextManager[Runner]]
    most_rounds: int = sys.maxsize
    counts_rate: bool = True


class NativeRunner:
    """Uses a fresh native sandbox for each program."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._limits = Limits()
        self.isolation = backend.isolation

    async def execute(self, program: str) -> Times:
        try:
            started = time.perf_counter()
            async with self._backend.open_sandbox(self._limits) as sandbox:
                opened = time.perf_counter()
                result = await sandbox.run(PythonCode(source=program.encode()))
                ended = time.perf_counter()
            closed = time.perf_counter()
        except AssayError as error:
            raise ExecutionFailedError(str(error)) from error
        if not result.succeeded:
            raise ExecutionFailedError(f"{result.reason.value}: {result.stderr[-300:]}")
        return Times(whole_s=closed - started, run_s=ended - opened)


class ProgramRunner:
    """Starts a command line that ends with the program."""

    def __init__(self, *argv: str) -> None:
        self._argv = argv

    async def execute(self, program: str) -> Times:
        # Timed in the thread, so that the time excludes the event loop.
        return await anyio.to_thread.run_sync(_timed_run, (*self._argv, "-c", program))


def _timed_run(argv: Sequence[str]) -> Times:
    started = time.perf_counter()
    ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    elapsed = time.perf_counter() - started
    if ended.returncode != 0:
        raise ExecutionFailedError(ended.stderr.decode(errors="replace")[-300:])
    return Times(whole_s=elapsed)


class SessionRunner:
    """llm-sandbox: one open session for all programs, or one for each."""

    def __init__(self, open_session: Callable[[], Any], *, shared: bool) -> None:
        self._open_session = open_session
        self._session = open_session() if shared else None

    async def execute(self, program: str) -> Times:
        return await anyio.to_thread.run_sync(self._execute, program)

    def _execute(self, program: str) -> Times:
        started = time.perf_counter()
        session = self._session or self._open_session()
        try:
            opened = time.perf_counter()
            outcome = session.run(program)
            ended = time.perf_counter()
        finally:
            if self._session is None:
                session.close()
        if outcome.exit_code != 0:
            raise ExecutionFailedError(f"{outcome.stderr}{outcome.stdout}"[-300:])
        if self._session is not None:
            return Times(whole_s=ended - started)
        return Times(whole_s=time.perf_counter() - started, run_s=ended - opened)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


@asynccontextmanager
async def open_native(settings: SandboxSettings) -> AsyncGenerator[NativeRunner]:
    async with AsyncExitStack() as stack:
        try:
            backend = await stack.enter_async_context(open_backend(settings))
            await _wait_until_preloaded(backend)
        except AssayError as error:
            raise NotInstalledError(str(error)) from error
        yield NativeRunner(backend)


async def _wait_until_preloaded(backend: SandboxBackend) -> None:
    """Wait until pandas is preloaded."""
    program = PythonCode(source=_IS_PRELOADED)
    with anyio.fail_after(_PRELOADED_WITHIN_S):
        while True:
            async with backend.open_sandbox(Limits()) as sandbox:
                result = await sandbox.run(program)
            if result.stdout == "True\n":
                return
            if not result.succeeded:
                raise NotInstalledError(f"`{PANDAS}` does not run: {result.stderr[-300:]}")
            await anyio.sleep(_WAIT_S)


@asynccontextmanager
async def open_bare() -> AsyncGenerator[ProgramRunner]:
    yield ProgramRunner(sys.executable)


@asynccontextmanager
async def open_bubblewrap() -> AsyncGenerator[ProgramRunner]:
    if shutil.which("bwrap") is None:
        raise NotInstalledError("no `bwrap` on the path")
    jail = ("--unshare-all", "--die-with-parent", "--ro-bind", "/", "/")
    own = ("--dev", "/dev", "--proc", "/proc")
    runner = ProgramRunner("bwrap", *jail, *own, sys.executable)
    try:
        await runner.execute("pass")
    except ExecutionFailedError as error:
        raise NotInstalledError(f"`bwrap` does not work here: {error}") from error
    yield runner


@asynccontextmanager
async def open_docker_run() -> AsyncGenerator[ProgramRunner]:
    await _check_docker()
    yield ProgramRunner("docker", "run", "--rm", "--network", "none", IMAGE, "python3")


@asynccontextmanager
async def open_docker_exec() -> AsyncGenerator[ProgramRunner]:
    await _check_docker()
    name = f"assay-bench-{os.getpid()}"
    start = ("docker", "run", "--detach", "--rm", "--network", "none", "--name", name, IMAGE)
    await anyio.run_process([*start, "sleep", "infinity"])
    try:
        yield ProgramRunner("docker", "exec", name, "python3")
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.run_process(["docker", "rm", "--force", name], check=False)


async def _check_docker() -> None:
    if shutil.which("docker") is None:
        raise NotInstalledError("no `docker` on the path")
    asked = await anyio.run_process(["docker", "version"], check=False)
    if asked.returncode != 0:
        raise NotInstalledError("the Docker daemon does not answer this user")
    asked = await anyio.run_process(["docker", "image", "inspect", IMAGE], check=False)
    if asked.returncode != 0:
        raise NotInstalledError(f"no image {IMAGE}: run benchmarks/docker_image.sh")


@asynccontextmanager
async def open_llm_sandbox(*, shared: bool) -> AsyncGenerator[SessionRunner]:
    if importlib.util.find_spec("llm_sandbox") is None:
        raise NotInstalledError("llm-sandbox[docker] is not installed in this environment")
    await _check_docker()
    runner = await anyio.to_thread.run_sync(
        partial(SessionRunner, _open_llm_session, shared=shared)
    )
    try:
        yield runner
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(runner.close)


def _open_llm_session() -> Any:
    session = importlib.import_module("llm_sandbox").SandboxSession(
        lang="python",
        image=IMAGE,
        keep_template=True,
        skip_environment_setup=True,
        runtime_configs={"network_mode": "none"},
    )
    session.open()
    return session
