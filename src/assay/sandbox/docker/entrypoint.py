"""Entry point of the container: serves one sandbox over the container's streams.

When the streams end, this process exits, and the container ends with it.
"""

import ctypes
import json
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Self

import anyio
import anyio.abc

from assay.contracts.errors import AssayError, PackageError
from assay.contracts.execution import EditableProject, Isolation
from assay.sandbox.native.host.backend import NativeConfig, open_native
from assay.sandbox.packages.store import Layer, read_layer
from assay.sandbox.packages.target import Target
from assay.sandbox.rpc.sandbox_service import SandboxServiceConfig
from assay.sandbox.rpc.stream_server import HostDialer, serve_relay

SHIPPED_LAYERS: Final = "/opt/assay/layers"
SHIPPED_LAYER: Final = "packages"
COULD_NOT_SERVE: Final = 3
_READ_LOG: Final = 3
"""Of syslog(2): read all kernel messages."""
_CHUNK: Final = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrypointConfig:
    """The configuration of the service, passed on its command line."""

    preload: tuple[tuple[str, ...], ...]
    pool_size: int
    max_concurrent: int
    programs_as: int
    """The uid of programs if it differs from that of the service."""
    runtime_dir: str
    layers_dir: str
    layers_mb: int
    search_path: tuple[str, ...]
    gvisor: bool
    """Whether the kernel must be gVisor's, and not a runtime of the same name."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the output of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        fields["preload"] = tuple(tuple(stage) for stage in fields["preload"])
        fields["search_path"] = tuple(fields["search_path"])
        return cls(**fields)


class DescriptorStream(anyio.abc.ByteStream):
    """A pair of descriptors, one for reading and one for writing."""

    def __init__(self, reading: int, writing: int) -> None:
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        self._reading = reading
        self._writing = writing

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while True:
            try:
                data = os.read(self._reading, max(max_bytes, _CHUNK))
            except BlockingIOError:
                await anyio.wait_readable(self._reading)
                continue
            except OSError as error:
                raise anyio.BrokenResourceError from error
            if not data:
                raise anyio.EndOfStream
            return data

    async def send(self, item: bytes) -> None:
        rest = memoryview(item)
        while rest:
            try:
                rest = rest[os.write(self._writing, rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._writing)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        os.close(self._writing)

    async def aclose(self) -> None:
        """Do nothing; the descriptors stay open until the process ends."""


class ShippedLayers:
    """Packages that the image contains; see `assay.sandbox.native.host.provision.Layers`."""

    layers_folder = Path(SHIPPED_LAYERS)

    def make_folders(self) -> None:
        """Do nothing: the folder exists and is read-only."""

    @asynccontextmanager
    async def open_layer(
        self, packages: Sequence[str], target: Target, *, project: EditableProject | None = None
    ) -> AsyncGenerator[Layer]:
        del packages, target, project  # they determined the image
        layer = read_layer(self.layers_folder / SHIPPED_LAYER)
        if layer is None:
            raise PackageError("this container was started without packages")
        yield layer


def in_gvisor() -> bool:
    """Return whether the kernel identifies itself as gVisor."""
    log = ctypes.create_string_buffer(1 << 16)
    length = ctypes.CDLL(None).klogctl(_READ_LOG, log, len(log))
    return length > 0 and b"gVisor" in log.raw[:length]


async def _serve(options: EntrypointConfig, stream: anyio.abc.ByteStream) -> None:
    dialer = HostDialer()
    native = NativeConfig(
        least=Isolation.RESTRICTED,
        namespaces=not options.gvisor,
        preload=options.preload,
        pool_size=options.pool_size,
        max_concurrent=options.max_concurrent,
        read_only=(),
        search_path=options.search_path,
        runtime_dir=Path(options.runtime_dir),
        packages=ShippedLayers(),
        outside=dialer,
        alone_as=options.programs_as,
    )
    async with open_native(native) as backend:
        config = SandboxServiceConfig(
            layers_mb=options.layers_mb, layers_parent=Path(options.layers_dir)
        )
        why = await serve_relay(backend, stream, dialer, config=config)
    # Readable on stderr when the connection has ended without a known cause.
    _complain(why)


def main() -> NoReturn:
    """Serve until the streams end. Never returns."""
    options = EntrypointConfig.from_json(sys.argv[1])
    if options.gvisor and not in_gvisor():
        _give_up("this is not gVisor's kernel, although the runtime is configured as gVisor")
    # Nothing else in this process may read or write the two streams by accident.
    stream = DescriptorStream(os.dup(0), os.dup(1))
    nowhere = os.open("/dev/null", os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    try:
        anyio.run(_serve, options, stream)
    except AssayError as error:
        _give_up(str(error))
    os._exit(0)


def _give_up(why: str) -> NoReturn:
    _complain(why)
    os._exit(COULD_NOT_SERVE)


def _complain(why: str) -> None:
    with suppress(OSError):
        os.write(2, f"{why}\n".encode())
