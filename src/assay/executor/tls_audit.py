"""Detects failed TLS handshakes in stderr, the only place where gRPC reports them.

All other output passes through to the original stderr. Lines about handshakes are replaced by
shorter ones, and a callback counts them. They do not contain the address of the client.
"""

import os
import re
import select
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

_STDERR: Final = 2
_CHUNK_BYTES: Final = 1 << 16
_LONGEST_LINE: Final = 1 << 16
_JOIN_S: Final = 5.0
_FAILED: Final = re.compile(
    rb"Handshake failed with error SSL_ERROR_\w+: error:[0-9a-f]+:[^:]*:\w*:(?P<code>\w+)"
    rb"(?:: (?P<detail>[ -~]{0,200}))?"
)
_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate was shown",
    "WRONG_VERSION_NUMBER": "what came was not TLS",
    "HTTP_REQUEST": "what came was not TLS",
    "CERTIFICATE_VERIFY_FAILED": "the certificate was not accepted",
}

Tell = Callable[[str], None]
"""Callback for the reason, in a separate thread."""


def failure_in(line: bytes) -> str:
    """Return the reason if a line of gRPC's log reports a failed handshake."""
    found = _FAILED.search(line)
    if found is None:
        return ""
    code = found["code"].decode()
    reason = _REASONS.get(code, f"the handshake failed: {code}")
    if code == "CERTIFICATE_VERIFY_FAILED" and found["detail"]:
        return f"{reason}: {found['detail'].decode().strip()}"
    return reason


@contextmanager
def overhearing(tell: Tell) -> Generator[None]:
    """Read what this process writes to stderr, and report each failed handshake.

    Only for a process that is an executor and nothing else: its stderr is a pipe meanwhile.
    """
    before = os.dup(_STDERR)
    reading, writing = os.pipe()
    waking, wake = os.pipe()
    os.dup2(writing, _STDERR)
    os.close(writing)
    listening = threading.Thread(
        target=_listen, args=(reading, waking, before, tell), name="stderr", daemon=True
    )
    listening.start()
    try:
        yield
    finally:
        os.dup2(before, _STDERR)
        # Child processes may hold the pipe open, so it may never reach its end.
        os.close(wake)
        listening.join(_JOIN_S)
        for descriptor in (reading, waking, before):
            os.close(descriptor)


def _listen(reading: int, waking: int, onward: int, tell: Tell) -> None:
    rest = b""
    ending = False
    # Not `select.select`, which rejects descriptors above 1023.
    events = select.poll()
    for descriptor in (reading, waking):
        events.register(descriptor, select.POLLIN)
    while not ending:
        ready = {descriptor for descriptor, _ in events.poll()}
        ending = waking in ready and reading not in ready
        if reading not in ready:
            continue
        chunk = os.read(reading, _CHUNK_BYTES)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            _hand_on(line + b"\n", onward, tell)
        if len(rest) > _LONGEST_LINE:
            _hand_on(rest, onward, tell)
            rest = b""
    if rest:
        _hand_on(rest, onward, tell)


def _hand_on(line: bytes, onward: int, tell: Tell) -> None:
    try:
        if why := failure_in(line):
            line = f"refused a connection: {why}\n".encode()
            tell(why)
    except OSError as error:
        line += f"and could not write that down: {error}\n".encode()
    try:
        while line:
            line = line[os.write(onward, line) :]
    except OSError:
        return  # The reader is gone; writers must not block because of that.
