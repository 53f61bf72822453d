"""Runs inside a native sandbox and makes a machine of it: starts processes and keeps files.

Orders are files in a folder, taken in the order of their names; what happens is told on stdout, one
line of JSON each. As in a real machine, a process that is killed does not take its children along.
"""

import base64
import json
import os
import subprocess  # noqa: TID251 - inside a sandbox already
import sys
import threading
import time
from contextlib import suppress
from typing import Any

INBOX = "inbox"
_TELLING = threading.Lock()
_PROCESSES: dict[int, "subprocess.Popen[bytes]"] = {}


def tell(number: int, **what: Any) -> None:
    line = json.dumps({"id": number, **what}).encode() + b"\n"
    with _TELLING:
        while line:
            line = line[os.write(1, line) :]


def main() -> None:
    tell(0, ready=True)
    number = 0
    while True:
        path = f"{INBOX}/{number:09d}"
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - nothing else is loaded here
                order = json.load(file)
        except FileNotFoundError:
            time.sleep(0.002)  # noqa: TID251 - no events cross this border
            continue
        os.unlink(path)  # noqa: PTH108
        number += 1
        _ORDERS[order.pop("order")](**order)


def _start(number: int, argv: list[str], env: dict[str, str], cwd: str, stdin: bool) -> None:  # noqa: FBT001
    try:
        process = subprocess.Popen(
            argv,
            env={**os.environ, **env},  # noqa: TID251 - of the machine
            cwd=cwd,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        tell(number, failed=str(error))
        return
    _PROCESSES[number] = process
    tell(number, pid=process.pid)
    threading.Thread(target=_follow, args=(number, process), daemon=True).start()


def _follow(number: int, process: "subprocess.Popen[bytes]") -> None:
    streams = {"stdout": process.stdout, "stderr": process.stderr}
    readers = [
        threading.Thread(target=_pass_on, args=(number, name, stream), daemon=True)
        for name, stream in streams.items()
    ]
    for reader in readers:
        reader.start()
    code = process.wait()
    for reader in readers:
        reader.join(timeout=2)
    tell(number, code=code)


def _pass_on(number: int, name: str, stream: Any) -> None:
    while data := os.read(stream.fileno(), 1 << 15):
        tell(number, **{name: base64.b64encode(data).decode()})


def _input(number: int, data: str) -> None:
    stream = _PROCESSES[number].stdin
    if stream is not None:
        with suppress(BrokenPipeError):
            stream.write(base64.b64decode(data))
            stream.flush()


def _kill(number: int, signal_number: int) -> None:
    with suppress(ProcessLookupError, KeyError):
        _PROCESSES[number].send_signal(signal_number)


def _put(number: int, path: str, data: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(base64.b64decode(data))
    except OSError as error:
        tell(number, failed=str(error))
    else:
        tell(number, put=True)


_ORDERS = {"start": _start, "input": _input, "kill": _kill, "put": _put}

if __name__ == "__main__":
    sys.exit(main())
