"""Egress proxy of one execution: answers its DNS queries and forwards its connections.

A program looks a name up. If the host is on the allowlist and exists, the answer is an address from
an unused range, a different one for each name. In the network of an execution
(`assay.sandbox.native.guest.loopback`) all addresses lead to the proxy, so the address identifies
the name. Traffic is forwarded within a quota.
"""

import ipaddress
import os
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import anyio
import anyio.abc

from assay.asyncx.owned_context import open_task_group
from assay.contracts.execution import BlockedConnection
from assay.sandbox.network.dial import DeniedError, Dialing, NoSuchHostError

_HEADER: Final = struct.Struct("!HHHHHH")
_TAIL: Final = struct.Struct("!HH")
_RECORD: Final = struct.Struct("!HHHIH")
_IS_ANSWER: Final = 0x8000
_OPERATION: Final = 0x7800
_RECURSION: Final = 0x0180
_LONGEST_LABEL: Final = 63
_LONGEST_NAME: Final = 255
_NAME_OF_QUESTION: Final = 0xC00C
_ADDRESS: Final = 1
_INTERNET: Final = 1
_LIFETIME_S: Final = 30


class Outcome(IntEnum):
    """The result of an answer."""

    FOUND = 0
    FAILED = 2
    NO_SUCH_NAME = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One DNS question with the fields that its answer needs."""

    number: int
    name: str
    """In lower case, without the final dot."""
    wants_address: bool
    """Whether the question asks for an IPv4 address; other types have no answer here."""
    text: bytes
    """The original bytes, which the answer repeats."""


def parse_question(message: bytes) -> Question | None:
    """Parse a program's query; None if it is not exactly one question."""
    try:
        number, flags, questions, *_ = _HEADER.unpack_from(message)
        if flags & (_IS_ANSWER | _OPERATION) or questions != 1:
            return None
        name, end = _parse_name(message, _HEADER.size)
        kind, family = _TAIL.unpack_from(message, end)
    except (struct.error, ValueError, IndexError):
        return None
    return Question(
        number=number,
        name=name,
        wants_address=kind == _ADDRESS and family == _INTERNET,
        text=message[_HEADER.size : end + _TAIL.size],
    )


def build_answer(question: Question, outcome: Outcome, address: str = "") -> bytes:
    """Build the answer to a question, with or without an address."""
    flags = _IS_ANSWER | _RECURSION | outcome
    record = b""
    if address:
        packed = ipaddress.IPv4Address(address).packed
        fixed = _RECORD.pack(_NAME_OF_QUESTION, _ADDRESS, _INTERNET, _LIFETIME_S, len(packed))
        record = fixed + packed
    header = _HEADER.pack(question.number, flags, 1, int(bool(record)), 0, 0)
    return header + question.text + record


def _parse_name(message: bytes, start: int) -> tuple[str, int]:
    labels: list[str] = []
    place = start
    while length := message[place]:
        if length > _LONGEST_LABEL or place + length - start > _LONGEST_NAME:
            raise ValueError("not a plain name")
        label = message[place + 1 : place + 1 + length]
        # Non-ASCII bytes are escaped, and no allowlist contains them.
        labels.append(label.decode("ascii", "backslashreplace").lower())
        place += 1 + length
    return ".".join(labels), place + 1


_CHUNK: Final = 1 << 16
_IDLE_S: Final = 120.0


@dataclass(slots=True, kw_only=True)
class TrafficQuota:
    """The remaining network quota of a sandbox."""

    connections: int = 64
    """The maximum number of concurrent connections."""
    carried_bytes: int = 1 << 30
    """The maximum number of bytes, both directions together."""

    def take_connection(self) -> bool:
        if self.connections <= 0:
            return False
        self.connections -= 1
        return True

    def give_back_connection(self) -> None:
        self.connections += 1

    def take_bytes(self, count: int) -> bool:
        self.carried_bytes -= count
        return self.carried_bytes >= 0


