"""What the other side of an E2B sandbox asks for, done inside its virtual machine.

One process of it stays, and forks for each act that it is asked for through a socket, because a
Python that has everything loaded is quicker than one that begins. The request is JSON in base64;
what is long is a file, which it names. Answers are frames, one line of ASCII JSON each, with bytes
in base64: whatever a program writes arrives as it was. Standard library and a few modules of the
native backend only.
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
    """Do one act and leave, or stay to do them all."""
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
    """Fork for every act. Who may write to the socket may have anything done: only its owner."""
    # Made under another name, so that whoever sees it can connect.
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
    """Do what one asker wants, on the asker's own output, which ends when this process does."""
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
    """Tell the other side one thing."""
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
