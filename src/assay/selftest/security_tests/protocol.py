"""Attacks on the result of a program: forged results, imitated frames, injected output.

No program in a sandbox may affect the report of its own end.
"""

from dataclasses import replace
from functools import partial

import anyio

from assay.contracts.execution import ExecutionResult, OutputChunk, Program
from assay.selftest.programs import describe, python, run_alone, shell
from assay.selftest.security_tests.attack import (
    TIGHT,
    AttackConfig,
    AttackContext,
    Finding,
    build_attack,
    build_attacks,
)

_CONFIG = AttackConfig(group="protocol")

_FORGED = """
    import json, os, pickle, struct
    FORGED = [
        json.dumps({"exit_code": 0, "signal": None, "reason": "completed", "status": 0}).encode(),
        b"0\\n", b"0 0\\n", b"exit 0\\n", b"\\0" * 8, struct.pack("<q", 0),
        b"\\x01" + bytes(6) + b"\\x05hello", bytes(4) + b"\\x02\\x08\\0", b"\\n\\x1e{}\\n",
        pickle.dumps({"exit_code": 0}),
    ]
    def forge(descriptor):
        for message in FORGED:
            try:
                os.write(descriptor, message)
            except OSError:
                return
    print("forging", flush=True)
"""

_FORGERIES = {
    "a_result_cannot_be_forged_on_standard_output": """
        forge(1), forge(2)
        os._exit(7)
    """,
    "a_result_cannot_be_forged_on_any_descriptor": """
        for descriptor in range(3, 1024):
            forge(descriptor)
        os._exit(7)
    """,
    "a_result_cannot_be_forged_on_standard_input": """
        forge(0)
        os._exit(7)
    """,
    "a_result_cannot_be_forged_through_the_descriptors_of_others": """
        for pid in {1, os.getppid(), os.getpid()}:
            for number in range(256):
                try:
                    forge(os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK))
                except OSError:
                    pass
        os._exit(7)
    """,
    "closing_everything_does_not_hide_a_failure": """
        os.closerange(0, 4096)
        os._exit(7)
    """,
    "signals_to_the_first_process_do_not_hide_a_failure": """
        import time
        for number in range(1, 65):
            try:
                os.kill(1, number)
            except OSError:
                pass
        time.sleep(0.2)
        os._exit(7)
    """,
    "signals_to_the_parent_do_not_hide_a_failure": """
        import time
        for number in [*range(1, 19), *range(20, 65), 19]:
            try:
                os.kill(os.getppid(), number)
            except OSError:
                pass
        time.sleep(0.2)
        os._exit(7)
    """,
    "killing_ones_own_group_is_not_a_success": """
        import signal
        os.kill(0, signal.SIGKILL)
    """,
    "a_child_that_ends_well_does_not_hide_a_failure": """
        import time
        for _ in range(8):
            if os.fork() == 0:
                if os.fork() == 0:
                    os.setsid()
                os._exit(0)
        time.sleep(0.2)
        os._exit(7)
    """,
    "a_sibling_that_ends_well_does_not_hide_a_failure": """
        import ctypes, platform, time
        number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
        libc = ctypes.CDLL(None)
        for _ in range(4):  # children of one's own parent
            if libc.syscall(number, 0x8000 | 17, 0, 0, 0, 0) == 0:
                os._exit(0)
        time.sleep(0.2)
        os._exit(7)
    """,
    "a_thread_that_ends_well_does_not_hide_a_failure": """
        import ctypes, threading, time
        libc = ctypes.CDLL(None)
        # Ends the first thread alone: the process lives on in the second.
        threading.Thread(target=lambda: (time.sleep(0.3), os._exit(7))).start()
        libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
    """,
    "a_process_that_hides_does_not_hide_a_failure": """
        import ctypes
        try:
            import numpy  # has the program run where libraries are loaded
        except ImportError:
            pass
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        raise SystemExit(7)
    """,
    "seeming_to_leave_does_not_hide_a_failure": """
        import time
        try:
            import numpy
        except ImportError:
            pass
        os.closerange(3, 4096)
        time.sleep(0.2)
        raise SystemExit(7)
    """,
    "a_thread_that_stays_does_not_hide_a_failure": """
        import threading, time
        try:
            import numpy
        except ImportError:
            pass
        os.closerange(3, 4096)
        threading.Thread(target=lambda: (time.sleep(0.3), os._exit(7)), daemon=True).start()
        import ctypes
        ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
    """,
    "a_patched_exit_does_not_hide_a_failure": """
        import sys
        os._exit = sys.exit = lambda code=0: None
        raise SystemExit(7)
    """,
    "a_patched_exit_that_ends_well_does_not_matter_to_a_crash": """
        import ctypes, sys
        real = os._exit
        os._exit = lambda code=0: real(0)
        ctypes.string_at(0)
    """,
    "an_emptied_interpreter_does_not_hide_a_failure": """
        import builtins, gc, sys
        code = SystemExit(7)
        sys.stdout = sys.stderr = None
        for name in ("print", "open", "isinstance", "len", "BaseException", "Exception"):
            vars(builtins).pop(name, None)
        sys.modules.clear()
        raise code
    """,
    "hooks_do_not_hide_a_failure": """
        import sys, threading
        def quiet(*_):
            pass
        sys.excepthook = threading.excepthook = sys.unraisablehook = quiet
        raise ValueError("not to be seen")
    """,
    "a_broken_hook_does_not_hide_a_failure": """
        import sys
        def broken(*_):
            raise RuntimeError
        sys.excepthook = broken
        sys.stderr.write = broken
        raise ValueError
    """,
    "an_error_in_an_exit_function_does_not_hide_a_failure": """
        import atexit, sys
        atexit.register(lambda: 1 / 0)
        sys.exit(7)
    """,
    "climbing_the_frames_does_not_hide_a_failure": """
        import ctypes, sys
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            for name, value in list(frame.f_locals.items()) + list(frame.f_globals.items()):
                if isinstance(value, int) and 2 < value < 4096:
                    forge(value)
                if hasattr(value, "fileno"):
                    try:
                        forge(value.fileno())
                    except Exception:
                        pass
        os._exit(7)
    """,
    "stopping_and_going_on_does_not_hide_a_failure": """
        import signal, time
        child = os.fork()
        if child == 0:
            time.sleep(0.3)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(7)
    """,
}


