"""Requirements for the start of a program: arguments, environment, directory, input."""

import hashlib
import json
from dataclasses import replace
from pathlib import PurePosixPath

from assay.contracts.execution import WORKSPACE, Command, Isolation
from assay.contracts.ports import SandboxBackend
from assay.selftest.conformance.promise import promise
from assay.selftest.programs import ORDINARY, describe, python, run_alone, shell

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
