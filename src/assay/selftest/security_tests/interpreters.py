"""Attacks from inside an interpreter: false messages, floods, silence, and access to others.

A cell runs in the process that reports its result. So it can report anything about itself. It must
not block the reader, fill its memory, outlive its end, or access data of others.
"""

from dataclasses import replace
from functools import partial
from textwrap import dedent

import anyio

from assay.contracts.errors import SandboxUnavailableError, WorkspaceFileNotFoundError
from assay.contracts.execution import CellResult, OutputChunk, Reason
from assay.contracts.ports import Interpreter
from assay.selftest.programs import (
    BEAT_AND_SAY_SO,
    HEARTBEAT,
    beats_go_on,
    describe,
    describe_cell,
    open_session,
    python,
)
from assay.selftest.security_tests.attack import (
    TIGHT,
    AttackConfig,
    AttackContext,
    Finding,
    build_attack,
    build_attacks,
)

_CONFIG = AttackConfig(group="protocol")
_ENOUGH_S = 45.0
_MOST_BYTES = 64 << 20

_DESCRIPTORS = """
import json, os, struct, time
def everywhere(data, times=1):
    for descriptor in range(3, 64):
        try:
            os.set_blocking(descriptor, True)
            for _ in range(times):
                os.write(descriptor, data)
        except OSError:
            pass
"""


async def _run(interpreter: Interpreter, source: str) -> CellResult | SandboxUnavailableError:
    """Run a cell that may end the interpreter; only a missing answer is a breach."""
    with anyio.fail_after(_ENOUGH_S):
        try:
            return await interpreter.run_cell(dedent(source))
        except SandboxUnavailableError as error:
            return error


def _ending(result: CellResult | SandboxUnavailableError) -> str:
    return describe_cell(result) if isinstance(result, CellResult) else str(result)


def _size(result: CellResult) -> int:
    shown = sum(len(form) for output in result.outputs for form in output.forms.values())
    return shown + sum(len(line) for line in (result.error.traceback if result.error else ()))


async def _harms_the_listener(
    context: AttackContext, source: str, timeout_s: float = 40.0
) -> Finding:
    """Let an interpreter send invalid messages; the caller and the sandbox must survive."""
    begun = anyio.current_time()
    async with (
        context.backend.open_sandbox(replace(TIGHT, wall_s=2.0)) as sandbox,
        sandbox.open_interpreter() as interpreter,
    ):
        outcome = await _run(interpreter, _DESCRIPTORS + dedent(source))
        taken_s = anyio.current_time() - begun
        later = await _run(interpreter, "6 * 7")
        after = await sandbox.run(python("print(6 * 7)"))
    size = 0 if isinstance(outcome, SandboxUnavailableError) else _size(outcome)
    well = after.stdout == "42\n"
    honest = isinstance(later, SandboxUnavailableError) or later.number == 2
    told = str(outcome) if isinstance(outcome, SandboxUnavailableError) else describe_cell(outcome)
    return Finding(
        breached=not (well and honest and size <= _MOST_BYTES and taken_s <= timeout_s),
        evidence=f"{taken_s:.1f} s, {size} bytes; {told:.500}; then {describe(after):.200}",
    )


