"""Determines what this machine can isolate: probes each part, then runs a program."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Literal

import anyio

from assay.contracts.errors import AssayError, UsageError
from assay.contracts.execution import ExecutionResult, Isolation, Limits, PythonCode
from assay.contracts.ports import SandboxBackend
from assay.sandbox.native.doctor.explain import Case, Finding, explain
from assay.sandbox.native.doctor.host_info import Machine, read_machine
from assay.sandbox.native.doctor.probe import Outcome, attempt, import_module
from assay.sandbox.native.doctor.surroundings import (
    describe_limits,
    describe_machine,
    describe_runtimes,
)

LimitsKeptBy = Literal["cgroup v1", "cgroup v2", "rlimits and a watch"]
OpenBackend = Callable[[], AbstractAsyncContextManager[SandboxBackend]]
OnProgress = Callable[[str], None]
"""Receives the name of the probe that is running. Must not block."""

WHOLE: Final = "a program in the sandbox"
_WHOLE_WITHIN_S: Final = 60.0
_DATA_STACK: Final = ("numpy", "pandas", "matplotlib", "sklearn")
_PROGRAM: Final = PythonCode(source=b"print(6*7)")
_ANSWER: Final = "42\n"
_PLEASE_REPORT: Final = "please report it, with the output of `assay doctor --json`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A program that ran in a sandbox."""

    backend: str
    isolation: Isolation
    run_ms: float
    """The duration of the second run, seen from the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All findings and the conclusions."""

    findings: tuple[Finding, ...]
    native: Isolation | None
    """The isolation that the parts of the native backend provide; None if too much is missing."""
    limits_kept_by: LimitsKeptBy
    proof: Proof | None
    """The result with the current settings; None if no program could run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One act of `probe_acts.py`, and the name of the probe that it depends on."""

    name: str
    act: str
    needs: str = ""
    only_root: bool = False
    only_fallback: bool = False
    """Relevant only where namespaces do not work."""


_FOR_ANY: Final = (
    Probe(name="unprivileged identity", act="identity", only_root=True),
    Probe(name="seccomp", act="seccomp"),
    Probe(name="pidfd", act="pidfd"),
    Probe(name="openat2", act="openat2"),
)
_FOR_NAMESPACES: Final = (
    Probe(name="namespaces of root", act="namespaces_of_root", only_root=True),
    Probe(name="user namespace", act="user_namespace"),
    Probe(name="uid map", act="uid_map", needs="user namespace"),
    Probe(name="nested user namespace", act="nested_user_namespace", needs="uid map"),
    Probe(name="net namespace", act="net", needs="uid map"),
    Probe(name="ipc namespace", act="ipc", needs="uid map"),
    Probe(name="uts namespace", act="uts", needs="uid map"),
    Probe(name="cgroup namespace", act="cgroup", needs="uid map"),
    Probe(name="tmpfs", act="tmpfs", needs="uid map"),
    Probe(name="read-only mounts", act="read_only_mounts", needs="tmpfs"),
    Probe(name="proc", act="proc", needs="tmpfs"),
    Probe(name="pivot root", act="pivot_root", needs="tmpfs"),
)
_FOR_LANDLOCK: Final = (
    Probe(name="landlock", act="landlock"),
    Probe(
        name="interpreter for landlock",
        act="reach_interpreter",
        needs="unprivileged identity",
        only_root=True,
        only_fallback=True,
    ),
)
_FOR_LIMITS: Final = (
    Probe(name="control groups", act="control_groups"),
    Probe(name="group limits", act="group_limits", needs="control groups"),
)
ALL_PROBES: Final = (*_FOR_ANY, *_FOR_NAMESPACES, *_FOR_LANDLOCK, *_FOR_LIMITS)
_OF_THE_MACHINE: Final = ("kernel", "machine", "interpreter")


async def examine(
    open_backend: OpenBackend,
    *,
    wanted: Isolation | None = None,
    search_path: Sequence[str] = (),
    on_progress: OnProgress = lambda _: None,
) -> Report:
    """Run every probe, then a program in the backend that the settings select.

    A machine that refuses is a finding, never an error. `wanted` is the weakest isolation that the
    settings accept. `search_path` lists the folders to search for runtimes.
    """
    machine = read_machine()
    findings = {finding.name: finding for finding in describe_machine(machine)}
    imported: dict[str, Finding] = {}
    kept_by: LimitsKeptBy = "rlimits and a watch"

    async def look_at_module(name: str) -> None:
        imported[name] = await import_module(name)

    async with anyio.create_task_group() as tasks:
        for name in _DATA_STACK:
            tasks.start_soon(look_at_module, name)
        kept_by = await _try_all(machine, findings, on_progress)
        on_progress("the data stack")
    findings.update((name, imported[name]) for name in _DATA_STACK)
    findings["other runtimes"] = describe_runtimes(search_path)
    native = reachable_isolation(findings)
    if native is not None:
        enforced_by = "" if kept_by == "rlimits and a watch" else kept_by
        limits = describe_limits(
            enforced_by=enforced_by, isolated=native.satisfies(Isolation.ISOLATED)
        )
        findings.update((limit.name, limit) for limit in limits)
    on_progress(WHOLE)
    findings[WHOLE], proof = await _prove(open_backend, native, wanted)
    return Report(
        findings=tuple(findings.values()), native=native, limits_kept_by=kept_by, proof=proof
    )


