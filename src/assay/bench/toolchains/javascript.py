"""JavaScript: Node.js, and one set of jest and Babel that serves every exercise."""

import json
import shutil
from pathlib import Path
from typing import Final

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
    run_quietly,
    with_variables,
)
from assay.contracts.errors import AssayError
from assay.contracts.ports import SandboxBackend

_PACKAGES: Final = {
    "@babel/core": "7.25.2",
    "@exercism/babel-preset-javascript": "0.2.1",
    "babel-jest": "29.7.0",
    "core-js": "3.37.1",
    "jest": "29.7.0",
}
_MODULES: Final = "node_modules"


class JavaScriptToolchain:
    """See `assay.bench.toolchains.toolchain.Toolchain`."""

    language: Language = "javascript"
    versions: tuple[tuple[str, ...], ...] = (("node", "--version"),)

    def find(self, place: Place) -> Kit:
        folder = place.of(self.language)
        missing: list[Missing] = []
        if first_on(place.search_path, "node") is None:
            missing.append(package("node", "nodejs"))
        lacking = [name for name, version in _PACKAGES.items() if _has(folder, name) != version]
        if lacking:
            fix = "assay bench toolchains --install"
            missing.append(Missing(what=" ".join(f"npm:{name}" for name in lacking), fix=fix))
        return Kit(
            language=self.language,
            folder=folder,
            missing=tuple(missing),
            read_only=() if missing else (folder,),
        )

    async def install(self, place: Place, on_notice: OnNotice) -> None:
        needed = [name for name in ("node", "npm") if first_on(place.search_path, name) is None]
        if needed:
            await install_packages(["nodejs", "npm"], on_notice)
        folder = place.of(self.language)
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        manifest = {"private": True, "dependencies": _PACKAGES}
        (partial / "package.json").write_text(json.dumps(manifest))
        on_notice("fetching jest and Babel from npm, about 110 MB unpacked")
        npm = first_on(place.search_path, "npm") or Path("npm")
        # Install scripts of packages do not run here.
        command = [str(npm), "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        if problem := await run_quietly([*command, "--loglevel=error"], cwd=partial):
            raise AssayError(f"npm failed: {problem}", hint="check the network and try again")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)

    def lacks(self, exercise: Exercise, kit: Kit) -> str:
        del exercise, kit
        return ""

    def commands(self, exercise: Exercise, kit: Kit) -> Commands:
        modules = kit.folder / _MODULES
        jest = str(modules / ".bin" / "jest")
        variables = {"NODE_PATH": str(modules)}
        return Commands(
            bare=with_variables(variables, f"{jest} ./*"),
            check=in_folder(exercise.folder, with_variables(variables, jest)),
        )

    async def warm(self, exercise: Exercise, kit: Kit, backend: SandboxBackend) -> None:
        del exercise, kit, backend


def _has(folder: Path, name: str) -> str | None:
    try:
        manifest = json.loads((folder / _MODULES / name / "package.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return manifest.get("version")
