"""Keeps results of programs that ran first in their sandbox, for when the same comes again.

Only for programs whose result depends on nothing but their code, input and files, which is for
whoever switches this on to say. A sandbox with hosts, an interpreter, or a program after the first
is never answered from here. A program that was answered from here is run after all before anything
else is done with its sandbox, so that its files are there.
"""

import hashlib
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict
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
)
from assay.contracts.ports import OnOutput, ignore_output
from assay.sandbox.remote.sandbox import RemoteSandbox
from assay.sandbox.rpc.client_sandbox import FarInterpreter
from assay.sandbox.rpc.messages.codec import to_program
from assay.sandbox.rpc.messages.primitives import to_path
from assay.sandbox.rpc.transport import Caller

_MOST_BYTES: Final = 64 << 20


class ResultCache:
    """Results by the digest of all that led to them; the ones unused for longest go first."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._results: OrderedDict[str, ExecutionResult] = OrderedDict()
        self._bytes = 0

    def find(self, key: str) -> ExecutionResult | None:
        """Return the result of the same execution, if it is known."""
        if key in self._results:
            self._results.move_to_end(key)
        return self._results.get(key)

    def keep(self, key: str, result: ExecutionResult) -> None:
        """Keep a result, unless the program was ended by something other than itself."""
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
    """Answers its first program from a cache, if it can."""

    def __init__(
        self, caller: Caller, limits: Limits, cache: ResultCache, *, digest: str, patience_s: float
    ) -> None:
        super().__init__(caller, limits, patience_s=patience_s)
        self._cache = cache
        self._trail = hashlib.sha256(f"{digest}\0{asdict(limits)}".encode())
        """All that was done to the sandbox so far."""
        self._pure = bool(digest)
        """Whether that is all there is to know about it."""
        self._owed: Program | None = None
        """A program that was answered from the cache and has not run here."""
        self._paying = anyio.Lock()

    async def open(self, equipment: SandboxSpec) -> None:
        self._note("equipment", repr(asdict(equipment)).encode())
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
        """Run what was only said to have run."""
        async with self._paying:
            if self._owed is not None:
                await super().run(self._owed)
                self._owed = None

    def _note(self, what: str, *details: bytes) -> None:
        for part in (what.encode(), *details):
            self._trail.update(len(part).to_bytes(8) + part)

    @asynccontextmanager
    async def open_interpreter(self) -> AsyncGenerator[FarInterpreter]:
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
