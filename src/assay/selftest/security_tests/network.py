"""Attacks over the network: no outgoing and no incoming connection, no view of the host's network.

Targets are only loopback addresses, and listeners of the suite.
"""

from dataclasses import replace
from functools import partial

import anyio

from assay.contracts.execution import Isolation, OutputChunk
from assay.selftest.programs import python
from assay.selftest.security_tests.attack import (
    TIGHT,
    AttackConfig,
    AttackContext,
    Finding,
    build_attack,
)
from assay.selftest.security_tests.probe import (
    FIND_IN,
    MAKE_SOCKET,
    MAKE_SOCKET_CONTROL,
    REACH,
    REACH_BY_DATAGRAM,
    REACH_CONTROL,
    build_probe,
    build_probes,
)

_CONFIG = AttackConfig(group="network")
_APART = replace(_CONFIG, needs=Isolation.ISOLATED)

_INET_TARGETS = {
    "tcp_to_the_host": "socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', CANARY['tcp_port'])",
    "tcp_over_ipv6_to_the_host": (
        "socket.AF_INET6, socket.SOCK_STREAM, ('::1', CANARY['tcp6_port'])"
    ),
    "tcp_through_ipv6_mapped_addresses": (
        "socket.AF_INET6, socket.SOCK_STREAM, ('::ffff:127.0.0.1', CANARY['tcp_port'])"
    ),
    "tcp_to_the_unspecified_address": (
        "socket.AF_INET, socket.SOCK_STREAM, ('0.0.0.0', CANARY['tcp_port'])"
    ),
    "a_socket_of_the_host_by_path": "socket.AF_UNIX, socket.SOCK_STREAM, CANARY['unix_path']",
}

REACHING_OUT = build_probes(
    _INET_TARGETS,
    name="{name}_goes_nowhere",
    detector=REACH,
    attack="REACHED = lambda connect: connect({row})",
    control=REACH_CONTROL,
    config=_CONFIG,
)

DATAGRAMS = build_probe(
    "udp_to_the_host_goes_nowhere",
    detector=REACH_BY_DATAGRAM,
    attack="""
        def REACHED():
            mine = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            mine.connect(("127.0.0.1", CANARY["udp_port"]))
            return mine
    """,
    control="""
        import socket
        pair = socket.socketpair()
        REACHED = lambda: pair[0]
    """,
    config=_CONFIG,
)

OTHER_PROGRAMS = build_probe(
    "tcp_by_another_program_goes_nowhere",
    detector=REACH,
    attack=f"REACHED = lambda connect: connect({_INET_TARGETS['tcp_to_the_host']})",
    control=REACH_CONTROL,
    config=replace(_CONFIG, by_command=True),
)

PAIRS = build_probe(
    "a_datagram_from_a_socket_pair_does_not_reach_a_socket_of_the_host",
    detector="""
        import socket
        judge(lambda: SEND(*socket.socketpair(socket.AF_UNIX, KIND)))
    """,
    attack="""
        import socket
        KIND = socket.SOCK_DGRAM
        SEND = lambda mine, other: mine.sendto(b"hello", CANARY["datagram_path"])
    """,
    control="""
        import socket
        KIND = socket.SOCK_STREAM
        SEND = lambda mine, other: mine.send(b"hello")
    """,
    config=_CONFIG,
)

ABSTRACT = build_probe(
    "an_abstract_socket_of_the_host_is_out_of_reach",
    detector=REACH,
    attack="""
        REACHED = lambda connect: connect(
            socket.AF_UNIX, socket.SOCK_STREAM, CANARY["abstract_name"]
        )
    """,
    control=REACH_CONTROL,
    config=_APART,
)

NAMES = build_probe(
    "names_are_not_looked_up",
    detector="""
        import socket
        QUESTION = bytes.fromhex("abcd01000001000000000000") + b"\\5assay\\7invalid\\0\\0\\1\\0\\1"
        def ask():
            with REACHED() as mine:
                mine.settimeout(1)
                mine.send(QUESTION)
                return mine.recv(512)
        judge(ask)
    """,
    attack="""
        def REACHED():
            mine = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            mine.connect(("127.0.0.1", 53))
            return mine
    """,
    control="""
        import socket, threading
        mine, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        threading.Thread(target=lambda: server.send(server.recv(512))).start()
        REACHED = lambda: mine
    """,
    config=_CONFIG,
)

RAW = build_probes(
    {
        "a_raw_ip_socket": "(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)",
        "a_raw_ipv6_socket": "(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_TCP)",
        "a_ping_socket": "(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
        "an_sctp_socket": "(socket.AF_INET, socket.SOCK_STREAM, 132)",
    },
    name="{name}_is_refused",
    detector=MAKE_SOCKET,
    attack="MAKE = lambda socket: socket.socket{row}",
    control=MAKE_SOCKET_CONTROL,
    config=_CONFIG,
)

INTERFACES = build_probe(
    "no_interface_but_the_loopback_is_there",
    detector=FIND_IN,
    attack="TARGET, NEEDLE = '/proc/net/dev', r'^ *(?!lo:)[\\w.@-]+:'",
    control="""
        with open("planted", "w") as file:
            file.write("Inter-|   Receive\\n    lo: 0 0\\n  eth0: 0 0\\n")
        TARGET, NEEDLE = "planted", r"^ *(?!lo:)[\\w.@-]+:"
    """,
    config=_APART,
)

