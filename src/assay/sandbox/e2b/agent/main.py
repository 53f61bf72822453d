"""Request server inside an E2B virtual machine, and the execution of one program there.

One process stays and forks for each request on its socket, because a Python process with loaded
modules is faster than a new one. The request is JSON in base64; it names files for long values.
The service ends a process but not its children, has no limits, and reports only an exit code. So a
program runs as a child of this process, which adopts and ends all its descendants.
Standard library only.
"""

import base64
import json
import math
import os
import pwd
import resource
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final, NoReturn

from assay.contracts.errors import AssayError, FileTooLargeError, WorkspaceFullError
from assay.sandbox.native.host.files import WorkspaceFiles, disk_use
from assay.sandbox.native.host.usage_monitor import (
    ProcessWatch,
    Usage,
    count_processes,
    process_tree,
)
from assay.sandbox.native.kernel import libc
from assay.sandbox.output import Capture

Emit = Callable[[dict[str, Any]], None]
_LOOK_EVERY_S: Final = 0.015
_MEGABYTE: Final = 1 << 20
_ROOTS_OWN: Final = frozenset(
    {"HOME", "USER", "LOGNAME", "MAIL", "SHELL", "PWD", "OLDPWD", "SHLVL", "_", "INVOCATION_ID"}
    | {"SUDO_USER", "SUDO_UID", "SUDO_GID", "SUDO_COMMAND"}
)
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126


def run_program(request: dict[str, Any], emit: Emit) -> None:
    """Run the program and report everything; the last frame is `end`."""
    libc.adopt_orphans()
    libc.set_dumpable(dumpable=False)
    _Execution(request, emit).run()


class _Execution:
    def __init__(self, request: dict[str, Any], emit: Emit) -> None:
        self._request = request
        self._limits: dict[str, Any] = request["limits"]
        self._emit = emit
        self._boxes = (Path(request["workspace"]), Path(request["temporary"]))
        self._captures = {
            name: Capture(self._limits["output_bytes"]) for name in ("stdout", "stderr")
        }
        self._streams: dict[int, str] = {}
        self._status: int | None = None
        self._killed_for: str | None = None
        self._sample = Usage()
        self._child = 0

    def run(self) -> None:
        watch = ProcessWatch(
            _Below(),
            self._limits["memory_mb"] * _MEGABYTE,
            self._boxes,
            processes=self._limits["processes"],
        )
        started = time.monotonic()
        trouble = self._start()
        if trouble is None:
            self._follow(watch, started + self._limits["wall_s"])
        self._bury_all()
        self._read_all()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        report: dict[str, Any] = {"cpu_s": used.ru_utime + used.ru_stime}
        if self._status is not None:
            report["ended"] = self._status
        if trouble is not None:
            report |= {"ended": trouble[0] << 8, "start_failed": trouble[1]}
        if self._killed_for is None:
            report["grown_kb"] = used.ru_maxrss
        self._emit(
            {
                "frame": "end",
                "report": report,
                "killed_for": self._killed_for,
                "processes": self._sample.processes,
                "memory_bytes": self._sample.memory_bytes,
                "cpu_s": self._sample.cpu_s,
                "disk_full": self._is_full(),
                "duration_s": time.monotonic() - started,
            }
        )

    def _is_full(self) -> bool:
        return sum(map(disk_use, self._boxes)) >= self._limits["disk_mb"] * _MEGABYTE

    def _start(self) -> tuple[int, str] | None:
        """Fork and start the program; returns an exit code and a message if it cannot start."""
        pipes = {name: os.pipe() for name in self._captures}
        said, say = os.pipe()
        stdin = _lay_out(self._request["stdin"], self._request["state"])
        source: bytes | None = self._request.get("source")
        code = None if source is None else _lay_out(source, self._request["state"])
        self._child = os.fork()
        if self._child == 0:
            os.close(said)
            _become(self._request, stdin, (pipes["stdout"][1], pipes["stderr"][1]), code, say)
        for descriptor in (say, stdin, *(pipe[1] for pipe in pipes.values())):
            os.close(descriptor)
        if code is not None:
            os.close(code)
        for name, (reading, _) in pipes.items():
            os.set_blocking(reading, False)
            self._streams[reading] = name
        with open(said, "rb") as trouble:  # noqa: PTH123 - a descriptor
            told = trouble.read()
        if not told:
            return None
        code_text, _, words = told.decode("utf-8", "surrogateescape").partition(" ")
        return int(code_text), words

    def _follow(self, watch: ProcessWatch, deadline: float) -> None:
        ended, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, _notice)
        signal.set_wakeup_fd(wake)
        poller = select.poll()
        for descriptor in (ended, *self._streams):
            poller.register(descriptor, select.POLLIN)
        next_look = 0.0
        while not self._has_ended():
            now = time.monotonic()
            if now >= deadline:
                self._kill("timed_out")
            elif now >= next_look:
                self._look(watch)
                next_look = time.monotonic() + _LOOK_EVERY_S
            if self._killed_for is not None:
                return
            wait_s = max(0.0, min(next_look, deadline) - time.monotonic())
            for descriptor, _ in poller.poll(math.ceil(wait_s * 1000)):
                if descriptor == ended:
                    os.read(ended, _CHUNK)
                elif not self._read(descriptor):
                    poller.unregister(descriptor)
        self._look(watch)

    def _look(self, watch: ProcessWatch) -> None:
        self._sample = sample = watch.look()
        limits = self._limits
        if Path(self._request["cancel"]).exists():
            self._kill("cancelled")
        elif sample.memory_bytes > limits["memory_mb"] * _MEGABYTE:
            self._kill("out_of_memory")
        elif sample.cpu_s > limits["cpu_s"]:
            self._kill("cpu_time")
        elif sample.processes > limits["processes"]:
            self._kill("too_many_processes")
        elif sample.disk_bytes > limits["disk_mb"] * _MEGABYTE:
            self._kill("disk_full")

    def _kill(self, reason: str) -> None:
        if self._status is None and self._killed_for is None:
            self._killed_for = reason
            _kill_all_below()

    def _has_ended(self) -> bool:
        """Reap exited processes and return whether the program was among them."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._child:
                    self._status = status
        return self._status is not None

    def _bury_all(self) -> None:
        """Kill and reap all descendants, orphans included."""
        with suppress(ChildProcessError):
            while True:
                _kill_all_below()
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self._child and self._killed_for is None and self._status is None:
                    self._status = status
                if pid == 0:
                    time.sleep(0.001)  # noqa: TID251 - no event loop runs on this side

    def _read_all(self) -> None:
        # All writers have exited, so that each stream has an end.
        for descriptor in self._streams:
            while self._read(descriptor):
                pass
            os.close(descriptor)

    def _read(self, descriptor: int) -> bool:
        """Forward a stream's content; return whether more may come."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            return False
        name = self._streams[descriptor]
        capture = self._captures[name]
        capture.add(data)
        self._emit({"frame": name, "data": data})
        if capture.flooded:
            self._kill("output_limit")
            return False
        return True


