"""As whom programs run, and that they learn nothing of who started them."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest

from assay.contracts.execution import Command, Limits, OutputChunk
from assay.contracts.ports import Sandbox
from tests.support.eventually import eventually
from tests.support.leftovers import engine_of, sandbox_uid
from tests.support.native import open_own, python
from tests.support.ordinary_user import OrdinaryUser
from tests.support.requirements import require
from tests.support.sources import PACKAGE

SECRET = "hunter2-of-the-parent"  # noqa: S105 - the point
LOOK_AROUND = """
import glob, json, os, sys
def read(path):
    try:
        return open(path, errors="replace").read()
    except OSError:
        return ""
def links(pattern):
    found = []
    for path in glob.glob(pattern):
        try:
            found.append(os.readlink(path))
        except OSError:
            pass
    return found
print(json.dumps({
    "env": dict(os.environ),
    "environs": [read(path) for path in glob.glob("/proc/[0-9]*/environ")],
    "descriptors": links("/proc/[0-9]*/fd/*"),
    "prefixes": [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.executable],
    "path": sys.path,
    "top": os.listdir("/"),
    "ids": [*os.getresuid(), *os.getresgid(), *os.getgroups()],
    "modules": [getattr(module, "__file__", None) or "" for module in sys.modules.values()],
}))
"""
WEAK_ROOT = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
AS_ORDINARY_USER = """
import anyio, assay, json, sys
async def main():
    async with assay.open_sandbox() as box:
        result = await box.run(assay.PythonCode(source=sys.argv[1].encode()))
        print(json.dumps([result.isolation, result.stdout, result.stderr]))
anyio.run(main)
"""


async def seen_from_inside(runtime_dir: Path) -> dict[str, Any]:
    async with (
        open_own(runtime_dir, pool_size=0) as backend,
        backend.open_sandbox(Limits()) as sandbox,
    ):
        result = await sandbox.run(python(LOOK_AROUND))
    assert result.succeeded, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def inheritable() -> Generator[str]:
    """An open descriptor that a careless child would get; what it is called in `/proc`."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    yield str(Path(f"/proc/self/fd/{writer}").readlink())
    os.close(reader)
    os.close(writer)


@pytest.fixture
def _a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)


@pytest.mark.usefixtures("_a_secret")
def test_an_ordinary_child_sees_a_variable_and_a_descriptor_of_its_parent(inheritable: str) -> None:
    """The control for the tests below: what they look for can be found."""
    told = subprocess.run(
        [sys.executable, "-c", LOOK_AROUND], capture_output=True, close_fds=False, check=True
    )

    seen = json.loads(told.stdout)
    assert seen["env"]["MY_TOKEN"] == SECRET
    assert inheritable in seen["descriptors"]


@pytest.mark.usefixtures("_a_secret")
async def test_a_program_sees_no_variable_and_no_descriptor_of_the_parent(
    runtime_dir: Path, inheritable: str
) -> None:
    seen = await seen_from_inside(runtime_dir)

    assert SECRET not in json.dumps(seen)
    assert inheritable not in seen["descriptors"]


@pytest.mark.usefixtures("_a_secret")
async def test_no_process_of_the_engine_has_a_variable_or_a_descriptor_of_the_parent(
    runtime_dir: Path, inheritable: str
) -> None:
    async with open_own(runtime_dir, pool_size=0):
        folders = [Path(f"/proc/{mark.pid}") for mark in engine_of(runtime_dir).processes]
        environs = [(folder / "environ").read_bytes() for folder in folders]
        targets = [
            str(entry.readlink()) for folder in folders for entry in (folder / "fd").iterdir()
        ]

    assert len(folders) == len(("warden", "zygote", "steward"))
    assert not [environ for environ in environs if SECRET.encode() in environ]
    assert inheritable not in targets


async def test_a_program_sees_nothing_of_the_folders_its_interpreter_comes_from(
    runtime_dir: Path,
) -> None:
    seen = await seen_from_inside(runtime_dir)

    hosts = {sys.prefix, sys.base_prefix, str(Path.home()), str(PACKAGE)} - {"/usr", "/"}
    assert not {"root", "home", "work", "var", "run", "srv", "mnt"}.intersection(seen["top"])
    for place in (*seen["prefixes"], *seen["path"], *seen["modules"]):
        assert not [host for host in hosts if place.startswith(host)], place
        assert place in {"", "main.py"} or place.startswith(("/opt/assay/", "/usr"))


