"""The code interpreter of a machine: contexts that remember, and cells that stream."""

import asyncio
import base64
import itertools
import json
import signal
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.support.e2b_service import kernel
from tests.support.e2b_service.machine import GuestMachine, Told

_SOURCE = Path(kernel.__file__).read_bytes()
_KERNEL = "/tmp/.kernel.py"


@dataclass(slots=True, kw_only=True)
class _Context:
    machine: GuestMachine
    number: int
    told: asyncio.Queue[Told]
    rest: bytes = b""
    owed: int = 0
    """Cells that nobody listens to any more, and whose ends are still to come."""

    async def lines(self) -> AsyncGenerator[dict[str, Any]]:
        """Yield what the kernel says until the cell is over."""
        while True:
            event = await self.told.get()
            if "code" in event or "gone" in event:
                yield {"type": "unexpected_end_of_execution"}
                return
            *lines, self.rest = (self.rest + base64.b64decode(event.get("stdout", ""))).split(b"\n")
            for line in lines:
                said = json.loads(line)
                ends = said["type"] == "end_of_execution"
                if not self.owed:
                    yield said
                    if ends:
                        return
                self.owed -= ends and self.owed > 0


_DEFAULT: Final = "default-"


class Contexts:
    """Keeps a process for each context, and has it interrupted when nobody listens any more."""

    def __init__(self, find: Callable[[Request], GuestMachine | Response]) -> None:
        self._find = find
        self._names = itertools.count(1)
        self._known: dict[str, _Context] = {}
        self._interrupting: set[asyncio.Task[None]] = set()

    async def create(self, request: Request) -> Response:
        machine = self._find(request)
        if isinstance(machine, Response):
            return machine
        cwd = (await request.json()).get("cwd", "/tmp")
        name = await self._begin(machine, cwd)
        return JSONResponse({"id": name, "language": "python", "cwd": cwd})

    async def _begin(self, machine: GuestMachine, cwd: str) -> str:
        await machine.put(_KERNEL, _SOURCE)
        number, told = await machine.start(["python3", "-u", _KERNEL], env={}, cwd=cwd, stdin=True)
        await told.get()
        name = f"context-{next(self._names)}"
        self._known[name] = _Context(machine=machine, number=number, told=told)
        return name

    async def remove(self, request: Request) -> Response:
        context = self._known.pop(request.path_params["id"], None)
        if context is None:
            return Response("Context not found", status_code=404)
        await context.machine.kill(context.number, signal.SIGKILL)
        return Response(status_code=204)

    async def execute(self, request: Request) -> Response:
        machine = self._find(request)
        if isinstance(machine, Response):
            return machine
        body = await request.json()
        name = body.get("context_id") or await self._default(machine)
        context = self._known.get(name)
        if context is None:
            return Response(f"Context {name} not found", status_code=404)
        await machine.send_input(
            context.number, json.dumps({"code": body["code"]}).encode() + b"\n"
        )
        return StreamingResponse(self._stream(name, context), media_type="application/x-ndjson")

    async def _default(self, machine: GuestMachine) -> str:
        """Return the context of calls that name none: one for each machine, as in the service."""
        for name, context in self._known.items():
            if name.startswith(_DEFAULT) and context.machine is machine:
                return name
        begun = await self._begin(machine, "/tmp")
        name = f"{_DEFAULT}{begun}"
        self._known[name] = self._known.pop(begun)
        return name

    async def _stream(self, name: str, context: _Context) -> AsyncGenerator[str]:
        over = False
        try:
            async for said in context.lines():
                over = said["type"].endswith("end_of_execution")
                if said["type"] == "unexpected_end_of_execution":
                    self._known.pop(name, None)
                yield json.dumps(said) + "\n"
        finally:
            if not over:
                # Nobody listens any more. The generator is being closed, and cannot wait itself.
                context.owed += 1
                interrupting = asyncio.create_task(
                    context.machine.kill(context.number, signal.SIGINT)
                )
                self._interrupting.add(interrupting)
                interrupting.add_done_callback(self._interrupting.discard)
