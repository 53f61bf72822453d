"""The process service of a machine, in the words of the SDK's own protocol definition."""

import base64
import itertools
import signal
from collections.abc import AsyncIterator
from typing import Any

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.process import process_pb as pb
from protobuf import Oneof

from tests.support.e2b_service.machine import GuestMachine


class Processes:
    """Starts and ends processes of many machines; the request's headers say whose."""

    def __init__(self, find: Any) -> None:
        self._find = find
        self._pids = itertools.count(1000)
        self._known: dict[int, tuple[GuestMachine, int]] = {}

    async def start(self, request: pb.StartRequest, ctx: Any) -> AsyncIterator[pb.StartResponse]:
        machine = self._find(ctx.request_headers)
        config = request.process
        assert config is not None
        number, told = await machine.start(
            [config.cmd, *config.args],
            env=dict(config.envs),
            cwd=config.cwd or "/",
            stdin=request.stdin,
        )
        pid = next(self._pids)
        self._known[pid] = (machine, number)
        while True:
            await machine.telling.wait()
            event = await told.get()
            if "gone" in event:
                raise ConnectError(Code.UNAVAILABLE, "the connection to the sandbox was lost")
            if "failed" in event:
                raise ConnectError(Code.INVALID_ARGUMENT, event["failed"])
            if (shown := _event_of(event, pid)) is not None:
                yield pb.StartResponse(event=pb.ProcessEvent(event=shown))
            if "code" in event:
                return

    async def send_signal(self, request: pb.SendSignalRequest, ctx: Any) -> pb.SendSignalResponse:
        self._find(ctx.request_headers)
        assert request.process is not None
        assert request.process.selector is not None
        pid = request.process.selector.value
        if pid not in self._known:
            raise ConnectError(Code.NOT_FOUND, f"process with pid {pid} not found")
        machine, number = self._known[pid]
        await machine.kill(number, int(request.signal))
        return pb.SendSignalResponse()

    def connect(self, *call: Any) -> Any:
        raise ConnectError(Code.UNIMPLEMENTED, f"not here: {call}")

    async def _refuse(self, *call: Any) -> Any:
        raise ConnectError(Code.UNIMPLEMENTED, f"not here: {call}")

    list = update = stream_input = send_input = close_stdin = _refuse


def _event_of(told: dict[str, Any], pid: int) -> Any:
    if "pid" in told:
        return Oneof("start", pb.ProcessEvent.StartEvent(pid=pid))
    for name in ("stdout", "stderr"):
        if name in told:
            data = base64.b64decode(told[name])
            output: Any = Oneof(name, data)
            return Oneof("data", pb.ProcessEvent.DataEvent(output=output))
    if "code" not in told:
        return None
    code = told["code"]
    if code >= 0:
        end = pb.ProcessEvent.EndEvent(exit_code=code, exited=True, status=f"exit status {code}")
    else:
        words = f"signal: {signal.strsignal(-code)}".lower()
        end = pb.ProcessEvent.EndEvent(exit_code=-1, exited=False, status=words, error=words)
    return Oneof("end", end)
