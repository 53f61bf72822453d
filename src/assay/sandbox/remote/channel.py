"""Channel to one executor: checks the credentials of both sides and opens a connection."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from assay.auth.credentials import check_pair, is_loopback
from assay.auth.tokens import read_private
from assay.contracts.errors import UsageError
from assay.sandbox.remote.diagnosis import Identity
from assay.sandbox.rpc.messages.codec import CHUNK_BYTES, MAX_MESSAGE_BYTES
from assay.settings.executor import RemoteSettings

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + CHUNK_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + CHUNK_BYTES),
    # gRPC must never resend a request without Assay's knowledge.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name, the limit of one attempt with its handshake; some executors are distant.
    ("grpc.min_reconnect_backoff_ms", 20_000),
    # Detects an executor that went away without closing the connection within 15 seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The limit for answers to pings; without it gRPC waits for a minute.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The credentials and addresses needed to open channels."""

    identity: Identity
    credentials: grpc.ChannelCredentials | None
    """None: plain text."""
    metadata: tuple[tuple[str, str], ...]


def prepare_access(settings: RemoteSettings) -> Access:
    """Read certificates and the token, and check that no secret is sent unprotected.

    Raises:
        UsageError: If no executor is configured, or a file is missing or readable by others.
    """
    if not settings.addresses:
        raise UsageError(
            "the backend 'remote' has no executor to ask", hint="set sandbox.remote.addresses"
        )
    if (settings.cert is None) != (settings.key is None):
        raise UsageError(
            "a certificate without its key, or a key without its certificate",
            hint="set sandbox.remote.cert and sandbox.remote.key, or neither",
        )
    if settings.ca is None:
        _check_plain(settings)
    identity = Identity(
        ca=settings.ca, cert=settings.cert, key=settings.key, server_name=settings.server_name
    )
    return Access(
        identity=identity,
        credentials=_channel_credentials(settings),
        metadata=_metadata(settings.token_file),
    )


def _check_plain(settings: RemoteSettings) -> None:
    if settings.cert is not None:
        raise UsageError(
            "a client certificate is set, but no certificate authority to check the executor's",
            hint="set sandbox.remote.ca",
        )
    for address in settings.addresses:
        if not is_loopback(address.rpartition(":")[0]):
            raise UsageError(
                f"{address} is another machine, and there is no TLS to it",
                hint="set sandbox.remote.ca",
            )


def _channel_credentials(settings: RemoteSettings) -> grpc.ChannelCredentials | None:
    if settings.ca is None:
        return None
    key = None if settings.key is None else read_private(settings.key).encode()
    if settings.cert is not None and settings.key is not None:
        check_pair(settings.cert, settings.key, section="sandbox.remote")
    cert = None if settings.cert is None else _read(settings.cert)
    return grpc.ssl_channel_credentials(
        root_certificates=_read(settings.ca), private_key=key, certificate_chain=cert
    )


def _metadata(token_file: Path | None) -> tuple[tuple[str, str], ...]:
    if token_file is None:
        return ()
    token = read_private(token_file).strip()
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise UsageError(f"{str(token_file)!r} does not hold a token, and nothing else")
    return (("authorization", f"Bearer {token}"),)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error


def open_channel(address: str, access: Access) -> grpc.aio.Channel:
    """Open a channel; it connects on first use."""
    options = list(_OPTIONS)
    if access.credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    if access.identity.server_name:
        named = [*options, ("grpc.ssl_target_name_override", access.identity.server_name)]
        return grpc.aio.secure_channel(address, access.credentials, options=named)
    return grpc.aio.secure_channel(address, access.credentials, options=options)