class _Below:
    """All descendants of this process."""

    def host_pids(self) -> list[int]:
        return [os.getpid()]


def _notice(number: int, frame: object) -> None:
    """Serve as a signal handler: only a handler makes a signal wake up the waiting process."""


def _kill_all_below() -> None:
    for pid in process_tree(os.getpid())[1:]:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _lay_out(content: bytes, folder: str) -> int:
    """Open bytes for reading, as an unnamed file without the size limit of a pipe."""
    if not content:
        return os.open(os.devnull, os.O_RDONLY)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(content)
        file.flush()
        # Opened through /proc, so that reader and writer do not share an offset.
        return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY)


def _become(
    request: dict[str, Any], stdin: int, outputs: tuple[int, int], code: int | None, say: int
) -> NoReturn:
    doing = ""
    try:
        os.setsid()
        if code is not None:
            os.set_inheritable(code, True)
        for target, descriptor in enumerate((stdin, *outputs)):
            os.dup2(descriptor, target)
        beside_us = _give_up_rights(request)
        env = _environment(request)
        _apply_limits(request["limits"], beside_us=beside_us)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        doing = f"working directory {request['cwd']!r}"
        os.chdir(f"{request['workspace']}/{request['cwd']}")
        argv = list(request["argv"])
        if code is not None:
            argv = [sys.executable, request["main_program"], str(code), *argv]
        doing = argv[0]
        os.execvpe(argv[0], argv, env)  # noqa: S606 - inside the virtual machine
    except OSError as error:
        exit_code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        words = f"{exit_code} {doing}: {os.strerror(error.errno or 0)}"
        os.write(say, words.encode("utf-8", "surrogateescape"))
    finally:
        os._exit(_NOT_FOUND)


def _give_up_rights(request: dict[str, Any]) -> bool:
    """Switch to the program's user; return whether that user is also this process's."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if os.geteuid() != 0 or request["user"] == "root":
        return True
    account = pwd.getpwnam(request["user"])
    os.initgroups(account.pw_name, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    return False


def _environment(request: dict[str, Any]) -> dict[str, str]:
    """Return the template's variables with the program user's, and without root's."""
    env = dict(os.environ)  # noqa: TID251 - the virtual machine has no settings
    with suppress(KeyError):
        account = pwd.getpwuid(os.getuid())
        if request["user"] == account.pw_name:
            env = {name: value for name, value in env.items() if name not in _ROOTS_OWN}
            env |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    env.setdefault("LANG", "C.UTF-8")
    return env | {"TMPDIR": request["temporary"]} | request["env"]


