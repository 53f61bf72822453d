"""Layers of packages: made once from real wheels, given to sandboxes, harmless to the host."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from assay.contracts.errors import PackageError
from assay.contracts.execution import Command, Limits, SandboxSpec
from assay.contracts.workspace import project_script
from assay.sandbox.packages.store import Layer, PackageStore
from assay.settings.load import SandboxSettings
from assay.wiring import open_backend
from tests.support.native import python
from tests.support.sources import PACKAGE
from tests.support.wheels import a_store, a_target, make_wheel, only_from


async def opened(store: PackageStore, *packages: str, present: Sequence[str] = ()) -> Layer:
    async with store.open_layer(packages, a_target(*present)) as layer:
        return layer


def everything_called(name: str, folder: Path) -> list[Path]:
    return list(folder.rglob(name))


async def test_a_package_comes_with_what_it_needs(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "outer", requires=["inner>=2"])
    make_wheel(tmp_path / "index", "inner", "1.0")
    make_wheel(tmp_path / "index", "inner", "2.5")

    layer = await opened(a_store(tmp_path), "outer")

    assert layer.pins == ("inner==2.5", "outer==1.0")
    assert (layer.folder / "inner.py").read_text().startswith("VERSION = '2.5'")


async def test_the_second_time_nothing_is_asked_or_fetched(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "index", "thing")
    first = await opened(a_store(tmp_path), "thing")

    wheel.unlink()
    second = await opened(a_store(tmp_path), " Thing ")

    assert second.folder == first.folder


async def test_a_range_is_asked_again_after_a_day_and_a_version_is_not(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "thing", "1.0")
    store = a_store(tmp_path)
    for request in ("thing", "thing==1.0"):
        await opened(store, request)
    for entry in (tmp_path / "store" / "requests").iterdir():
        entry.write_text(json.dumps({**json.loads(entry.read_text()), "at": 0.0}))

    make_wheel(tmp_path / "index", "thing", "2.0")

    assert (await opened(store, "thing")).pins == ("thing==2.0",)
    assert (await opened(store, "thing==1.0")).pins == ("thing==1.0",)


async def test_what_is_loaded_is_neither_replaced_nor_fetched(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "outer", requires=["loaded"])
    make_wheel(tmp_path / "index", "loaded", "1.0")
    make_wheel(tmp_path / "index", "loaded", "2.0")
    store = a_store(tmp_path)

    layer = await opened(store, "outer", present=["loaded==1.0"])
    with pytest.raises(PackageError, match=r"has loaded 1\.0 loaded"):
        await opened(store, "loaded>=2", present=["loaded==1.0"])

    assert layer.pins == ("outer==1.0",)


async def test_what_cannot_be_had_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "foreign", tag="cp27-cp27m-win32")
    store = a_store(tmp_path)

    with pytest.raises(PackageError, match="no package named 'reqeusts'; did you mean 'requests'"):
        await opened(store, "reqeusts")
    with pytest.raises(PackageError, match="no wheel of foreign"):
        await opened(store, "foreign")

    assert store.layers() == ()
    assert list((tmp_path / "store" / "making").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "files", "commands"),
    [
        ("above", {"above.py": "", "../../../../outside": "x"}, {}),
        ("absolute", {"absolute.py": "", "/OUTSIDE/outside": "x"}, {}),
        ("data", {"data.py": "", "data-1.0.data/data/../../../../outside": "x"}, {}),
        ("command", {"command.py": ""}, {"../../../../outside": "command:main"}),
    ],
)
async def test_a_wheel_cannot_write_outside_of_its_layer(
    tmp_path: Path, name: str, files: dict[str, str], commands: dict[str, str]
) -> None:
    placed = {path.replace("/OUTSIDE", str(tmp_path)): text for path, text in files.items()}
    make_wheel(tmp_path / "index", name, files=placed, commands=commands)

    try:
        await opened(a_store(tmp_path), name)
    except PackageError as error:
        assert "outside" in str(error)  # noqa: PT017 - refused or left out, both will do

    assert everything_called("outside", tmp_path) == []


async def test_nothing_of_a_wheel_runs_on_the_host(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    run = f"open({str(mark)!r}, 'w').close()\n"
    files = {
        "live.py": run,
        "live.pth": f"import os; {run}",
        "sitecustomize.py": run,
        "setup.py": run,
    }
    make_wheel(tmp_path / "index", "live", files=files)

    layer = await opened(a_store(tmp_path), "live")

    assert (layer.folder / "live.pth").exists()
    assert not mark.exists()
    assert list(layer.folder.rglob("live.*.pyc")), "it was compiled, which runs nothing"


async def test_a_layer_is_closed_to_writers(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "thing", commands={"thing": "thing:main"})

    layer = await opened(a_store(tmp_path), "thing")

    modes = {path.name: path.stat().st_mode & 0o777 for path in layer.folder.rglob("thing*")}
    assert modes["thing.py"] == 0o444
    assert modes["thing"] == 0o555
    assert layer.folder.stat().st_mode & 0o777 == 0o555


OPEN = """
import sys
sys.path.insert(0, sys.argv[1])
import anyio
from pathlib import Path
from assay.sandbox.packages.store import PackageStore
from assay.sandbox.packages.target import own_target

