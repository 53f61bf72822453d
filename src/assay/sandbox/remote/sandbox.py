"""Optional cache of results of a remote backend.

The cache is only right for programs whose result depends on nothing but their code, input and
files, so it is off by default. It only answers for programs that run first in their sandbox, and
never for a sandbox with hosts or an interpreter.
"""

import hashlib
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import PurePosixPath
from typing import Final

import anyio

from assay.contracts.execution import (
    ExecutionResult,
    FileInfo,
    Limits,
    OutputChunk,
    Program,
    Reason,
    SandboxSpec,
    WorkspaceChanges,
)
from assay.contracts.ports import OnOutput, ignore_output
from assay.sandbox.rpc.client_sandbox import (
    RemoteInterpreter,
    RemoteSandbox,
    ResultLabel,
    Transport,
)
from assay.sandbox.rpc.messages.codec import to_path, to_program

LABEL: Final = ResultLabel("remote")
_MOST_BYTES: Final = 64 << 20


class ResultCache:
    """Results by the digest of all inputs; the least recently used ones are evicted first."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._results: OrderedDict[str, ExecutionResult] = OrderedDict()
        self._bytes = 0

    def find(self, key: str) -> ExecutionResult | None:
        """Return the result of the same execution, if it is cached."""
        if key in self._results:
            self._results.move_to_end(key)
        return self._results.get(key)

    def keep(self, key: str, result: ExecutionResult) -> None:
        """Store a result, unless something other than the program ended it."""
        if result.reason is not Reason.COMPLETED or key in self._results:
            return
        self._results[key] = result
        self._bytes += _size(result)
        while len(self._results) > self._entries or self._bytes > _MOST_BYTES:
            _, oldest = self._results.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(result: ExecutionResult) -> int:
    return len(result.stdout_bytes) + len(result.stderr_bytes)


class CachingSandbox(RemoteSandbox):
    """Answers its first program from the cache, if possible."""

    def __init__(
        self,
        transport: Transport,
        limits: Limits,
        cache: ResultCache,
        *,
        digest: str,
        retry_timeout_s: float,
        sends_layers: bool = False,
    ) -> None:
        super().__init__(
            transport,
            LABEL,
            limits,
            retry_timeout_s=retry_timeout_s,
            sends_layers=sends_layers,
        )
        self._cache = cache
        self._trail = hashlib.sha256(f"{digest}\0{asdict(limits)}".encode())
        """Digest of all operations on the sandbox so far."""
        self._pure = bool(digest)
        """Whether the digest describes the sandbox completely."""
        self._owed: Program | None = None
        """A program that the cache answered and that has not run here yet."""
        self._paying = anyio.Lock()

    async def open(self, equipment: SandboxSpec) -> None:
        if equipment.layer is not None:
            self._note("layer", equipment.layer.digest.encode())
        # The folder of a layer on this machine affects no program.
        self._note("equipment", repr(asdict(replace(equipment, layer=None))).encode())
        self._pure = self._pure and not equipment.hosts
        await super().open(equipment)

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        await self._pay()
        if not self._pure:
            return await super().run(program, on_output=on_output)
        self._pure = False
        self._note("program", to_program(program).SerializeToString(deterministic=True))
        key = self._trail.hexdigest()
        known = self._cache.find(key)
        if known is None:
            result = await super().run(program, on_output=on_output)
            self._cache.keep(key, result)
            return result
        self._check_open()
        self._owed = program
        for chunk in (
            OutputChunk(stream="stdout", data=known.stdout_bytes),
            OutputChunk(stream="stderr", data=known.stderr_bytes),
        ):
            if chunk.data:
                on_output(chunk)
        return known

    async def _pay(self) -> None:
        """Run the program that the cache answered."""
        async with self._paying:
            if self._owed is not None:
                await super().run(self._owed)
                self._owed = None

    def _note(self, what: str, *details: bytes) -> None:
        for part in (what.encode(), *details):
            self._trail.update(len(part).to_bytes(8) + part)

    @asynccontextmanager
    async def open_interpreter(self) -> AsyncGenerator[RemoteInterpreter]:
        await self._pay()
        self._pure = False
        async with super().open_interpreter() as interpreter:
            yield interpreter

    async def write_file(
        self, path: PurePosixPath, content: bytes, *, executable: bool = False
    ) -> None:
        await self._pay()
        self._note("write", to_path(path), content, bytes([executable]))
        await super().write_file(path, content, executable=executable)

    async def read_file(self, path: PurePosixPath, *, max_bytes: int = 64 << 20) -> bytes:
        await self._pay()
        return await super().read_file(path, max_bytes=max_bytes)

    async def list_files(self, path: PurePosixPath = PurePosixPath()) -> tuple[FileInfo, ...]:
        await self._pay()
        return await super().list_files(path)

    async def make_directory(self, path: PurePosixPath) -> None:
        await self._pay()
        self._note("directory", to_path(path))
        await super().make_directory(path)

    async def remove_path(self, path: PurePosixPath) -> None:
        await self._pay()
        self._note("remove", to_path(path))
        await super().remove_path(path)

    async def changes(self) -> WorkspaceChanges:
        await self._pay()
        return await super().changes()
