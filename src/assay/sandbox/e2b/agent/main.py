"""Request server inside an E2B virtual machine.

One process stays and forks for each request on its socket, because a Python process with loaded
modules is faster than a new one. The request is JSON in base64; it names files for long values.
Answers are frames, each one line of ASCII JSON with bytes in base64, so that any output arrives
unchanged. Uses the standard library and a few modules of the native backend only.
"""

import base64
import json
import os
import pwd
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final, NoReturn

from assay.contracts.errors import AssayError, FileTooLargeError, WorkspaceFullError
from assay.sandbox.e2b.agent.run import run_program
from assay.sandbox.native.host.disk_use import disk_use
from assay.sandbox.native.host.files import WorkspaceFiles

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