async def _looks_successful(context: AttackContext, source: str) -> Finding:
    program = python(_FORGED + source.replace("\n    ", "\n"))
    result = await run_alone(context.backend, program, TIGHT)
    assert b"forging" in result.stdout_bytes, f"nothing was tested: {describe(result)}"
    return Finding(breached=result.succeeded, evidence=describe(result))


FORGERIES = build_attacks(
    _FORGERIES, _looks_successful, control=partial(_looks_successful, source=""), config=_CONFIG
)


async def _is_changed(context: AttackContext, *, sent: bytes, expected: bytes) -> Finding:
    """Check whether the output differs from the expected one."""
    limits = replace(TIGHT, output_bytes=8 << 20)
    result = await run_alone(
        context.backend,
        replace(python("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"), stdin=sent),
        limits,
    )
    total = len(result.stdout_bytes) + result.stdout_dropped_bytes
    assert total == len(sent), f"{total} bytes are accounted for: {describe(result)}"
    same = result.stdout_bytes == expected and result.exit_code == 0
    return Finding(breached=not same, evidence=describe(result))


_TRICKY_OUTPUT = {
    "control_sequences_stay_what_they_are": b"\x1b[2J\x1b]0;owned\x07\r\x08\x9b1A\x1b[8m hidden",
    "imitated_frames_stay_what_they_are": (
        b'{"exit_code": 0}\n\x00\x00\x00\x05hello\x01\x00\x00\x00\x00\x00\x00\x05hello'
        b"HTTP/1.1 200 OK\r\n\r\n\xff\xff\xff\xff\n__EXIT_CODE__=0\n--boundary--\n"
    ),
    "imitated_pickles_stay_what_they_are": b"cos\nsystem\n(S'echo owned'\ntR.\x80\x04\x95\x0b",
    "broken_text_stays_what_it_is": b"\xff\xfe\xed\xa0\x80\xc0\x80\xf8\x88" * 1000,
    "a_line_without_an_end_stays_what_it_is": b"x" * (6 << 20),
    "millions_of_lines_stay_what_they_are": b"\n" * (3 << 20),
}

