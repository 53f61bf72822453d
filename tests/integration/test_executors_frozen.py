"""An executor that hangs costs little while another one is healthy, and is named as what it is."""

import os
import signal
import socket
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import Command, Limits
from tests.doubles.fake_sandbox import FakeBackend
from tests.support.executors import make_certificates, open_client, open_process, open_served

LS = Command(argv=("ls",))


@pytest.fixture
def silent_port() -> Generator[int]:
    """A port as a stopped process has it: the kernel takes connections, and nothing answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening.getsockname()[1]


async def test_a_client_starts_although_one_executor_hangs(
    tmp_path: Path, silent_port: int
) -> None:
    # gRPC itself gives an attempt up after 20 seconds; the client must not need it to.
    with anyio.fail_after(15):
        async with (
            open_served(FakeBackend(), tmp_path) as executor,
            open_client(silent_port, executor.port, connect_timeout_s=1000.0) as remote,
            remote.open_sandbox(Limits()) as sandbox,
        ):
            assert (await sandbox.run(LS)).succeeded


async def test_an_executor_that_stops_answering_is_left_for_another(tmp_path: Path) -> None:
    async with open_process(tmp_path / "stops") as stops:
        # Ends within a minute only if the client gives up a call that is not answered: the one to
        # close the sandbox alone would take that long.
        with anyio.fail_after(55):
            async with (
                open_served(FakeBackend(), tmp_path) as executor,
                open_client(stops.port, executor.port) as remote,
            ):
                os.kill(stops.process.pid, signal.SIGSTOP)
                for _ in range(2):
                    async with remote.open_sandbox(Limits()) as sandbox:
                        assert (await sandbox.run(LS)).succeeded


@pytest.mark.parametrize("secure", [False, True])
async def test_a_lone_executor_that_hangs_is_said_to_give_no_answer(
    tmp_path: Path, silent_port: int, *, secure: bool
) -> None:
    settings = make_certificates(tmp_path).client("alice") if secure else {}

    with pytest.raises(SandboxUnavailableError, match="does not answer") as caught:
        async with open_client(silent_port, connect_timeout_s=0.2, **settings):
            pass

    assert caught.value.dispatch == "never_started"
    assert "stopped" in caught.value.hint
