"""Determine what this machine can isolate: describe it, probe each part, then run a program.

A probe runs in a separate, clean process with a timeout, which gets no thread, event loop,
environment or descriptor of this one. Kernel, processor, Python and other runtimes need no probe.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, CompletedProcess
from typing import Final, Literal

import anyio

from assay.contracts.distribution import DISTRIBUTION, install_command
from assay.contracts.errors import AssayError, UsageError
from assay.contracts.execution import ExecutionResult, Isolation, Limits, PythonCode, SandboxSpec
from assay.contracts.ports import SandboxBackend
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.native.doctor.explain import Finding, Status, explain
from assay.sandbox.native.doctor.host_info import Machine, read_machine
from assay.sandbox.native.host.visible_paths import boot
from assay.sandbox.native.kernel import syscalls

_PROBE_TIMEOUT_S: Final = 5.0
_IMPORT_TIMEOUT_S: Final = 60.0
_LONGEST_COMPLAINT: Final = 300
_NOT_INSTALLED: Final = 3
_IMPORT: Final = f"""
import importlib, sys
try:
    sys.stdout.write(importlib.import_module(sys.argv[1]).__version__)
except ModuleNotFoundError as error:
    if error.name != sys.argv[1]:
        raise
    sys.exit({_NOT_INSTALLED})
"""
_IMPORT_ENV: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "MPLCONFIGDIR": "/dev/null",  # so that matplotlib writes nothing into a home folder
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a probe process."""

    kind: Literal["done", "refused", "no_effect", "absent", "timed_out", "crashed"]
    detail: str
    errno: int = 0
    version: int = 0


async def attempt(name: str, *, timeout_s: float = _PROBE_TIMEOUT_S) -> Outcome:
    """Run one act of `probe_acts.py`; kill the process after the timeout."""
    ended = await _run(
        [sys.executable, "-I", "-S", *boot("doctor.probe_acts"), name], {}, timeout_s
    )
    if ended is None:
        return Outcome(kind="timed_out", detail=f"no answer in {timeout_s:g} s")
    if ended.returncode != 0 or not ended.stdout:
        return Outcome(kind="crashed", detail=_last_words(ended))
    return Outcome(**json.loads(ended.stdout))


async def import_module(name: str) -> Finding:
    """Import a module of the data stack in a clean interpreter."""
    argv = [sys.executable, "-I", "-B", "-c", _IMPORT, name]
    ended = await _run(argv, _IMPORT_ENV, _IMPORT_TIMEOUT_S)
    status: Status = "failed"
    if ended is None:
        status, detail = "timed_out", f"not imported in {_IMPORT_TIMEOUT_S:g} s"
        cause = "the machine is overloaded, or the module waits for something"
        fix = "try again when the machine is idle"
    elif ended.returncode == _NOT_INSTALLED:
        status, detail = "missing", "not installed"
        cause, fix = "it comes with an extra", install_command("data")
    elif ended.returncode != 0:
        detail, cause = _last_words(ended), "it is installed, and cannot be imported"
        fix = f"pip install --force-reinstall '{DISTRIBUTION}[data]'"
    else:
        status, detail, cause, fix = "ok", ended.stdout.decode(errors="replace"), "", ""
    return Finding(name=name, status=status, detail=detail, cause=cause, fix=fix)


async def _run(
    argv: Sequence[str], env: Mapping[str, str], timeout_s: float
) -> CompletedProcess[bytes] | None:
    """Return None after a timeout; child processes of the probe die with it."""
    with anyio.move_on_after(timeout_s):
        return await anyio.run_process(
            argv,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            check=False,
            cwd="/",
            env=env,
            start_new_session=True,
        )
    return None


def _last_words(ended: CompletedProcess[bytes]) -> str:
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    words = lines[-1] if lines else "died without a word"
    return f"{words[:_LONGEST_COMPLAINT]} (exit status {ended.returncode})"


_OLDEST_KERNEL: Final = (5, 12)
_SMALLEST_MAXSIZE: Final = 1 << 62
_RUNTIMES: Final = (("docker", "docker"), ("gVisor", "runsc"), ("bubblewrap", "bwrap"))


def describe_machine(machine: Machine) -> Iterator[Finding]:
    yield describe_kernel(machine)
    yield _describe_processor()
    yield _describe_interpreter()
    yield Finding(
        name="container",
        status="info",
        detail=f"inside {machine.container}" if machine.container else "none that can be seen",
    )


def describe_kernel(machine: Machine) -> Finding:
    cause = fix = ""
    if machine.system != "Linux":
        cause = "the native sandbox is made of what the Linux kernel offers"
        fix = "run Assay on Linux, in WSL 2 or in a virtual machine"
    elif machine.version is not None and machine.version < _OLDEST_KERNEL:
        cause = "it has no mount_setattr, which came with Linux 5.12"
        fix = "use Linux 5.12 or newer"
    return Finding(
        name="kernel",
        status="missing" if cause else "ok",
        detail=f"{machine.system} {machine.release}",
        cause=cause,
        fix=fix,
    )


