"""Probes: attack programs that check the target and report whether they succeeded.

A probe is three pieces of Python run as one program: a prelude that reports, a setting with the
target (the attack's or the control's), and a detector.
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