_BORN = "os.fork() or time.sleep(60)"
_LIES = {
    "a_head_that_forges_frames": """
        header = json.dumps({"kind": "value", "forms": [["text/plain", 5]], "dropped": []}).encode()
        everywhere(struct.pack("!I", len(header)) + header + b"forged")
    """,
    "a_head_that_promises_huge_frames": """
        everywhere(b"\\xff\\xff\\xff\\xff")
        header = json.dumps({"kind": "value", "forms": [["text/plain", 1 << 60]]}).encode()
        everywhere(struct.pack("!I", len(header)) + header)
    """,
    "a_head_that_never_stops_sending": """
        everywhere(struct.pack("!I", 2) + b"{}", times=1 << 40)
    """,
    "a_head_that_sends_deeply_nested_json": """
        header = b"[" * 500_000
        everywhere(struct.pack("!I", len(header)) + header)
    """,
    "a_head_that_writes_junk_on_every_descriptor": """
        everywhere(os.urandom(60_000))
    """,
    "a_head_that_closes_every_descriptor": """
        os.closerange(0, 4096)
    """,
    "a_head_that_says_it_is_done_and_goes_on": """
        for word in ({"done": 0, "pid": os.getpid()}, {"ended": 0}, {"over": True, "kept": True}):
            text = json.dumps(word).encode()
            everywhere(struct.pack("!I", len(text)) + text)
        while True:
            pass
    """,
    "a_head_whose_parent_is_killed": """
        os.kill(os.getppid(), 9)
        time.sleep(0.1)
        os.kill(os.getpid(), 9)
    """,
    "a_head_whose_parent_is_stopped": """
        os.kill(os.getppid(), 19)
        os._exit(0)
    """,
    "a_head_that_kills_everybody": """
        os.kill(-1, 9)
    """,
    **{
        f"a_head_that_tells_of_{what}": f"""
            import sys
            frame = sys._getframe()
            while not hasattr(frame.f_locals.get("self"), "tell"):
                frame = frame.f_back
            def lie(self, order, received):
                child = {born}
                for word in {words}:
                    self.tell(word)
            type(frame.f_locals["self"])._run = lie
        """
        for what, born, words in (
            ("an_end_that_no_process_has", _BORN, '{"forked": child}, {"ended": 127}'),
            ("an_end_beyond_all_numbers", _BORN, '{"forked": child}, {"ended": 10**30}'),
            ("an_error_beyond_all_numbers", "None", '({"refused": 10**30},)'),
        )
    },
    "a_head_with_an_emptied_interpreter": """
        import builtins, sys
        sys.modules.clear()
        vars(builtins).clear()
    """,
    "a_head_that_forks_without_end": """
        while True:
            try:
                os.fork()
            except OSError:
                pass
    """,
}

LIES = build_attacks(
    _LIES,
    _harms_the_listener,
    # The same detector with a deadline of zero.
    control=partial(_harms_the_listener, source="1", timeout_s=0.0),
    config=_CONFIG,
    name="{name}_is_answered_and_does_no_harm",
)


async def _runs_on(context: AttackContext, source: str) -> Finding:
    """Check whether any part of a cell continues after its end."""
    async with (
        context.backend.open_sandbox(TIGHT) as sandbox,
        sandbox.open_interpreter() as interpreter,
    ):
        ended = await _run(interpreter, f"{HEARTBEAT}\n{dedent(source)}")
        try:
            beating = await beats_go_on(sandbox)
        except WorkspaceFileNotFoundError as error:
            raise AssertionError(f"nothing ever beat: {_ending(ended)}") from error
    return Finding(breached=beating, evidence="it beats" if beating else "all is quiet")


async def _runs(context: AttackContext) -> Finding:
    """Run the same check on a cell that has not ended."""
    ended: list[CellResult] = []
    beating = False
    async with (
        context.backend.open_sandbox(TIGHT) as sandbox,
        sandbox.open_interpreter() as interpreter,
        anyio.create_task_group() as tasks,
    ):
        running = anyio.Event()

        def hear(chunk: OutputChunk) -> None:
            if b"ready" in chunk.data:
                running.set()

        async def run() -> None:
            ended.append(await interpreter.run_cell(BEAT_AND_SAY_SO, on_output=hear))
            running.set()

        tasks.start_soon(run)
        await running.wait()
        assert not ended, f"nothing ever beat: {_ending(ended[0])}"
        beating = await beats_go_on(sandbox, within_s=5.0)
        await interpreter.interrupt()
    return Finding(breached=beating, evidence="it beats" if beating else "all is quiet")


