"""Requirements for one program: its end, its start, and its usual environment.

The end has exit codes, signals and failed starts. The start has arguments, variables, directory and
input. The environment has loopback network, terminals and devices.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import PurePosixPath

from assay.contracts.execution import WORKSPACE, Command, Isolation, Program, Reason
from assay.contracts.ports import SandboxBackend
from assay.selftest.conformance.requirement import promise
from assay.selftest.programs import ORDINARY, describe, python, run_alone, shell


@promise
async def a_program_that_ends_well_is_a_success(backend: SandboxBackend) -> None:
    result = await run_alone(backend, python("print(6 * 7)"))

    assert result.succeeded, describe(result)
    assert result.exit_code == 0, describe(result)
    assert result.signal is None, describe(result)
    assert result.reason is Reason.COMPLETED, describe(result)
    assert result.stdout_bytes == b"42\n", describe(result)
    assert result.stderr_bytes == b"", describe(result)
    assert result.limits_hit == (), describe(result)
    assert not result.truncated, describe(result)
    assert not result.timed_out, describe(result)


@promise
async def a_failing_program_is_a_result(backend: SandboxBackend) -> None:
    result = await run_alone(backend, python("import sys; print('so far'); sys.exit(3)"))

    assert result.exit_code == 3, describe(result)
    assert result.reason is Reason.COMPLETED, describe(result)
    assert not result.succeeded, describe(result)
    assert result.stdout == "so far\n", describe(result)


@promise
async def exit_codes_of_commands_come_back_as_they_were(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for code in (0, 1, 2, 124, 125, 126, 127, 128, 137, 139, 255):
            result = await sandbox.run(shell(f"exit {code}"))

            assert result.exit_code == code, f"expected exit code {code}: {describe(result)}"
            assert result.signal is None, describe(result)
            assert result.reason is Reason.COMPLETED, describe(result)


@promise
async def exit_codes_of_python_come_back_as_python_gives_them(backend: SandboxBackend) -> None:
    endings = {
        "raise SystemExit": 0,
        "raise SystemExit(None)": 0,
        "raise SystemExit(7)": 7,
        "raise SystemExit(True)": 1,
        "raise SystemExit(256)": 0,
        "raise SystemExit(-1)": 255,
        "import sys; sys.exit(sys.version_info)": 1,
        "import os; os._exit(9)": 9,
        "exit(4)": 4,
        "raise KeyboardInterrupt": None,
    }
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for source, code in endings.items():
            result = await sandbox.run(python(source))

            if code is None:
                assert not result.succeeded, f"{source!r}: {describe(result)}"
            else:
                assert result.exit_code == code, f"{source!r} gives {code}: {describe(result)}"
                assert result.reason is Reason.COMPLETED, f"{source!r}: {describe(result)}"


@promise
async def system_exit_with_a_message_fails_and_shows_it(backend: SandboxBackend) -> None:
    result = await run_alone(backend, python("import sys; sys.exit('no luck today')"))

    assert result.exit_code == 1, describe(result)
    assert result.stderr == "no luck today\n", describe(result)


@promise
async def a_crash_is_a_signal(backend: SandboxBackend) -> None:
    result = await run_alone(
        backend, python("import ctypes; print('before', flush=True); ctypes.string_at(0)")
    )

    assert result.reason is Reason.SIGNALLED, describe(result)
    assert result.signal == 11, describe(result)
    assert result.exit_code is None, describe(result)
    assert result.stdout == "before\n", describe(result)


@promise
async def a_program_that_signals_itself_is_signalled(backend: SandboxBackend) -> None:
    endings = {
        "import os; os.kill(os.getpid(), 9)": 9,
        "import os; os.kill(os.getpid(), 15)": 15,
        "import os; os.abort()": 6,
    }
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for source, number in endings.items():
            result = await sandbox.run(python(source))

            assert result.signal == number, f"{source!r}: {describe(result)}"
            assert result.exit_code is None, f"{source!r}: {describe(result)}"
            assert result.reason is Reason.SIGNALLED, f"{source!r}: {describe(result)}"


@promise
async def a_command_that_signals_itself_is_signalled(backend: SandboxBackend) -> None:
    result = await run_alone(backend, shell("echo before; kill -KILL $$; echo after"))

    assert result.signal == 9, describe(result)
    assert result.exit_code is None, describe(result)
    assert result.reason is Reason.SIGNALLED, describe(result)
    assert result.stdout == "before\n", describe(result)


@promise
async def a_program_may_handle_its_own_signals(backend: SandboxBackend) -> None:
    source = """
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: print("handled"))
        os.kill(os.getpid(), signal.SIGTERM)
    """
    result = await run_alone(backend, python(source))

    assert result.succeeded, describe(result)
    assert result.stdout == "handled\n", describe(result)


@promise
async def a_program_that_does_not_exist_could_not_start(backend: SandboxBackend) -> None:
    await _could_not_start(backend, Command(argv=("no-such-program-here",)))
    await _could_not_start(backend, Command(argv=("./missing/tool",)))


@promise
async def a_file_that_is_not_executable_could_not_start(backend: SandboxBackend) -> None:
    await _could_not_start(backend, Command(argv=("./plain",)), files={"plain": b"#!/bin/sh\n"})


@promise
async def a_directory_could_not_start(backend: SandboxBackend) -> None:
    await _could_not_start(backend, Command(argv=("./folder",)), files={"folder/file": b""})


@promise
async def a_file_that_is_no_program_could_not_start(backend: SandboxBackend) -> None:
    await _could_not_start(
        backend,
        Command(argv=("./noise",)),
        programs={"noise": b"\x7fELF\x02\x01\x01 this is not a program"},
    )


@promise
async def a_script_without_its_interpreter_could_not_start(backend: SandboxBackend) -> None:
    await _could_not_start(
        backend, Command(argv=("./script",)), programs={"script": b"#!/no/such/interpreter\n"}
    )


@promise
async def a_missing_working_directory_could_not_start(backend: SandboxBackend) -> None:
    nowhere = PurePosixPath("no/such/place")
    await _could_not_start(backend, replace(shell("echo ran"), cwd=nowhere))
    await _could_not_start(backend, replace(python("print('ran')"), cwd=nowhere))


@promise
async def a_file_as_working_directory_could_not_start(backend: SandboxBackend) -> None:
    place = PurePosixPath("file")
    await _could_not_start(backend, replace(shell("echo ran"), cwd=place), files={"file": b""})
    await _could_not_start(backend, replace(python("print('ran')"), cwd=place), files={"file": b""})


async def _could_not_start(
    backend: SandboxBackend,
    program: Program,
    *,
    files: dict[str, bytes] | None = None,
    programs: dict[str, bytes] | None = None,
) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for name, content in (files or {}).items():
            await sandbox.write_file(PurePosixPath(name), content)
        for name, content in (programs or {}).items():
            await sandbox.write_file(PurePosixPath(name), content, executable=True)

        result = await sandbox.run(program)

        assert result.reason is Reason.COULD_NOT_START, describe(result)
        assert not result.succeeded, describe(result)
        assert result.stdout_bytes == b"", f"something ran: {describe(result)}"
        after = await sandbox.run(shell("echo alive"))
        assert after.stdout == "alive\n", f"the sandbox did not survive: {describe(after)}"


_ODD_WORDS = (
    "",
    "two words",
    "'quotes\"",
    "$HOME `id` ; rm *",
    "line\nbreak",
    "café ✓",
    "-n",
    "\\",
)
_BIG = b"0123456789abcdef" * (5 << 16)  # 5 MiB: more than any pipe buffer

_DUMP_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


@promise
async def arguments_of_commands_arrive_as_they_are(backend: SandboxBackend) -> None:
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    result = await run_alone(backend, Command(argv=("python3", "-c", show, *_ODD_WORDS)))

    assert result.succeeded, describe(result)
    assert tuple(json.loads(result.stdout)) == _ODD_WORDS, describe(result)


@promise
async def arguments_of_python_arrive_as_they_are(backend: SandboxBackend) -> None:
    program = python("import json, sys; print(json.dumps(sys.argv[1:]))")
    result = await run_alone(backend, replace(program, args=_ODD_WORDS))

    assert result.succeeded, describe(result)
    assert tuple(json.loads(result.stdout)) == _ODD_WORDS, describe(result)


@promise
async def programs_are_found_by_name(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for argv in (("sh", "-c", "echo here"), ("python3", "-c", "print('here')")):
            result = await sandbox.run(Command(argv=argv))

            assert result.stdout == "here\n", f"{argv}: {describe(result)}"


@promise
async def a_given_search_path_is_used(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(
            PurePosixPath("tools/greet"), b"#!/bin/sh\necho greetings\n", executable=True
        )
        place = (await sandbox.run(shell("pwd"))).stdout.strip()

        path = f"{place}/tools:/usr/local/bin:/usr/bin:/bin"
        result = await sandbox.run(Command(argv=("greet",), env={"PATH": path}))

        assert result.stdout == "greetings\n", describe(result)


@promise
async def given_environment_variables_arrive(backend: SandboxBackend) -> None:
    given = {"PLAIN": "value", "EMPTY": "", "LINES": "a\nb", "TEXT": "café ✓", "EQUALS": "a=b=c"}
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for program in (
            replace(python(_DUMP_ENVIRONMENT), env=given),
            Command(argv=("python3", "-c", _DUMP_ENVIRONMENT), env=given),
        ):
            result = await sandbox.run(program)

            assert result.succeeded, describe(result)
            seen = json.loads(result.stdout)
            assert {name: seen.get(name) for name in given} == given, describe(result)


@promise
async def given_variables_win_over_the_sandbox_ones(backend: SandboxBackend) -> None:
    program = replace(python("import os; print(os.environ['HOME'])"), env={"HOME": "/nowhere"})
    result = await run_alone(backend, program)

    assert result.stdout == "/nowhere\n", describe(result)


@promise
async def the_environment_is_small_and_the_same_for_all(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        first = await sandbox.run(Command(argv=("python3", "-c", _DUMP_ENVIRONMENT)))
        second = await sandbox.run(Command(argv=("python3", "-c", _DUMP_ENVIRONMENT)))

        assert first.succeeded, describe(first)
        names = set(json.loads(first.stdout))
        assert {"PATH", "HOME"} <= names, f"a program needs PATH and HOME, and has {names}"
        assert len(names) <= 24, f"these variables look like the user's own: {sorted(names)}"
        assert names == set(json.loads(second.stdout)), describe(second)


@promise
async def home_and_temporary_directories_are_writable(backend: SandboxBackend) -> None:
    source = """
        import os, pathlib, tempfile
        (pathlib.Path.home() / "note").write_text("home")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("temporary")
        print("fine")
    """
    result = await run_alone(backend, python(source))

    assert result.stdout == "fine\n", describe(result)


@promise
async def programs_start_in_the_workspace(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.run(python("open('by-python', 'w').close()"))
        await sandbox.run(shell(": > by-shell"))

        listed = [str(entry.path) for entry in await sandbox.list_files()]
        assert listed == ["by-python", "by-shell"], f"the workspace holds {listed}"


@promise
async def programs_start_in_the_working_directory_given(backend: SandboxBackend) -> None:
    place = PurePosixPath("deep/down")
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.make_directory(place)
        for program in (
            python("open('by-python', 'w').close()"),
            shell(': > by-shell; test "$PWD" = "$(pwd -P)"'),
        ):
            result = await sandbox.run(replace(program, cwd=place))
            assert result.succeeded, describe(result)

        listed = [entry.path.name for entry in await sandbox.list_files(place)]
        assert listed == ["by-python", "by-shell"], f"the directory holds {listed}"


@promise(needs=Isolation.ISOLATED)
async def the_workspace_has_its_agreed_place(backend: SandboxBackend) -> None:
    result = await run_alone(backend, python("import os; print(os.getcwd())"))

    assert result.stdout == f"{WORKSPACE}\n", describe(result)


@promise
async def standard_input_arrives_as_it_is(backend: SandboxBackend) -> None:
    sent = bytes(range(256)) * 3 + b"\xff\xfe no newline at the end"
    copy = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for program in (
            replace(python(copy), stdin=sent),
            Command(argv=("cat",), stdin=sent),
        ):
            result = await sandbox.run(program)

            assert result.stdout_bytes == sent, describe(result)


@promise
async def input_reads_lines_of_standard_input(backend: SandboxBackend) -> None:
    program = replace(python("print(input() + input('? '))"), stdin="né\nmore\n".encode())
    result = await run_alone(backend, program)

    assert result.stdout == "? némore\n", describe(result)


@promise
async def standard_input_is_at_its_end_when_none_is_given(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for program in (
            python("import sys; print(repr(sys.stdin.read()))"),
            shell("cat; echo \"''\""),
        ):
            result = await sandbox.run(program)

            assert result.stdout == "''\n", describe(result)


@promise
async def megabytes_of_standard_input_arrive_whole(backend: SandboxBackend) -> None:
    source = """
        import hashlib, sys
        print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())
    """
    result = await run_alone(backend, replace(python(source), stdin=_BIG))

    assert result.stdout.strip() == hashlib.sha256(_BIG).hexdigest(), describe(result)


@promise
async def megabytes_pass_through_a_program_without_a_deadlock(backend: SandboxBackend) -> None:
    limits = replace(ORDINARY, output_bytes=len(_BIG))
    result = await run_alone(backend, Command(argv=("cat",), stdin=_BIG), limits)

    assert result.succeeded, describe(result)
    assert result.stdout_bytes == _BIG, f"{len(result.stdout_bytes)} bytes came back: not the same"


@promise
async def a_program_need_not_read_its_input(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for program in (
            replace(python("print('done')"), stdin=_BIG),
            replace(python("import os; os.close(0); print('done')"), stdin=_BIG),
            replace(shell("exec <&-; echo done"), stdin=_BIG),
            replace(shell("echo done"), stdin=_BIG),
        ):
            result = await sandbox.run(program)

            assert result.succeeded, describe(result)
            assert result.stdout == "done\n", describe(result)


@promise
async def there_is_no_terminal(backend: SandboxBackend) -> None:
    source = """
        import os
        print([os.isatty(fd) for fd in range(3)])
        try:
            os.open("/dev/tty", os.O_RDWR)
        except OSError:
            print("no controlling terminal")
    """
    result = await run_alone(backend, python(source))

    expected = "[False, False, False]\nno controlling terminal\n"
    assert result.stdout == expected, describe(result)


@promise
async def nothing_of_ours_is_imported_already(backend: SandboxBackend) -> None:
    source = "import sys; print(*(name for name in sys.modules if name.startswith('assay')))"
    result = await run_alone(backend, python(source))

    assert result.stdout == "\n", describe(result)


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
