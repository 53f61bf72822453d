"""Rust: cargo, with Debian's crate packages as the only source of crates."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from assay.bench.exercise import Exercise, Language
from assay.bench.toolchains.toolchain import (
    Commands,
    Kit,
    Missing,
    OnNotice,
    Place,
    first_on,
    in_folder,
    install_packages,
    package,
    with_variables,
)
from assay.contracts.ports import SandboxBackend

_CRATES: Final = ("time", "anyhow", "rand")
"""The crates of the exercises themselves."""
_REFERENCES: Final = (
    "itertools", "lazy-static", "num-bigint", "num-traits", "once-cell", "permutohedron", "regex",
)  # fmt: skip
"""The crates of reference solutions only: validation needs them."""
_UNDERSCORED: Final = {"lazy-static": "lazy_static", "once-cell": "once_cell"}
_REGISTRY: Final = Path("/usr/share/cargo/registry")
_CONFIG: Final = "config.toml"
_VARIABLES: Final = {
    "CARGO_HOME": "/tmp/cargo-home",
    "CARGO_TARGET_DIR": "/tmp/cargo-target",
    "CARGO_NET_OFFLINE": "true",
    "CARGO_INCREMENTAL": "0",
    "CARGO_TERM_COLOR": "never",
}
_CRATE_FOLDER: Final = re.compile(r"(?P<name>.+)-\d+\.\d+\.\d+.*")


class RustToolchain:
    """See `assay.bench.toolchains.toolchain.Toolchain`."""

    language: Language = "rust"
    versions: tuple[tuple[str, ...], ...] = (("cargo", "--version"),)

    def __init__(self, registry: Path = _REGISTRY) -> None:
        self._registry = registry

    def find(self, place: Place) -> Kit:
        folder = place.of(self.language)
        missing: list[Missing] = []
        if first_on(place.search_path, "cargo") is None:
            missing.append(package("cargo", "cargo"))
        there = set(_crates(self._registry))
        missing.extend(
            package(f"crate {name}", f"librust-{name}-dev")
            for name in (*_CRATES, *_REFERENCES)
            if _in_registry(name) not in there
        )
        if not missing and not (folder / _CONFIG).is_file():
            _write_config(folder, self._registry)
        return Kit(
            language=self.language,
            folder=folder,
            missing=tuple(missing),
            read_only=() if missing else (folder,),
        )

    async def install(self, place: Place, on_notice: OnNotice) -> None:
        names = [f"librust-{name}-dev" for name in (*_CRATES, *_REFERENCES)]
        if first_on(place.search_path, "cargo") is None:
            names.append("cargo")
        await install_packages(names, on_notice)

    def lacks(self, exercise: Exercise, kit: Kit) -> str:
        del kit
        there = set(_crates(self._registry))
        text = "".join(exercise.workspace.text(path) or "" for path in exercise.workspace.files
                       if path.name == "Cargo.toml")  # fmt: skip
        lacking = [name for name in _dependencies(text) if name not in there]
        return f"missing: crate {', '.join(lacking)}" if lacking else ""

    def commands(self, exercise: Exercise, kit: Kit) -> Commands:
        bare = with_variables(
            _VARIABLES, f"cargo test --config={kit.folder / _CONFIG} -- --include-ignored"
        )
        return Commands(bare=bare, check=in_folder(exercise.folder, bare))

    async def warm(self, exercise: Exercise, kit: Kit, backend: SandboxBackend) -> None:
        del exercise, kit, backend


def _in_registry(name: str) -> str:
    """Return the crate name for a Debian package name."""
    return _UNDERSCORED.get(name, name)


def _crates(registry: Path) -> Iterator[str]:
    for path in registry.glob("*"):
        if match := _CRATE_FOLDER.fullmatch(path.name):
            yield match["name"]


def _dependencies(manifest: str) -> list[str]:
    try:
        table: dict[str, Any] = tomllib.loads(manifest)
    except tomllib.TOMLDecodeError:
        return []
    return list(cast("dict[str, Any]", table.get("dependencies", {})))


def _write_config(folder: Path, registry: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = (
        '[source.crates-io]\nreplace-with = "debian"\n\n'
        f"[source.debian]\ndirectory = {json.dumps(str(registry))}\n"
    )
    partial = folder / f".{_CONFIG}.partial"
    partial.write_text(text)
    partial.replace(folder / _CONFIG)