async def _try_all(
    machine: Machine, findings: dict[str, Finding], on_progress: OnProgress
) -> LimitsKeptBy:
    kept_by: LimitsKeptBy = "rlimits and a watch"
    for probe in _probes_for(machine):
        if probe.only_fallback and reachable_isolation(findings) is Isolation.ISOLATED:
            continue
        on_progress(probe.name)
        if probe.needs and findings[probe.needs].status != "ok":
            findings[probe.name] = _not_tried(probe, findings[probe.needs])
            continue
        outcome = await attempt(probe.act)
        findings[probe.name] = judge(probe.name, outcome, machine)
        if probe.name == "control groups" and outcome.kind == "done":
            kept_by = "cgroup v1" if outcome.version == 1 else "cgroup v2"
    return kept_by


def reachable_isolation(findings: Mapping[str, Finding]) -> Isolation | None:
    """Return the isolation that the native backend reaches; absent findings do not count."""
    if not _work(findings, (*_OF_THE_MACHINE, *(probe.name for probe in _FOR_ANY))):
        return None
    if _work(findings, [probe.name for probe in _FOR_NAMESPACES]):
        return Isolation.ISOLATED
    if _work(findings, [probe.name for probe in _FOR_LANDLOCK]):
        return Isolation.RESTRICTED
    return None


def judge(name: str, outcome: Outcome, machine: Machine) -> Finding:
    """Turn a probe's result into a finding, with cause and fix if it did not work."""
    match outcome.kind:
        case "done":
            return Finding(name=name, status="ok", detail=outcome.detail)
        case "timed_out":
            return Finding(
                name=name,
                status="timed_out",
                detail=outcome.detail,
                cause="the machine is overloaded, or the kernel holds the call back",
                fix="try again when the machine is idle",
            )
        case "crashed":
            return Finding(
                name=name,
                status="failed",
                detail=outcome.detail,
                cause="the probe itself died",
                fix=_PLEASE_REPORT,
            )
        case "refused" | "no_effect" | "absent":
            unmet = Case(name=name, message=outcome.detail, errno=outcome.errno, machine=machine)
            explanation = explain(unmet)
            return Finding(
                name=name,
                status="missing" if outcome.kind == "absent" or unmet.lacking else "failed",
                detail=outcome.detail,
                cause=explanation.cause,
                fix=explanation.fix,
            )


def _probes_for(machine: Machine) -> list[Probe]:
    if machine.system != "Linux":
        return []
    return [probe for probe in ALL_PROBES if machine.uid == 0 or not probe.only_root]


def _not_tried(probe: Probe, needed: Finding) -> Finding:
    return Finding(
        name=probe.name,
        status="missing" if needed.status == "missing" else "failed",
        detail="not tried",
        cause=f"it needs the {needed.name}",
    )


def _work(findings: Mapping[str, Finding], names: Sequence[str]) -> bool:
    asked = [findings[name] for name in names if name in findings]
    return bool(asked) and all(finding.status == "ok" for finding in asked)


async def _prove(
    open_backend: OpenBackend, native: Isolation | None, wanted: Isolation | None
) -> tuple[Finding, Proof | None]:
    try:
        with anyio.fail_after(_WHOLE_WITHIN_S):
            result, run_ms, backend = await _run_twice(open_backend)
    except TimeoutError:
        detail = f"no answer in {_WHOLE_WITHIN_S:g} s"
        return Finding(name=WHOLE, status="timed_out", detail=detail, fix=_PLEASE_REPORT), None
    except (AssayError, OSError) as error:
        # OSError violates the backend's contract, but must not cost the rest of the report.
        return _no_proof(error, native, wanted), None
    if result.stdout != _ANSWER or not result.succeeded:
        detail = f"{result.reason}, exit code {result.exit_code}: {result.stderr.strip()[-300:]}"
        return Finding(name=WHOLE, status="failed", detail=detail, fix=_PLEASE_REPORT), None
    proof = Proof(backend=backend, isolation=result.isolation, run_ms=run_ms)
    detail = f"print(6*7) gave 42, the second time in {run_ms:.1f} ms"
    return Finding(name=WHOLE, status="ok", detail=detail), proof


def _no_proof(error: Exception, native: Isolation | None, wanted: Isolation | None) -> Finding:
    if native is None:
        cause, fix = "a part that it needs does not work, see above", ""
    elif wanted is not None and not native.satisfies(wanted):
        cause = f"the settings ask for {wanted.value!r}, this machine reaches {native.value!r}"
        fix = "change what stands in the way, or the setting sandbox.isolation"
    else:
        cause = f"every part that {native.value!r} isolation needs works alone"
        fix = error.hint if isinstance(error, UsageError) else _PLEASE_REPORT
    return Finding(name=WHOLE, status="failed", detail=str(error), cause=cause, fix=fix)


async def _run_twice(open_backend: OpenBackend) -> tuple[ExecutionResult, float, str]:
    async with open_backend() as backend, backend.open_sandbox(Limits()) as sandbox:
        await sandbox.run(_PROGRAM)
        started = time.perf_counter()
        result = await sandbox.run(_PROGRAM)
        return result, (time.perf_counter() - started) * 1000, backend.name
