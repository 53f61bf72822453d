"""Probes: attack programs that check the target and report whether they succeeded.

Includes the detectors that many attacks share, each with a control that is permitted everywhere,
and the template of attacks that take more of a resource than the limits allow.
"""

from dataclasses import dataclass
from functools import partial
from textwrap import dedent

from assay.contracts.execution import Command, ExecutionResult, PythonCode, Reason
from assay.selftest.programs import describe, run_alone
from assay.selftest.security_tests.attack import (
    AttackConfig,
    AttackContext,
    Finding,
    HostileCase,
    build_case,
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
    """Whatever the attempt returns, if it is anything, is a breach; being refused is not."""
    trying()
    try:
        evidence = attempt()
    except (OSError, MemoryError, RuntimeError, ValueError) as error:
        held(error)
    else:
        breach(evidence) if evidence else held("nothing came of it")
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A detector with a target."""

    setting: str
    detector: str
    terms: AttackConfig

    def source(self, arena: AttackContext) -> str:
        facts = f"CANARY = {arena.canaries.facts()!r}\n"
        return _PRELUDE + facts + dedent(self.setting) + "\n" + dedent(self.detector)


def probing(
    name: str, *, detector: str, attack: str, control: str, terms: AttackConfig
) -> HostileCase:
    """Build an attack from one detector and two settings."""
    return build_case(
        name,
        attack=partial(_verdict_of, Probe(setting=attack, detector=detector, terms=terms)),
        control=partial(_verdict_of, Probe(setting=control, detector=detector, terms=terms)),
        terms=terms,
    )


async def _verdict_of(probe: Probe, arena: AttackContext) -> Finding:
    source = probe.source(arena)
    program = (
        Command(argv=("python3", "-c", source))
        if probe.terms.by_command
        else PythonCode(source=source.encode(), filename="attack.py")
    )
    limits, equipment = probe.terms.limits, probe.terms.equipment
    result = await run_alone(arena.backend, program, limits, equipment=equipment)
    return judged(result, probe.terms)


def judged(result: ExecutionResult, terms: AttackConfig) -> Finding:
    """Parse an attacker's report; one that did not reach its attack proves nothing."""
    lines = result.stdout.splitlines()
    for line in lines:
        if line.startswith("BREACH "):
            return Finding(breached=True, evidence=line.removeprefix("BREACH "))
    for line in lines:
        if line.startswith("HELD "):
            return Finding(breached=False, evidence=line.removeprefix("HELD "))
    refused_by_kill = result.reason is Reason.SIGNALLED and result.signal == _SIGSYS
    if "TRYING ''" in lines and (refused_by_kill or result.reason in terms.endings):
        return Finding(breached=False, evidence=describe(result))
    raise AssertionError(f"the attack tested nothing: {describe(result)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Greed:
    """An attack for AMOUNT of a resource: far too much in the attack, little in the control."""

    name: str
    take: str
    """Defines `take()`, which returns a value when it got AMOUNT."""
    much: int
    little: int
    terms: AttackConfig

    def case(self) -> HostileCase:
        return probing(
            self.name,
            detector=f"{self.take}\njudge(take)",
            attack=f"AMOUNT = {self.much}",
            control=f"AMOUNT = {self.little}",
            terms=self.terms,
        )
