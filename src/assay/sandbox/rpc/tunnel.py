"""Tunnel of a network connection through a call; either side can end its direction."""

from collections.abc import Callable
from typing import Final

import anyio
import anyio.abc

from assay.contracts.errors import AssayError
from assay.sandbox.rpc.connection import LinkBrokenError
from assay.sandbox.rpc.messages.egress_pb2 import DialRequest, DialResponse
from assay.sandbox.rpc.messages.primitives import MessageError
from assay.sandbox.rpc.stream import Exchange

Piece = DialRequest | DialResponse
_BROKEN: Final = (LinkBrokenError, MessageError, AssayError)


class CarriedStream(anyio.abc.ByteStream):
    """Bytes both ways over one exchange; an empty message ends one direction."""

    def __init__(
        self,
        exchange: Exchange,
        incoming: type[DialRequest] | type[DialResponse],
        piece_of: Callable[[bytes], Piece],
    ) -> None:
        self._exchange = exchange
        self._incoming = exchange.receive(incoming)
        self._piece_of = piece_of
        self._rest = b""
        self._ended = False

    async def receive_first(self) -> Piece:
        """Return the first message of the other side.

        Raises:
            anyio.BrokenResourceError: If there is none.
        """
        return await self._next()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._ended:
            raise anyio.EndOfStream
        data = self._rest or (await self._next()).data
        if not data:
            self._ended = True
            raise anyio.EndOfStream
        self._rest = data[max_bytes:]
        return data[:max_bytes]

    async def _next(self) -> Piece:
        try:
            async for piece in self._incoming:
                return piece
        except _BROKEN as error:
            raise anyio.BrokenResourceError from error
        # The whole call has ended, not only this direction.
        raise anyio.BrokenResourceError

    async def send(self, item: bytes) -> None:
        if item:
            await self._send(item)

    async def send_eof(self) -> None:
        await self._send(b"")

    async def _send(self, data: bytes) -> None:
        try:
            await self._exchange.send(self._piece_of(data))
        except _BROKEN as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Do nothing; the stream ends with its call."""
