"""Chroma keeps every promise of the memory, in a folder and on a server.

It is too heavy for the environment of the other tests; the gate runs these in one of their own.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, closing, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from assay.contracts.errors import JournalError
from assay.contracts.ports import LessonStore
from assay.memory.chroma_store import open_chroma_memory
from assay.memory.types import Scope
from tests.conformance.memory import MEMORY_PROMISES, MemoryPromise, MemorySubject
from tests.support.requirements import require

TIMEOUT_S = 60
STARTED = [sys.executable, "-c", "from chromadb.cli.cli import app; app()"]


class InFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "chroma"

    def open(
        self, *, project: str = "", environment: str = ""
    ) -> AbstractAsyncContextManager[LessonStore]:
        place = Scope(project=project, environment=environment)
        return open_chroma_memory(place, folder=self.folder)


class OnServer:
    def __init__(self, url: str) -> None:
        self.url = url

    def open(
        self, *, project: str = "", environment: str = ""
    ) -> AbstractAsyncContextManager[LessonStore]:
        return open_chroma_memory(Scope(project=project, environment=environment), url=self.url)


@pytest.fixture(autouse=True, scope="module")
def installed() -> None:
    require("chroma", available=find_spec("chromadb") is not None, why="it is not installed")


@pytest.fixture(scope="module")
def server(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    del installed
    folder = tmp_path_factory.mktemp("chroma-server")
    port = free_port()
    process = subprocess.Popen(
        [*STARTED, "run", "--path", folder, "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )
    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as held:
        return held.getsockname()[1]


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), timeout=1)):
            return
    pytest.fail("the server of Chroma does not answer")


@pytest.fixture(params=["folder", "server"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> MemorySubject:
    if request.param == "folder":
        return InFolder(tmp_path)
    url: str = request.getfixturevalue("server")
    forget_everything(url)
    return OnServer(url)


def forget_everything(url: str) -> None:
    """Give a test the server as if it were new: starting one takes longer than the test."""
    import chromadb

    client = chromadb.HttpClient(host="127.0.0.1", port=urlsplit(url).port)
    for collection in client.list_collections():
        client.delete_collection(collection.name)


@pytest.mark.parametrize("promise", MEMORY_PROMISES, ids=lambda promise: promise.name)
async def test_chroma_keeps(promise: MemoryPromise, subject: MemorySubject) -> None:
    await promise(subject)


async def test_a_server_that_is_not_there_is_told_in_one_line() -> None:
    with pytest.raises(JournalError, match="the memory in Chroma cannot be opened"):
        async with open_chroma_memory(Scope(), url=f"http://127.0.0.1:{free_port()}"):
            pass
