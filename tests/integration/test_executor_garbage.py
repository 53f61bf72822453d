"""An executor asks who it is before it reads what they want, and refuses what is no request."""

import json
import random
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from assay.auth.tokens import executor_tokens
from assay.sandbox.rpc.messages.failures import path_of
from assay.sandbox.rpc.messages.methods import METHODS
from tests.doubles.fake_sandbox import FakeBackend
from tests.support.executors import open_served

GARBAGE = b"\xff" * 64


def audit(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


async def send(
    channel: grpc.aio.Channel, method: str, content: bytes, token: str = ""
) -> grpc.aio.AioRpcError | None:
    """Send bytes as the request of a method; returns how it was refused."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    untyped: Any = channel.stream_stream(path_of(method))
    call = untyped(iter((content,)), metadata=metadata)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    return None


@pytest.mark.parametrize("method", ["Execute", "ExecuteStream", "WriteFile"])
async def test_strangers_are_refused_before_anything_is_parsed(method: str, tmp_path: Path) -> None:
    token = executor_tokens(tmp_path / "tokens").add("alice")
    async with (
        open_served(FakeBackend(), tmp_path, token_file=tmp_path / "tokens") as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
    ):
        stranger = await send(channel, method, GARBAGE)
        known = await send(channel, method, GARBAGE, token)

    assert stranger
    assert stranger.code() is grpc.StatusCode.UNAUTHENTICATED
    assert known
    assert known.code() is grpc.StatusCode.INVALID_ARGUMENT
    refused = [(entry["event"], entry["method"]) for entry in audit(tmp_path)]
    assert refused == [("refused", method)] * 2


async def test_random_requests_are_never_a_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(17)  # noqa: S311 - the same every time
    seen: set[grpc.StatusCode] = set()
    async with (
        open_served(FakeBackend(), tmp_path) as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
    ):
        for _ in range(20):
            for method in METHODS:
                refused = await send(channel, method.name, chance.randbytes(chance.randrange(40)))
                if refused:
                    seen.add(refused.code())

    assert grpc.StatusCode.INVALID_ARGUMENT in seen
    assert not seen & {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
    assert "Traceback" not in caplog.text
