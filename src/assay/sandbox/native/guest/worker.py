"""The process that becomes the program: confines itself, waits for the program and runs it.

Everything before the first byte of the program is trusted, and nothing after it. The exit status is
reported by the parent of this process, which the program cannot reach.
"""

import atexit
import builtins
import errno
import importlib.util
import json
import linecache
import os
import resource
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, TextIO

from assay.sandbox.native.guest import kernel_manager, landlock_chmod
from assay.sandbox.native.guest.python_kernel import exit_code
from assay.sandbox.native.kernel import landlock, libc, open_files, seccomp

INTERPRETER: Final = b'{"kind": "interpreter"'
"""The first bytes of a request for an interpreter, and of no other request."""
NOT_FOUND: Final = 127
NOT_RUNNABLE: Final = 126
_INTERRUPTED: Final = -int(signal.SIGINT)
"""Stands for an exit code, which is never negative."""
_STDERR: Final = 2
_LOWEST_OPEN: Final = 3
_CHUNK: Final = 1 << 16
_LONGEST_DETAIL: Final = 500
_REHEARSAL: Final = (
    b'{"rlimits": {}, "env": {}, "args": ["a"]}\nimport sys\nprint(end="", flush=True)\n'
)
_own_modules: list[str] = []
"""Assay's modules in this process, which a program must not see."""
_REHEARSALS: Final = 16
"""Enough for the interpreter to specialize the code, after which it no longer writes to it."""
_join_threads: Callable[[], None] = threading._shutdown  # noqa: SLF001  # pyright: ignore - the interpreter's own shutdown
_run_exit_functions: Callable[[], None] = atexit._run_exitfuncs  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - see above


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What is the same for every execution of a zygote."""

    filter: seccomp.PreparedFilter
    readable: tuple[str, ...]
    """Landlock tier: the paths that a program may read. Empty if namespaces isolate the files."""
    asking: seccomp.PreparedFilter | None = None
    """Landlock tier: the filter for calls that go through PID 1, see `landlock_chmod.py`."""
    layer: str = ""
    """The key of this jail's package layer; empty for none."""
    ahead: bool = False
    """Whether this execution is prepared before a program waits for it."""
    inherited_kb: int = 0
    """The size of a worker that has done nothing yet: the memory that a fork inherits."""
    line: landlock_chmod.Line | None = None
    """Landlock tier: the socket from the worker to PID 1."""
    contained: bool = False
    """Whether a container isolates the files, so that nothing is mounted."""
    worker_id: int = 0
    """Contained tier: the uid of workers outside of their namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptors:
    """The descriptors of one execution."""

    go: int
    stdin: int
    stdout: int
    stderr: int
    status: int


def serve(descriptors: Descriptors, confinement: Confinement) -> NoReturn:
    """Confine the process, report readiness, become the program that arrives. Never returns."""
    # Saved, because a program may replace them.
    leave, interrupt = os._exit, partial(_interrupt, signal.signal, os.kill)
    run = partial(_run_python, partial(_hint, os.close))
    try:
        _take_descriptors(descriptors, confinement.line)
        _settle_in()
        _make_ready(ahead=confinement.ahead)
        os.write(descriptors.status, b'{"ready": true}\n')
        header, source = _read_request(descriptors.go)
        if header.get("kind") == "interpreter":
            _become_kernel_manager(header, descriptors, confinement)
        os.close(descriptors.go)
        if not header:
            leave(0)
        _prepare(header, confinement)
    except BaseException as error:  # noqa: BLE001 - PID 1 and the supervisor must know every failure
        _report(descriptors.status, "setup_failed", repr(error))
        leave(NOT_RUNNABLE)
    try:
        os.chdir(_folder(header))
        if header["kind"] == "command":
            _become_command(header)
        _add_import_folders(header)
    except OSError as error:
        _report(descriptors.status, "start_failed", _explain(error, header))
        leave(NOT_FOUND if error.errno == errno.ENOENT else NOT_RUNNABLE)
    os.close(descriptors.status)
    code = run(header, source)
    if code == _INTERRUPTED:
        interrupt()
    leave(code & 0xFF)


def _interrupt(set_action: Callable[..., object], send: Callable[..., object]) -> None:
    """End by SIGINT with the default action, so that a shell sees that Ctrl-C ended the program."""
    set_action(signal.SIGINT, signal.SIG_DFL)
    send(os.getpid(), signal.SIGINT)


def _hint(close: Callable[[int], object]) -> None:
    """Hint to the supervisor that this process exits; see `exit_detection.py`."""
    with suppress(OSError):
        close(_STDERR)


def _report(status: int, what: str, detail: str) -> None:
    os.write(status, json.dumps({what: detail[:_LONGEST_DETAIL]}).encode() + b"\n")


def _take_descriptors(descriptors: Descriptors, line: landlock_chmod.Line | None) -> None:
    os.setsid()
    os.dup2(descriptors.stdin, 0)
    os.dup2(descriptors.stdout, 1)
    os.dup2(descriptors.stderr, 2)
    low = _LOWEST_OPEN
    to_pid1 = () if line is None else (line.theirs.fileno(),)
    for kept in sorted((descriptors.go, descriptors.status, *to_pid1)):
        os.closerange(low, kept)
        low = kept + 1
    os.closerange(low, open_files.MOST_OPEN)
    os.set_inheritable(descriptors.status, False)


def _settle_in() -> None:
    # Only PID 1 must be hidden. The rest of the confinement is inherited from it.
    libc.set_dumpable(dumpable=True)
    _prefer_as_oom_victim()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    libc.die_with_parent(signal.SIGKILL)


def _prefer_as_oom_victim() -> None:
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(descriptor, b"1000")
    os.close(descriptor)


def _read_request(go: int) -> tuple[dict[str, Any], bytes]:
    pieces: list[bytes] = []
    while piece := os.read(go, _CHUNK):
        pieces.append(piece)
        if pieces[0].startswith(INTERPRETER) and piece.endswith(b"\n"):
            break  # the rest is for the kernel manager
    return _parse_request(b"".join(pieces))


def _parse_request(text: bytes) -> tuple[dict[str, Any], bytes]:
    line, _, source = text.partition(b"\n")
    return (json.loads(line) if line else {}), source


def _prepare(header: dict[str, Any], confinement: Confinement) -> None:
    for name, value in header["rlimits"].items():
        limit = getattr(resource, name)
        _, hard = resource.getrlimit(limit)
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(limit, (wanted, wanted))
        except ValueError:
            if not confinement.contained:
                raise  # gVisor has only some of these limits; the usage monitor keeps the totals
    if confinement.readable:
        # The workspace is known only now, so this tier restricts the files just before the program.
        readable = (*confinement.readable, *header["readable"])
        landlock.restrict(read_only=readable, read_write=header["writable"])
        if confinement.line is not None and confinement.asking is not None:
            landlock_chmod.hand_over(confinement.line, confinement.asking, header["writable"])
    os.environ.update(header["env"])
    if folders := header["packages"]:
        own = [os.path.normpath(f"{header['workspace']}/{name}") for name in header["folders"]]
        _add_packages(folders.split(":"), own)


def _add_packages(folders: list[str], own: list[str]) -> None:
    """Add packages as PYTHONPATH would, for this interpreter and for others.

    The folders of the project come first: its files take precedence over an installed copy. The
    commands of the packages come first too, because they belong to the versions that are imported.
    """
    given = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    os.environ["PYTHONPATH"] = ":".join([*given, *own, *folders])
    commands = [f"{folder}/bin" for folder in folders]
    os.environ["PATH"] = ":".join([*commands, os.environ.get("PATH", os.defpath)])
    # For interpreters that ignore PYTHONPATH.
    os.environ["ASSAY_PACKAGES"] = ":".join(folders)
    sys.path[1:1] = [*own, *folders]


def _add_import_folders(header: dict[str, Any]) -> None:
    """Search the folders in PYTHONPATH, like an interpreter that starts with it."""
    if given := header["env"].get("PYTHONPATH"):
        sys.path[1:1] = [os.path.abspath(folder) for folder in given.split(os.pathsep) if folder]


def _become_kernel_manager(
    header: dict[str, Any], descriptors: Descriptors, confinement: Confinement
) -> NoReturn:
    # Reading on would lose the descriptors that arrive with the next message.
    os.write(descriptors.status, b'{"ready": true}\n')
    os.close(descriptors.status)
    kernel_manager.keep(descriptors.go, partial(_settle_kernel, header, confinement))


def _settle_kernel(header: dict[str, Any], confinement: Confinement) -> None:
    """Confine the first Python kernel of an interpreter; all others are forks of it."""
    _prepare(header, confinement)
    os.chdir(_folder(header))


def _explain(error: OSError, header: dict[str, Any]) -> str:
    why = os.strerror(error.errno or 0)
    if error.filename == _folder(header):
        return f"working directory {header['cwd']!r}: {why}"
    return f"{header['argv'][0]}: {why}"


def _folder(header: dict[str, Any]) -> str:
    return f"{header['workspace']}/{header['cwd']}"


def _become_command(header: dict[str, Any]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(header["argv"][0], header["argv"])  # noqa: S606 - this is the jail


def _make_ready(*, ahead: bool) -> None:
    """Do all that needs no program yet; `ahead` of need, also touch what running one will touch.

    A page that is shared with the zygote is copied at its first use, which then costs no time
    later.
    """
    _renew_randomness()
    # By name: iterating over all modules would touch, and so copy, the pages of each name.
    for name in _own_modules:
        sys.modules.pop(name, None)
    sys.path.insert(0, "")
    if ahead:
        _rehearse()


def _rehearse() -> None:
    """Run a minimal program on the same code path as a real one."""
    header, source = _parse_request(_REHEARSAL)
    rehearsal = _new_main("rehearsal.py", header["args"])
    _outcome_of(partial(_execute, rehearsal, "rehearsal.py", source))
    os.environ.update(header["env"])


def warm_up() -> None:
    """Do once in the zygote what every worker would otherwise do for the first time."""
    _own_modules[:] = [name for name in sys.modules if name.partition(".")[0] == "assay"]
    main, arguments = sys.modules["__main__"], sys.argv
    for _ in range(_REHEARSALS):
        _renew_randomness()
        _rehearse()
    sys.modules["__main__"], sys.argv = main, arguments
    linecache.cache.clear()


def _run_python(hint: Callable[[], None], header: dict[str, Any], source: bytes) -> int:
    main = _new_main(header["filename"], header["args"])
    # Saved before the program can replace them.
    flush = tuple(partial(_flush, stream) for stream in (sys.stdout, sys.stderr))
    shutdown = (_join_threads, _run_exit_functions, *flush)
    code = _outcome_of(partial(_execute, main, header["filename"], source))
    for step in shutdown:
        code = _outcome_of(step) or code
    hint()
    return code


def _execute(main: types.ModuleType, filename: str, source: bytes) -> None:
    # Decoded only if a traceback needs it.
    linecache.cache[filename] = (partial(_decode, source),)
    exec(compile(source, filename, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - runs the program


def _decode(source: bytes) -> str:
    try:
        return importlib.util.decode_source(source)
    except (SyntaxError, UnicodeDecodeError):
        return ""


def _flush(stream: TextIO) -> None:
    if not stream.closed:
        stream.flush()


def _outcome_of(step: Callable[[], object]) -> int:
    """Call one step and turn its exception into the exit code that Python would give."""
    try:
        step()
    except SystemExit as leaving:
        return exit_code(leaving.code)
    except BaseException as error:  # noqa: BLE001 - no other code handles it
        chosen = _show(error)
        if chosen is not None:
            return chosen
        return _INTERRUPTED if type(error) is KeyboardInterrupt else 1
    return 0


def _show(error: BaseException) -> int | None:
    """Print an exception as the interpreter does; return an exit code if the hook raised one."""
    frames = _beyond_us(error)
    if sys.excepthook is not sys.__excepthook__:
        try:
            sys.excepthook(type(error), error, frames)
        except SystemExit as leaving:
            return exit_code(leaving.code)
        except BaseException as failure:  # noqa: BLE001 - printed as the interpreter does
            if failure.__context__ is error:
                failure.__context__ = None
            print("Error in sys.excepthook:", file=sys.stderr)  # noqa: T201
            traceback.print_exception(type(failure), failure, _beyond_us(failure))
            print("\nOriginal exception was:", file=sys.stderr)  # noqa: T201
        else:
            return None
    traceback.print_exception(type(error), error, frames)
    return None


def _beyond_us(error: BaseException) -> types.TracebackType | None:
    """Return the part of a traceback that belongs to the program."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") == __name__:
        frames = frames.tb_next
    return frames


def _renew_randomness() -> None:
    legacy = sys.modules.get("numpy.random")
    if legacy is not None:
        # numpy's global generator does not notice a fork, unlike `random`. One number is enough for
        # it, and faster than collecting its own entropy.
        legacy.seed(int.from_bytes(os.urandom(4), "little"))


def _new_main(filename: str, args: list[str]) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__file__ = filename
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [filename, *args]
    return main
