"""Request and answer over a socket that preserves message boundaries and carries descriptors."""

import array
import errno
import json
import os
import select
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio

Answer = tuple[dict[str, Any], list[int]]

_LARGEST_ANSWER: Final = 4096
_MOST_DESCRIPTORS: Final = 64
_ANSWER_WITHIN_S: Final = 30.0


class ChannelClosedError(Exception):
    """The other side is gone, or violates the protocol."""


class RefusedError(Exception):
    """The other side is alive and returned an error."""


class Channel:
    """The supervisor's end of the connection to a zygote or to the mounts process."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._end = end
        self._turn = anyio.Lock()
        self._broken = False

    async def ask(self, question: Mapping[str, object], descriptors: Sequence[int] = ()) -> Answer:
        """Send one request and wait for its answer; cancellation waits for the answer too.

        Raises:
            ChannelClosedError: If no answer can arrive, now or later.
            RefusedError: If the answer is an error.
        """
        async with self._turn:
            # The next request would take an unread answer for its own.
            with anyio.CancelScope(shield=True):
                self._must_be_open()
                await self._send(json.dumps(question).encode(), descriptors)
                return await self.hear()
        raise AssertionError("a shielded scope that is not handed out cannot be cancelled")

    async def tell(self, message: Mapping[str, object]) -> None:
        """Send a message that has no answer. Delivery is not confirmed.

        Raises:
            ChannelClosedError: If the channel is closed.
        """
        async with self._turn:
            self._must_be_open()
            await self._send(json.dumps(message).encode(), ())

    def hung_up(self) -> bool:
        """Whether the other side is known to be gone."""
        if self._broken:
            return True
        events = select.poll()
        events.register(self._end, 0)
        return bool(events.poll(0))

    async def hear(self, *, within_s: float = _ANSWER_WITHIN_S) -> Answer:
        """Wait for one message; raises like `ask`."""
        self._must_be_open()
        try:
            with anyio.fail_after(within_s):
                await anyio.wait_readable(self._end)
            message, received, whole = _receive(self._end)
        except (OSError, TimeoutError, anyio.ClosedResourceError) as error:
            self._broken = True
            raise ChannelClosedError(str(error)) from error
        if not whole:
            # The kernel drops descriptors that exceed this process's limit.
            _close_all(received)
            raise RefusedError(os.strerror(errno.EMFILE))
        return self._understand(message, received)

    def _must_be_open(self) -> None:
        if self._broken:
            raise ChannelClosedError("the other side is gone")

    def _understand(self, message: bytes, received: list[int]) -> Answer:
        try:
            answer = json.loads(message)
            refused = answer.get("error")
        except (ValueError, AttributeError, RecursionError) as error:
            self._broken = True
            _close_all(received)
            raise ChannelClosedError("the other side is gone") from error
        if refused is not None:
            _close_all(received)
            raise RefusedError(str(refused))
        return answer, received

    async def _send(self, message: bytes, descriptors: Sequence[int]) -> None:
        while True:
            try:
                socket.send_fds(self._end, [message], list(descriptors))
            except BlockingIOError:
                await anyio.wait_writable(self._end)
            except OSError as error:
                self._broken = True
                raise ChannelClosedError(str(error)) from error
            else:
                return

    def close(self) -> None:
        self._broken = True
        # Wakes the task that waits for an answer: there will be none.
        anyio.notify_closing(self._end)
        self._end.close()


def _receive(end: socket.socket) -> tuple[bytes, list[int], bool]:
    """Receive like `socket.recv_fds`, but with descriptors that programs do not inherit.

    The last item tells whether all descriptors that were sent have arrived.
    """
    space = socket.CMSG_LEN(_MOST_DESCRIPTORS * array.array("i").itemsize)
    message, notes, flags, _ = end.recvmsg(_LARGEST_ANSWER, space, socket.MSG_CMSG_CLOEXEC)
    received = array.array("i")
    for level, kind, data in notes:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return message, list(received), not flags & socket.MSG_CTRUNC


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
