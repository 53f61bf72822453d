"""One container from its making to its end, and the streams to what runs in it."""

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
    """A container that runs, and our hold on it."""

    id: str
    name: str
    stream: ContainerStream


async def start_container(engine: Engine, config: Mapping[str, Any]) -> Container:
    """Make a container, take hold of its streams, start it. Nothing is left if that fails.

    Raises:
        EngineError: If the engine refuses.
    """
    name = f"assay-{secrets.token_hex(6)}"
    made = await engine.create(name, config)
    try:
        # Before it starts: nothing that it says can be missed, and it never runs unheld.
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
    """Kill a container and wait until nothing of it is left."""
    with anyio.CancelScope(shield=True):
        await container.stream.aclose()
        await engine.remove(container.id)


@asynccontextmanager
async def open_container(engine: Engine, config: Mapping[str, Any]) -> AsyncGenerator[Container]:
    """Start a container and end it on the way out."""
    container = await start_container(engine, config)
    try:
        yield container
    finally:
        await end_container(engine, container)


async def ask_image(engine: Engine, image: str, argv: Sequence[str]) -> str:
    """Run one short program of an image and return what it prints.

    Raises:
        EngineError: If there is no such program, or it does not come to an end.
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
