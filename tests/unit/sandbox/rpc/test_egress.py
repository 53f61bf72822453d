"""A sandbox behind a relay reaches what the near side allows, whatever the far side thinks."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.network.dial import DeniedError, Dialing, DirectDialer, NoSuchHostError
from assay.sandbox.network.policy import parse_policy
from assay.sandbox.rpc.connection import VERSION, encode
from assay.sandbox.rpc.messages import relay_pb2
from assay.sandbox.rpc.stream_client import EgressServer, open_relay
from assay.sandbox.rpc.stream_server import HostDialer, serve_relay
from tests.doubles.fake_sandbox import FakeBackend
from tests.support.relays import connected_streams

GOOD = "93.184.216.34"
EVERYBODY = parse_policy(("*.org", "*.net"))


async def look_up(name: str) -> tuple[str, ...]:
    return {"good.org": (GOOD,), "inside.org": ("10.0.0.1",)}.get(name, ())


async def echo(far: anyio.abc.ByteStream) -> None:
    async with far:
        async for data in far:
            await far.send(data)
        await far.send_eof()


@asynccontextmanager
async def a_way_out(outlet: EgressServer | None) -> AsyncGenerator[Dialing]:
    """What a far side has that believes it may reach everybody."""
    near, far = await connected_streams()
    side = HostDialer()
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            await serve_relay(FakeBackend(), far, side)

        tasks.start_soon(serve)
        async with open_relay(near, answer_back=outlet.answer if outlet else None):
            yield side.dialer(EVERYBODY)


@asynccontextmanager
async def a_way_to(*hosts: str) -> AsyncGenerator[Dialing]:
    async with anyio.create_task_group() as tasks:

        async def connect(address: str, port: int) -> anyio.abc.ByteStream:
            del address, port
            here, there = await connected_streams()
            tasks.start_soon(echo, there)
            return here

        outlet = EgressServer()
        outlet.open(DirectDialer(look_up=look_up, connect=connect).dialer(parse_policy(hosts)))
        async with a_way_out(outlet) as dialer:
            yield dialer
        tasks.cancel_scope.cancel()


async def test_a_host_on_the_list_is_found_and_answers() -> None:
    async with a_way_to("good.org") as dialer:
        assert await dialer.addresses("good.org") == (GOOD,)
        async with await dialer.dial("good.org", 443) as connection:
            await connection.send(b"hello")
            await connection.send_eof()
            assert await connection.receive() == b"hello"
            with pytest.raises(anyio.EndOfStream):
                await connection.receive()


async def test_many_bytes_arrive_whole_while_the_sender_waits_for_the_reader() -> None:
    sent = bytes(range(256)) * (64 << 8)
    received = b""
    async with (
        a_way_to("good.org") as dialer,
        await dialer.dial("good.org", 443) as connection,
        anyio.create_task_group() as tasks,
    ):

        async def send() -> None:
            await connection.send(sent)
            await connection.send_eof()

        tasks.start_soon(send)
        with anyio.fail_after(60):
            async for data in connection:
                received += data

    assert received == sent


async def test_the_list_of_the_near_side_counts() -> None:
    async with a_way_to("good.org") as dialer:
        assert dialer.policy.names("other.org"), "the far side would let it through"
        with pytest.raises(DeniedError, match="not on the list"):
            await dialer.addresses("other.org")
        with pytest.raises(DeniedError, match="not on the list"):
            await dialer.dial("other.net", 443)
        with pytest.raises(DeniedError, match="not with this port"):
            await dialer.dial("good.org", 22)


async def test_names_that_lead_inside_are_denied_by_the_near_side() -> None:
    async with a_way_to("inside.org") as dialer:
        with pytest.raises(DeniedError, match="a private address"):
            await dialer.dial("inside.org", 443)


async def test_a_host_that_does_not_exist_is_told_from_one_that_is_denied() -> None:
    async with a_way_to("nowhere.org") as dialer:
        with pytest.raises(NoSuchHostError):
            await dialer.addresses("nowhere.org")


async def test_no_more_connections_than_a_sandbox_may_have() -> None:
    async with a_way_to("good.org") as dialer:
        held = [await dialer.dial("good.org", 443) for _ in range(64)]
        with pytest.raises(DeniedError, match="more connections"):
            await dialer.dial("good.org", 443)
        await held.pop().aclose()
        with anyio.fail_after(60):
            while True:
                try:
                    held.append(await dialer.dial("good.org", 443))
                    break
                except DeniedError:
                    await anyio.lowlevel.checkpoint()
        for connection in held:
            await connection.aclose()


async def test_an_outlet_that_was_not_opened_lets_nobody_through() -> None:
    async with a_way_out(EgressServer()) as dialer:
        with pytest.raises(OSError, match="no network access"):
            await dialer.addresses("good.org")
        with pytest.raises(OSError, match="gone"):
            await dialer.dial("good.org", 443)


async def test_asking_where_nobody_answers_ends_the_connection() -> None:
    near, far = await connected_streams()
    begin = relay_pb2.Begin(method="LookUp")
    async with far:
        await far.send(encode(relay_pb2.Frame(hello=relay_pb2.Hello(version=VERSION))))
        await far.send(encode(relay_pb2.Frame(call=1, back=True, begin=begin)))
        with pytest.raises(
            SandboxUnavailableError, match="is a request, and this side answers none"
        ):
            async with open_relay(near, greeting_s=10):
                pass


async def test_what_is_no_egress_method_cannot_be_asked_back() -> None:
    near, far = await connected_streams()
    begin = relay_pb2.Begin(method="GetCapabilities")
    async with far:
        await far.send(encode(relay_pb2.Frame(hello=relay_pb2.Hello(version=VERSION))))
        await far.send(encode(relay_pb2.Frame(call=1, back=True, begin=begin)))
        with pytest.raises(SandboxUnavailableError, match="there is no method"):
            async with open_relay(near, greeting_s=10, answer_back=EgressServer().answer):
                pass
