"""Images with packages: turns a layer of unpacked wheels into an image layer, once.

Containers mount nothing of the host, so the image must contain the packages of a sandbox. The
Docker engine keeps such an image, and the next sandbox with the same packages starts immediately.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import anyio.to_thread

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.docker import dockerfile as recipe
from assay.sandbox.docker.container import ask_image
from assay.sandbox.docker.engine import Engine, EngineError
from assay.sandbox.docker.image import build_image
from assay.sandbox.packages.layers import Layer
from assay.sandbox.packages.target import Target

OpenLayer = Callable[[Sequence[str], Target], AbstractAsyncContextManager[Layer]]


class PackageImages:
    """Builds images with packages on top of the common image."""

    def __init__(
        self, engine: Engine, image: str, preload: Sequence[Sequence[str]], open_layer: OpenLayer
    ) -> None:
        self._engine = engine
        self._image = image
        self._preload = preload
        self._open_layer = open_layer
        self._target: Target | None = None
        self._turn = anyio.Lock()

    async def image_with(self, packages: Sequence[str]) -> str:
        """Return the digest of an image with these packages.

        Raises:
            PackageError: If a package is not available.
            MissingExtraError: If uv is needed and not installed.
            SandboxUnavailableError: If the Docker engine does not build the image.
        """
        try:
            async with (
                self._turn,
                self._open_layer(packages, await self._ask_target()) as layer,
            ):
                return await self._image_of(layer)
        except EngineError as error:
            raise SandboxUnavailableError(
                str(error), dispatch="never_started", hint=error.hint
            ) from error

    async def _ask_target(self) -> Target:
        """Return the interpreter of the image and the modules that it preloads."""
        if self._target is None:
            modules = [module for stage in self._preload for module in stage]
            command = recipe.ask_service(recipe.ABOUT_TARGET, json.dumps(modules))
            try:
                told: Mapping[str, Any] = json.loads(
                    await ask_image(self._engine, self._image, command)
                )
                self._target = Target(
                    python=str(told["python"]),
                    platform=str(told["platform"]),
                    present=tuple(map(str, told["present"])),
                )
            except (ValueError, KeyError, TypeError) as error:
                raise EngineError(f"the image does not say what it has: {error}") from error
        return self._target

    async def _image_of(self, layer: Layer) -> str:
        tag = recipe.layer_tag(self._image, layer.key)
        found = await self._engine.image_id(tag)
        if found is None:
            dockerfile = recipe.layer_dockerfile(self._image)
            with tempfile.TemporaryFile() as context:
                write = recipe.write_layer_context
                await anyio.to_thread.run_sync(write, dockerfile, layer.folder.parent, context)
                context.seek(0)
                await build_image(self._engine, tag, context, lambda _: None)
            found = await self._engine.image_id(tag)
        if found is None:
            raise EngineError(f"the image {tag!r} was built and is not there")
        return found
