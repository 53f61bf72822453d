"""A stream of bytes over two file descriptors, such as a process's own input and output."""

import os
from typing import Final

import anyio
import anyio.abc

_READ_BYTES: Final = 1 << 16


class PipeStream(anyio.abc.ByteStream):
    """Reads from one descriptor and writes to another; owns both."""

    def __init__(self, read_from: int, write_to: int) -> None:
        self._read_from = read_from
        self._write_to = write_to
        self._open = True
        for descriptor in (read_from, write_to):
            os.set_blocking(descriptor, False)

    async def receive(self, max_bytes: int = _READ_BYTES) -> bytes:
        while True:
            self._check_open()
            await anyio.wait_readable(self._read_from)
            try:
                data = os.read(self._read_from, max_bytes)
            except BlockingIOError:
                continue
            except OSError as error:
                raise anyio.BrokenResourceError from error
            if not data:
                raise anyio.EndOfStream
            return data

    async def send(self, item: bytes) -> None:
        rest = memoryview(item)
        while rest:
            self._check_open()
            await anyio.wait_writable(self._write_to)
            try:
                rest = rest[os.write(self._write_to, rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        os.close(self._write_to)

    async def aclose(self) -> None:
        if self._open:
            self._open = False
            for descriptor in {self._read_from, self._write_to}:
                anyio.notify_closing(descriptor)
                os.close(descriptor)

    def _check_open(self) -> None:
        if not self._open:
            raise anyio.ClosedResourceError


def take_standard_streams() -> PipeStream:
    """Make a stream of this process's input and output, for nobody else to read or write.

    What is printed from now on goes to standard error.
    """
    stream = PipeStream(os.dup(0), os.dup(1))
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return stream
