"""Pass on the output of a running cell as events; keep the beginning, which survives a crash."""

import codecs
from collections.abc import Callable
from typing import Final

from assay.contracts.chat import CellOutputDelta
from assay.contracts.execution import OutputChunk

_KEPT_CHARS: Final = 64_000
_KEPT_PIECES: Final = 500
"""A cap, so that a cell that flushes after each character does not fill the disk with events."""


class Printer:
    """Callback for each piece of output of one cell or tool."""

    def __init__(self, tell: Callable[[CellOutputDelta], None], *, keep: bool = True) -> None:
        self._tell = tell
        self._keep = keep
        self._pieces = 0
        # The bytes of one character may arrive in two pieces.
        new = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: new(errors="replace") for name in ("stdout", "stderr")}
        self.printed = ""

    def __call__(self, chunk: OutputChunk) -> None:
        self._pass_on(self._decoders[chunk.stream].decode(chunk.data))

    def end(self) -> str:
        """Flush an incomplete character; returns the complete output."""
        for decoder in self._decoders.values():
            self._pass_on(decoder.decode(b"", final=True))
        return self.printed

    def _pass_on(self, text: str) -> None:
        if not text:
            return
        fits = self._pieces < _KEPT_PIECES and len(self.printed) + len(text) <= _KEPT_CHARS
        self._pieces += 1
        self.printed += text
        self._tell(CellOutputDelta(text=text, kept=self._keep and fits))
