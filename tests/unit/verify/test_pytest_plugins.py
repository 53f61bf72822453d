"""Which pytest plugins the driver of Python checks loads."""

import sys
from pathlib import Path

import pytest

from assay.verify.drivers.pytest_driver import _find_plugins


def install_plugin(folder: Path, name: str) -> Path:
    """Write the metadata of a distribution with a plugin; return the folder for `sys.path`."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[pytest11]\n{name} = {name}\n")
    return folder


def test_plugins_of_another_environment_than_that_of_pytest_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = install_plugin(tmp_path / "first", "wanted_plugin")
    last = install_plugin(tmp_path / "last", "foreign_plugin")
    monkeypatch.setattr(sys, "path", [str(first), *sys.path, str(last)])

    installed, own = _find_plugins({"args": [], "protected": []})

    names = {entry.name for entry in installed}
    assert "wanted_plugin" in names
    assert "foreign_plugin" not in names
    assert own == []
