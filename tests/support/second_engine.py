"""A Docker engine beside the machine's own, with little room, for what must not happen to that."""

import shutil
import subprocess  # noqa: TID251 - starts the engine
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.eventually import eventually

_TIMEOUT_S = 60.0
_ROOMY_MB, _SPARE_MB = 1200, 40


@dataclass(frozen=True, slots=True)
class SecondEngine:
    """An engine whose disk is a small file system in memory."""

    folder: Path

    @property
    def address(self) -> str:
        return f"unix://{self.folder}/docker.sock"

    def ask(self, *words: str) -> str:
        """Have the command line of Docker talk to it."""
        asked = ["docker", "--host", self.address, *words]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout

    def load(self, image: str) -> None:
        """Copy an image of the machine's own engine, and leave next to no room beside it."""
        data = self.folder / "data"
        _resize(data, _ROOMY_MB)
        save = ["docker", "save", image]
        with subprocess.Popen(save, stdout=subprocess.PIPE) as saving:
            load = ["docker", "--host", self.address, "load"]
            subprocess.run(load, stdin=saving.stdout, capture_output=True, timeout=120, check=True)
        _resize(data, (shutil.disk_usage(data).used >> 20) + _SPARE_MB)


def _resize(place: Path, size_mb: int) -> None:
    _do("mount", "-o", f"remount,size={size_mb}m", str(place))


def _do(*argv: str) -> None:
    subprocess.run(argv, capture_output=True, timeout=60, check=True)


@asynccontextmanager
async def open_second_engine() -> AsyncGenerator[SecondEngine]:
    """Start an engine; leaving the context ends it and frees its disk. Needs root."""
    # Not below a folder of pytest's: addresses of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="assay-engine-") as name:
        async with _engine_in(Path(name)) as engine:
            yield engine


@asynccontextmanager
async def _engine_in(folder: Path) -> AsyncGenerator[SecondEngine]:
    data = folder / "data"
    data.mkdir()
    _do("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(data))
    engine = SecondEngine(folder)
    options = {
        "data-root": data,
        "exec-root": folder / "exec",
        "host": engine.address,
        "pidfile": folder / "pid",
        "bridge": "none",
        "storage-driver": "overlay2",
        "containerd-namespace": "assay-test",
        "containerd-plugins-namespace": "assay-test-plugins",
    }
    argv = ["dockerd", "--iptables=false", "--ip-forward=false"]
    argv += [f"--{name}={value}" for name, value in options.items()]
    try:
        with (
            (folder / "log").open("w") as log,
            subprocess.Popen(argv, stdout=log, stderr=log) as daemon,  # noqa: ASYNC220 - returns at once
        ):
            try:
                await _await_answer(engine, daemon)
                yield engine
            finally:
                daemon.terminate()
                daemon.wait(_TIMEOUT_S)
    finally:
        _do("umount", "--recursive", str(data))


async def _await_answer(engine: SecondEngine, daemon: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        asked = ["docker", "--host", engine.address, "version"]
        done = subprocess.run(asked, capture_output=True, timeout=60, check=False)
        return done.returncode == 0 or daemon.poll() is not None

    await eventually(answers, within_s=_TIMEOUT_S)
    told = (engine.folder / "log").read_text()[-1000:]
    assert daemon.poll() is None, f"no second engine: {told}"
