"""A backend whose sandboxes are used many times, for suites that would start a thousand containers.

A sandbox that was given back is emptied and handed out again. What one case leaves behind in a
container, a process or a spoilt engine, meets the next one: that is more than a fresh container
asks for, not less.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio

from assay.contracts.errors import AssayError
from assay.contracts.execution import DEFAULT_SPEC, Limits, PythonCode, SandboxSpec
from assay.contracts.ports import Sandbox, SandboxBackend

USES = 40
"""Then it is time for a fresh one."""
_EMPTY = PythonCode(
    source=b"""
import os, shutil
places = [os.path.join(folder, name)
    for folder in (os.getcwd(), "/tmp", "/var/tmp", "/dev/shm") if os.path.isdir(folder)
    for name in os.listdir(folder)]
# Rather a fresh one than a long clearing out.
if len(places) < 200:
    for path in places:
        folder_itself = os.path.isdir(path) and not os.path.islink(path)
        (shutil.rmtree if folder_itself else os.remove)(path)
    print("well")
"""
)


@dataclass(slots=True, kw_only=True)
class _Kept:
    sandbox: Sandbox
    kind: tuple[Limits, SandboxSpec]
    life: AsyncExitStack
    uses: int = 0


class RecyclingBackend:
    """See `assay.contracts.ports.SandboxBackend`."""

    def __init__(self, backend: SandboxBackend, held: AsyncExitStack) -> None:
        self._backend = backend
        self._held = held
        self._idle: list[_Kept] = []
        self.name = backend.name
        self.isolation = backend.isolation

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[Sandbox]:
        kept = self._find((limits, equipment)) or await self._open(limits, equipment)
        try:
            yield kept.sandbox
        finally:
            with anyio.CancelScope(shield=True):
                await self._give_back(kept)

    def _find(self, kind: tuple[Limits, SandboxSpec]) -> _Kept | None:
        for kept in self._idle:
            if kept.kind == kind:
                self._idle.remove(kept)
                return kept
        return None

    async def _open(self, limits: Limits, equipment: SandboxSpec) -> _Kept:
        life = await self._held.enter_async_context(AsyncExitStack())
        opening = self._backend.open_sandbox(limits, equipment)
        sandbox = await life.enter_async_context(opening)
        return _Kept(sandbox=sandbox, kind=(limits, equipment), life=life)

    async def _give_back(self, kept: _Kept) -> None:
        kept.uses += 1
        if kept.uses < USES and await _emptied(kept.sandbox):
            self._idle.append(kept)
        else:
            await kept.life.aclose()


async def _emptied(sandbox: Sandbox) -> bool:
    """Whether a sandbox is as good as new; one that is not well is not."""
    try:
        await sandbox.cancel()
        cleared = await sandbox.run(_EMPTY)
        return cleared.stdout == "well\n" and await sandbox.list_files() == ()
    except AssayError:
        return False


@asynccontextmanager
async def recycling(backend: SandboxBackend) -> AsyncGenerator[RecyclingBackend]:
    """Use the sandboxes of a backend many times; all of them are closed at the end."""
    async with AsyncExitStack() as held:
        yield RecyclingBackend(backend, held)
