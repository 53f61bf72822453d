"""The service itself: making and ending machines, and the way to each of them."""

import asyncio
import json
import socket
import time
import urllib.parse
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import uvicorn
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.process.process_connect import ProcessASGIApplication
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from assay.contracts.ports import SandboxBackend
from tests.support.e2b_service.contexts import Contexts
from tests.support.e2b_service.machine import GuestMachine, open_machine
from tests.support.e2b_service.processes import Processes

KEY = "e2b_0123456789abcdef"
TEMPLATES = ("code-interpreter-v1", "base", "without-python")
_ENVD_VERSION = "0.6.4"
_TOKEN = "machine-token"  # noqa: S105 - of no service


@dataclass(slots=True, kw_only=True)
class _Rented:
    """A machine, and what the service knows of it."""

    body: dict[str, Any]
    machine: GuestMachine
    started: float
    timeout_s: float
    done: asyncio.Event
    life: "asyncio.Task[None]"


@dataclass(slots=True, kw_only=True)
class Service:
    """What tests look at and change while the service runs."""

    backend: SandboxBackend
    url: str = ""
    rented: dict[str, _Rented] = field(default_factory=dict[str, _Rented])
    created: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    renewed: asyncio.Event = field(default_factory=asyncio.Event)
    refuse_with: int = 0
    """An HTTP status with which new machines are refused."""
    _numbers: int = 0

    def app(self) -> Starlette:
        processes = ProcessASGIApplication(cast("Any", Processes(self.machine_of)))
        contexts = Contexts(self.machine_of_request)
        return Starlette(
            routes=[
                Route("/v2/sandboxes", self._create, methods=["POST"]),
                Route("/v2/sandboxes", self._list, methods=["GET"]),
                Route("/sandboxes/{id}", self._delete, methods=["DELETE"]),
                Route("/sandboxes/{id}/timeout", self._renew, methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/files", self._upload, methods=["POST"]),
                Route("/contexts", contexts.create, methods=["POST"]),
                Route("/contexts/{id}", contexts.remove, methods=["DELETE"]),
                Route("/execute", contexts.execute, methods=["POST"]),
                Mount("/", app=processes),
            ]
        )

    def _found(self, headers: Mapping[str, str]) -> _Rented | None:
        return self.rented.get(headers.get("e2b-sandbox-id", ""))

    def machine_of(self, headers: Mapping[str, str]) -> GuestMachine:
        found = self._found(headers)
        if found is None:
            raise ConnectError(Code.UNAVAILABLE, "The sandbox was not found")
        if headers.get("x-access-token") != _TOKEN:
            raise ConnectError(Code.UNAUTHENTICATED, "wrong token")
        return found.machine

    def machine_of_request(self, request: Request) -> GuestMachine | Response:
        found = self._found(request.headers)
        return found.machine if found else _gone()

    def _refusal(self, request: Request) -> Response | None:
        if request.headers.get("x-api-key") != KEY:
            return _error(401, "Invalid API key")
        return None

    async def _create(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        body = await request.json()
        self.created.append(body)
        if self.refuse_with:
            return _error(self.refuse_with, "you have reached the limit of sandboxes")
        if body["templateID"] not in TEMPLATES:
            return _error(404, f"template '{body['templateID']}' not found")
        self._numbers += 1
        name = f"i{self._numbers:08d}"
        self.rented[name] = await self._rent(name, body)
        told = {"templateID": body["templateID"], "sandboxID": name, "clientID": "test"}
        told |= {"envdVersion": _ENVD_VERSION, "envdAccessToken": _TOKEN}
        return JSONResponse(told, status_code=201)

    async def _rent(self, name: str, body: dict[str, Any]) -> _Rented:
        ready: asyncio.Future[GuestMachine] = asyncio.get_running_loop().create_future()
        done = asyncio.Event()
        life = asyncio.create_task(self._live(name, ready, done))
        machine = await ready
        return _Rented(
            body=body,
            machine=machine,
            started=time.time(),
            timeout_s=body.get("timeout", 300),
            done=done,
            life=life,
        )

    async def _live(
        self, name: str, ready: "asyncio.Future[GuestMachine]", done: asyncio.Event
    ) -> None:
        try:
            async with open_machine(self.backend) as machine:
                ready.set_result(machine)
                await done.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            self.rented.pop(name, None)

    async def end(self, name: str) -> bool:
        """End a machine, as the service does when its time is over."""
        found = self.rented.pop(name, None)
        if found is None:
            return False
        found.done.set()
        await asyncio.wait([found.life])
        return True

    async def _list(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        asked = urllib.parse.parse_qs(request.query_params.get("metadata", ""))
        wanted = {name: values[0] for name, values in asked.items()}
        rows = [
            _row(name, one)
            for name, one in self.rented.items()
            if all(one.body.get("metadata", {}).get(key) == value for key, value in wanted.items())
        ]
        return JSONResponse(rows)

    async def _delete(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        ended = await self.end(request.path_params["id"])
        return Response(status_code=204) if ended else _error(404, "sandbox not found")

    async def _renew(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        name = request.path_params["id"]
        if name not in self.rented:
            return _error(404, "sandbox not found")
        self.rented[name].timeout_s = (await request.json())["timeout"]
        self.renewed.set()
        return Response(status_code=204)

    async def _health(self, request: Request) -> Response:
        return Response(status_code=204) if self._found(request.headers) else _gone()

    async def _upload(self, request: Request) -> Response:
        found = self._found(request.headers)
        if found is None:
            return _gone()
        path = request.query_params["path"]
        if trouble := await found.machine.put(path, await request.body()):
            return _error(500, trouble)
        return JSONResponse([{"name": path.rpartition("/")[2], "type": "file", "path": path}])


def _row(name: str, one: _Rented) -> dict[str, Any]:
    moment = datetime.fromtimestamp(one.started, tz=UTC)
    ends = datetime.fromtimestamp(one.started + one.timeout_s, tz=UTC)
    return {
        "templateID": one.body["templateID"],
        "sandboxID": name,
        "clientID": "test",
        "startedAt": moment.isoformat(),
        "endAt": ends.isoformat(),
        "cpuCount": 2,
        "memoryMB": 512,
        "diskSizeMB": 512,
        "state": "running",
        "envdVersion": _ENVD_VERSION,
        "metadata": one.body.get("metadata", {}),
    }


def _error(status: int, message: str) -> Response:
    return JSONResponse({"code": status, "message": message}, status_code=status)


def _gone() -> Response:
    body = {"sandboxId": "?", "message": "The sandbox was not found", "code": 502}
    return Response(json.dumps(body), status_code=502, media_type="application/json")


class _Server(uvicorn.Server):
    """One that leaves the signals of the test run alone."""

    def capture_signals(self) -> Any:
        return nullcontext()


@asynccontextmanager
async def open_service(backend: SandboxBackend) -> AsyncGenerator[Service]:
    """Serve on a free port of this machine until the context is left."""
    service = Service(backend=backend)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    service.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = uvicorn.Config(
        service.app(), log_level="critical", lifespan="off", timeout_graceful_shutdown=1, ws="none"
    )
    # Listening already, so that whoever comes before the server waits for it.
    listening.listen()
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield service
    finally:
        for name in tuple(service.rented):
            await service.end(name)
        server.should_exit = True
        await serving
        listening.close()
