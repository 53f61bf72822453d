"""Client of the Docker engine through its official SDK: threads for blocking calls, own errors.

The SDK has no types, so this module checks its values and returns plain ones.
"""

import errno
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Final, TypeVar, cast

import anyio
import anyio.to_thread

from assay.contracts.errors import IsolationUnavailableError, require

T = TypeVar("T")

_CALLS_AT_ONCE: Final = 12
_TIMEOUT_S: Final = 60
_BUILD_PATIENCE_S: Final = 1800
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_FULL_DISK: Final = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_UNKNOWN_RUNTIME: Final = re.compile(r"unknown or invalid runtime name: (\S+)", re.IGNORECASE)
_LONGEST_CAUSE: Final = 300

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The properties that a Docker engine reports."""

    version: str
    api_version: str
    runtimes: tuple[str, ...]
    processors: int
    memory_bytes: int


class EngineError(IsolationUnavailableError):
    """The Docker engine does not answer, or refuses a request."""

    def __init__(self, message: str, *, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        """The HTTP status; 0 when there was no answer."""

    @property
    def missing(self) -> bool:
        """Whether the requested object does not exist."""
        return self.status == _NOT_FOUND

    @property
    def in_the_way(self) -> bool:
        """Whether another operation on the object is in progress."""
        return self.status == _CONFLICT


class Engine:
    """One connection to a Docker engine. Every method raises `EngineError`."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self.address = address
        self._limiter = anyio.CapacityLimiter(_CALLS_AT_ONCE)

    async def _call(self, act: Callable[..., T], *arguments: object, **named: object) -> T:
        """Call the SDK in a thread. A running call is awaited even after cancellation."""
        call = partial(self._translated, act, *arguments, **named)
        with anyio.CancelScope(shield=True):
            return await anyio.to_thread.run_sync(call, limiter=self._limiter)
        raise AssertionError("a shielded scope that is not handed out cannot be cancelled")

    def _translated(self, act: Callable[..., T], *arguments: object, **named: object) -> T:
        with explained(self.address):
            return act(*arguments, **named)

    async def facts(self) -> EngineFacts:
        told: Json = await self._call(self._client.info)
        runtimes = cast("Mapping[str, object]", told.get("Runtimes") or {})
        return EngineFacts(
            version=str(told.get("ServerVersion", "")),
            api_version=str(self._client.api_version),
            runtimes=tuple(sorted(str(name) for name in runtimes)),
            processors=int(told.get("NCPU") or 1),
            memory_bytes=int(told.get("MemTotal") or 0),
        )

    async def image_id(self, name: str) -> str | None:
        """Return the digest of a local image; None if no image has that name."""
        try:
            found: Json = await self._call(self._client.inspect_image, name)
        except EngineError as error:
            if error.missing:
                return None
            raise
        return str(found["Id"])

    async def pull(self, name: str) -> None:
        repository, _, tag = name.partition(":") if "@" not in name else (name, "", "")
        await self._call(self._client.pull, repository, tag=tag or None)

    async def images(self, label: str) -> list[Json]:
        return await self._call(self._client.images, filters={"label": label})

    async def build(self, context: BinaryIO, tag: str, on_line: Callable[[str], None]) -> None:
        """Build an image from a context; the listener receives each line of output as it comes.

        Intermediate containers of the build are removed, also if it fails.
        """
        await self._call(self._build, context, tag, on_line)

    def _build(self, context: BinaryIO, tag: str, on_line: Callable[[str], None]) -> None:
        told: Iterator[Json] = self._client.build(
            fileobj=context,
            custom_context=True,
            tag=tag,
            rm=True,
            forcerm=True,
            decode=True,
            network_mode="none",
            timeout=_BUILD_PATIENCE_S,
            use_config_proxy=False,
        )
        failure = ""
        # Read to the end also after an error: an unread stream keeps its connection open.
        for part in told:
            failure = failure or str(part.get("error", ""))
            for line in str(part.get("stream", "")).splitlines():
                if line.strip():
                    on_line(line)
        if failure:
            raise refusal(failure, 0)

    async def remove_dangling_images(self, label: str) -> None:
        """Remove the untagged images of a failed build."""
        filters = {"dangling": True, "label": [label]}
        await self._call(self._client.prune_images, filters=filters)

    async def create(self, name: str, config: Json) -> str:
        made: Json = await self._call(self._client.create_container_from_config, dict(config), name)
        return str(made["Id"])

    async def attach(self, container: str) -> socket.socket:
        """Attach the streams of a container that has not started yet."""
        wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        return plain_socket(await self._call(self._client.attach_socket, container, wanted))

    async def start(self, container: str) -> None:
        await self._call(self._client.start, container)

    async def kill(self, container: str) -> None:
        await self._call(self._client.kill, container)

    async def remove(self, container: str) -> None:
        """Kill and remove a container with its volumes; a missing one is not an error."""
        try:
            await self._call(self._client.remove_container, container, force=True, v=True)
        except EngineError as error:
            if not (error.missing or error.in_the_way):
                raise

    async def containers(self, label: str) -> list[Json]:
        """Return all containers with a label, running or not."""
        return await self._call(self._client.containers, all=True, filters={"label": label})

    async def inspect(self, container: str) -> Json:
        return await self._call(self._client.inspect_container, container)

    async def logs(self, container: str) -> str:
        told: bytes = await self._call(self._client.logs, container, tail=20)
        return told.decode(errors="replace")

    async def close(self) -> None:
        await anyio.to_thread.run_sync(self._client.close)


