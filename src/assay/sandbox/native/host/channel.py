"""One question, one answer, over a socket that keeps messages whole and carries descriptors."""

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
    """The other side is gone, or does not speak the protocol."""


class RefusedError(Exception):
    """The other side lives and says why it could not do it."""


class Channel:
    """The supervisor's end of the talk with the zygote or the steward."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._end = end
        self._turn = anyio.Lock()
        self._broken = False

    async def ask(self, question: Mapping[str, object], descriptors: Sequence[int] = ()) -> Answer:
        """Send one question and wait for its answer; cancellation waits for it too.

        Raises:
            ChannelClosedError: If there is no answer to be had, now or later.
            RefusedError: If the answer is a refusal.
        """
        async with self._turn:
            # An answer left unread would be taken for that of the next question.
            with anyio.CancelScope(shield=True):
                self._must_be_open()
                await self._send(json.dumps(question).encode(), descriptors)
                return await self.hear()
        raise AssertionError("nobody cancels a scope that is shielded and not handed out")

    async def tell(self, message: Mapping[str, object]) -> None:
        """Send something that has no answer. Whether it arrives is not known.

        Raises:
            ChannelClosedError: If nothing can be sent any more.
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
            # The kernel drops descriptors for which this process has no room.
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
        # Whoever is waiting for an answer learns now that there will be none.
        anyio.notify_closing(self._end)
        self._end.close()


def _receive(end: socket.socket) -> tuple[bytes, list[int], bool]:
    """Like `socket.recv_fds`, which would leave the descriptors to every program we start.

    Also says whether all descriptors that were sent are among them.
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
