"""The interpreter of a session and its sandbox, which are rebuilt if they are gone.

The output of a running cell is passed on as events; its beginning is kept and survives a crash.
"""

import codecs
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from assay.asyncx.owned_context import OwnedContext
from assay.contracts.chat import READY_NAMES, CellOutputDelta
from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import DEFAULT_SPEC, CellResult, Limits, OutputChunk, SandboxSpec
from assay.contracts.ports import Interpreter, OnOutput, Sandbox, SandboxBackend
from assay.contracts.workspace import Tree
from assay.sandbox.tree_io import open_tree

_PRELUDE: Final = f"""
def _assay_prelude():
    import contextlib, importlib
    for _name, _module in {READY_NAMES!r}:
        with contextlib.suppress(ImportError):
            globals()[_name] = importlib.import_module(_module)
_assay_prelude()
del _assay_prelude
"""


OnCell = Callable[[int, int], None]
"""Called before a cell runs again, with its number and the total number of cells."""
_Opened = tuple[Sandbox, Interpreter]


@dataclass(slots=True, kw_only=True)
class Notebook:
    """The session's notebook: opened on first use, closed with `close`, and reopened as needed."""

    backend: SandboxBackend
    limits: Limits
    owner: OwnedContext[_Opened]
    equipment: SandboxSpec = DEFAULT_SPEC
    _open: _Opened | None = None

    @property
    def sandbox(self) -> Sandbox | None:
        """The sandbox, while the notebook is open."""
        return self._open[0] if self._open else None

    async def open(
        self,
        files: Tree,
        cells: Sequence[str],
        *,
        packages: tuple[str, ...] = (),
        on_cell: OnCell,
    ) -> tuple[CellResult, ...]:
        """Start a new interpreter with these files and run these cells; return their results.

        The packages are added to those that the notebook has. On failure, the old interpreter and
        the old packages stay.

        Raises:
            UsageError: If a package name is malformed.
            SandboxUnavailableError: If no sandbox can be opened.
            PackageError: If a package cannot be installed.
            WorkspaceError: If the files do not fit into it.
        """
        wanted = tuple(dict.fromkeys((*self.equipment.packages, *packages)))
        equipment = replace(self.equipment, packages=wanted)
        results: list[CellResult] = []

        @asynccontextmanager
        async def restore() -> AsyncGenerator[_Opened]:
            async with (
                open_tree(self.backend, self.limits, files, equipment) as sandbox,
                sandbox.open_interpreter() as interpreter,
            ):
                await interpreter.run_cell(_PRELUDE)
                for number, cell in enumerate(cells, 1):
                    on_cell(number, len(cells))
                    results.append(await interpreter.run_cell(cell))
                yield sandbox, interpreter

        self._open = await self.owner.take(restore())
        self.equipment = equipment
        return tuple(results)

    async def run(self, code: str, on_output: OnOutput) -> CellResult:
        """Run a cell.

        Raises:
            SandboxUnavailableError: If the interpreter is gone; the notebook is closed then.
        """
        async with self.in_use() as (_, interpreter):
            return await interpreter.run_cell(code, on_output=on_output)

    @asynccontextmanager
    async def in_use(self) -> AsyncGenerator[_Opened]:
        """Yield the sandbox and the interpreter; if the sandbox is gone, close the notebook.

        Raises:
            SandboxUnavailableError: If it is closed, or its sandbox is gone.
        """
        if self._open is None:
            raise SandboxUnavailableError("the notebook is closed", dispatch="never_started")
        try:
            yield self._open
        except SandboxUnavailableError:
            await self.close()
            raise

    async def close(self) -> None:
        """End the interpreter and all processes in its sandbox."""
        self._open = None
        await self.owner.vacate()


_KEPT_CHARS: Final = 64_000
_KEPT_PIECES: Final = 500
"""A cap, so that a cell that flushes after each character does not fill the disk with events."""


class Printer:
    """Callback for each piece of output of one cell or tool."""

    def __init__(self, tell: Callable[[CellOutputDelta], None], *, keep: bool = True) -> None:
        self._tell = tell
        self._keep = keep
        self._pieces = 0
        # The bytes of one character may arrive in two pieces.
        new = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: new(errors="replace") for name in ("stdout", "stderr")}
        self.printed = ""

    def __call__(self, chunk: OutputChunk) -> None:
        self._pass_on(self._decoders[chunk.stream].decode(chunk.data))

    def end(self) -> str:
        """Flush an incomplete character; returns the complete output."""
        for decoder in self._decoders.values():
            self._pass_on(decoder.decode(b"", final=True))
        return self.printed

    def _pass_on(self, text: str) -> None:
        if not text:
            return
        fits = self._pieces < _KEPT_PIECES and len(self.printed) + len(text) <= _KEPT_CHARS
        self._pieces += 1
        self.printed += text
        self._tell(CellOutputDelta(text=text, kept=self._keep and fits))
