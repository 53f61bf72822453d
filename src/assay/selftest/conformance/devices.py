"""Requirements for the usual environment of programs: loopback network, terminals, devices."""

from assay.contracts.execution import Command, Isolation
from assay.contracts.ports import SandboxBackend
from assay.selftest.conformance.promise import promise
from assay.selftest.programs import ORDINARY, describe, python, run_alone, shell

_TALK = """
import socket, threading

def over_streams(family, address):
    with socket.create_server((address, 0), family=family) as server:
        with socket.create_connection(server.getsockname()[:2], timeout=5) as mine:
            theirs, _ = server.accept()
            with theirs:
                theirs.sendall(b"stream")
                print(mine.recv(6).decode(), flush=True)

def over_datagrams(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as server:
        server.bind((address, 0))
        server.settimeout(5)
        with socket.socket(family, socket.SOCK_DGRAM) as mine:
            mine.sendto(b"datagram", server.getsockname()[:2])
        print(server.recv(64).decode(), flush=True)

for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    over_streams(family, address)
    over_datagrams(family, address)
over_streams(socket.AF_INET, "localhost")
"""


@promise(needs=Isolation.ISOLATED)
async def programs_talk_over_the_loopback(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for program in (python(_TALK), Command(argv=("python3", "-c", _TALK))):
            result = await sandbox.run(program)

            expected = "stream\ndatagram\n" * 2 + "stream\n"
            assert result.stdout == expected, describe(result)


@promise(needs=Isolation.RESTRICTED)
async def an_address_outside_is_refused_at_once(backend: SandboxBackend) -> None:
    knock = """
        import errno, socket
        for place in (("192.0.2.1", 443), ("198.51.100.7", 80), ("2001:db8::1", 443)):
            try:
                # A connection that only times out has no number of an error.
                socket.create_connection(place, timeout=10)
            except OSError as error:
                print(errno.errorcode.get(error.errno), flush=True)
    """
    result = await run_alone(backend, python(knock))

    plain = {"ENETUNREACH", "EPERM", "EACCES", "EHOSTUNREACH", "EADDRNOTAVAIL"}
    said = result.stdout.split()
    assert len(said) == 3, describe(result)
    assert plain.issuperset(said), describe(result)
    assert result.denials == (), f"told were {result.denials}"


@promise(needs=Isolation.ISOLATED)
async def programs_open_terminals_of_their_own(backend: SandboxBackend) -> None:
    source = """
        import os, pty
        ours, theirs = os.openpty()
        print(os.isatty(theirs), os.ttyname(theirs).startswith("/dev/pts/"))
        os.write(ours, b"typed\\n")
        print(os.read(theirs, 64))
        child, screen = pty.fork()
        if child == 0:
            os.execvp("sh", ["sh", "-c", "test -t 0 && echo on a terminal"])
        print(os.read(screen, 64))
        print(os.waitpid(child, 0)[1])
    """
    result = await run_alone(backend, python(source))

    expected = "True True\nb'typed\\n'\nb'on a terminal\\r\\n'\n0\n"
    assert result.stdout == expected, describe(result)


@promise
async def a_program_can_list_what_it_has_open(backend: SandboxBackend) -> None:
    listing = "import os; print({'0', '1', '2'} <= set(os.listdir('/proc/self/fd')))"
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for program in (
            python(listing),
            Command(argv=("python3", "-c", listing)),
            Command(argv=("sh", "-c", f'python3 -c "{listing}"; exit $?')),
        ):
            result = await sandbox.run(program)

            assert result.stdout == "True\n", describe(result)


@promise
async def devices_can_be_read_and_written(backend: SandboxBackend) -> None:
    source = """
        with open("/dev/null", "w") as nowhere:
            nowhere.write("gone")
        with open("/dev/null", "a+b") as nowhere:
            print(nowhere.read())
        with open("/dev/zero", "rb") as zeros, open("/dev/urandom", "rb") as noise:
            print(zeros.read(3), len(noise.read(5)))
    """
    async with backend.open_sandbox(ORDINARY) as sandbox:
        result = await sandbox.run(python(source))
        assert result.stdout == "b''\nb'\\x00\\x00\\x00' 5\n", describe(result)

        result = await sandbox.run(shell("echo gone > /dev/null && echo there"))
        assert result.stdout == "there\n", describe(result)
