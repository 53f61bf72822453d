"""A connection whose request does not begin, or does not come in, is closed after a while.

uvicorn waits for the first line and the headers of a request for ever.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def impatient(patience_s: float) -> type[HttpToolsProtocol]:
    """Return a protocol that waits so long for the headers of a request, and not longer."""

    class Impatient(HttpToolsProtocol):
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - of uvicorn
            super().connection_made(transport)
            self._wait(transport)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._wait(self.transport)

        def on_headers_complete(self) -> None:
            self._stop_waiting()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait(self, transport: Any) -> None:  # noqa: ANN401 - as above
            self._stop_waiting()
            self._waiting = self.loop.call_later(patience_s, transport.close)

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    return Impatient
