"""The process that holds an interpreter's variables; forks for each cell and each branch.

A cell is compiled, its last value shown, and its exception reported with the lines of cells and of
the user's own files only. This process runs the user's code in its forks, and a fork then replaces
it. No other process may trust it; `kernel_manager.py` supervises it.
"""

import __future__

import builtins
import errno
import linecache
import os
import signal
import socket
import sys
import threading
import tokenize
import traceback
import types
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, cast

from assay.sandbox.native.guest import messages
from assay.sandbox.native.guest.display import Display
from assay.sandbox.native.kernel import libc

if TYPE_CHECKING:
    import ast


_MOST_LINES: Final = 200
_LONGEST_LINE: Final = 2000
_LONGEST_MESSAGE: Final = 10_000
_CELL: Final = "<cell "


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return name, message and traceback of an exception, even if formatting it raises."""
    try:
        told = traceback.TracebackException.from_exception(error, compact=True)
        _leave_out_others(told, set())
        lines = [line for text in told.format() for line in text.rstrip("\n").split("\n")]
        message = _message_of(error)
    except Exception as failure:  # noqa: BLE001 - reported as one that cannot be shown
        lines, message = [type(error).__name__], f"(cannot be shown: {type(failure).__name__})"
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        left_out = f"  … {len(lines) - _MOST_LINES} lines left out …"
        lines = [*lines[:half], left_out, *lines[-half:]]
    return {
        "name": type(error).__name__[:_LONGEST_LINE],
        "message": message[:_LONGEST_MESSAGE],
        "traceback": [line[:_LONGEST_LINE] for line in lines],
    }


def _message_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return str(error.msg)
    return str(error)


def _leave_out_others(told: traceback.TracebackException, seen: set[int]) -> None:
    if id(told) in seen:
        return
    seen.add(id(told))
    own = [frame for frame in told.stack if _is_own(frame.filename)]
    # Without a frame, there is no heading "most recent call last".
    told.stack = cast("Any", traceback.StackSummary.from_list(own) if own else None)
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            _leave_out_others(other, seen)


def _is_own(filename: str) -> bool:
    """Whether this is a cell, or a file in the workspace, where cells run."""
    if filename.startswith(_CELL):
        return True
    here = os.getcwd()
    path = os.path.join(here, filename)
    installed = path.startswith((f"{sys.prefix}/", f"{sys.base_prefix}/", "<"))
    return path.startswith(f"{here}/") and not installed and os.path.exists(path)


_IS_COROUTINE: Final = 0x80
_LAST_VALUE: Final = "__assay_last_value__"
_SKIPPED: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    | {tokenize.ENDMARKER}
)
_FUTURES: Final = sum(
    {getattr(__future__, name).compiler_flag for name in __future__.all_feature_names}
)


class CellCode:
    """The `__main__` module that all cells of an interpreter share."""

    def __init__(self, shower: Display) -> None:
        self._shower = shower
        self._main = types.ModuleType("__main__")
        self._main.__dict__["__builtins__"] = builtins
        self._futures = 0
        """The `__future__` flags that earlier cells have set."""
        sys.modules["__main__"] = self._main
        sys.argv = [""]
        sys.displayhook = self._show_value
        builtins.__dict__["display"] = shower.display

    def run(self, number: int, source: str) -> int:
        """Run one cell and return the exit code that a program would have."""
        name = f"<cell {number}>"
        try:
            self._execute(name, source)
        except SystemExit as leaving:
            code = exit_code(leaving.code)
        except BaseException as error:  # noqa: BLE001 - an exception of a cell is shown, and the state is kept
            self._shower.error(describe_error(error))
            code = 1
        else:
            code = 0
        self._shower.figures()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # noqa: BLE001, S112 - a stream that the cell created
                continue
        return code

    def _execute(self, name: str, source: str) -> None:
        # Without a line end, a traceback would mark the wrong position in the last line.
        lines = f"{source}\n".splitlines(keepends=True)
        linecache.cache[name] = (len(source), None, lines, name)
        # Imported late: a smaller zygote forks faster.
        from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT, PyCF_ONLY_AST

        flags = PyCF_ALLOW_TOP_LEVEL_AWAIT | self._futures
        tree = compile(source, name, "exec", flags | PyCF_ONLY_AST, dont_inherit=True)
        shown = _mark_last_value(tree, source)
        code = compile(tree, name, "exec", flags, dont_inherit=True)
        self._futures |= code.co_flags & _FUTURES
        space = self._main.__dict__
        if code.co_flags & _IS_COROUTINE:
            import asyncio

            # A new event loop for each cell: one that has run cannot be used after a fork.
            coroutine: Coroutine[Any, Any, Any] = eval(code, space)  # noqa: S307 - runs the cell
            asyncio.run(coroutine)
        else:
            exec(code, space)  # noqa: S102 - runs the cell
        if shown and _LAST_VALUE in space:
            sys.displayhook(space.pop(_LAST_VALUE))

    def _show_value(self, value: object) -> None:
        if value is not None:
            builtins.__dict__["_"] = value
            self._shower.value(value)


def _mark_last_value(tree: "ast.Module", source: str) -> bool:
    """Store the value of a last expression under a name, unless a semicolon follows it."""
    import ast

    if not tree.body or not isinstance(last := tree.body[-1], ast.Expr):
        return False
    if _ends_with_semicolon(source):
        return False
    target = ast.Name(_LAST_VALUE, ast.Store())
    kept = ast.Assign(targets=[target], value=last.value)
    ast.copy_location(target, last)
    tree.body[-1] = ast.copy_location(kept, last)
    return True


def _ends_with_semicolon(source: str) -> bool:
    if ";" not in source:
        return False
    last = ""
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type not in _SKIPPED:
            last = token.string
    return last == ";"


def exit_code(code: object) -> int:
    """Return the exit code for the argument of `SystemExit`; print it if it is a message."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # noqa: T201 - what the interpreter does
    return 1