CONNECTIONS = build_probe(
    "the_connections_of_the_host_are_not_listed",
    detector=FIND_IN,
    attack="TARGET, NEEDLE = '/proc/net/tcp', f':{CANARY[\"tcp_port\"]:04X} '",
    control="""
        with open("planted", "w") as file:
            file.write(f"0: 0100007F:{CANARY['tcp_port']:04X} 00000000:0000 0A\\n")
        TARGET, NEEDLE = "planted", f":{CANARY['tcp_port']:04X} "
    """,
    config=_APART,
)

SOCKETS = build_probe(
    "the_sockets_of_the_host_are_not_listed",
    detector=FIND_IN,
    attack="TARGET, NEEDLE = '/proc/net/unix', CANARY['unix_path']",
    control="""
        import socket
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("own-socket")
        TARGET, NEEDLE = "/proc/net/unix", "own-socket"
    """,
    config=_APART,
)

_LISTEN = """
    import socket, time
    try:
        listener = socket.socket(socket.AF_INET)
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        print("port", listener.getsockname()[1], flush=True)
    except OSError:
        print("port 0", flush=True)
    time.sleep(0.7)
"""


async def _sandbox_listens(context: AttackContext) -> Finding:
    """Let a sandbox listen on all addresses, and connect to that port of the host."""
    ports: list[int] = []
    listening = anyio.Event()

    def hear(chunk: OutputChunk) -> None:
        word, _, number = chunk.data.decode().partition(" ")
        if word == "port":
            ports.append(int(number))
            listening.set()

    finding = Finding(breached=False, evidence="it could not listen")
    async with context.backend.open_sandbox(TIGHT) as sandbox, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(sandbox.run, python(_LISTEN), on_output=hear))
        with anyio.fail_after(15):
            await listening.wait()
        if ports[0]:
            finding = await _knock(ports[0])
    return finding


async def _host_listens(context: AttackContext) -> Finding:
    return await _knock(context.canaries.listeners["tcp"].getsockname()[1])


async def _knock(port: int) -> Finding:
    try:
        async with await anyio.connect_tcp("127.0.0.1", port):
            return Finding(breached=True, evidence=f"port {port} of the host answers")
    except OSError as error:
        return Finding(breached=False, evidence=str(error))


LISTENING = build_attack(
    "a_port_of_a_sandbox_is_not_a_port_of_the_host",
    attack=_sandbox_listens,
    control=_host_listens,
    config=_CONFIG,
)

_ABSTRACT = ("socket.AF_UNIX", "'\\0assay-meeting'")
_LOOPBACK = ("socket.AF_INET", "('127.0.0.1', 45123)")

_WAIT_FOR_VISITOR = """
    import socket, sys
    listener = socket.socket({family})
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind({address})
    listener.listen()
    listener.settimeout(2)
    print("ready", flush=True)
    if sys.argv[1:] == ["alone"]:
        visitor = socket.socket({family})
        visitor.connect({address})
    try:
        listener.accept()
        print("BREACH 'met'", flush=True)
    except OSError as error:
        print("HELD", repr(error), flush=True)
"""
_VISIT = """
    import socket
    try:
        socket.socket({family}).connect({address})
    except OSError as error:
        print(error)
"""


async def _meet(context: AttackContext, place: tuple[str, str], *, apart: bool) -> Finding:
    """Let one execution wait at an address, and others connect to it, or only itself."""
    family, address = place
    wait, visit = (
        python(source.format(family=family, address=address))
        for source in (_WAIT_FOR_VISITOR, _VISIT)
    )
    heard: list[bytes] = []
    ready = anyio.Event()

    def hear(chunk: OutputChunk) -> None:
        heard.append(chunk.data)
        ready.set()

    waiting = replace(wait, args=() if apart else ("alone",))
    async with (
        context.backend.open_sandbox(TIGHT) as one,
        context.backend.open_sandbox(TIGHT) as other,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(partial(one.run, waiting, on_output=hear))
        with anyio.fail_after(15):
            await ready.wait()
        if apart:
            await other.run(visit)
            await one.run(visit)
    text = b"".join(heard).decode()
    assert "HELD" in text or "BREACH" in text, f"nothing was tested: {text!r}"
    return Finding(breached="BREACH" in text, evidence=text)


MEETING = build_attack(
    "executions_cannot_meet_at_an_abstract_address",
    attack=partial(_meet, place=_ABSTRACT, apart=True),
    control=partial(_meet, place=_ABSTRACT, apart=False),
    config=replace(
        _APART,
        not_applicable_from=Isolation.KERNEL,
        moot_because="gVisor knows no abstract addresses, so no two programs can meet there",
    ),
)

MEETING_ON_THE_LOOPBACK = build_attack(
    "executions_cannot_meet_on_the_loopback",
    attack=partial(_meet, place=_LOOPBACK, apart=True),
    control=partial(_meet, place=_LOOPBACK, apart=False),
    config=_APART,
)
