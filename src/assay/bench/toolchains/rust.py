"""Rust: cargo, with Debian's crate packages as the only source of crates."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from assay.bench.exercise import Exercise
from assay.bench.store import write_whole
from assay.bench.toolchains.toolchain import (
    Commands,
    Installation,
    Missing,
    Toolchain,
    in_folder,
    package,
    with_variables,
)

_CRATES: Final = ("time", "anyhow", "rand")
"""The crates of the exercises themselves."""
_REFERENCES: Final = (
    "itertools", "lazy-static", "num-bigint", "num-traits", "once-cell", "permutohedron", "regex",
)  # fmt: skip
"""The crates of reference solutions only: validation needs them."""
_UNDERSCORED: Final = {"lazy-static": "lazy_static", "once-cell": "once_cell"}
"""The crate name for a Debian package name that differs from it."""
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


class RustToolchain(Toolchain):
    """Cargo with Debian's crates."""

    language = "rust"
    versions = (("cargo", "--version"),)
    programs: Mapping[str, str] = {"cargo": "cargo"}

    def __init__(self, registry: Path = _REGISTRY) -> None:
        self._registry = registry

    def _crates(self) -> set[str]:
        """Return the names of the installed crates."""
        found = (_CRATE_FOLDER.fullmatch(path.name) for path in self._registry.glob("*"))
        return {match["name"] for match in found if match}

    def missing_parts(self, folder: Path) -> Iterable[Missing]:
        del folder
        there = self._crates()
        for name in (*_CRATES, *_REFERENCES):
            if _UNDERSCORED.get(name, name) not in there:
                yield package(f"crate {name}", f"librust-{name}-dev")

    def prepare(self, folder: Path) -> None:
        path = folder / _CONFIG
        if not path.is_file():
            registry = json.dumps(str(self._registry))
            text = (
                '[source.crates-io]\nreplace-with = "debian"\n\n'
                f"[source.debian]\ndirectory = {registry}\n"
            )
            write_whole(path, text.encode())

    def lacks(self, exercise: Exercise, installation: Installation) -> str:
        del installation
        workspace = exercise.workspace
        manifests = (path for path in workspace.files if path.name == "Cargo.toml")
        text = "".join(workspace.text(path) or "" for path in manifests)
        try:
            table: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            return ""
        wanted = cast("dict[str, Any]", table.get("dependencies", {}))
        there = self._crates()
        lacking = [name for name in wanted if name not in there]
        return f"missing: crate {', '.join(lacking)}" if lacking else ""

    def commands(self, exercise: Exercise, installation: Installation) -> Commands:
        bare = with_variables(
            _VARIABLES, f"cargo test --config={installation.folder / _CONFIG} -- --include-ignored"
        )
        return Commands(bare=bare, check=in_folder(exercise.folder, bare))
