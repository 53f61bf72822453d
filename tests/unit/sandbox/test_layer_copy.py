"""Layers that are copied into a sandbox: the files that arrive, and the changes to them."""

from pathlib import Path, PurePosixPath

import pytest

from assay.contracts.errors import UsageError
from assay.contracts.execution import Limits, SandboxSpec
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.factory import both
from tests.doubles.fake_sandbox import FakeBackend, FakeFile

DIGEST = "0" * 64


async def test_a_copied_layer_is_complete(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "tool").write_bytes(b"run")
    (tmp_path / "folder" / "tool").chmod(0o755)
    (tmp_path / "empty").mkdir()

    spec = SandboxSpec(layer=WorkspaceLayer(DIGEST, tmp_path))
    async with FakeBackend().open_sandbox(Limits(), spec) as sandbox:
        assert sandbox.files == {PurePosixPath("folder/tool"): FakeFile(b"run", executable=True)}
        assert PurePosixPath("empty") in sandbox.directories


async def test_changes_are_found_by_content(tmp_path: Path) -> None:
    for name in ("kept", "same-size", "gone", "folder/one", "folder/two"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")

    spec = SandboxSpec(layer=WorkspaceLayer(DIGEST, tmp_path))
    async with FakeBackend().open_sandbox(Limits(), spec) as sandbox:
        await sandbox.write_file(PurePosixPath("same-size"), b"54321")
        await sandbox.write_file(PurePosixPath("kept"), b"12345")
        await sandbox.remove_path(PurePosixPath("gone"))
        await sandbox.remove_path(PurePosixPath("folder"))
        changes = await sandbox.changes()

    assert [str(entry.path) for entry in changes.written] == ["same-size"]
    assert changes.removed == (PurePosixPath("folder"), PurePosixPath("gone"))


@pytest.mark.parametrize("digest", ["", "0" * 63, "A" * 64, "../" + "0" * 61])
def test_a_layer_without_a_digest_is_rejected(digest: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="digest"):
        WorkspaceLayer(digest, tmp_path)


@pytest.mark.parametrize("folder", ["relative", "/up/../away"])
def test_a_layer_needs_an_absolute_folder(folder: str) -> None:
    with pytest.raises(UsageError, match="absolute"):
        WorkspaceLayer(DIGEST, Path(folder))


async def test_a_layer_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    spec = SandboxSpec(layer=WorkspaceLayer(DIGEST, tmp_path / "missing"))

    with pytest.raises(UsageError, match="cannot be read"):
        async with FakeBackend().open_sandbox(Limits(), spec):
            pass


def test_merged_specs_keep_the_layer(tmp_path: Path) -> None:
    layer = WorkspaceLayer(DIGEST, tmp_path)

    assert both(SandboxSpec(packages=("six",)), SandboxSpec(layer=layer)).layer == layer
    assert both(SandboxSpec(layer=layer), SandboxSpec()).layer == layer
