"""What a language needs here: found completely, fetched by whatever can, in sight of sandboxes."""

import shutil
from pathlib import Path, PurePosixPath

import pytest

from assay.bench.exercise import Exercise
from assay.bench.toolchains.all import find_toolchains
from assay.bench.toolchains.cpp import CppToolchain
from assay.bench.toolchains.go import download
from assay.bench.toolchains.rust import RustToolchain
from assay.contracts.errors import AssayError
from assay.contracts.workspace import Tree, TreeFile
from assay.settings.load import ModelSettings, SandboxSettings, Settings

_CRATES = (
    *("anyhow-1.0.69", "itertools-0.10.5", "lazy_static-1.4.0", "num-bigint-0.4.3"),
    *("num-traits-0.2.15", "once_cell-1.17.1", "permutohedron-0.2.4", "rand-0.8.5"),
    *("regex-1.7.1", "time-0.3.9"),
)
# Where nothing can be fetched from.
_OFFLINE = {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}


def a_program(folder: Path, name: str, script: str = "exit 0") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def settings_with(tmp_path: Path, *folders: Path) -> Settings:
    return Settings(
        sandbox=SandboxSettings(search_path=tuple(map(str, folders))),
        models=ModelSettings(cache_dir=tmp_path / "cache", pip_environment=_OFFLINE),
    )


def test_rust_is_ready_only_with_the_crates_of_the_references(tmp_path: Path) -> None:
    a_program(tmp_path / "bin", "cargo")
    registry = tmp_path / "registry"
    settings = settings_with(tmp_path, tmp_path / "bin")
    for name in _CRATES[:-1]:
        (registry / name).mkdir(parents=True)

    found = RustToolchain(registry).find(settings)
    assert [one.fix for one in found.missing] == ["apt-get install librust-time-dev"]

    (registry / _CRATES[-1]).mkdir()
    assert RustToolchain(registry).find(settings).ready

    (registry / "num-bigint-0.4.3").rmdir()
    assert [one.what for one in RustToolchain(registry).find(settings).missing] == [
        "crate num-bigint"
    ]


def test_cpp_is_ready_only_with_boost(tmp_path: Path) -> None:
    for name in ("g++", "cmake", "make"):
        a_program(tmp_path / "bin", name)
    settings = settings_with(tmp_path, tmp_path / "bin")
    boost = tmp_path / "date_time.hpp"

    assert [one.what for one in CppToolchain(boost).find(settings).missing] == ["Boost"]

    boost.touch()
    assert CppToolchain(boost).find(settings).ready


async def test_every_pip_is_tried_and_the_first_complaint_told(tmp_path: Path) -> None:
    a_program(tmp_path / "a", "python3", "echo $0: No module named pip >&2; exit 1")
    a_program(tmp_path / "b", "python3", "echo no such release >&2; exit 1")
    a_program(tmp_path / "c", "python3", "echo a shim without versions >&2; exit 1")
    folder = tmp_path / "fetched"
    folder.mkdir()

    with pytest.raises(AssayError, match="no such release") as caught:
        await download(settings_with(tmp_path, *(tmp_path / name for name in "abc")), folder)
    assert "shim" not in str(caught.value)

    a_program(tmp_path / "d", "python3", f": > {folder}/go.whl")
    settings = settings_with(tmp_path, *(tmp_path / name for name in "abcd"))
    assert await download(settings, folder) == folder / "go.whl"


def test_parts_that_sandboxes_cannot_see_cost_one_language_only(tmp_path: Path) -> None:
    # Below /tmp, which every sandbox has for itself.
    hidden = Path("/tmp") / tmp_path.name
    settings = settings_with(hidden)
    folder = settings.bench_dir / "toolchains" / "go"
    folder.mkdir(parents=True)
    try:
        (folder / "compiled").touch()
        toolchains = find_toolchains(settings, ["go", "python"])
    finally:
        shutil.rmtree(hidden)

    (missing,) = toolchains.found["go"].missing
    assert "below /tmp" in missing.what
    assert "XDG_CACHE_HOME" in missing.fix
    assert toolchains.found["go"].search_path == ()
    assert toolchains.found["python"].ready


def test_the_reference_finds_the_manifest_that_it_needs() -> None:
    manifest = PurePosixPath("Cargo.toml")
    exercise = Exercise(
        id="rust/decimal",
        language="rust",
        docs="",
        workspace=Tree(files={manifest: TreeFile(b"[package]\n")}),
        solution=(),
        tests=Tree(),
        reference_setup=Tree(files={manifest: TreeFile(b"[dependencies]\n")}),
    )

    prepared = exercise.prepared_for_reference()

    assert prepared.workspace.files[manifest].content == b"[dependencies]\n"
    assert exercise.workspace.files[manifest].content == b"[package]\n"
