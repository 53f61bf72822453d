"""Orders to the keeper of an interpreter: sent in turn, and nobody waits for them."""

import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence

from assay.sandbox.native import talk
from assay.sandbox.native.cell import Descriptor


class Orders:
    """What is to be sent to one keeper. A keeper that is gone wants nothing more."""

    def __init__(self, go: Descriptor) -> None:
        self._end = socket.socket(fileno=os.dup(go.number))
        self._end.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._waiting: deque[tuple[memoryview, Sequence[int]]] = deque()

    @property
    def pending(self) -> bool:
        return bool(self._waiting)

    def put(self, order: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send it now as far as it fits; `send_more` sends the rest."""
        self._waiting.append((memoryview(talk.encode(order)), descriptors))
        self.send_more()

    def send_more(self) -> None:
        """Send what is left, as far as it fits."""
        while self._waiting:
            data, descriptors = self._waiting.popleft()
            try:
                sent = socket.send_fds(self._end, [data], list(descriptors))
            except BlockingIOError:
                self._waiting.appendleft((data, descriptors))
                return
            except OSError:
                self._waiting.clear()
                return
            if sent < len(data):
                # They go with the first byte.
                self._waiting.appendleft((data[sent:], ()))

    def close(self) -> None:
        self._waiting.clear()
        self._end.close()
