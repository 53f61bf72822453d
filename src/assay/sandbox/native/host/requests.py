"""Orders to the keeper of an interpreter: sent in turn, and nobody waits for them."""

import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence

from assay.sandbox.native.guest import messages
from assay.sandbox.native.host.jail import Descriptor, close_all


class Orders:
    """What is to be sent to one keeper. A keeper that is gone wants nothing more."""

    def __init__(self, go: Descriptor) -> None:
        self._end = socket.socket(fileno=os.dup(go.number))
        self._end.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._waiting: deque[tuple[memoryview, list[int]]] = deque()

    @property
    def pending(self) -> bool:
        return bool(self._waiting)

    def put(self, order: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send it now as far as it fits; `send_more` sends the rest.

        Descriptors go as copies: whoever gives them may close them, and have the numbers given to
        something else, while the order still waits.

        Raises:
            OSError: If there are no descriptors left to copy them to.
        """
        self._waiting.append((memoryview(messages.encode(order)), _copies(descriptors)))
        self.send_more()

    def send_more(self) -> None:
        """Send what is left, as far as it fits."""
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
            # They go with the first byte.
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
