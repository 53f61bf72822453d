"""The gate of a sandbox in a network namespace, also in a container, with a world of our own."""

import errno
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from assay.contracts.errors import IsolationUnavailableError, UsageError
from assay.contracts.execution import (
    BlockedConnection,
    Command,
    ExecutionResult,
    Limits,
    SandboxSpec,
)
from assay.contracts.ports import SandboxBackend
from tests.support.docker import require_docker
from tests.support.native import open_own, python
from tests.support.outside import World, open_world, open_world_of_containers
from tests.support.requirements import require

GOOD, BETTER = "93.184.216.34", "1.1.1.1"
TALK = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=10) as mine:
            mine.sendall(b"hello")
            mine.shutdown(socket.SHUT_WR)
            print(place, mine.recv(64).decode() or "nothing")
    except OSError as error:
        print(place, type(error).__name__)
"""


@pytest.fixture
def world() -> World:
    names = {
        "good.org": (GOOD,),
        "other.org": (BETTER,),
        "rebound.org": ("127.0.0.1",),
        "metadata.org": ("169.254.169.254",),
        "mixed.org": ("10.0.0.1", GOOD),
    }
    return World(names=names)


@pytest.fixture(params=["native", pytest.param("docker", marks=pytest.mark.backends)])
async def backend(
    request: pytest.FixtureRequest, runtime_dir: Path, world: World
) -> AsyncGenerator[SandboxBackend]:
    if request.param == "docker":
        require_docker()
        async with open_world_of_containers(world) as opened:
            yield opened
        return
    try:
        async with open_world(runtime_dir, world) as opened:
            yield opened
    except IsolationUnavailableError as refusal:
        require("namespaces", available=False, why=str(refusal))


async def talk(backend: SandboxBackend, hosts: tuple[str, ...], *places: str) -> ExecutionResult:
    async with backend.open_sandbox(Limits(), SandboxSpec(hosts=hosts)) as sandbox:
        with anyio.fail_after(60):
            return await sandbox.run(Command(argv=("python3", "-c", TALK, *places)))


async def test_a_host_on_the_list_is_reached_and_others_are_told(
    backend: SandboxBackend, world: World
) -> None:
    result = await talk(backend, ("good.org",), "good.org:443", "other.org:443")

    assert result.stdout == "good.org:443 hello\nother.org:443 gaierror\n"
    assert world.connected == [(GOOD, 443)]
    assert world.asked == ["good.org"], "what is not on the list is not asked of anybody"
    assert result.denials == (
        BlockedConnection(host="other.org", port=None, why="not on the list of hosts"),
    )


async def test_names_that_lead_inside_are_denied(backend: SandboxBackend, world: World) -> None:
    hosts = ("rebound.org", "metadata.org", "mixed.org")

    result = await talk(backend, hosts, *(f"{host}:80" for host in hosts))

    assert [denial.host for denial in result.denials] == ["rebound.org", "metadata.org"]
    assert world.connected == [(GOOD, 80)], "of the mixed ones, the good one"


async def test_an_address_does_not_stand_for_a_host_on_the_list(
    backend: SandboxBackend, world: World
) -> None:
    result = await talk(backend, ("good.org",), f"{GOOD}:443", "good.org:22")

    assert {(denial.host, denial.port) for denial in result.denials} == {
        (GOOD, 443),
        ("good.org", 22),
    }
    assert world.connected == []


async def test_each_name_leads_to_its_own_host(backend: SandboxBackend, world: World) -> None:
    await talk(backend, ("*.org",), "good.org:443", "other.org:80", "good.org:80")

    assert world.connected == [(GOOD, 443), (BETTER, 80), (GOOD, 80)]


async def test_no_more_connections_than_a_sandbox_may_have(backend: SandboxBackend) -> None:
    crowd = python(
        """
import socket
held, refused = [], 0
for _ in range(80):
    try:
        mine = socket.create_connection(("good.org", 443), timeout=10)
        mine.sendall(b"x")
        mine.recv(1) and held.append(mine)
    except OSError:
        refused += 1
print(len(held), refused)
"""
    )
    async with backend.open_sandbox(Limits(), SandboxSpec(hosts=("good.org",))) as sandbox:
        with anyio.fail_after(60):
            result = await sandbox.run(crowd)
            after = await sandbox.run(Command(argv=("python3", "-c", TALK, "good.org:443")))

    assert result.stdout == "64 16\n"
    assert [denial.why for denial in result.denials] == ["more connections than a sandbox may have"]
    assert after.stdout == "good.org:443 hello\n", "those of an execution end with it"


async def test_large_answers_arrive_whole(backend: SandboxBackend) -> None:
    exchange = python(
        """
import hashlib, os, socket, threading
data = os.urandom(3 << 20)
mine = socket.create_connection(("good.org", 443), timeout=20)
def send():
    mine.sendall(data)
    mine.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
back = b""
while piece := mine.recv(1 << 16):
    back += piece
print(back == data)
"""
    )
    async with backend.open_sandbox(Limits(), SandboxSpec(hosts=("good.org",))) as sandbox:
        with anyio.fail_after(60):
            result = await sandbox.run(exchange)

    assert result.stdout == "True\n", result.stderr


async def test_cells_of_an_interpreter_reach_hosts_and_are_told_what_not(
    backend: SandboxBackend,
) -> None:
    cells = [
        "import socket",
        "print(socket.create_connection(('good.org', 443)).getpeername()[1])",
        "try: socket.getaddrinfo('other.org', 443)\nexcept OSError: print('no')",
        "print('well')",
    ]
    async with (
        backend.open_sandbox(Limits(), SandboxSpec(hosts=("good.org",))) as sandbox,
        sandbox.open_interpreter() as interpreter,
    ):
        with anyio.fail_after(60):
            executions = [(await interpreter.run_cell(cell)).execution for cell in cells]

    assert [execution.stdout for execution in executions] == ["", "443\n", "no\n", "well\n"]
    assert [len(execution.denials) for execution in executions] == [0, 0, 1, 0]


async def test_sandboxes_without_hosts_beside_one_have_no_network(backend: SandboxBackend) -> None:
    knock = "socket.create_connection(('192.0.2.1', 443), timeout=10)"
    try_it = python(f"import socket\ntry: {knock}\nexcept OSError as e: print(e.errno)")
    async with (
        backend.open_sandbox(Limits(), SandboxSpec(hosts=("good.org",))) as one,
        backend.open_sandbox(Limits()) as other,
    ):
        await one.run(python("pass"))
        result = await other.run(try_it)

    assert result.stdout == f"{errno.ENETUNREACH}\n"
    assert result.denials == ()


async def test_without_namespaces_hosts_are_refused(runtime_dir: Path) -> None:
    try:
        async with open_own(runtime_dir, namespaces=False) as backend:
            with pytest.raises(UsageError, match="network of its own"):
                async with backend.open_sandbox(Limits(), SandboxSpec(hosts=("good.org",))):
                    pass
    except IsolationUnavailableError as refusal:
        require("landlock", available=False, why=str(refusal))