async def main():
    store = PackageStore(Path(sys.argv[2]), environment=eval(sys.argv[3]), max_bytes=1 << 30)
    async with store.open_layer(["thing"], own_target(())) as layer:
        print(layer.key, layer.made_at, flush=True)
        if sys.argv[4:] == ["stay"]:
            sys.stdin.read()

anyio.run(main)
"""


def opening(tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    environment = repr(only_from(tmp_path / "index"))
    place = (str(PACKAGE.parent), str(tmp_path / "store"), environment)
    return subprocess.Popen(
        [sys.executable, "-c", OPEN, *place, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_that_want_the_same_make_it_once(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "thing")
    (tmp_path / "store").mkdir()

    both = [opening(tmp_path), opening(tmp_path), opening(tmp_path)]
    said = {process.communicate(timeout=60)[0] for process in both}

    assert len(said) == 1, "the same layer, made at the same time"
    assert said != {""}


def test_a_layer_that_is_used_is_not_removed(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "thing")
    store = a_store(tmp_path)
    with opening(tmp_path, "stay") as process:
        assert process.stdout is not None
        assert process.stdout.readline()

        assert store.clean() == ()
        assert len(store.layers()) == 1

        process.kill()
    assert len(store.clean()) == 1, "the kernel gives up the locks of whoever is killed"
    assert store.layers() == ()


async def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "thing")
    store = a_store(tmp_path)
    store.make_folders()
    left = tmp_path / "store" / "making" / "bench-of-a-dead-process"
    left.mkdir()
    (left / "owner").touch()

    await opened(store, "thing")

    assert not left.exists()


async def test_the_layers_unused_for_longest_make_room(tmp_path: Path) -> None:
    for name in ("old", "new"):
        make_wheel(tmp_path / "index", name, files={f"{name}.txt": "x" * 60_000})
    store = a_store(tmp_path, max_bytes=100_000)
    old = await opened(store, "old")
    os.utime(old.folder.parent / "manifest.json", (0, 0))

    await opened(store, "new")

    assert [layer.pins for layer in store.layers()] == [("new==1.0",)]


async def test_packages_that_are_too_large_are_refused(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "large", files={"large.txt": "x" * 200_000})

    with pytest.raises(PackageError, match="take up"):
        await opened(a_store(tmp_path, max_bytes=100_000), "large")


async def test_programs_of_every_kind_find_a_package(tmp_path: Path, runtime_dir: Path) -> None:
    make_wheel(tmp_path / "index", "thing", commands={"greet": "thing:main"})
    settings = SandboxSettings(
        preload=(),
        pool_size=0,
        runtime_dir=runtime_dir,
        packages_dir=tmp_path / "store",
        index_environment=only_from(tmp_path / "index"),
    )
    with anyio.fail_after(60):
        async with open_backend(settings) as backend:
            equipped = backend.open_sandbox(Limits(), SandboxSpec(packages=("thing",)))
            async with equipped as one, backend.open_sandbox(Limits()) as other:
                code = await one.run(python("import thing; thing.main()"))
                command = await one.run(Command(argv=("greet",)))
                async with one.open_interpreter() as interpreter:
                    cell = await interpreter.run_cell("import thing; thing.main()")
                neighbour = await other.run(python("import thing"))
                shell = "PYTHONPATH=src python3 -c 'import thing'; pip list | grep thing"
                typed = await one.run(Command(argv=project_script(shell)))

    assert (code.stdout, command.stdout) == ("hello\n", "hello\n")
    assert cell.execution.stdout == "hello\n"
    assert (typed.stdout, typed.stderr) == ("thing==1.0\n", "")
    assert "No module named 'thing'" in neighbour.stderr
