"""Life of one container: creation, attached streams, end and removal."""

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio

from assay.sandbox.docker.engine import Engine, EngineError
from assay.sandbox.docker.security import question_config
from assay.sandbox.docker.stream import ContainerStream

_ANSWER_WITHIN_S: Final = 60.0
_LONGEST_ANSWER: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A running container with its attached stream."""

    id: str
    name: str
    stream: ContainerStream


async def start_container(engine: Engine, config: Mapping[str, Any]) -> Container:
    """Create a container, attach its streams and start it. Removes it if a step fails.

    Raises:
        EngineError: If the Docker engine refuses.
    """
    name = f"assay-{secrets.token_hex(6)}"
    made = await engine.create(name, config)
    try:
        # Attached before the start, so that no output is lost and the container never runs
        # unattached.
        stream = ContainerStream(await engine.attach(made))
        try:
            await engine.start(made)
        except BaseException:
            await stream.aclose()
            raise
    except BaseException:
        with anyio.CancelScope(shield=True):
            await engine.remove(made)
        raise
    return Container(id=made, name=name, stream=stream)


async def end_container(engine: Engine, container: Container) -> None:
    """Kill a container and wait until it is removed."""
    with anyio.CancelScope(shield=True):
        await container.stream.aclose()
        await engine.remove(container.id)


@asynccontextmanager
async def open_container(engine: Engine, config: Mapping[str, Any]) -> AsyncGenerator[Container]:
    """Start a container and end it with the context."""
    container = await start_container(engine, config)
    try:
        yield container
    finally:
        await end_container(engine, container)


async def ask_image(engine: Engine, image: str, argv: Sequence[str]) -> str:
    """Run one short program in an image and return its output.

    Raises:
        EngineError: If the program does not exist or does not end.
    """
    heard = b""
    try:
        with anyio.fail_after(_ANSWER_WITHIN_S):
            async with open_container(engine, question_config(image, argv)) as container:
                try:
                    while len(heard) < _LONGEST_ANSWER:
                        heard += await container.stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    pass
    except TimeoutError:
        raise EngineError(f"{argv[0]!r} of the image {image!r} does not answer") from None
    if not heard:
        raise EngineError(
            f"{argv[0]!r} of the image {image!r} says nothing: {container.stream.complaints}"
        )
    return heard.decode(errors="replace")