async def carry(
    here: anyio.abc.ByteStream, there: anyio.abc.ByteStream, allowance: TrafficQuota
) -> bool:
    """Forward both ways until both ends finish or fall silent; False if the quota is used up."""
    within = True

    async with anyio.create_task_group() as tasks:

        async def pump(source: anyio.abc.ByteStream, sink: anyio.abc.ByteStream) -> None:
            nonlocal within
            try:
                while True:
                    data = await source.receive(_CHUNK)
                    within = allowance.take_bytes(len(data))
                    if not within:
                        break
                    tasks.cancel_scope.deadline = anyio.current_time() + _IDLE_S
                    await sink.send(data)
            except anyio.EndOfStream:
                # One side has finished sending; the other may continue.
                await _send_eof(sink)
                return
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                pass
            tasks.cancel_scope.cancel()

        tasks.cancel_scope.deadline = anyio.current_time() + _IDLE_S
        tasks.start_soon(pump, here, there)
        tasks.start_soon(pump, there, here)
    return within


async def _send_eof(sink: anyio.abc.ByteStream) -> None:
    try:
        await sink.send_eof()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        return


_FIRST_ADDRESS: Final = int(ipaddress.IPv4Address("198.18.0.1"))
"""The start of a range for network benchmarks: no host of the internet has such an address."""
_MOST_NAMES: Final = 4096
_MOST_DENIALS: Final = 100
_QUESTIONS_AT_ONCE: Final = 32
_LARGEST_QUESTION: Final = 4096
_LENGTH: Final = struct.Struct("!H")
_ASK_WITHIN_S: Final = 30.0
_LOOPBACK: Final = "127.0.0.1"
_OWN_NAMES: Final = frozenset({"localhost", "sandbox"})
_OUT_OF_DESCRIPTORS_S: Final = 0.1
_ABORT: Final = struct.pack("ii", 1, 0)


@dataclass(slots=True, kw_only=True)
class EgressPolicyState:
    """The state that all executions of one sandbox share: their policy and their quota."""

    dialer: Dialing
    allowance: TrafficQuota = field(default_factory=TrafficQuota)
    _addresses: dict[str, str] = field(default_factory=dict[str, str])
    _names: dict[str, str] = field(default_factory=dict[str, str])

    def address_for(self, host: str) -> str:
        """Return the address that stands for this host; empty if none are left."""
        if host not in self._addresses and len(self._addresses) < _MOST_NAMES:
            address = str(ipaddress.IPv4Address(_FIRST_ADDRESS + len(self._addresses)))
            self._addresses[host] = address
            self._names[address] = host
        return self._addresses.get(host, "")

    def host_at(self, address: str) -> str:
        """Return the host that an address stands for; other addresses stand for themselves."""
        parsed = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return self._names.get(str(parsed), str(parsed))


