"""Requests to the kernel manager of an interpreter: sent in order, without waiting."""

import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence

from assay.sandbox.native.guest import messages
from assay.sandbox.native.host.jail import Descriptor, close_all


class Orders:
    """The send queue to one kernel manager. If the kernel manager is gone, requests are dropped."""

    def __init__(self, go: Descriptor) -> None:
        self._end = socket.socket(fileno=os.dup(go.number))
        self._end.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._waiting: deque[tuple[memoryview, list[int]]] = deque()

    @property
    def pending(self) -> bool:
        return bool(self._waiting)

    def put(self, order: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send as much as fits now; `send_more` sends the rest.

        Descriptors are copied, so that the caller may close them, and their numbers may be reused,
        while the request still waits.

        Raises:
            OSError: If there are too few descriptors for the copies.
        """
        self._waiting.append((memoryview(messages.encode(order)), _copies(descriptors)))
        self.send_more()

    def send_more(self) -> None:
        """Send the rest, as far as it fits."""
        while self._waiting:
            data, copies = self._waiting[0]
            try:
                sent = socket.send_fds(self._end, [data], copies)
            except BlockingIOError:
                return
            except OSError:
                self._forget()
                return
            self._waiting.popleft()
            # Descriptors travel with the first byte.
            close_all(copies)
            if sent < len(data):
                self._waiting.appendleft((data[sent:], []))

    def _forget(self) -> None:
        for _, copies in self._waiting:
            close_all(copies)
        self._waiting.clear()

    def close(self) -> None:
        self._forget()
        self._end.close()


def _copies(descriptors: Sequence[int]) -> list[int]:
    copies: list[int] = []
    try:
        for descriptor in descriptors:
            copies.append(os.dup(descriptor))  # noqa: PERF401 - closed if one of them fails
    except OSError:
        close_all(copies)
        raise
    return copies
