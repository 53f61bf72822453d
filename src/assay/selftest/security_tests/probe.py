"""Probes: attack programs that check the target and report whether they succeeded.

Includes the detectors that many attacks share, each with a control that is permitted everywhere,
and the template of attacks that take more of a resource than the limits allow.
"""

from collections.abc import Callable, Mapping
from functools import partial
from textwrap import dedent

from assay.contracts.execution import Command, ExecutionResult, PythonCode, Reason
from assay.selftest.checks import Check
from assay.selftest.programs import describe, run_alone
from assay.selftest.security_tests.attack import (
    AttackConfig,
    AttackContext,
    Finding,
    build_attack,
)

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

_SIGSYS = 31

_PRELUDE = '''
import os

def _say(word, evidence):
    line = "\\n%s %.300r\\n" % (word, evidence)
    os.write(1, line.encode("utf-8", "backslashreplace"))

def breach(evidence):
    _say("BREACH", evidence)

def held(why):
    _say("HELD", why)

def trying():
    _say("TRYING", "")

def judge(attempt):
    """A non-empty return value of the attempt is a breach; a refusal is not."""
    trying()
    try:
        evidence = attempt()
    except (OSError, MemoryError, RuntimeError, ValueError) as error:
        held(error)
    else:
        breach(evidence) if evidence else held("nothing came of it")
'''


def build_probe(
    name: str, *, detector: str, attack: str, control: str, config: AttackConfig
) -> Check:
    """Build an attack from one detector and two settings."""
    return build_attack(
        name,
        attack=partial(_probe, setting=attack, detector=detector, config=config),
        control=partial(_probe, setting=control, detector=detector, config=config),
        config=config,
    )


def build_probes(
    rows: Mapping[str, object],
    *,
    detector: str,
    attack: str,
    control: str,
    config: AttackConfig | Callable[[str], AttackConfig],
    name: str = "{name}",
) -> tuple[Check, ...]:
    """Build one attack for each row: its name, and what replaces `{row}` or `{row!r}`."""

    def filled(text: str, row: object) -> str:
        return text.replace("{row!r}", repr(row)).replace("{row}", str(row))

    return tuple(
        build_probe(
            name.format(name=key),
            detector=filled(detector, row),
            attack=filled(attack, row),
            control=filled(control, row),
            config=config(key) if callable(config) else config,
        )
        for key, row in rows.items()
    )


async def _probe(
    context: AttackContext, *, setting: str, detector: str, config: AttackConfig
) -> Finding:
    facts = f"CANARY = {context.canaries.facts()!r}\n"
    source = _PRELUDE + facts + dedent(setting) + "\n" + dedent(detector)
    program = (
        Command(argv=("python3", "-c", source))
        if config.by_command
        else PythonCode(source=source.encode(), filename="attack.py")
    )
    result = await run_alone(context.backend, program, config.limits, equipment=config.equipment)
    return judged(result, config)


def judged(result: ExecutionResult, config: AttackConfig) -> Finding:
    """Parse an attacker's report; one that did not reach its attack proves nothing."""
    lines = result.stdout.splitlines()
    for line in lines:
        if line.startswith("BREACH "):
            return Finding(breached=True, evidence=line.removeprefix("BREACH "))
    for line in lines:
        if line.startswith("HELD "):
            return Finding(breached=False, evidence=line.removeprefix("HELD "))
    refused_by_kill = result.reason is Reason.SIGNALLED and result.signal == _SIGSYS
    if "TRYING ''" in lines and (refused_by_kill or result.reason in config.endings):
        return Finding(breached=False, evidence=describe(result))
    raise AssertionError(f"the attack tested nothing: {describe(result)}")


def build_greed(name: str, take: str, *, much: int, little: int, config: AttackConfig) -> Check:
    """Build an attack for AMOUNT of a resource: far too much in the attack, little in the control.

    `take` defines `take()`, which returns a value when it got AMOUNT.
    """
    return build_probe(
        name,
        detector=f"{take}\njudge(take)",
        attack=f"AMOUNT = {much}",
        control=f"AMOUNT = {little}",
        config=config,
    )
