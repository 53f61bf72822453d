"""gRPC transport to one executor: credentials, channel, calls, and how broken calls ended.

The channel checks the credentials of both sides. gRPC gives no cause for an unreachable executor,
so a diagnosis connects without it.
"""

import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import grpc
import grpc.aio
from cryptography import x509
from google.protobuf.message import DecodeError

from assay.auth.credentials import check_pair, is_loopback
from assay.auth.tokens import read_private
from assay.contracts.errors import AssayError, SandboxUnavailableError, UsageError
from assay.sandbox.rpc.client_sandbox import BrokenOffError, UnreachableError
from assay.sandbox.rpc.messages import executor_pb2
from assay.sandbox.rpc.messages.codec import CHUNK_BYTES, MAX_MESSAGE_BYTES, MessageError
from assay.sandbox.rpc.messages.failures import (
    FAILURE_KEY,
    RequestRefusedError,
    from_failure,
    path_of,
)
from assay.sandbox.rpc.messages.methods import Method, Request, Response
from assay.settings.executor import RemoteSettings

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes that an HTTP/2 client sends."""

Finding = tuple[str, str]
"""The cause and the fix."""

_SILENT: Final = (
    "it takes connections, but does not answer",
    "is its process stopped, or its machine overloaded? its log may say more",
)
_SOMETHING_ELSE: Final = (
    "it answers, but not as an executor does",
    "is something else running there?",
)


def diagnose(address: str, settings: RemoteSettings, timeout_s: float) -> Finding:
    """Repeat the connection steps of gRPC one by one and report the one that fails."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        connection = socket.create_connection((host, int(port)), timeout=timeout_s)
    except OSError as error:
        return str(error.strerror or error).lower(), "is the executor running there?"
    with connection:
        if settings.ca is None:
            return _diagnose_plain(connection)
        return _diagnose_tls(connection, host, settings)


def _diagnose_plain(connection: socket.socket) -> Finding:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Only tests whether the other side speaks TLS; nothing is sent over the connection.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with context.wrap_socket(connection):
            pass
    except ssl.SSLError as error:
        if "WRONG_VERSION_NUMBER" not in str(error):
            return "it speaks TLS, and we speak plain text", "set sandbox.remote.ca"
        return _SOMETHING_ELSE
    except TimeoutError:
        return _SILENT
    except OSError:
        return _SOMETHING_ELSE
    return "it speaks TLS, and we speak plain text", "set sandbox.remote.ca"


def _diagnose_tls(connection: socket.socket, host: str, settings: RemoteSettings) -> Finding:
    try:
        context = ssl.create_default_context(cafile=str(settings.ca))
        context.set_alpn_protocols(["h2"])
        if settings.cert is not None:
            context.load_cert_chain(settings.cert, settings.key)
        with context.wrap_socket(connection, server_hostname=settings.server_name or host) as tls:
            # In TLS 1.3, the server rejects the client certificate only after the handshake.
            tls.sendall(_PREFACE)
            if tls.recv(1):
                return "it answers, but slowly", "ask again"
    except ssl.SSLCertVerificationError as error:
        return _untrusted(error)
    except ssl.SSLError as error:
        if "WRONG_VERSION_NUMBER" in str(error):
            return "it speaks plain text, and we speak TLS", "unset sandbox.remote.ca"
    except TimeoutError:
        return _SILENT
    except OSError:
        pass  # The server closed the connection, as after the handshake.
    return _hung_up(settings)


def _untrusted(error: ssl.SSLCertVerificationError) -> Finding:
    match error.verify_code:
        case 10:  # X509_V_ERR_CERT_HAS_EXPIRED
            return (
                "its certificate has expired",
                "make another with `assay certs make`, and restart the executor with it",
            )
        case 9:  # X509_V_ERR_CERT_NOT_YET_VALID
            return "its certificate is not valid yet", "compare the clocks of both machines"
        case _:
            why = error.verify_message
            return f"its certificate cannot be trusted: {why}", "is sandbox.remote.ca right?"


def _hung_up(settings: RemoteSettings) -> Finding:
    if settings.cert is None:
        return (
            "it closed the connection because the client sent no certificate",
            "set sandbox.remote.cert and sandbox.remote.key",
        )
    if ended := _expiry(settings.cert):
        return f"our certificate has expired on {ended}", "let `assay certs make` make another"
    return (
        "it rejects the client certificate",
        "ask its operator which authority may sign client certificates; its log has the reason",
    )


def _expiry(path: Path) -> str:
    """Return when our certificate expired; empty if it is valid."""
    try:
        ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return ""
    return f"{ends:%Y-%m-%d %H:%M} UTC" if ends < datetime.now(UTC) else ""


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

    settings: RemoteSettings
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
    token = ""
    if settings.token_file is not None:
        token = read_private(settings.token_file).strip()
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            name = str(settings.token_file)
            raise UsageError(f"{name!r} does not hold a token, and nothing else")
    return Access(
        settings=settings,
        credentials=_channel_credentials(settings),
        metadata=(("authorization", f"Bearer {token}"),) if token else (),
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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error


def _open_channel(address: str, access: Access) -> grpc.aio.Channel:
    options: list[tuple[str, int | str]] = [*_OPTIONS]
    if access.credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    if access.settings.server_name:
        options.append(("grpc.ssl_target_name_override", access.settings.server_name))
    return grpc.aio.secure_channel(address, access.credentials, options=options)


_BROKEN: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}
)
"""The statuses with which gRPC reports an unknown outcome."""