class EgressProxy:
    """The egress proxy of one execution."""

    def __init__(self, egress: EgressPolicyState) -> None:
        self._egress = egress
        self._denied: dict[tuple[str, int | None], BlockedConnection] = {}
        self._questions = anyio.CapacityLimiter(_QUESTIONS_AT_ONCE)

    def take_denials(self) -> tuple[BlockedConnection, ...]:
        """Return the denials since the last call, each once."""
        denied, self._denied = self._denied, {}
        return tuple(denied.values())

    def deny(self, host: str, port: int | None, why: str) -> None:
        if len(self._denied) < _MOST_DENIALS:
            denial = BlockedConnection(host=host[:255] or ".", port=port, why=why)
            self._denied.setdefault((host, port), denial)

    async def answer(self, question: Question) -> bytes:
        """Answer a query: the host's address, or that no such host exists for this program."""
        host = question.name
        if host in _OWN_NAMES:
            address = _LOOPBACK if question.wants_address else ""
            return build_answer(question, Outcome.FOUND, address)
        try:
            await self._egress.dialer.addresses(host)
        except DeniedError as error:
            # Programs make reverse lookups in passing, and nothing depends on the answers.
            if not host.endswith(".arpa"):
                self.deny(host, None, str(error))
            return build_answer(question, Outcome.NO_SUCH_NAME)
        except NoSuchHostError:
            return build_answer(question, Outcome.NO_SUCH_NAME)
        except OSError:
            return build_answer(question, Outcome.FAILED)
        if not question.wants_address:
            return build_answer(question, Outcome.FOUND)
        address = self._egress.address_for(host)
        if not address:
            self.deny(host, None, "too many different names")
        return build_answer(question, Outcome.FOUND if address else Outcome.FAILED, address)

    async def serve_datagrams(self, listener: socket.socket) -> None:
        """Answer queries that arrive as datagrams."""
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.wait_readable(listener)
                with suppress(OSError):
                    received = listener.recvmsg(_LARGEST_QUESTION, socket.CMSG_SPACE(64))
                    message, notes, _, sender = received
                    if self._questions.available_tokens > 0:
                        tasks.start_soon(self._answer_datagram, listener, message, notes, sender)

    async def _answer_datagram(
        self,
        listener: socket.socket,
        message: bytes,
        notes: Sequence[Any],
        sender: Any,
    ) -> None:
        question = parse_question(message)
        if question is None:
            return
        async with self._questions:
            answer = await self.answer(question)
        with suppress(OSError):
            # The ancillary data has the queried address; the answer must come from it.
            listener.sendmsg([answer], notes, 0, sender)

    async def serve_streams(
        self, listener: socket.socket, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]
    ) -> None:
        """Accept connections, up to the sandbox's limit of concurrent ones."""
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.wait_readable(listener)
                try:
                    client, _ = listener.accept()
                except BlockingIOError:
                    continue
                except OSError:
                    await anyio.sleep(_OUT_OF_DESCRIPTORS_S)
                    continue
                tasks.start_soon(self._serve_one, client, serve)

    async def _serve_one(
        self, client: socket.socket, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]
    ) -> None:
        with client:
            client.setblocking(False)  # noqa: FBT003 - the standard library's signature
            if self._egress.allowance.take_connection():
                try:
                    with suppress(OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
                        await serve(client)
                        return
                finally:
                    self._egress.allowance.give_back_connection()
            else:
                self.deny(*self._meant(client), "more connections than a sandbox may have")
            # As if nothing listened there: the program must not take it for an answer.
            with suppress(OSError):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)

    def _meant(self, client: socket.socket) -> tuple[str, int]:
        address, port, *_ = client.getsockname()
        return self._egress.host_at(address), port

    async def carry_connection(self, client: socket.socket) -> None:
        """Connect a program to its host and forward until both sides have finished."""
        host, port = self._meant(client)
        try:
            there = await self._egress.dialer.dial(host, port)
        except DeniedError as error:
            self.deny(host, port, str(error))
            raise ConnectionRefusedError(str(error)) from error
        except NoSuchHostError as error:
            raise ConnectionRefusedError(host) from error
        async with there, await _stream(client) as here:
            if not await carry(here, there, self._egress.allowance):
                self.deny(host, port, "more bytes than a sandbox may carry")

    async def answer_stream(self, client: socket.socket) -> None:
        """Answer queries that arrive on a stream, one after the other."""
        async with await _stream(client) as here:
            with anyio.move_on_after(_ASK_WITHIN_S), suppress(anyio.EndOfStream):
                while True:
                    (length,) = _LENGTH.unpack(await _receive_exactly(here, _LENGTH.size))
                    question = parse_question(await _receive_exactly(here, length))
                    if question is None:
                        return
                    answer = await self.answer(question)
                    await here.send(_LENGTH.pack(len(answer)) + answer)


@asynccontextmanager
async def open_gate(
    egress: EgressPolicyState, listeners: Sequence[int]
) -> AsyncGenerator[EgressProxy]:
    """Serve the sockets of one execution; the caller owns and closes them.

    The first socket is for datagram queries, the second for stream queries, the others for
    connections.
    """
    gate = EgressProxy(egress)
    mine = [socket.socket(fileno=os.dup(listener)) for listener in listeners]
    try:
        datagrams, questions, *connections = mine
        for listener in mine:
            listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
        async with open_task_group() as tasks:
            tasks.start_soon(gate.serve_datagrams, datagrams)
            tasks.start_soon(gate.serve_streams, questions, gate.answer_stream)
            for listener in connections:
                tasks.start_soon(gate.serve_streams, listener, gate.carry_connection)
            yield gate
    finally:
        for listener in mine:
            listener.close()


async def _stream(client: socket.socket) -> anyio.abc.SocketStream:
    return await anyio.abc.SocketStream.from_socket(client.dup())


async def _receive_exactly(stream: anyio.abc.ByteStream, length: int) -> bytes:
    received = b""
    while len(received) < length:
        received += await stream.receive(length - len(received))
    return received
