"""Attacks from a sandbox with equipment: a host or packages.

No attack connects to the allowed host, so that nothing leaves the machine, wherever the suite runs.
"""

from dataclasses import replace

from assay.contracts.execution import Isolation, SandboxSpec
from assay.selftest.security_tests.attack import AttackConfig
from assay.selftest.security_tests.probe import (
    LIST_ANY,
    LIST_CONTROL,
    MAKE_SOCKET,
    MAKE_SOCKET_CONTROL,
    OPEN_ANY_FOR_WRITING,
    build_probe,
    build_probes,
)

_WITH_HOSTS = AttackConfig(
    group="equipment",
    needs=Isolation.ISOLATED,
    equipment=SandboxSpec(hosts=("example.org", "example.org:8443")),
)
_WITH_PACKAGES = AttackConfig(group="equipment", equipment=SandboxSpec(packages=("six",)))

_ANSWERED = """
import socket
def ask():
    mine = CONNECT()
    mine.settimeout(3)
    mine.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    return mine.recv(64)
judge(ask)
"""
"""Fires when data comes back over the connection from CONNECT: the egress proxy accepts any
connection, and decides afterwards."""

_ANSWERED_CONTROL = """
import socket
pair = socket.socketpair()
pair[1].sendall(b"hello")
CONNECT = lambda: pair[0]
"""

_PLACES = {
    "a_server_of_the_host": ("127.0.0.1", "CANARY['tcp_port']"),
    "a_server_of_the_host_over_ipv6": ("::1", "CANARY['tcp6_port']"),
    "a_server_of_the_host_by_a_mapped_address": ("::ffff:127.0.0.1", "CANARY['tcp_port']"),
    "a_server_of_the_host_at_no_address": ("0.0.0.0", "CANARY['tcp_port']"),  # noqa: S104 - a target
    "the_metadata_of_a_cloud": ("169.254.169.254", "80"),
    "the_metadata_of_a_cloud_by_a_mapped_address": ("::ffff:169.254.169.254", "80"),
    "the_metadata_of_a_cloud_over_ipv6": ("fd00:ec2::254", "80"),
    "the_metadata_of_a_cloud_through_nat64": ("64:ff9b::a9fe:a9fe", "80"),
    "a_private_network": ("10.0.0.1", "443"),
    "an_address_nobody_named": ("192.0.2.7", "443"),
    "a_port_that_only_another_host_has": ("192.0.2.7", "8443"),
}

CONNECTIONS = tuple(
    build_probe(
        f"{name}_is_not_reached_through_the_gate",
        detector=_ANSWERED,
        attack=f"CONNECT = lambda: socket.create_connection(({address!r}, {port}), timeout=3)",
        control=_ANSWERED_CONTROL,
        config=_WITH_HOSTS,
    )
    for name, (address, port) in _PLACES.items()
)

_RESOLVED = """
import socket, struct
def ask():
    number = 7
    name = b"".join(bytes([len(part)]) + part for part in NAME.split(b".")) + b"\\0"
    header = struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, 0)
    question = header + name + struct.pack("!HH", KIND, 1)
    with ASK() as mine:
        mine.settimeout(2)
        mine.send(question)
        answer = mine.recv(4096)
    return struct.unpack_from("!H", answer, 6)[0]
judge(ask)
"""
"""Fires when a query for NAME has an answer."""

_RESOLVED_CONTROL = """
import socket, struct, threading
NAME, KIND = b"a", 1
mine, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
answer = struct.pack("!HHHHHH", 7, 0x8180, 1, 1, 0, 0)
threading.Thread(target=lambda: (server.recv(512), server.send(answer))).start()
ASK = lambda: mine
"""

_ASKED = """
def ASK():
    mine = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    mine.connect((SERVER, 53))
    return mine
"""

NAMES = tuple(
    build_probe(
        f"{case}_has_no_answer",
        detector=_RESOLVED,
        attack=f"NAME, KIND, SERVER = {name!r}, {kind}, {server!r}\nimport socket\n" + _ASKED,
        control=_RESOLVED_CONTROL,
        config=_WITH_HOSTS,
    )
    for case, (name, kind, server) in {
        "a_name_that_carries_a_message": (b"c2VjcmV0.example.net", 1, "127.0.0.1"),
        "a_message_below_a_host_on_the_list": (b"c2VjcmV0.example.org", 1, "127.0.0.1"),
        "a_question_for_text": (b"c2VjcmV0.example.net", 16, "127.0.0.1"),
        "a_question_to_another_server": (b"example.net", 1, "192.0.2.53"),
        "a_name_with_a_host_inside": (b"example.org.example.net", 1, "127.0.0.1"),
        "a_name_with_bytes_that_are_no_text": (b"\xff\xfe.example.org", 1, "127.0.0.1"),
    }.items()
)

SOCKETS = build_probes(
    {
        "a_raw_socket": "(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)",
        "a_packet_socket": "(socket.AF_PACKET, socket.SOCK_RAW, 0)",
        "a_socket_to_the_kernel": "(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
        "a_virtual_machine_socket": "(socket.AF_VSOCK, socket.SOCK_STREAM, 0)",
    },
    name="{name}_is_refused_with_hosts_too",
    detector=MAKE_SOCKET,
    attack="MAKE = lambda socket: socket.socket{row}",
    control=MAKE_SOCKET_CONTROL,
    config=_WITH_HOSTS,
)

WRITING = build_probe(
    "files_of_packages_cannot_be_opened_for_writing",
    detector=OPEN_ANY_FOR_WRITING,
    attack="""
        import six
        folder = os.path.dirname(six.__file__)
        TARGETS = [six.__file__, *(
            os.path.join(place, name) for place, _, names in os.walk(folder) for name in names
        )]
    """,
    control="""
        open("planted", "w").close()
        TARGETS = ["missing", "planted"]
    """,
    config=_WITH_PACKAGES,
)

NEIGHBOURS = build_probe(
    "the_packages_of_others_are_not_there",
    detector=LIST_ANY,
    attack="""
        import six
        folder = os.path.dirname(six.__file__)
        TARGETS = ["/layers", os.path.join(folder, "..", "..", "..", "layers")]
    """,
    control=LIST_CONTROL,
    config=replace(
        _WITH_PACKAGES,
        needs=Isolation.ISOLATED,
        not_applicable_from=Isolation.KERNEL,
        moot_because="the image of such a sandbox has no packages but its own",
    ),
)
