"""C++: g++, CMake and make; the exercises include Catch, which is compiled once.

Compiling the `main` of Catch takes most of the time of each build, and gives the same result each
time. A compiler wrapper returns the stored object if the compiler, its options and every byte of
the two files are the same.
"""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import anyio

from assay.bench.exercise import Exercise
from assay.bench.store import write_whole
from assay.bench.toolchains.toolchain import (
    Commands,
    Installation,
    Missing,
    Toolchain,
    package,
)
from assay.contracts.errors import WorkspaceError
from assay.contracts.execution import WORKSPACE, Command, Limits
from assay.contracts.ports import SandboxBackend
from assay.sandbox.tree_io import open_tree

_BOOST: Final = Path("/usr/include/boost/date_time.hpp")
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


class CppToolchain(Toolchain):
    """C++ with Catch."""

    language = "cpp"
    versions = (("g++", "--version"), ("cmake", "--version"))
    programs: Mapping[str, str] = {"g++": "g++", "cmake": "cmake", "make": "make"}

    def __init__(self, boost: Path = _BOOST) -> None:
        self._boost = boost

    def missing_parts(self, folder: Path) -> Iterable[Missing]:
        del folder
        return () if self._boost.exists() else (package("Boost", "libboost-date-time-dev"),)

    def prepare(self, folder: Path) -> None:
        path = folder / _BEFORE
        if not path.is_file() or path.read_text() != _SCRIPT:
            write_whole(path, _SCRIPT.encode(), mode=0o755)

    def commands(self, exercise: Exercise, installation: Installation) -> Commands:
        options = (
            "-DEXERCISM_RUN_ALL_TESTS=1 "
            f"-DCMAKE_CXX_COMPILER_LAUNCHER={shlex.quote(str(installation.folder / _BEFORE))}"
        )
        folder = shlex.quote(str(exercise.folder))
        return Commands(
            bare=f'cmake -S . -B {_BUILD} -G "Unix Makefiles" {options} && make -C {_BUILD}',
            check=(
                f"cmake -S {folder} -B {_BUILD} {options} && cmake --build {_BUILD} "
                f"&& ctest --test-dir {_BUILD}"
            ),
        )

    async def warm(
        self, exercise: Exercise, installation: Installation, backend: SandboxBackend
    ) -> None:
        """Compile the `main` of Catch in a sandbox and store the object."""
        if exercise.folder / _MAIN not in exercise.workspace.files:
            return
        limits = Limits(wall_s=180, cpu_s=180, memory_mb=2048, processes=256, disk_mb=1024)
        bare = self.commands(exercise, installation).bare.rpartition(" && ")[0]
        async with open_tree(backend, limits, exercise.pristine) as sandbox:
            await sandbox.make_directory(_OBJECTS)
            # Only this object: no file of a solution is involved.
            build = f"{bare} && make -C {_BUILD} {_MAIN}.o"
            await sandbox.run(Command(argv=("bash", "-c", build), cwd=exercise.folder))
            for info in await sandbox.list_files(_OBJECTS):
                try:
                    content = await sandbox.read_file(info.path)
                except WorkspaceError:
                    continue
                path = installation.folder / info.path.name
                if not path.exists():
                    await anyio.to_thread.run_sync(write_whole, path, content)