def test_an_interpreter_in_a_folder_that_nobody_else_may_enter_is_offered_anyway(
    tmp_path: Path, runtime_dir: Path
) -> None:
    require("root", available=os.geteuid() == 0, why="only root runs programs as somebody else")
    closed = tmp_path / "closed"
    own = an_environment(closed)
    program = tmp_path / "program.py"
    program.write_text(
        f"import inside, os, sys\nprint(os.getuid(), sys.prefix, os.path.exists({str(closed)!r}))\n"
    )

    done = subprocess.run(
        [own, "-m", "assay", "sandbox", "run", program],
        env={"PATH": "/usr/bin:/bin", "ASSAY_RUNTIME_DIR": str(runtime_dir)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.stderr == ""
    assert done.stdout == "imported from the environment\n1000 /opt/assay/venv False\n"


def an_environment(folder: Path) -> Path:
    """A virtual environment with a module of its own and Assay, in a folder closed to others."""
    folder.mkdir(mode=0o700)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60
    )
    (packages,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    (packages / "inside.py").write_text("print('imported from the environment')")
    (packages / "outside.pth").write_text(f"{sysconfig.get_path('purelib')}\n{PACKAGE.parent}\n")
    return folder / "venv" / "bin" / "python"


async def test_on_the_host_a_running_program_belongs_to_nobody_who_matters(
    runtime_dir: Path,
) -> None:
    require("root", available=os.geteuid() == 0, why="only root runs programs as somebody else")
    started = anyio.Event()
    ids: list[set[int]] = []

    def notice(chunk: OutputChunk) -> None:
        assert chunk.data == b"1000\n"
        started.set()

    async def look_and_cancel(sandbox: Sandbox) -> None:
        await started.wait()
        ids.extend(ids_of(mark.pid) for mark in engine_of(runtime_dir).processes[1:])
        await sandbox.cancel()

    async with (
        open_own(runtime_dir, pool_size=0) as backend,
        backend.open_sandbox(Limits()) as sandbox,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(look_and_cancel, sandbox)
        command = Command(argv=("sh", "-c", "sleep 600 & id -u; exec sleep 600"))
        await sandbox.run(command, on_output=notice)

    assert len([found for found in ids if found]) >= len(
        ("zygote", "steward", "PID 1", "sh", "sleep")
    )
    assert set().union(*ids) == {sandbox_uid(os.getpid())}


async def test_a_root_without_the_right_to_make_namespaces_isolates_and_steps_down_too(
    runtime_dir: Path,
) -> None:
    able = os.geteuid() == 0 and shutil.which("setpriv") is not None
    require("root", available=able, why="only root has capabilities to give up")
    command = (sys.executable, "-m", "assay", "sandbox", "run", "--isolation", "isolated", "--")
    ids: list[set[int]] = []

    async with await anyio.open_process(
        [*WEAK_ROOT, *command, "sh", "-c", "id -u; exec sleep 600"],
        env={"PATH": "/usr/bin:/bin", "ASSAY_RUNTIME_DIR": str(runtime_dir)},
    ) as process:
        try:
            assert process.stdout is not None
            with anyio.fail_after(60):
                assert await process.stdout.receive() == b"1000\n"
            engine = engine_of(runtime_dir)
            ids.extend(ids_of(mark.pid) for mark in engine.processes[1:])
        finally:
            process.kill()

    assert set().union(*ids) == {sandbox_uid(process.pid)}
    assert await eventually(engine.is_gone), engine.left()


def ids_of(pid: int) -> set[int]:
    """Every uid and gid of a process: real, effective, saved, of file access, and groups."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):  # it ended before, or while it was read
        return set()
    named = {line.partition(":")[0]: line.partition(":")[2].split() for line in lines}
    return {int(number) for name in ("Uid", "Gid", "Groups") for number in named[name]}


async def test_inside_a_program_is_one_ordinary_user(runtime_dir: Path) -> None:
    seen = await seen_from_inside(runtime_dir)

    assert set(seen["ids"]) <= {1000, 65534}
    assert seen["ids"][:6] == [1000] * 6


def test_an_ordinary_user_gets_the_same_isolation(user: OrdinaryUser) -> None:
    done = user.run([str(user.python), "-c", AS_ORDINARY_USER, LOOK_AROUND])

    assert done.stderr == ""
    isolation, stdout, stderr = json.loads(done.stdout)
    assert (isolation, stderr) == ("isolated", "")
    seen = json.loads(stdout)
    assert seen["ids"][:6] == [1000] * 6
    assert seen["prefixes"][0] == "/opt/assay/venv"
    assert not {"root", "home"}.intersection(seen["top"])


def test_a_secret_of_an_ordinary_user_is_invisible_too(user: OrdinaryUser) -> None:
    done = user.run(
        [str(user.python), "-c", AS_ORDINARY_USER, LOOK_AROUND], env={"MY_TOKEN": SECRET}
    )

    assert json.loads(done.stdout)[0] == "isolated"
    assert SECRET not in done.stdout
