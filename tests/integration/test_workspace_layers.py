"""Layers in the native backend: mounted by the kernel, or copied where it refuses."""

import errno
import hashlib
import shutil
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from pathlib import Path, PurePosixPath

import anyio
import pytest

from assay.contracts.errors import UsageError
from assay.contracts.execution import Limits, PythonCode, SandboxSpec
from assay.contracts.ports import Sandbox
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.native.host.backend import NativeBackend
from assay.selftest.checks import Check
from assay.selftest.conformance import REQUIREMENTS
from tests.support.backends import open_native
from tests.support.selftests import run_check

MEGABYTE = 1 << 20
FILE_SYSTEM = b"""
for line in open("/proc/self/mountinfo"):
    fields = line.split()
    if fields[4] == "/app":
        print(fields[fields.index("-") + 1])
"""
WRITE_TEN_MEGABYTES = b"""
import errno
try:
    with open("large", "wb") as file:
        file.write(bytes(10 << 20))
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.fixture
async def backend() -> AsyncGenerator[NativeBackend]:
    async with open_native("namespaces") as opened:
        assert isinstance(opened, NativeBackend)
        yield opened


def layer_of(folder: Path, content: bytes = b"given") -> WorkspaceLayer:
    folder.mkdir(exist_ok=True)
    (folder / "file").write_bytes(content)
    return WorkspaceLayer(hashlib.sha256(content).hexdigest(), folder)


def opened(
    backend: NativeBackend, layer: WorkspaceLayer, *, disk_mb: int = 16
) -> AbstractAsyncContextManager[Sandbox]:
    return backend.open_sandbox(Limits(disk_mb=disk_mb), SandboxSpec(layer=layer))


async def test_the_kernel_mounts_a_layer(backend: NativeBackend, tmp_path: Path) -> None:
    async with opened(backend, layer_of(tmp_path / "layer")) as sandbox:
        result = await sandbox.run(PythonCode(source=FILE_SYSTEM))

    # The last mount at a path is the one that programs see.
    assert result.stdout.split()[-1] == "overlay"


@pytest.mark.parametrize(
    "check", [check for check in REQUIREMENTS if check.group == "layers"], ids=lambda one: one.name
)
async def test_a_copied_layer_meets_the_requirements(check: Check, backend: NativeBackend) -> None:
    (await backend.start()).mounts_layers = False

    await run_check(check, backend)


@pytest.mark.parametrize("mounted", [True, False])
async def test_a_layer_does_not_count_as_disk_space(
    backend: NativeBackend, tmp_path: Path, *, mounted: bool
) -> None:
    (await backend.start()).mounts_layers = mounted
    layer = layer_of(tmp_path / "layer", bytes(20 * MEGABYTE))

    async with opened(backend, layer, disk_mb=4) as sandbox:
        await sandbox.write_file(PurePosixPath("small"), bytes(2 * MEGABYTE))
        result = await sandbox.run(PythonCode(source=WRITE_TEN_MEGABYTES))

    assert result.stdout.strip() == errno.errorcode[errno.ENOSPC]
    assert result.limits_hit == ("disk_mb",)


async def test_a_folder_that_was_replaced_is_mounted_again(
    backend: NativeBackend, tmp_path: Path
) -> None:
    layer = layer_of(tmp_path / "layer")
    async with opened(backend, layer) as sandbox:
        await sandbox.read_file(PurePosixPath("file"))
    shutil.rmtree(layer.folder)
    layer_of(layer.folder)

    async with opened(backend, layer) as sandbox:
        assert await sandbox.read_file(PurePosixPath("file")) == b"given"


async def test_many_layers_are_open_one_after_another_and_at_once(
    backend: NativeBackend, tmp_path: Path
) -> None:
    layers = [layer_of(tmp_path / str(number), b"%d" % number) for number in range(12)]

    async def use(layer: WorkspaceLayer) -> None:
        async with opened(backend, layer) as sandbox:
            content = await sandbox.read_file(PurePosixPath("file"))
            assert content == (layer.folder / "file").read_bytes()

    async with anyio.create_task_group() as tasks:
        for layer in (*layers, *layers):
            tasks.start_soon(use, layer)
    for layer in layers:
        await use(layer)


async def test_a_link_is_no_layer(backend: NativeBackend, tmp_path: Path) -> None:
    layer = layer_of(tmp_path / "layer")
    (tmp_path / "link").symlink_to(layer.folder)

    with pytest.raises(UsageError, match="cannot be read"):
        async with opened(backend, WorkspaceLayer(layer.digest, tmp_path / "link")):
            pass