@asynccontextmanager
async def open_engine(address: str) -> AsyncGenerator[Engine]:
    """Connect to a Docker engine: a socket path, or an address as in DOCKER_HOST.

    Raises:
        MissingExtraError: If the SDK is not installed.
        EngineError: If no Docker engine answers there.
    """
    with require("the Docker backend", extra="docker"):
        import docker

    url = address if "://" in address else f"unix://{address}"
    if url.startswith("ssh://"):
        raise EngineError(
            "an engine cannot be reached through ssh:// from here",
            hint="forward its socket with `ssh -L`, and name that",
        )
    await anyio.to_thread.run_sync(_knock, url, address)
    with explained(address):
        client = await anyio.to_thread.run_sync(
            partial(docker.APIClient, base_url=url, version="auto", timeout=_TIMEOUT_S)
        )
    engine = Engine(client, address)
    try:
        yield engine
    finally:
        await engine.close()


def _knock(url: str, address: str) -> None:
    """Test whether a process listens there; otherwise the SDK would leave a socket open."""
    path = url.removeprefix("unix://")
    if path == url:
        return
    try:
        with socket.socket(socket.AF_UNIX) as visitor:
            visitor.settimeout(_TIMEOUT_S)
            visitor.connect(path)
    except OSError as error:
        raise _no_answer(address, error) from error


def plain_socket(held: Any) -> socket.socket:
    """Return the socket inside the SDK's object, ready for an event loop."""
    found = getattr(held, "_sock", held)
    if isinstance(found, ssl.SSLSocket):
        found.setblocking(False)  # noqa: FBT003 - the standard library's signature
        return found
    if not isinstance(found, socket.socket):
        raise EngineError("this kind of connection to the engine is not supported")
    # A copy: the SDK closes its own when it discards the response, or never.
    copy = found.dup()
    held.close()
    found.close()
    copy.setblocking(False)  # noqa: FBT003
    return copy


@contextmanager
def explained(address: str) -> Generator[None]:
    """Describe a Docker engine failure in one line, with the fix."""
    import docker.errors
    import requests.exceptions

    try:
        yield
    except docker.errors.APIError as error:
        raise refusal(str(error.explanation or error), int(error.status_code or 0)) from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise _no_answer(address, error) from error
    except ValueError as error:  # an address that the SDK cannot parse
        raise _no_answer(address, error) from error


def refusal(told: str, status: int) -> EngineError:
    """Return the message of a Docker engine, with the fix if one is known."""
    text = " ".join(told.split())[:_LONGEST_CAUSE]
    if _FULL_DISK.search(told):
        return EngineError(
            f"the disk of the Docker engine is full: {text}",
            hint="make room, for example with `docker system prune`",
            status=status,
        )
    if found := _UNKNOWN_RUNTIME.search(told):
        return EngineError(
            f"the Docker engine has no runtime {found[1]!r}",
            hint="install gVisor and register it in daemon.json, see docs/reference/docker.md",
            status=status,
        )
    return EngineError(f"the Docker engine refused: {text}", status=status)


def _no_answer(address: str, error: BaseException) -> EngineError:
    why = _number_of(error)
    if why == errno.EACCES:
        return EngineError(
            f"no permission to use the Docker engine at {address!r}",
            hint="join the group that owns the socket, often `docker`; that is as good as root",
        )
    if why == errno.ENOENT:
        return EngineError(
            f"there is no Docker engine at {address!r}",
            hint="install Docker and start it, or set sandbox.docker.socket",
        )
    if why == errno.ECONNREFUSED:
        return EngineError(
            f"the Docker engine at {address!r} does not run",
            hint="start it, for example with `systemctl start docker`",
        )
    text = " ".join(str(error).split())[:_LONGEST_CAUSE]
    return EngineError(
        f"the Docker engine at {address!r} does not answer: {text}",
        hint="see whether `docker version` works",
    )


def _number_of(error: BaseException | None) -> int:
    """Find the errno of the kernel, at any depth of the SDK's wrapping."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        looked_at = waiting.pop()
        if not isinstance(looked_at, BaseException) or id(looked_at) in seen:
            continue
        seen.add(id(looked_at))
        if isinstance(looked_at, OSError) and looked_at.errno:
            return looked_at.errno
        waiting += [looked_at.__cause__, looked_at.__context__, *looked_at.args]
    return 0
