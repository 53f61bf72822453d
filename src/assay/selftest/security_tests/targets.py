"""Detectors that many attacks share, each with a control that is permitted everywhere."""

READ_ANY = """
def read_any():
    for target in TARGETS:
        try:
            with open(target, "rb") as file:
                content = file.read(64)
        except OSError:
            continue
        if content:
            return target, content
judge(read_any)
"""
"""Fires when one of TARGETS can be read and is not empty."""

READ_CONTROL = """
with open("planted", "w") as file:
    file.write("permitted")
TARGETS = ["missing", "planted"]
"""

LIST_ANY = """
def list_any():
    for target in TARGETS:
        try:
            names = os.listdir(target)
        except OSError:
            continue
        if names:
            return target, names
judge(list_any)
"""
"""Fires when one of the directories TARGETS can be listed and is not empty."""

LIST_CONTROL = """
os.mkdir("folder")
open("folder/planted", "w").close()
TARGETS = ["missing", "folder"]
"""

OPEN_ANY_FOR_WRITING = """
def open_any():
    for target in TARGETS:
        try:
            # Not truncating: where a sandbox fails, looking must do no damage.
            os.close(os.open(target, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            continue
        return target
judge(open_any)
"""
"""Fires when one of TARGETS can be opened for writing."""

FIND_IN = """
import re
def find_in():
    with open(TARGET, errors="replace") as file:
        found = re.search(NEEDLE, file.read(), re.MULTILINE)
    return found and found.group()
judge(find_in)
"""
"""Fires when the file TARGET contains the pattern NEEDLE."""

CALL = "judge(lambda: (True, ACT()))"
"""Fires when ACT is not rejected."""

CALL_CONTROL = "ACT = os.getuid"

REACH = """
import socket
def connect(family, kind, address):
    mine = socket.socket(family, kind)
    mine.settimeout(3)
    mine.connect(address)
    return mine
judge(lambda: REACHED(connect).send(b"hello"))
"""
"""Fires when data can be sent over the connection from REACHED."""

REACH_CONTROL = """
import socket
pair = socket.socketpair()
REACHED = lambda connect: pair[0]
"""

REACH_BY_DATAGRAM = """
import select, socket
def send():
    with REACHED() as mine:
        mine.send(b"hello")
        # The loopback of the sandbox refuses connections that no program accepts, a moment later.
        refused = select.poll()
        refused.register(mine, 0)
        return "sent" if not refused.poll(1000) else None
judge(send)
"""
"""Fires when a datagram can be sent over the socket from REACHED without a rejection."""

MAKE_SOCKET = """
import socket
judge(lambda: MAKE(socket))
"""
"""Fires when MAKE makes a socket."""

MAKE_SOCKET_CONTROL = "MAKE = lambda socket: socket.socketpair()"
