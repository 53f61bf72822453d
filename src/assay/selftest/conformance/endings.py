"""Requirements for the end of a program: exit codes, signals, and failed starts."""

from dataclasses import replace
from pathlib import PurePosixPath

from assay.contracts.execution import Command, Program, Reason
from assay.contracts.ports import SandboxBackend
from assay.selftest.conformance.promise import promise
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