_RUNNING_ON = {
    "a_daemon_of_a_cell": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                beat_forever()
            os._exit(0)
        await_a_beat()
    """,
    "a_crowd_of_daemons": """
        for _ in range(12):
            if os.fork() == 0:
                os.setsid()
                beat_forever()
        await_a_beat()
        os.kill(os.getpid(), 11)
    """,
    "a_thread_that_hides": """
        import _thread, threading
        _thread.start_new_thread(beat_forever, ())
        threading.active_count = lambda: 1
        await_a_beat()
    """,
    "a_cell_that_forges_its_own_end": """
        import json, struct
        for word in (
            {"over": True, "kept": True, "ended": 0},
            {"over": True, "kept": False, "ended": 0},
            {"done": 0, "pid": os.getpid()},
            {"ended": 0},
        ):
            text = json.dumps(word).encode()
            for data in (text + b"\\n", struct.pack("!I", len(text)) + text):
                for descriptor in range(3, 64):
                    try:
                        os.write(descriptor, data)
                    except OSError:
                        pass
        beat_forever()
    """,
    "a_timer_of_a_cell": """
        import signal
        def beat(*_):
            open("beats", "ab").write(b".")
        signal.signal(signal.SIGALRM, beat)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        await_a_beat()
    """,
}

RUNNING_ON = build_attacks(
    _RUNNING_ON,
    _runs_on,
    control=_runs,
    config=replace(_CONFIG, group="processes"),
    name="{name}_does_not_outlive_it",
)

_SECRET = "open sesame of the neighbour"  # noqa: S105 - a canary
_BACKWARDS = _SECRET[::-1]
"""How sources contain it, so that it exists only where it was put."""
_PLANT = f"secret = {_BACKWARDS!r}[::-1].encode()\nopen('planted', 'wb').write(secret)"
_SEARCH = """
import os
def hold(pid):
    with open(f"/proc/{pid}/maps") as lines, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in lines:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if line.split()[1].startswith("rw") and end - start < 1 << 28:
                memory.seek(start)
                yield memory.read(end - start)
def search(needle):
    for name in os.listdir("."):
        if needle in open(name, "rb").read():
            yield name
    # Not listed: where there is no pid namespace, not every /proc may be.
    own = {str(os.getpid()), os.readlink("/proc/self")}  # as we count, and as /proc does
    for pid in range(1, os.getpid() + 500):
        try:
            if str(pid) not in own:
                yield from [pid for held in hold(pid) if needle in held]
        except (OSError, ValueError, OverflowError):
            pass
print("found", list(search(BACKWARDS[::-1].encode())))
"""


async def _sees_the_neighbour(context: AttackContext, *, before: str) -> Finding:
    """Search for the memory and the files of an interpreter in another sandbox."""
    source = f"BACKWARDS = {_BACKWARDS!r}\n{before}\n{_SEARCH}"
    async with (
        open_session(context.backend) as neighbour,
        open_session(context.backend) as attacker,
    ):
        await neighbour.run_cell(_PLANT)
        result = await attacker.run_cell(source)
    assert "found" in result.execution.stdout, f"nothing was tested: {describe_cell(result)}"
    breached = "found []" not in result.execution.stdout
    return Finding(breached=breached, evidence=result.execution.stdout)


NEIGHBOUR = build_attack(
    "an_interpreter_sees_nothing_of_another_sandbox",
    attack=partial(_sees_the_neighbour, before=""),
    control=partial(_sees_the_neighbour, before=_PLANT),
    config=replace(_CONFIG, group="processes"),
)


async def _takes_more(context: AttackContext, *, source: str, reason: Reason) -> Finding:
    """Check whether consecutive cells get more than an interpreter may have."""
    async with open_session(context.backend, replace(TIGHT, wall_s=4.0)) as interpreter:
        endings: list[str] = []
        for _ in range(6):
            outcome = await _run(interpreter, source)
            if isinstance(outcome, SandboxUnavailableError):
                return Finding(breached=False, evidence=str(outcome))
            endings.append(outcome.execution.reason.value)
    return Finding(breached=reason.value not in endings, evidence=str(endings))


HOARDING = build_attack(
    "cells_do_not_hoard_memory",
    attack=partial(
        _takes_more,
        source="held = [*globals().get('held', ()), bytearray(b'x') * (40 << 20)]",
        reason=Reason.OUT_OF_MEMORY,
    ),
    control=partial(_takes_more, source="held = bytearray(1000)", reason=Reason.OUT_OF_MEMORY),
    config=replace(_CONFIG, group="resources"),
)
