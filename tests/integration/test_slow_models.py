"""Silence and keep-alive comments of a provider, on a local server for each wire format."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import anyio.abc
import pytest

from assay.contracts.errors import ModelUnavailableError
from assay.contracts.messages import Message, Request
from assay.models.budget import Budget, MeteredModel
from assay.models.connection import Connection
from assay.models.open import RetryingModel
from tests.conformance.model import NoResponse, Says
from tests.support.model_servers.http import open_server
from tests.support.model_servers.openai_chat import OpenAIChat
from tests.support.model_servers.subjects import SUBJECTS, PlayedSubject, open_chat

ASKED = Request(messages=(Message(role="user", text="Are you ready?"),), max_output_tokens=50)
_SILENCE_S = 2.0
_COMMENTS = 12


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
@pytest.mark.parametrize("pieces", [(), ("It begins",)], ids=["nothing", "a piece"])
async def test_a_request_is_not_sent_again_after_silence(
    subject: PlayedSubject, pieces: tuple[str, ...]
) -> None:
    meter = Budget()
    async with subject.open(NoResponse(pieces=pieces)) as opened:
        model = RetryingModel(MeteredModel(opened.model, meter))
        with pytest.raises(ModelUnavailableError, match=r"sent nothing for 0\.3 s") as caught:
            await model.reply(ASKED)

        assert len(opened.peer.received) == 1

    assert "models.timeout_s" in caught.value.hint
    assert (meter.spent.calls, meter.spent.output_tokens) == (1, 50), "it may be charged"


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
async def test_a_request_that_reached_nothing_is_not_charged(subject: PlayedSubject) -> None:
    async with open_server(subject.dialect, Says(pieces=("hi",))) as server:
        nowhere = server.url
    connection = Connection(base_url=nowhere + subject.path)

    async with subject.open_model(connection) as model:
        with pytest.raises(ModelUnavailableError) as caught:
            await model.reply(ASKED)

    assert caught.value.not_charged


async def test_comments_that_keep_a_connection_alive_restart_the_timeout() -> None:
    async with _commenting_server() as url:
        connection = Connection(base_url=f"{url}/v1", silence_s=_SILENCE_S)
        begun = anyio.current_time()
        async with open_chat(connection) as model:
            reply = await model.reply(replace(ASKED, max_output_tokens=None))

    assert reply.message.text == "ready"
    assert anyio.current_time() - begun > _SILENCE_S, "longer than the timeout, and never silent"


@asynccontextmanager
async def _commenting_server() -> AsyncGenerator[str]:
    """Answer chat completions after many comments, which together take longer than the timeout."""
    dialect, says = OpenAIChat(), Says(pieces=("ready",))
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - not Django's

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            received = b""
            while b"Are you ready?" not in received:
                received += await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
            await stream.send(b"Connection: close\r\n\r\n")
            deadline = anyio.current_time() + _SILENCE_S * 1.2
            for number in range(1, _COMMENTS + 1):
                step = (deadline - anyio.current_time()) / (_COMMENTS + 1 - number)
                await anyio.sleep_until(anyio.current_time() + step)
                await stream.send(b": still working\n\n")
            for written in (dialect.write_begin(says), dialect.write_piece("ready")):
                await stream.send(written)
            await stream.send(dialect.write_end(says))

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield f"http://127.0.0.1:{port}"
        tasks.cancel_scope.cancel()