_CANNOT_SPEAK: Final = 70
_NEVER: Final = 3600.0
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_ALL_SIGNALS: Final = signal.valid_signals()
_fork, _leave, _wait = os.fork, os._exit, os.waitpid


class BranchOutputs(NamedTuple):
    """The output descriptors of a branch: its streams and its rich output."""

    stdout: int
    stderr: int
    answers: int


def live(line: socket.socket, outputs: BranchOutputs) -> NoReturn:
    """Serve the kernel manager until it is gone; each kept cell continues in its own process."""
    head = _Kernel(line, outputs)
    head.tell({"ready": True})
    while True:
        head.obey()


class _Kernel:
    def __init__(self, line: socket.socket, outputs: BranchOutputs) -> None:
        self._line = line
        self._answers = -1
        self._shower = Display()
        self._code = CellCode(self._shower)
        self._signals: Iterable[int] = ()
        """The signals that the last cell has blocked."""
        self._take(outputs)

    def tell(self, word: messages.Message) -> None:
        messages.send(self._line, word)

    def obey(self) -> None:
        try:
            order, received = messages.receive(self._line)
        except messages.ConnectionLostError:
            _leave(0)
        _reap()
        try:
            if order["do"] == "run":
                self._run(order, received)
            else:
                self._branch(received)
        except OSError as error:
            self.tell({"refused": error.errno or 0})
        finally:
            for descriptor in received:
                with suppress(OSError):
                    os.close(descriptor)

    def _run(self, order: messages.Message, received: list[int]) -> None:
        chance = _remember_chance()
        cell = _fork()
        if cell == 0:
            self._move_to(received.pop())
            _restore_chance(chance)
            self._be_cell(order)
            return
        self.tell({"forked": cell})
        _, status = _wait(cell, 0)
        self.tell({"ended": status})

    def _be_cell(self, order: messages.Message) -> None:
        """Run the cell and become the Python kernel, or exit."""
        os.setsid()
        if order["adopt"]:
            libc.adopt_orphans()
        self._shower.begin(self._answers)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._signals)
        code = self._code.run(order["number"], order["source"])
        self._signals = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
        try:
            self._shower.end()
            for timer in _TIMERS:
                signal.setitimer(timer, 0)
            if order["adopt"]:
                libc.adopt_orphans(adopt=False)
            self._leave_threads_behind()
            self.tell({"done": code, "pid": os.getpid()})
        except OSError:
            _complain("the cell closed what the interpreter speaks on: its variables are lost")
            _leave(_CANNOT_SPEAK)

    def _leave_threads_behind(self) -> None:
        """Continue in a fork if there are other threads, because threads do not survive a fork."""
        if _count_threads() == 1:
            return
        chance = _remember_chance()
        if _fork() != 0:
            # Until the kernel manager kills this process with its threads.
            signal.sigtimedwait((), _NEVER)
            _leave(_CANNOT_SPEAK)
        _restore_chance(chance)

    def _branch(self, received: list[int]) -> None:
        chance = _remember_chance()
        hears, tells = os.pipe()
        between = _fork()
        if between == 0:
            branch = _try_fork()
            if branch != 0:
                # Exits immediately, so that the branch is reparented to the kernel manager.
                os.write(tells, b"%d" % branch)
                _leave(0)
            self._move_to(received.pop(0))
            self._take(BranchOutputs(*received))
            received[:] = [hears, tells]
            _restore_chance(chance)
            self.tell({"ready": True})
            return
        os.close(tells)
        _wait(between, 0)
        born = int(os.read(hears, 32) or b"-1")
        os.close(hears)
        if born < 0:
            raise BlockingIOError(errno.EAGAIN, "no process for a branch")
        self.tell({"forked": born})

    def _move_to(self, line: int) -> None:
        self._line.close()
        self._line = socket.socket(fileno=line)

    def _take(self, outputs: BranchOutputs) -> None:
        os.dup2(outputs.stdout, 1)
        os.dup2(outputs.stderr, 2)
        os.close(outputs.stdout)
        os.close(outputs.stderr)
        if self._answers >= 0:
            os.close(self._answers)
        self._answers = outputs.answers


def _try_fork() -> int:
    try:
        return _fork()
    except OSError:
        return -1


def _reap() -> None:
    """Reap processes of earlier cells that the kernel manager has killed."""
    with suppress(ChildProcessError):
        while _wait(-1, os.WNOHANG)[0] != 0:
            pass


def _count_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        # Not visible without a pid namespace; threads of native libraries are missed then.
        return threading.active_count()


def _remember_chance() -> object:
    """Return the state of `random`: Python reseeds it in a fork, but a cell expects it to go on."""
    module = sys.modules.get("random")
    return None if module is None else module.getstate()


def _restore_chance(state: object) -> None:
    module = sys.modules.get("random")
    if module is not None and state is not None:
        module.setstate(state)


def _complain(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"assay: {text}\n".encode())
