"""Requirements for one program: its end, its start, and its usual environment.

The end has exit codes, signals and failed starts. The start has arguments, variables, directory and
input. The environment has loopback network, terminals and devices.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import PurePosixPath

from assay.contracts.execution import WORKSPACE, Command, Isolation, Program, Reason
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.selftest.checks import requirement
from assay.selftest.programs import (
    ORDINARY,
    describe,
    expect,
    python,
    run_alone,
    run_expecting,
    shell,
)


@requirement
async def a_program_that_exits_with_zero_succeeds(sandbox: Sandbox) -> None:
    result = await sandbox.run(python("print(6 * 7)"))

    expect(result, succeeded=True, exit_code=0, signal=None, reason=Reason.COMPLETED)
    expect(result, stdout_bytes=b"42\n", stderr_bytes=b"", limits_hit=(), truncated=False)
    assert not result.timed_out, describe(result)


@requirement
async def a_failing_program_is_a_result(sandbox: Sandbox) -> None:
    result = await sandbox.run(python("import sys; print('so far'); sys.exit(3)"))

    expect(result, exit_code=3, reason=Reason.COMPLETED, succeeded=False, stdout="so far\n")


@requirement
async def exit_codes_of_commands_are_returned_unchanged(sandbox: Sandbox) -> None:
    for code in (0, 1, 2, 124, 125, 126, 127, 128, 137, 139, 255):
        result = await sandbox.run(shell(f"exit {code}"))

        assert result.exit_code == code, f"expected exit code {code}: {describe(result)}"
        expect(result, signal=None, reason=Reason.COMPLETED)


@requirement
async def exit_codes_of_python_are_returned_unchanged(sandbox: Sandbox) -> None:
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
    for source, code in endings.items():
        result = await sandbox.run(python(source))

        if code is None:
            assert not result.succeeded, f"{source!r}: {describe(result)}"
        else:
            assert result.exit_code == code, f"{source!r} gives {code}: {describe(result)}"
            assert result.reason is Reason.COMPLETED, f"{source!r}: {describe(result)}"


@requirement
async def system_exit_with_a_message_fails_and_shows_it(sandbox: Sandbox) -> None:
    result = await sandbox.run(python("import sys; sys.exit('no luck today')"))

    expect(result, exit_code=1, stderr="no luck today\n")


@requirement
async def a_crash_is_a_signal(sandbox: Sandbox) -> None:
    result = await sandbox.run(
        python("import ctypes; print('before', flush=True); ctypes.string_at(0)")
    )

    expect(result, reason=Reason.SIGNALLED, signal=11, exit_code=None, stdout="before\n")


@requirement
async def a_program_that_signals_itself_ends_by_that_signal(sandbox: Sandbox) -> None:
    endings = {
        "import os; os.kill(os.getpid(), 9)": 9,
        "import os; os.kill(os.getpid(), 15)": 15,
        "import os; os.abort()": 6,
    }
    for source, number in endings.items():
        result = await sandbox.run(python(source))

        assert result.signal == number, f"{source!r}: {describe(result)}"
        assert result.exit_code is None, f"{source!r}: {describe(result)}"
        assert result.reason is Reason.SIGNALLED, f"{source!r}: {describe(result)}"


@requirement
async def a_command_that_signals_itself_ends_by_that_signal(sandbox: Sandbox) -> None:
    result = await sandbox.run(shell("echo before; kill -KILL $$; echo after"))

    expect(result, signal=9, exit_code=None, reason=Reason.SIGNALLED, stdout="before\n")


@requirement
async def a_program_may_handle_its_own_signals(sandbox: Sandbox) -> None:
    source = """
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: print("handled"))
        os.kill(os.getpid(), signal.SIGTERM)
    """
    await run_expecting(sandbox, python(source), succeeded=True, stdout="handled\n")


@requirement
async def a_program_that_does_not_exist_could_not_start(backend: SandboxBackend) -> None:
    await _could_not_start(backend, Command(argv=("no-such-program-here",)))
    await _could_not_start(backend, Command(argv=("./missing/tool",)))


@requirement
async def a_file_that_is_not_executable_could_not_start(backend: SandboxBackend) -> None:
    await _could_not_start(backend, Command(argv=("./plain",)), files={"plain": b"#!/bin/sh\n"})


@requirement
async def a_directory_could_not_start(backend: SandboxBackend) -> None:
    await _could_not_start(backend, Command(argv=("./folder",)), files={"folder/file": b""})


@requirement
async def a_file_that_is_no_program_could_not_start(backend: SandboxBackend) -> None:
    await _could_not_start(
        backend,
        Command(argv=("./noise",)),
        programs={"noise": b"\x7fELF\x02\x01\x01 this is not a program"},
    )


@requirement
async def a_script_without_its_interpreter_could_not_start(backend: SandboxBackend) -> None:
    await _could_not_start(
        backend, Command(argv=("./script",)), programs={"script": b"#!/no/such/interpreter\n"}
    )


@requirement
async def a_missing_working_directory_could_not_start(backend: SandboxBackend) -> None:
    nowhere = PurePosixPath("no/such/place")
    await _could_not_start(backend, replace(shell("echo ran"), cwd=nowhere))
    await _could_not_start(backend, replace(python("print('ran')"), cwd=nowhere))


@requirement
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

        expect(result, reason=Reason.COULD_NOT_START, succeeded=False)
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


@requirement
async def arguments_of_commands_arrive_as_they_are(sandbox: Sandbox) -> None:
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    result = await sandbox.run(Command(argv=("python3", "-c", show, *_ODD_WORDS)))

    assert result.succeeded, describe(result)
    assert tuple(json.loads(result.stdout)) == _ODD_WORDS, describe(result)


@requirement
async def arguments_of_python_arrive_as_they_are(sandbox: Sandbox) -> None:
    program = python("import json, sys; print(json.dumps(sys.argv[1:]))")
    result = await run_expecting(sandbox, replace(program, args=_ODD_WORDS), succeeded=True)
    assert tuple(json.loads(result.stdout)) == _ODD_WORDS, describe(result)


@requirement
async def programs_are_found_by_name(sandbox: Sandbox) -> None:
    for argv in (("sh", "-c", "echo here"), ("python3", "-c", "print('here')")):
        result = await sandbox.run(Command(argv=argv))

        assert result.stdout == "here\n", f"{argv}: {describe(result)}"


@requirement
async def a_given_search_path_is_used(sandbox: Sandbox) -> None:
    await sandbox.write_file(
        PurePosixPath("tools/greet"), b"#!/bin/sh\necho greetings\n", executable=True
    )
    place = (await sandbox.run(shell("pwd"))).stdout.strip()

    path = f"{place}/tools:/usr/local/bin:/usr/bin:/bin"
    await run_expecting(sandbox, Command(argv=("greet",), env={"PATH": path}), stdout="greetings\n")


@requirement
async def given_environment_variables_arrive(sandbox: Sandbox) -> None:
    given = {"PLAIN": "value", "EMPTY": "", "LINES": "a\nb", "TEXT": "café ✓", "EQUALS": "a=b=c"}
    for program in (
        replace(python(_DUMP_ENVIRONMENT), env=given),
        Command(argv=("python3", "-c", _DUMP_ENVIRONMENT), env=given),
    ):
        result = await run_expecting(sandbox, program, succeeded=True)
        seen = json.loads(result.stdout)
        assert {name: seen.get(name) for name in given} == given, describe(result)


@requirement
async def given_variables_win_over_the_sandbox_ones(sandbox: Sandbox) -> None:
    program = replace(python("import os; print(os.environ['HOME'])"), env={"HOME": "/nowhere"})
    await run_expecting(sandbox, program, stdout="/nowhere\n")


@requirement
async def the_environment_is_small_and_the_same_for_all(sandbox: Sandbox) -> None:
    first = await sandbox.run(Command(argv=("python3", "-c", _DUMP_ENVIRONMENT)))
    second = await sandbox.run(Command(argv=("python3", "-c", _DUMP_ENVIRONMENT)))

    assert first.succeeded, describe(first)
    names = set(json.loads(first.stdout))
    assert {"PATH", "HOME"} <= names, f"a program needs PATH and HOME, and has {names}"
    assert len(names) <= 24, f"these variables look like the user's own: {sorted(names)}"
    assert names == set(json.loads(second.stdout)), describe(second)


@requirement
async def home_and_temporary_directories_are_writable(sandbox: Sandbox) -> None:
    source = """
        import os, pathlib, tempfile
        (pathlib.Path.home() / "note").write_text("home")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("temporary")
        print("fine")
    """
    await run_expecting(sandbox, python(source), stdout="fine\n")


@requirement
async def programs_start_in_the_workspace(sandbox: Sandbox) -> None:
    await sandbox.run(python("open('by-python', 'w').close()"))
    await sandbox.run(shell(": > by-shell"))

    listed = [str(entry.path) for entry in await sandbox.list_files()]
    assert listed == ["by-python", "by-shell"], f"the workspace holds {listed}"


@requirement
async def programs_start_in_the_working_directory_given(sandbox: Sandbox) -> None:
    place = PurePosixPath("deep/down")
    await sandbox.make_directory(place)
    for program in (
        python("open('by-python', 'w').close()"),
        shell(': > by-shell; test "$PWD" = "$(pwd -P)"'),
    ):
        await run_expecting(sandbox, replace(program, cwd=place), succeeded=True)

    listed = [entry.path.name for entry in await sandbox.list_files(place)]
    assert listed == ["by-python", "by-shell"], f"the directory holds {listed}"


@requirement(needs=Isolation.ISOLATED)
async def the_workspace_has_a_fixed_path(sandbox: Sandbox) -> None:
    await run_expecting(sandbox, python("import os; print(os.getcwd())"), stdout=f"{WORKSPACE}\n")


@requirement
async def standard_input_arrives_unchanged(sandbox: Sandbox) -> None:
    sent = bytes(range(256)) * 3 + b"\xff\xfe no newline at the end"
    copy = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    for program in (
        replace(python(copy), stdin=sent),
        Command(argv=("cat",), stdin=sent),
    ):
        await run_expecting(sandbox, program, stdout_bytes=sent)


@requirement
async def input_reads_lines_of_standard_input(sandbox: Sandbox) -> None:
    program = replace(python("print(input() + input('? '))"), stdin="né\nmore\n".encode())
    await run_expecting(sandbox, program, stdout="? némore\n")


@requirement
async def standard_input_is_empty_by_default(sandbox: Sandbox) -> None:
    for program in (
        python("import sys; print(repr(sys.stdin.read()))"),
        shell("cat; echo \"''\""),
    ):
        await run_expecting(sandbox, program, stdout="''\n")


@requirement
async def megabytes_of_standard_input_arrive_whole(sandbox: Sandbox) -> None:
    source = """
        import hashlib, sys
        print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())
    """
    result = await sandbox.run(replace(python(source), stdin=_BIG))

    assert result.stdout.strip() == hashlib.sha256(_BIG).hexdigest(), describe(result)


@requirement
async def megabytes_pass_through_a_program_without_a_deadlock(backend: SandboxBackend) -> None:
    limits = replace(ORDINARY, output_bytes=len(_BIG))
    result = await run_alone(backend, Command(argv=("cat",), stdin=_BIG), limits)

    assert result.succeeded, describe(result)
    assert result.stdout_bytes == _BIG, f"{len(result.stdout_bytes)} bytes came back: not the same"


@requirement
async def a_program_need_not_read_its_input(sandbox: Sandbox) -> None:
    for program in (
        replace(python("print('done')"), stdin=_BIG),
        replace(python("import os; os.close(0); print('done')"), stdin=_BIG),
        replace(shell("exec <&-; echo done"), stdin=_BIG),
        replace(shell("echo done"), stdin=_BIG),
    ):
        await run_expecting(sandbox, program, succeeded=True, stdout="done\n")


@requirement
async def there_is_no_terminal(sandbox: Sandbox) -> None:
    source = """
        import os
        print([os.isatty(fd) for fd in range(3)])
        try:
            os.open("/dev/tty", os.O_RDWR)
        except OSError:
            print("no controlling terminal")
    """
    result = await sandbox.run(python(source))

    expected = "[False, False, False]\nno controlling terminal\n"
    assert result.stdout == expected, describe(result)


@requirement
async def no_module_of_assay_is_imported(sandbox: Sandbox) -> None:
    source = "import sys; print(*(name for name in sys.modules if name.startswith('assay')))"
    await run_expecting(sandbox, python(source), stdout="\n")


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


@requirement(needs=Isolation.ISOLATED)
async def programs_connect_over_the_loopback(sandbox: Sandbox) -> None:
    for program in (python(_TALK), Command(argv=("python3", "-c", _TALK))):
        result = await sandbox.run(program)

        expected = "stream\ndatagram\n" * 2 + "stream\n"
        assert result.stdout == expected, describe(result)


@requirement(needs=Isolation.RESTRICTED)
async def an_outside_address_is_refused_immediately(sandbox: Sandbox) -> None:
    knock = """
        import errno, socket
        for place in (("192.0.2.1", 443), ("198.51.100.7", 80), ("2001:db8::1", 443)):
            try:
                # A connection that only times out has no number of an error.
                socket.create_connection(place, timeout=10)
            except OSError as error:
                print(errno.errorcode.get(error.errno), flush=True)
    """
    result = await sandbox.run(python(knock))

    plain = {"ENETUNREACH", "EPERM", "EACCES", "EHOSTUNREACH", "EADDRNOTAVAIL"}
    said = result.stdout.split()
    assert len(said) == 3, describe(result)
    assert plain.issuperset(said), describe(result)
    assert result.denials == (), f"told were {result.denials}"


@requirement(needs=Isolation.ISOLATED)
async def programs_can_open_pseudo_terminals(sandbox: Sandbox) -> None:
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
    result = await sandbox.run(python(source))

    expected = "True True\nb'typed\\n'\nb'on a terminal\\r\\n'\n0\n"
    assert result.stdout == expected, describe(result)


@requirement
async def a_program_can_list_its_open_files(sandbox: Sandbox) -> None:
    listing = "import os; print({'0', '1', '2'} <= set(os.listdir('/proc/self/fd')))"
    for program in (
        python(listing),
        Command(argv=("python3", "-c", listing)),
        Command(argv=("sh", "-c", f'python3 -c "{listing}"; exit $?')),
    ):
        await run_expecting(sandbox, program, stdout="True\n")


@requirement
async def devices_can_be_read_and_written(sandbox: Sandbox) -> None:
    source = """
        with open("/dev/null", "w") as nowhere:
            nowhere.write("gone")
        with open("/dev/null", "a+b") as nowhere:
            print(nowhere.read())
        with open("/dev/zero", "rb") as zeros, open("/dev/urandom", "rb") as noise:
            print(zeros.read(3), len(noise.read(5)))
    """
    await run_expecting(sandbox, python(source), stdout="b''\nb'\\x00\\x00\\x00' 5\n")

    await run_expecting(sandbox, shell("echo gone > /dev/null && echo there"), stdout="there\n")
