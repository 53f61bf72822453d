"""Distributions that declare entry points, written as an installer would write them."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def install_distribution(
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str,
    modules: Mapping[str, str],
    group: str,
    entry_points: Mapping[str, str],
    version: str = "1.2",
) -> None:
    """Make modules importable from a new folder, with the record of their distribution."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = (f"{entry} = {value}" for entry, value in entry_points.items())
    (info / "entry_points.txt").write_text("\n".join((f"[{group}]", *lines, "")))
    for module, source in modules.items():
        (site / f"{module}.py").write_text(source)
        # Removes at the end what the test imports.
        monkeypatch.setitem(sys.modules, module, sys)
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    importlib.invalidate_caches()