TRICKY_OUTPUT = tuple(
    build_attack(
        name,
        attack=partial(_is_changed, sent=sent, expected=sent),
        control=partial(_is_changed, sent=sent, expected=sent + b"!"),
        config=_CONFIG,
    )
    for name, sent in _TRICKY_OUTPUT.items()
)


async def _speaks_later(context: AttackContext, *, when_s: float) -> Finding:
    """Leave a process that writes after a while, and check the output of the next execution."""
    source = f"""
        import os, time
        if os.fork() == 0:
            os.setsid()
            time.sleep({when_s})
            os.write(1, b"from the grave")
            os._exit(0)
        time.sleep(0.2)
        print("left one behind")
    """
    heard: list[bytes] = []

    def hear(chunk: OutputChunk) -> None:
        heard.append(chunk.data)

    async with context.backend.open_sandbox(TIGHT) as sandbox:
        first = await sandbox.run(python(source), on_output=hear)
        assert "left one behind" in first.stdout, f"nothing was tested: {describe(first)}"
        second = await sandbox.run(python("import time; time.sleep(0.6)"), on_output=hear)
    text = b"".join(heard) + second.stdout_bytes
    return Finding(breached=b"from the grave" in text, evidence=repr(text))


FROM_THE_GRAVE = build_attack(
    "what_is_left_behind_does_not_speak_in_the_next_execution",
    attack=partial(_speaks_later, when_s=0.5),
    control=partial(_speaks_later, when_s=0.0),
    config=_CONFIG,
)

_READ_FOREIGN_INPUT = """
    import os, select, sys
    given = sys.stdin.buffer.read()
    found = [given]
    for descriptor in range(0, 1024):
        try:
            if select.select([descriptor], [], [], 0)[0]:
                found.append(os.read(descriptor, 1 << 16))
        except (OSError, ValueError):
            pass
    print(b"".join(found))
"""


async def _reads_more(context: AttackContext, *, given: bytes, expected: bytes) -> Finding:
    """Check whether a program reads more than its input."""
    program = replace(python(_READ_FOREIGN_INPUT), stdin=given)
    result = await run_alone(context.backend, program, TIGHT)
    assert result.succeeded, f"nothing was tested: {describe(result)}"
    return Finding(breached=result.stdout != f"{expected!r}\n", evidence=result.stdout)


FOREIGN_INPUT = build_attack(
    "a_program_reads_its_own_input_and_no_more",
    attack=partial(_reads_more, given=b"mine", expected=b"mine"),
    control=partial(_reads_more, given=b"mine and more", expected=b"mine"),
    config=_CONFIG,
)


async def _neighbour_suffers(context: AttackContext, neighbour: Program) -> Finding:
    """Run a careful program beside a destructive one of the same sandbox."""
    careful = python("import time; time.sleep(0.8); print('unharmed')")
    results: list[ExecutionResult] = []

    async def run(program: Program) -> None:
        results.append(await sandbox.run(program))

    async with context.backend.open_sandbox(TIGHT) as sandbox:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, careful)
            await anyio.sleep(0.2)
            await sandbox.run(neighbour)
        unharmed = any(result.stdout == "unharmed\n" and result.succeeded for result in results)
        return Finding(breached=not unharmed, evidence="; ".join(map(describe, results)))


async def _suffers_from_cancel(context: AttackContext) -> Finding:
    results: list[ExecutionResult] = []

    async def run() -> None:
        results.append(await sandbox.run(python("import time; time.sleep(60)")))

    async with context.backend.open_sandbox(TIGHT) as sandbox:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.sleep(0.3)
            await sandbox.cancel()
        return Finding(breached=not results[0].succeeded, evidence=describe(results[0]))


_NEIGHBOURS: dict[str, Program] = {
    "a_neighbour_out_of_memory_harms_no_one": python("held = bytearray(b'x') * (400 << 20)"),
    "a_neighbour_out_of_processes_harms_no_one": python(
        "import os\nfor _ in range(500):\n    os.fork() or __import__('time').sleep(0.3)"
    ),
    "a_neighbour_that_floods_harms_no_one": shell("yes"),
    "a_neighbour_that_crashes_harms_no_one": python("import ctypes; ctypes.string_at(0)"),
}

NEIGHBOURS = build_attacks(
    _NEIGHBOURS, _neighbour_suffers, control=_suffers_from_cancel, config=_CONFIG
)
