"""A machine of the service: a native sandbox, and what runs in it to take orders."""

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import anyio

from assay.contracts.execution import Command, Limits, OutputChunk
from assay.contracts.ports import Sandbox, SandboxBackend
from tests.support.e2b_service import guest

# Large, as a machine is: the limits of programs are for the backend to keep.
_SIZE = Limits(
    wall_s=3600,
    cpu_s=3600,
    memory_mb=2048,
    processes=2000,
    disk_mb=512,
    open_files=4096,
    output_bytes=1 << 30,
)
_SOURCE = Path(guest.__file__).read_bytes()
_GUEST = PurePosixPath("guest.py")
Told = dict[str, Any]


class GuestMachine:
    """Takes orders for one machine and hands on what comes of each."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._orders = itertools.count()
        self._numbers = itertools.count(1)
        self._listeners: dict[int, asyncio.Queue[Told]] = {}
        self._rest = b""
        self._sending = anyio.Lock()
        self.ready = anyio.Event()
        self.telling = asyncio.Event()
        """Cleared, nobody hears of processes that they have started, or anything else."""
        self.telling.set()

    def untold(self) -> int:
        """How much there is to hear of what was started last."""
        return next(reversed(self._listeners.values())).qsize()

    async def live(self) -> None:
        """Run until the sandbox is closed."""
        await self._sandbox.write_file(_GUEST, _SOURCE)
        await self._sandbox.make_directory(PurePosixPath(guest.INBOX))
        try:
            await self._sandbox.run(
                Command(argv=("python3", "-ESs", str(_GUEST))), on_output=self._hear
            )
        finally:
            self.break_off()

    def _hear(self, chunk: OutputChunk) -> None:
        if chunk.stream == "stderr":
            print("guest:", chunk.data.decode(errors="replace"))  # noqa: T201 - shown when a test fails
            return
        *lines, self._rest = (self._rest + chunk.data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if told.get("ready"):
                self.ready.set()
            elif (listener := self._listeners.get(told["id"])) is not None:
                listener.put_nowait(told)

    def break_off(self) -> None:
        """Tell all who listen that there is nothing more to hear."""
        for listener in self._listeners.values():
            listener.put_nowait({"gone": True})

    async def _order(self, **order: Any) -> None:
        async with self._sending:
            path = PurePosixPath(guest.INBOX) / f"{next(self._orders):09d}"
            await self._sandbox.write_file(path, json.dumps(order).encode())

    def _listen(self) -> tuple[int, asyncio.Queue[Told]]:
        number = next(self._numbers)
        self._listeners[number] = asyncio.Queue()
        return number, self._listeners[number]

    async def start(
        self, argv: list[str], *, env: dict[str, str], cwd: str, stdin: bool
    ) -> tuple[int, asyncio.Queue[Told]]:
        number, receiver = self._listen()
        await self._order(order="start", number=number, argv=argv, env=env, cwd=cwd, stdin=stdin)
        return number, receiver

    async def send_input(self, number: int, data: bytes) -> None:
        await self._order(order="input", number=number, data=base64.b64encode(data).decode())

    async def kill(self, number: int, signal_number: int) -> None:
        await self._order(order="kill", number=number, signal_number=signal_number)

    async def put(self, path: str, data: bytes) -> str:
        """Write a file; returns what went wrong."""
        number, receiver = self._listen()
        packed = base64.b64encode(data).decode()
        await self._order(order="put", number=number, path=path, data=packed)
        return str((await receiver.get()).get("failed", ""))


@asynccontextmanager
async def open_machine(backend: SandboxBackend) -> AsyncGenerator[GuestMachine]:
    """Open a machine; leaving the context ends everything in it."""
    async with backend.open_sandbox(_SIZE) as sandbox:
        machine = GuestMachine(sandbox)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(machine.live)
            with anyio.fail_after(60):
                await machine.ready.wait()
            try:
                yield machine
            finally:
                tasks.cancel_scope.cancel()