def describe_limits(*, enforced_by: str, isolated: bool) -> Iterator[Finding]:
    """Yield which limits the kernel enforces and which are sampled; empty name: no groups."""
    if enforced_by:
        memory = f"enforced by {enforced_by}, memory of the kernel included"
        processes = f"enforced by {enforced_by}"
    else:
        memory = (
            "sampled every 25 ms: processes, page tables, files in memory and shared memory count, "
            "buffers of sockets and other memory of the kernel do not"
        )
        processes = "enforced per user by RLIMIT_NPROC, and sampled every 25 ms"
    disk = "enforced by the size of a tmpfs" if isolated else "sampled every 25 ms"
    time = "enforced per process by RLIMIT_CPU, sampled every 25 ms for all together"
    kinds = {"memory": memory, "process": processes, "disk": disk, "processor time": time}
    for kind, detail in kinds.items():
        yield Finding(name=f"{kind} limit", status="info", detail=detail)


def describe_runtimes(search_path: Sequence[str]) -> Finding:
    """Return which other runtimes are installed, without checking whether they work."""
    path = os.pathsep.join(search_path)
    found = [name for name, program in _RUNTIMES if path and shutil.which(program, path=path)]
    absent = [name for name, _ in _RUNTIMES if name not in found]
    parts = [f"{', '.join(found)} found"] if found else []
    parts += [f"{', '.join(absent)} not found"] if absent else []
    return Finding(name="other runtimes", status="info", detail="; ".join(parts))


def _describe_processor() -> Finding:
    detail, cause, fix = syscalls.this_machine(), "", ""
    try:
        syscalls.table()
    except syscalls.UnsupportedMachineError as error:
        cause, fix = str(error), "use a machine of one of those kinds"
    else:
        if sys.maxsize < _SMALLEST_MAXSIZE:
            detail = f"a 32-bit Python on {detail}"
            cause = "the seccomp filter knows the system calls of 64-bit programs only"
            fix = "use a 64-bit Python"
    status: Status = "missing" if cause else "ok"
    return Finding(name="machine", status=status, detail=detail, cause=cause, fix=fix)


def _describe_interpreter() -> Finding:
    base = Path(sys.base_prefix).resolve()
    detail = f"Python {sys.version.partition(' ')[0]} in {sys.prefix}"
    status, cause, fix = "ok", "", ""
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and not base.is_relative_to("/usr"):
        library = sysconfig.get_config_var("INSTSONAME") or "libpython3.so"
        if (base / "lib" / library).exists():
            detail += f", with {library}"
        else:
            status, cause = "failed", f"it needs {library}, which is not in {base / 'lib'}"
            fix = "use a Python whose shared library lies beside it, such as /usr/bin/python3"
    return Finding(name="interpreter", status=status, detail=detail, cause=cause, fix=fix)


LimitsKeptBy = Literal["cgroup v1", "cgroup v2", "rlimits and a watch"]
OpenBackend = Callable[[], AbstractAsyncContextManager[SandboxBackend]]
OnProgress = Callable[[str], None]
"""Receives the name of the probe that is running. Must not block."""

WHOLE: Final = "a program in the sandbox"
LAYERS: Final = "workspace layers"
_WHOLE_TIMEOUT_S: Final = 60.0
_DATA_STACK: Final = ("numpy", "pandas", "matplotlib", "sklearn")
_PROGRAM: Final = PythonCode(source=b"print(6*7)")
_ANSWER: Final = "42\n"
_FILE_SYSTEM: Final = PythonCode(
    source=b"""
with open("/proc/self/mountinfo") as mounts:
    kinds = [line.split(" - ")[1].split()[0] for line in mounts if line.split()[4] == "/app"]
print(kinds[-1])
"""
)
"""Prints the kind of the file system of the workspace; the last mount hides those below."""
_OVERLOADED: Final = "the machine is overloaded, or the kernel holds the call back"
_PLEASE_REPORT: Final = "please report it, with the output of `assay doctor --json`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A program that ran in a sandbox."""

    backend: str
    isolation: Isolation
    run_ms: float
    """The duration of the second run, seen from the caller."""
    layers: Literal["", "mounted", "copied"] = ""
    """How workspaces start with the files of a layer; empty for other backends."""


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
    """One act of `probe_acts.py`, by its name."""

    name: str
    needs: str = ""
    """The probe that must have worked before."""
    only_root: bool = False
    only_fallback: bool = False
    """Relevant only where namespaces do not work."""


