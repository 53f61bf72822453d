"""Requirements for output: complete, prompt, limited and correctly counted."""

from collections import defaultdict
from dataclasses import replace
from pathlib import PurePosixPath

import anyio

from assay.contracts.execution import ExecutionResult, OutputChunk, Reason
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.selftest.checks import requirement
from assay.selftest.programs import ORDINARY, describe, expect, python, run_expecting, shell

_GO = PurePosixPath("go")
_READY_THEN_WAIT = """
    import os, time
    print("ready", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
    print("went on")
"""


@requirement
async def the_two_streams_are_kept_apart(sandbox: Sandbox) -> None:
    for program in (
        python("import sys; print('out'); print('err', file=sys.stderr)"),
        shell("echo out; echo err >&2"),
    ):
        await run_expecting(sandbox, program, stdout="out\n", stderr="err\n")


@requirement
async def every_byte_survives(sandbox: Sandbox) -> None:
    source = """
        import sys
        sys.stdout.buffer.write(bytes(range(256)))
        sys.stderr.buffer.write(bytes(reversed(range(256))))
    """
    result = await sandbox.run(python(source))

    expect(result, stdout_bytes=bytes(range(256)), stderr_bytes=bytes(reversed(range(256))))


@requirement
async def broken_utf_8_is_replaced_in_text_and_kept_in_bytes(sandbox: Sandbox) -> None:
    result = await sandbox.run(shell(r"printf 'caf\303\251 \377\000 \303'"))

    expect(result, stdout_bytes=b"caf\xc3\xa9 \xff\x00 \xc3", stdout="café \ufffd\0 \ufffd")


@requirement
async def text_is_written_as_utf_8(sandbox: Sandbox) -> None:
    for program in (
        python("print('naïve ✓ 汉字 🜚')"),
        replace(shell('python3 -c "$CODE"'), env={"CODE": "print('naïve ✓ 汉字 🜚')"}),
    ):
        await run_expecting(sandbox, program, stdout="naïve ✓ 汉字 🜚\n")


@requirement
async def output_without_a_final_newline_is_kept(sandbox: Sandbox) -> None:
    result = await sandbox.run(python("print('half a line', end='')"))

    assert result.stdout_bytes == b"half a line", describe(result)


@requirement
async def output_of_child_processes_is_kept(sandbox: Sandbox) -> None:
    source = """
        import subprocess, sys
        print("parent", flush=True)
        subprocess.run([sys.executable, "-c", "print('child')"], check=True)
        subprocess.run(["sh", "-c", "echo grandchild >&2"], check=True)
    """
    await run_expecting(sandbox, python(source), stdout="parent\nchild\n", stderr="grandchild\n")


@requirement(limits=replace(ORDINARY, output_bytes=1000))
async def output_beyond_the_limit_is_dropped_and_counted(sandbox: Sandbox) -> None:
    source = """
        import sys
        sys.stdout.write("a" * 1000 + "b" * 1500)
        sys.stderr.write("c" * 1000 + "d" * 7)
    """
    result = await run_expecting(sandbox, python(source), succeeded=True, stdout_bytes=b"a" * 1000)
    assert result.stdout_dropped_bytes == 1500, f"{result.stdout_dropped_bytes} counted, not 1500"
    assert result.stderr_bytes == b"c" * 1000, describe(result)
    assert result.stderr_dropped_bytes == 7, f"{result.stderr_dropped_bytes} counted, not 7"
    assert result.truncated, describe(result)
    assert "output_bytes" in result.limits_hit, describe(result)


@requirement(limits=replace(ORDINARY, output_bytes=1000))
async def output_up_to_the_limit_is_whole(sandbox: Sandbox) -> None:
    source = "import sys; sys.stdout.write('a' * 1000); sys.stderr.write('b' * 1000)"
    result = await sandbox.run(python(source))

    assert len(result.stdout_bytes) == len(result.stderr_bytes) == 1000, describe(result)
    assert not result.truncated, describe(result)
    assert "output_bytes" not in result.limits_hit, describe(result)


@requirement
async def a_flood_of_output_ends_the_program(backend: SandboxBackend) -> None:
    limits = replace(ORDINARY, output_bytes=10_000)
    async with backend.open_sandbox(limits) as sandbox:
        for program in (shell("yes | tr -d '\\n'"), shell("yes >&2")):
            result = await sandbox.run(program)

            expect(result, reason=Reason.OUTPUT_LIMIT, exit_code=None, truncated=True)
            kept = max(len(result.stdout_bytes), len(result.stderr_bytes))
            assert kept == limits.output_bytes, f"{kept} bytes were kept"
            assert "output_bytes" in result.limits_hit, describe(result)


@requirement
async def output_arrives_while_the_program_runs(sandbox: Sandbox) -> None:
    seen = anyio.Event()

    def listen(chunk: OutputChunk) -> None:
        if b"ready" in chunk.data:
            seen.set()

    results: list[ExecutionResult] = []

    async def run() -> None:
        # The program ends only when a file arrives that is written after its output was
        # received.
        results.append(await sandbox.run(python(_READY_THEN_WAIT), on_output=listen))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(15):
            await seen.wait()
        assert not results, "its output was seen only after its end"
        await sandbox.write_file(_GO, b"")

    assert results[0].stdout == "ready\nwent on\n", describe(results[0])


@requirement
async def the_result_equals_the_streamed_output(sandbox: Sandbox) -> None:
    streamed: dict[str, bytes] = defaultdict(bytes)

    def listen(chunk: OutputChunk) -> None:
        streamed[chunk.stream] += chunk.data

    source = """
        import sys
        for number in range(500):
            print(number, flush=True)
            print(-number, file=sys.stderr, flush=True)
    """
    result = await sandbox.run(python(source), on_output=listen)

    assert result.succeeded, describe(result)
    assert streamed["stdout"] == result.stdout_bytes, "stdout was streamed differently"
    assert streamed["stderr"] == result.stderr_bytes, "stderr was streamed differently"


@requirement
async def output_before_a_crash_is_kept(sandbox: Sandbox) -> None:
    source = """
        import os
        os.write(1, b"x" * 50_000)
        os.write(2, b"y" * 50_000)
        os.kill(os.getpid(), 9)
    """
    result = await sandbox.run(python(source))

    expect(result, signal=9, stdout_bytes=b"x" * 50_000, stderr_bytes=b"y" * 50_000)


@requirement
async def a_program_may_close_its_streams_and_continue(sandbox: Sandbox) -> None:
    source = """
        import os, time
        for fd in range(3):
            os.close(fd)
        time.sleep(0.3)
        open("done", "w").close()
        os._exit(5)
    """
    await run_expecting(sandbox, python(source), exit_code=5)
    await _exists(sandbox, "done")


async def _exists(sandbox: Sandbox, name: str) -> None:
    await sandbox.read_file(PurePosixPath(name))
