"""What gRPC says of a handshake that failed is understood, and nothing else is touched."""

import os
from pathlib import Path

import pytest

from assay.executor.tls_audit import failure_in, overhearing

SAID = b"I1116 08:55:48.626599   31074 ssl_transport_security.cc:2563] Handshake failed with error "
SSL = SAID + b"SSL_ERROR_SSL: error:100000c0:SSL routines:OPENSSL_internal:"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            SSL + b"PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid certificate verification context",
            "no certificate was shown",
        ),
        (
            SSL + b"CERTIFICATE_VERIFY_FAILED: certificate has expired",
            "the certificate was not accepted: certificate has expired",
        ),
        (SSL + b"WRONG_VERSION_NUMBER: Invalid certificate", "what came was not TLS"),
        (SSL + b"NO_SHARED_CIPHER", "the handshake failed: NO_SHARED_CIPHER"),
        (b"Handshake failed, said a program", ""),
        (b"", ""),
    ],
)
def test_a_line_is_understood(line: bytes, why: str) -> None:
    assert failure_in(line) == why


def test_what_is_not_about_handshakes_goes_on_as_it_was(tmp_path: Path) -> None:
    told: list[str] = []
    whole = b"one\n" + b"x" * 200_000 + b"\n" + SSL + b"HTTP_REQUEST\nthree"
    stderr = os.dup(2)
    with (tmp_path / "log").open("wb") as log:
        os.dup2(log.fileno(), 2)
        try:
            with overhearing(told.append):
                _write(whole)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)

    written = (tmp_path / "log").read_bytes()
    assert told == ["what came was not TLS"]
    expected = b"\nrefused a connection: what came was not TLS\nthree"
    assert written == b"one\n" + b"x" * 200_000 + expected


def test_what_cannot_be_written_down_does_not_stop_the_rest(tmp_path: Path) -> None:
    def fail(_: str) -> None:
        raise OSError("no room")

    stderr = os.dup(2)
    with (tmp_path / "log").open("wb") as log:
        os.dup2(log.fileno(), 2)
        try:
            with overhearing(fail):
                _write(SSL + b"HTTP_REQUEST\nafterwards\n")
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)

    assert (tmp_path / "log").read_text().endswith("no room\nafterwards\n")


def _write(content: bytes) -> None:
    while content:
        content = content[os.write(2, content) :]