_FOR_ANY: Final = (
    Probe(name="unprivileged identity", only_root=True),
    Probe(name="seccomp"),
    Probe(name="pidfd"),
    Probe(name="openat2"),
)
_FOR_NAMESPACES: Final = (
    Probe(name="namespaces of root", only_root=True),
    Probe(name="user namespace"),
    Probe(name="uid map", needs="user namespace"),
    Probe(name="nested user namespace", needs="uid map"),
    Probe(name="net namespace", needs="uid map"),
    Probe(name="ipc namespace", needs="uid map"),
    Probe(name="uts namespace", needs="uid map"),
    Probe(name="cgroup namespace", needs="uid map"),
    Probe(name="tmpfs", needs="uid map"),
    Probe(name="read-only mounts", needs="tmpfs"),
    Probe(name="proc", needs="tmpfs"),
    Probe(name="pivot root", needs="tmpfs"),
)
_FOR_LANDLOCK: Final = (
    Probe(name="landlock"),
    Probe(
        name="interpreter for landlock",
        needs="unprivileged identity",
        only_root=True,
        only_fallback=True,
    ),
)
_FOR_LIMITS: Final = (
    Probe(name="control groups"),
    Probe(name="group limits", needs="control groups"),
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
    if proof is not None and proof.layers:
        findings[LAYERS] = _describe_layers(proof.layers)
    return Report(
        findings=tuple(findings.values()), native=native, limits_kept_by=kept_by, proof=proof
    )


async def _try_all(
    machine: Machine, findings: dict[str, Finding], on_progress: OnProgress
) -> LimitsKeptBy:
    kept_by: LimitsKeptBy = "rlimits and a watch"
    for probe in ALL_PROBES if machine.system == "Linux" else ():
        if probe.only_root and machine.uid != 0:
            continue
        if probe.only_fallback and reachable_isolation(findings) is Isolation.ISOLATED:
            continue
        on_progress(probe.name)
        needed = findings[probe.needs] if probe.needs else None
        if needed is not None and needed.status != "ok":
            findings[probe.name] = Finding(
                name=probe.name,
                status="missing" if needed.status == "missing" else "failed",
                detail="not tried",
                cause=f"it needs the {needed.name}",
            )
            continue
        outcome = await attempt(probe.name)
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
    status: Status
    cause = fix = ""
    match outcome.kind:
        case "done":
            status = "ok"
        case "timed_out":
            status = "timed_out"
            cause, fix = _OVERLOADED, "try again when the machine is idle"
        case "crashed":
            status, cause, fix = "failed", "the probe itself died", _PLEASE_REPORT
        case "refused" | "no_effect" | "absent":
            absent = outcome.kind == "absent" or outcome.errno == errno.ENOSYS
            status = "missing" if absent else "failed"
            cause, fix = explain(name, outcome.errno, machine)
    return Finding(name=name, status=status, detail=outcome.detail, cause=cause, fix=fix)


def _work(findings: Mapping[str, Finding], names: Sequence[str]) -> bool:
    asked = [findings[name] for name in names if name in findings]
    return bool(asked) and all(finding.status == "ok" for finding in asked)


async def _prove(
    open_backend: OpenBackend, native: Isolation | None, wanted: Isolation | None
) -> tuple[Finding, Proof | None]:
    try:
        with anyio.fail_after(_WHOLE_TIMEOUT_S):
            result, run_ms, backend, layers = await _run_twice(open_backend)
    except TimeoutError:
        detail = f"no answer in {_WHOLE_TIMEOUT_S:g} s"
        return Finding(name=WHOLE, status="timed_out", detail=detail, fix=_PLEASE_REPORT), None
    except (AssayError, OSError) as error:
        # OSError violates the backend's contract, but must not cost the rest of the report.
        return _no_proof(error, native, wanted), None
    if result.stdout != _ANSWER or not result.succeeded:
        detail = f"{result.reason}, exit code {result.exit_code}: {result.stderr.strip()[-300:]}"
        return Finding(name=WHOLE, status="failed", detail=detail, fix=_PLEASE_REPORT), None
    proof = Proof(backend=backend, isolation=result.isolation, run_ms=run_ms, layers=layers)
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


async def _run_twice(
    open_backend: OpenBackend,
) -> tuple[ExecutionResult, float, str, Literal["", "mounted", "copied"]]:
    async with open_backend() as backend:
        async with backend.open_sandbox(Limits()) as sandbox:
            await sandbox.run(_PROGRAM)
            started = time.perf_counter()
            result = await sandbox.run(_PROGRAM)
            run_ms = (time.perf_counter() - started) * 1000
        layers = await _try_layer(backend) if backend.name == "native" else ""
        return result, run_ms, backend.name, layers


async def _try_layer(backend: SandboxBackend) -> Literal["mounted", "copied"]:
    """Open a sandbox from a layer, and let a program look which file system that is."""
    with tempfile.TemporaryDirectory(prefix="assay-doctor-") as folder:
        layer = WorkspaceLayer(hashlib.sha256().hexdigest(), Path(folder))
        async with backend.open_sandbox(Limits(), SandboxSpec(layer=layer)) as sandbox:
            result = await sandbox.run(_FILE_SYSTEM)
    return "mounted" if result.stdout.strip() == "overlay" else "copied"


def _describe_layers(how: Literal["mounted", "copied"]) -> Finding:
    if how == "mounted":
        detail = "mounted with overlayfs; opening takes the same time for any number of files"
        return Finding(name=LAYERS, status="info", detail=detail)
    return Finding(
        name=LAYERS,
        status="info",
        detail="copied into each sandbox, so that opening takes longer for more files",
        cause="this kernel does not mount overlayfs over a tmpfs in a user namespace",
        fix="use Linux 6.6 or newer, with namespaces",
    )