_DIAGNOSIS_S: Final = 3.0
_FIRST_LOOK_S: Final = 0.001
_LAST_LOOK_S: Final = 0.05
_AGAIN_S: Final = 1.2
"""How long to wait for a connection after a failed one; slightly more than gRPC's own delay."""


class GrpcTransport:
    """See `assay.sandbox.rpc.client_sandbox.Transport`."""

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        self.distrusted = ""
        """Why answers of this executor are no longer trusted; empty while they are."""
        self.channel = _open_channel(address, access)
        """Connects on first use."""
        self._access = access
        self._connect_timeout_s = access.settings.connect_timeout_s
        self._methods: dict[str, Any] = {}

    def distrust(self, why: str) -> None:
        self.distrusted = why

    async def ask(
        self, method: Method[Request, Response], *requests: Request, timeout_s: float | None = None
    ) -> Response:
        await self.connect()
        call = self._multi_callable(method)
        content = _each(requests) if method.streams_requests else requests[0]
        async with self._translating():
            return await call(content, timeout=timeout_s, metadata=self._access.metadata)

    @asynccontextmanager
    async def stream(
        self, method: Method[Request, Response], request: Request
    ) -> AsyncGenerator[AsyncIterator[Response]]:
        await self.connect()
        call = self._multi_callable(method)(request, metadata=self._access.metadata)
        try:
            async with self._translating():
                yield aiter(call)
        finally:
            call.cancel()

    async def connect(self) -> None:
        """Ensure that a connection exists, so that the next request is certainly sent.

        Raises:
            UnreachableError: If no connection exists; includes the cause if known.
        """
        if self.distrusted:
            raise UnreachableError(f"{self.address} is not trusted: {self.distrusted}")
        state = self.channel.get_state(try_to_connect=True)
        # A failed channel stays in that state until a connection succeeds.
        failed = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
        with anyio.move_on_after(
            min(self._connect_timeout_s, _AGAIN_S) if failed else self._connect_timeout_s
        ):
            pause_s = _FIRST_LOOK_S
            while state is not grpc.ChannelConnectivity.READY:
                # gRPC can wait for a change, but keeps a cancelled wait: its callback comes when
                # the channel is closed, and perhaps the event loop.
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_LOOK_S)
                state = self.channel.get_state(try_to_connect=True)
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not failed:
                    break
        if state is not grpc.ChannelConnectivity.READY:
            timeout_s = min(self._connect_timeout_s, _DIAGNOSIS_S)
            look = partial(diagnose, self.address, self._access.settings, timeout_s)
            # Only a diagnosis with its own limit; a caller that leaves does not wait for it.
            why, hint = await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
            raise UnreachableError(f"the executor {self.address}: {why}", hint=hint)

    def _multi_callable(self, method: Method[Any, Any]) -> Any:
        if method.name not in self._methods:
            kinds = {
                (False, False): self.channel.unary_unary,
                (False, True): self.channel.unary_stream,
                (True, False): self.channel.stream_unary,
            }
            self._methods[method.name] = kinds[method.streams_requests, method.streams_responses](
                path_of(method.name),
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return self._methods[method.name]

    @asynccontextmanager
    async def _translating(self) -> AsyncGenerator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from error
        except anyio.get_cancelled_exc_class():
            # gRPC replaces the cancellation by its own, which no cancel scope would recognize.
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise

    def _explained(self, error: grpc.aio.AioRpcError) -> AssayError:
        told = f"the executor {self.address}: {error.details() or error.code().name}"
        for name, value in error.trailing_metadata() or ():
            if name == FAILURE_KEY and isinstance(value, bytes):
                return self._failure(value)
        match error.code():
            case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
                return RequestRefusedError(told)
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                why = f"the executor {self.address} did not answer in time"
                return SandboxUnavailableError(why, dispatch="outcome_unknown")
            case code if code in _BROKEN:
                return BrokenOffError(told)
            case _:
                return SandboxUnavailableError(told, dispatch="outcome_unknown")

    def _failure(self, serialized: bytes) -> AssayError:
        try:
            return from_failure(executor_pb2.Failure.FromString(serialized))
        except (DecodeError, MessageError) as error:
            self.distrust(str(error))
            return SandboxUnavailableError(
                f"the executor {self.address} sent what it could not: {error}",
                dispatch="outcome_unknown",
            )


async def _each(requests: tuple[Request, ...]) -> AsyncGenerator[Request]:
    for request in requests:
        yield request
