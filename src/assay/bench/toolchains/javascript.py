"""JavaScript: Node.js, and one set of jest and Babel that serves every exercise."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from assay.bench.exercise import Exercise
from assay.bench.toolchains.toolchain import (
    Commands,
    Installation,
    Missing,
    OnNotice,
    Toolchain,
    find_program,
    in_folder,
    install_packages,
    run_quietly,
    with_variables,
)
from assay.contracts.errors import AssayError
from assay.settings.load import Settings

_PACKAGES: Final = {
    "@babel/core": "7.25.2",
    "@exercism/babel-preset-javascript": "0.2.1",
    "babel-jest": "29.7.0",
    "core-js": "3.37.1",
    "jest": "29.7.0",
}
_MODULES: Final = "node_modules"


class JavaScriptToolchain(Toolchain):
    """Node.js with jest."""

    language = "javascript"
    versions = (("node", "--version"),)
    programs: Mapping[str, str] = {"node": "nodejs"}

    def missing_parts(self, folder: Path) -> Iterable[Missing]:
        lacking = [name for name, version in _PACKAGES.items() if _has(folder, name) != version]
        return (Missing(what=" ".join(f"npm:{name}" for name in lacking)),) if lacking else ()

    async def download(self, settings: Settings, folder: Path, on_notice: OnNotice) -> None:
        if find_program(settings, "npm") is None:
            await install_packages(["npm"], on_notice)
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        manifest = {"private": True, "dependencies": _PACKAGES}
        (partial / "package.json").write_text(json.dumps(manifest))
        on_notice("fetching jest and Babel from npm, about 110 MB unpacked")
        npm = find_program(settings, "npm") or "npm"
        # Install scripts of packages do not run here.
        command = [str(npm), "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        if problem := await run_quietly([*command, "--loglevel=error"], cwd=partial):
            raise AssayError(f"npm failed: {problem}", hint="check the network and try again")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)

    def commands(self, exercise: Exercise, installation: Installation) -> Commands:
        modules = installation.folder / _MODULES
        jest = str(modules / ".bin" / "jest")
        variables = {"NODE_PATH": str(modules)}
        return Commands(
            bare=with_variables(variables, f"{jest} ./*"),
            check=in_folder(exercise.folder, with_variables(variables, jest)),
        )


def _has(folder: Path, name: str) -> str | None:
    try:
        manifest = json.loads((folder / _MODULES / name / "package.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return manifest.get("version")
