"""C++: g++, CMake and make; the exercises include Catch, which is compiled once.

Compiling the `main` of Catch takes most of the time of each build, and gives the same result each
time. A compiler wrapper returns the stored object if the compiler, its options and every byte of
the two files are the same.
"""

import shlex
from pathlib import Path, PurePosixPath
from typing import Final

import anyio

from assay.bench.exercise import Exercise, Language
from assay.bench.toolchains.toolchain import (
    Commands,
    Kit,
    OnNotice,
    Place,
    first_on,
    install_packages,
    package,
)
from assay.contracts.errors import WorkspaceError
from assay.contracts.execution import WORKSPACE, Command, Limits
from assay.contracts.ports import SandboxBackend
from assay.sandbox.tree_io import write_tree

_PROGRAMS: Final = {"g++": "g++", "cmake": "cmake", "make": "make"}
_BOOST: Final = Path("/usr/include/boost/date_time.hpp")
_BOOST_PACKAGE: Final = "libboost-date-time-dev"
_BUILD: Final = "/tmp/build"
_MAIN: Final = "test/tests-main.cpp"
_OBJECTS: Final = PurePosixPath(".assay-objects")
_BEFORE: Final = "before-compiler"
_SCRIPT: Final = f"""\
#!/bin/sh
# Stands before the compiler: the object of {_MAIN} is the same every time, and slow to make.
here=$(dirname "$0")
source='' object='' dependencies='' words='' before=''
for word in "$@"; do
  case "$before" in
    -o) object=$word ;;
    -MF) dependencies=$word ;;
    -MT) ;;
    -c) source=$word ;;
    *) words="$words $word" ;;
  esac
  before=$word
done
case "$source" in
  */{_MAIN}) ;;
  *) exec "$@" ;;
esac
catch=$(dirname "$source")/catch.hpp
key=$({{ "$1" --version; echo "$words"; cat "$source" "$catch"; }} | sha256sum | cut -c1-64)
if [ -f "$here/$key.o" ]; then
  [ -z "$dependencies" ] || echo "$object: $source $catch" > "$dependencies"
  exec cp "$here/$key.o" "$object"
fi
"$@" || exit
[ ! -d {WORKSPACE / _OBJECTS} ] || cp "$object" "{WORKSPACE / _OBJECTS}/$key.o"
"""


class CppToolchain:
    """See `assay.bench.toolchains.toolchain.Toolchain`."""

    language: Language = "cpp"
    versions: tuple[tuple[str, ...], ...] = (("g++", "--version"), ("cmake", "--version"))

    def __init__(self, boost: Path = _BOOST) -> None:
        self._boost = boost

    def find(self, place: Place) -> Kit:
        missing = tuple(
            package(program, name)
            for program, name in _PROGRAMS.items()
            if first_on(place.search_path, program) is None
        )
        if not self._boost.exists():
            missing = (*missing, package("Boost", _BOOST_PACKAGE))
        folder = place.of(self.language)
        if not missing:
            _write_script(folder)
        return Kit(
            language=self.language,
            folder=folder,
            missing=missing,
            read_only=() if missing else (folder,),
        )

    async def install(self, place: Place, on_notice: OnNotice) -> None:
        names = [
            name
            for program, name in _PROGRAMS.items()
            if first_on(place.search_path, program) is None
        ]
        await install_packages([*names, _BOOST_PACKAGE], on_notice)

    def lacks(self, exercise: Exercise, kit: Kit) -> str:
        del exercise, kit
        return ""

    def commands(self, exercise: Exercise, kit: Kit) -> Commands:
        options = (
            "-DEXERCISM_RUN_ALL_TESTS=1 "
            f"-DCMAKE_CXX_COMPILER_LAUNCHER={shlex.quote(str(kit.folder / _BEFORE))}"
        )
        folder = shlex.quote(str(exercise.folder))
        return Commands(
            bare=f'cmake -S . -B {_BUILD} -G "Unix Makefiles" {options} && make -C {_BUILD}',
            check=(
                f"cmake -S {folder} -B {_BUILD} {options} && cmake --build {_BUILD} "
                f"&& ctest --test-dir {_BUILD}"
            ),
        )

    async def warm(self, exercise: Exercise, kit: Kit, backend: SandboxBackend) -> None:
        """Compile the `main` of Catch in a sandbox and store the object."""
        if exercise.folder / _MAIN not in exercise.workspace.files:
            return
        limits = Limits(wall_s=180, cpu_s=180, memory_mb=2048, processes=256, disk_mb=1024)
        bare = self.commands(exercise, kit).bare.rpartition(" && ")[0]
        async with backend.open_sandbox(limits) as sandbox:
            await write_tree(sandbox, exercise.pristine)
            await sandbox.make_directory(_OBJECTS)
            # Only this object: no file of a solution is involved.
            build = f"{bare} && make -C {_BUILD} {_MAIN}.o"
            await sandbox.run(Command(argv=("bash", "-c", build), cwd=exercise.folder))
            for info in await sandbox.list_files(_OBJECTS):
                try:
                    content = await sandbox.read_file(info.path)
                except WorkspaceError:
                    continue
                await anyio.to_thread.run_sync(_keep, kit.folder / info.path.name, content)


def _write_script(folder: Path) -> None:
    path = folder / _BEFORE
    if path.is_file() and path.read_text() == _SCRIPT:
        return
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{_BEFORE}.partial"
    partial.write_text(_SCRIPT)
    partial.chmod(0o755)
    partial.replace(path)


def _keep(path: Path, content: bytes) -> None:
    if not path.exists():
        partial = path.with_name(f".{path.name}.partial")
        partial.write_bytes(content)
        partial.replace(path)
