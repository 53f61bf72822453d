"""The loopback of a new network namespace, which leads only to itself or to the supervisor.

Programs of one execution use it to connect to each other. In sandboxes that may reach some hosts,
every address belongs to the loopback. All connections then end at sockets that are opened here and
that the supervisor holds, so they reach the egress proxy (`assay.sandbox.network`). The namespace
has no other connection. This code runs in a zygote, which owns the namespace; a program may not
change it.
"""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

DNS_PORT: Final = 53

_LOOPBACK: Final = b"lo"
_INDEX: Final = 1
"""Of the loopback, which is the first interface of every namespace."""
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
_FLAGS_REQUEST: Final = struct.Struct("=16sh22x")

_RTM_NEWROUTE: Final = 24
_REQUEST_ACK_CREATE: Final = 0x405
_TABLE_LOCAL: Final = 255
_PROTOCOL_BOOT: Final = 3
_SCOPE_HOST: Final = 254
_TYPE_LOCAL: Final = 2
_OUTGOING: Final = 4
_MESSAGE: Final = struct.Struct("=IHHII")
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE: Final = struct.Struct("=HHI")

_BUFFERS: Final = ("/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem")
_BUFFER_BYTES: Final = b"4096 65536 131072"
"""Minimum, default and maximum for one connection: like other sockets, not megabytes."""

_IP_PKTINFO: Final = 8
_WAITING: Final = 64


def bring_up() -> None:
    """Let programs of this namespace reach each other, and nothing else.

    Raises:
        OSError: If the kernel does not allow it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = _FLAGS_REQUEST.pack(_LOOPBACK, _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, up)
    for path in _BUFFERS:
        with suppress(FileNotFoundError):  # a kernel without this setting
            _write(path, _BUFFER_BYTES)


def _write(path: str, value: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value)
    finally:
        os.close(descriptor)


def open_network(ports: Sequence[int]) -> list[int]:
    """Assign every address to this namespace and return listening sockets.

    The first receives DNS queries by UDP, the second by TCP. The others accept connections to
    `ports`, in that order.

    Raises:
        OSError: If the kernel does not allow it. The namespace is unusable then.
    """
    bring_up()
    _own_all_addresses(socket.AF_INET)
    with suppress(OSError):  # a kernel without IPv6 has no such addresses either
        _own_all_addresses(socket.AF_INET6)
    opened: list[socket.socket] = []
    try:
        opened.append(_open_questions())
        opened.extend(_open_listener(port) for port in (DNS_PORT, *ports))
    except BaseException:
        for one in opened:
            one.close()
        raise
    return [one.detach() for one in opened]


def _own_all_addresses(family: int) -> None:
    route = _ROUTE.pack(family, 0, 0, 0, _TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL, 0)
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size, _OUTGOING, _INDEX)
    length = _MESSAGE.size + len(route) + len(attribute)
    header = _MESSAGE.pack(length, _RTM_NEWROUTE, _REQUEST_ACK_CREATE, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.send(header + route + attribute)
        answer = kernel.recv(4096)
    (refusal,) = struct.unpack_from("=i", answer, _MESSAGE.size)
    if refusal and -refusal != errno.EEXIST:
        raise OSError(-refusal, f"route: {os.strerror(-refusal)}")


def _open_questions() -> socket.socket:
    questions = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    # So that answers come from the address that was asked.
    questions.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    questions.bind(("0.0.0.0", DNS_PORT))  # noqa: S104 - all addresses belong to this namespace only
    return questions


def _open_listener(port: int) -> socket.socket:
    try:
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", port))
    except OSError:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(("0.0.0.0", port))  # noqa: S104 - see above
    listener.listen(_WAITING)
    return listener
