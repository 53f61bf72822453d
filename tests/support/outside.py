"""A world beyond the gate that is a server of the test: names and addresses lead where it says."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc

from assay.contracts.execution import Isolation
from assay.contracts.ports import SandboxBackend
from assay.sandbox.docker.backend import open_docker
from assay.sandbox.factory import build_package_store
from assay.sandbox.native.host.backend import NativeConfig, open_native
from assay.sandbox.network.dial import DirectDialer
from assay.settings.load import SandboxSettings
from tests.support.docker import docker_settings


@dataclass(kw_only=True)
class World:
    """Says where names lead, and answers whoever connects to an address with what was asked."""

    names: Mapping[str, tuple[str, ...]]
    asked: list[str] = field(default_factory=list[str])
    connected: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    port: int = 0

    async def look_up(self, name: str) -> tuple[str, ...]:
        self.asked.append(name)
        return self.names.get(name, ())

    async def connect(self, address: str, port: int) -> anyio.abc.ByteStream:
        self.connected.append((address, port))
        return await anyio.connect_tcp("127.0.0.1", self.port)

    async def serve(self, client: anyio.abc.SocketStream) -> None:
        """Send back what comes, and end when the other side does."""
        async with client:
            try:
                async for data in client:
                    await client.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    @property
    def outside(self) -> DirectDialer:
        return DirectDialer(look_up=self.look_up, connect=self.connect)


@asynccontextmanager
async def _serving(world: World) -> AsyncGenerator[None]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    world.port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - anyio's
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, world.serve)
        yield
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def open_world_of_containers(world: World) -> AsyncGenerator[SandboxBackend]:
    """Open a Docker backend whose gates lead into this world."""
    settings = docker_settings("docker", warm_containers=0).model_copy(update={"preload": ()})
    store = build_package_store(settings)
    opening = open_docker(settings, store, gvisor=False, outside=world.outside)
    async with _serving(world), opening as backend:
        yield backend


@asynccontextmanager
async def open_world(runtime_dir: Path, world: World) -> AsyncGenerator[SandboxBackend]:
    """Open a native backend whose gate leads into this world."""
    settings = SandboxSettings(packages_dir=runtime_dir.with_name("packages"))
    options = NativeConfig(
        least=Isolation.ISOLATED,
        namespaces=True,
        preload=(),
        pool_size=0,
        max_concurrent=8,
        read_only=(),
        search_path=("/usr/bin", "/bin"),
        runtime_dir=runtime_dir,
        packages=build_package_store(settings),
        outside=world.outside,
    )
    async with _serving(world), open_native(options) as backend:
        yield backend