def _apply_limits(limits: dict[str, Any], *, beside_us: bool) -> None:
    """Set per-process limits as a second layer; the monitor enforces the totals."""
    # The kernel counts processes per user, and this process hides itself from the count.
    elsewhere = count_processes(os.getuid()) + beside_us
    wanted = {
        resource.RLIMIT_CPU: math.ceil(limits["cpu_s"]) + 1,
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_NPROC: elsewhere + limits["processes"],
        resource.RLIMIT_FSIZE: limits["disk_mb"] * _MEGABYTE * 2,
        resource.RLIMIT_DATA: limits["memory_mb"] * _MEGABYTE * 4 + (1 << 30),
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in wanted.items():
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


_CHUNK: Final = 1 << 16
_PIECE: Final = 3 << 16
"""A multiple of three, so that pieces of base64 have no padding inside."""


def main() -> None:
    """Carry out one request and exit, or stay to serve all of them."""
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        _act(sys.argv[1], sys.argv[2])


def _act(act: str, text: str) -> None:
    ACTS[act](_read_request(text))


def _read_request(text: str) -> dict[str, Any]:
    request = json.loads(base64.b64decode(text))
    for name in ("stdin", "source", "content"):
        if name not in request:
            continue
        if request[name].startswith("@"):
            path = Path(request[name][1:])
            request[name] = path.read_bytes()
            path.unlink()
        else:
            request[name] = base64.b64decode(request[name])
    return request


def _serve(path: str) -> None:
    """Fork for every request. Clients can run anything, so only the socket's owner may connect."""
    # Created under another name, so that a client that sees it can connect.
    with socket.socket(socket.AF_UNIX) as listening:
        os.umask(0o077)
        listening.bind(f"{path}.new")
        os.umask(0o022)
        listening.listen(64)
        Path(f"{path}.new").rename(path)
        if os.fork():
            os._exit(0)
        os.setsid()
        for descriptor in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        listening.settimeout(1.0)
        while True:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            with suppress(TimeoutError):
                asker, _ = listening.accept()
                if os.fork() == 0:
                    listening.close()
                    _answer(asker)
                asker.close()


def _answer(asker: socket.socket) -> NoReturn:
    """Carry out one client's request on that client's output, which ends with this process."""
    try:
        asker.settimeout(None)
        text, descriptors, _, _ = socket.recv_fds(asker, _CHUNK, 1)
        os.dup2(descriptors[0], 1)
        while not text.endswith(b"\n"):
            text += asker.recv(_CHUNK)
        act, request = text.decode().split()
        _act(act, request)
    finally:
        os._exit(0)


def emit(frame: dict[str, Any]) -> None:
    """Send one frame to the other side."""
    if isinstance(frame.get("data"), bytes):
        frame = frame | {"data": base64.b64encode(frame["data"]).decode()}
    line = json.dumps(frame).encode() + b"\n"
    while line:
        line = line[os.write(1, line) :]


def _run(request: dict[str, Any]) -> None:
    run_program(request, emit)
    with suppress(OSError):
        Path(request["cancel"]).unlink()


def _refusing(act: Callable[[WorkspaceFiles, dict[str, Any]], None]) -> Callable[..., None]:
    def answer(request: dict[str, Any]) -> None:
        workspace = Path(request["workspace"])
        folder = os.open(workspace, os.O_PATH | os.O_DIRECTORY)
        boxes = (workspace, Path(request["temporary"]))

        def room() -> int:
            return (request["disk_mb"] << 20) - sum(map(disk_use, boxes))

        try:
            act(WorkspaceFiles(folder, act_as=_user(request), room=room), request)
        except AssayError as error:
            sizes = (
                {"size_bytes": error.size_bytes, "max_bytes": error.max_bytes}
                if isinstance(error, FileTooLargeError)
                else {}
            )
            told = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
            emit({"frame": "refused"} | told | sizes)
        else:
            emit({"frame": "done"})

    return answer


def _user(request: dict[str, Any]) -> int | None:
    if os.geteuid() != 0 or request["user"] == "root":
        return None
    return pwd.getpwnam(request["user"]).pw_uid


def _write(files: WorkspaceFiles, request: dict[str, Any]) -> None:
    path = PurePosixPath(request["path"])
    files.write(path, request["content"], executable=request["executable"])


def _read(files: WorkspaceFiles, request: dict[str, Any]) -> None:
    content = files.read(PurePosixPath(request["path"]), max_bytes=request["max_bytes"])
    for start in range(0, len(content), _PIECE):
        emit({"frame": "content", "data": content[start : start + _PIECE]})


def _list(files: WorkspaceFiles, request: dict[str, Any]) -> None:
    for entry in files.list_below(PurePosixPath(request["path"])):
        emit(
            {
                "frame": "entry",
                "path": str(entry.path),
                "kind": entry.kind,
                "size_bytes": entry.size_bytes,
                "executable": entry.executable,
            }
        )


def _make(files: WorkspaceFiles, request: dict[str, Any]) -> None:
    if request["disk_mb"] << 20 <= sum(
        disk_use(Path(request[name])) for name in ("workspace", "temporary")
    ):
        # The service's disk has room for far more folders than this sandbox may have.
        raise WorkspaceFullError(f"{request['path']!r}: no space left in the workspace")
    files.make_directory(PurePosixPath(request["path"]))


def _remove(files: WorkspaceFiles, request: dict[str, Any]) -> None:
    files.remove(PurePosixPath(request["path"]))


ACTS: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    "run": _run,
    "write": _refusing(_write),
    "read": _refusing(_read),
    "list": _refusing(_list),
    "make": _refusing(_make),
    "remove": _refusing(_remove),
}
