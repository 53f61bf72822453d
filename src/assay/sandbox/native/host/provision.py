"""Prepares a sandbox's package layer and its egress policy."""

import os
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from anyio import to_thread

from assay.contracts.errors import UsageError
from assay.contracts.execution import DEFAULT_SPEC, EditableProject, SandboxSpec
from assay.sandbox.native.guest.jail_spec import PACKAGES, SITE
from assay.sandbox.native.host.engine import Engine
from assay.sandbox.native.host.program import Stages
from assay.sandbox.network.dial import DialerFactory
from assay.sandbox.network.policy import parse_policy
from assay.sandbox.network.proxy import EgressPolicyState
from assay.sandbox.packages.store import Layer
from assay.sandbox.packages.target import Target, own_target


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioning:
    """The packages and egress policy of one sandbox. Jails from the pool have neither."""

    layer: str = ""
    """The key of the package layer that is mounted."""
    packages: str = ""
    """The folders of its packages, as its programs see them, separated by colons."""
    folders: tuple[str, ...] = ()
    """The folders of the workspace from which programs import the project."""
    egress: EgressPolicyState | None = None


NOTHING = Provisioning()


class Layers(Protocol):
    """The source of package layers; see `assay.sandbox.packages.store.PackageStore`."""

    @property
    def layers_folder(self) -> Path: ...

    def make_folders(self) -> None: ...

    def open_layer(
        self, packages: Sequence[str], target: Target, *, project: EditableProject | None = None
    ) -> AbstractAsyncContextManager[Layer]: ...


class Provisioner:
    """Provisions the sandboxes of one backend."""

    def __init__(
        self, store: Layers, outside: DialerFactory, stages: Stages, *, site: bool = False
    ) -> None:
        self._site = SITE if site else ""
        self._store = store
        self._outside = outside
        self._stages = stages

    @cached_property
    def _target(self) -> Target:
        return own_target(module for stage in self._stages for module in stage)

    def layers_folder(self) -> str:
        """Return the folder of the package layers; empty if this machine has no place for them."""
        try:
            self._store.make_folders()
        except UsageError:
            return ""
        return str(self._store.layers_folder)

    @asynccontextmanager
    async def provide(self, equipment: SandboxSpec, engine: Engine) -> AsyncGenerator[Provisioning]:
        """Provide packages and network access while a sandbox is open.

        Raises:
            PackageError: If a package cannot be installed.
            UsageError: If this backend cannot provide what was requested.
            MissingExtraError: If uv is needed and not installed.
        """
        if equipment == DEFAULT_SPEC and not self._site:
            yield NOTHING
            return
        egress = None
        if equipment.hosts:
            policy = parse_policy(equipment.hosts)
            if engine.tier != "namespaces":
                raise UsageError(
                    "hosts can only be allowed where a sandbox has a network of its own, and this "
                    "machine gives it none",
                    hint="see `assay doctor`; without hosts there is no network at all",
                )
            egress = EgressPolicyState(dialer=self._outside.dialer(policy))
        async with AsyncExitStack() as held:
            key = packages = ""
            project = equipment.project
            if equipment.packages or project:
                opening = self._store.open_layer(equipment.packages, self._target, project=project)
                layer = await held.enter_async_context(opening)
                key, packages = layer.key, await _place(layer, engine)
            folders = project.folders if project else ()
            packages = ":".join(filter(None, (packages, self._site)))
            yield Provisioning(layer=key, packages=packages, folders=folders, egress=egress)


async def _place(layer: Layer, engine: Engine) -> str:
    """Return the path of a layer as programs see it; copy the layer there if necessary."""
    if engine.tier == "namespaces":
        return PACKAGES
    if engine.owner is None or engine.tier == "contained":
        return str(layer.folder)
    # Programs run as another uid that cannot enter the user's folder, so they get a copy.
    place = engine.scratch.parent / "layers" / layer.key
    await to_thread.run_sync(_copy, layer.folder, place)
    return str(place)


def _copy(source: Path, place: Path) -> None:
    if place.exists():
        return
    place.parent.mkdir(exist_ok=True)
    place.parent.chmod(0o711)
    fresh = place.with_name(f"{place.name}.{os.urandom(4).hex()}")
    shutil.copytree(source, fresh)
    try:
        fresh.rename(place)
    except OSError:
        if not place.exists():
            raise
        shutil.rmtree(fresh)
