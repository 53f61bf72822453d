"""Facts about this machine that need no probe: kernel, processor, Python, other runtimes."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from assay.sandbox.native.doctor.explain import Finding
from assay.sandbox.native.doctor.host_info import Machine
from assay.sandbox.native.kernel import syscalls

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
    detail = f"{machine.system} {machine.release}"
    if machine.system != "Linux":
        return Finding(
            name="kernel",
            status="missing",
            detail=detail,
            cause="the native sandbox is made of what the Linux kernel offers",
            fix="run Assay on Linux, in WSL 2 or in a virtual machine",
        )
    if machine.version is not None and machine.version < _OLDEST_KERNEL:
        return Finding(
            name="kernel",
            status="missing",
            detail=detail,
            cause="it has no mount_setattr, which came with Linux 5.12",
            fix="use Linux 5.12 or newer",
        )
    return Finding(name="kernel", status="ok", detail=detail)


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
    machine = syscalls.this_machine()
    try:
        syscalls.table()
    except syscalls.UnsupportedMachineError as error:
        return Finding(
            name="machine",
            status="missing",
            detail=machine,
            cause=str(error),
            fix="use a machine of one of those kinds",
        )
    if sys.maxsize < _SMALLEST_MAXSIZE:
        return Finding(
            name="machine",
            status="missing",
            detail=f"a 32-bit Python on {machine}",
            cause="the seccomp filter knows the system calls of 64-bit programs only",
            fix="use a 64-bit Python",
        )
    return Finding(name="machine", status="ok", detail=machine)


def _describe_interpreter() -> Finding:
    base = Path(sys.base_prefix).resolve()
    detail = f"Python {sys.version.partition(' ')[0]} in {sys.prefix}"
    if not sysconfig.get_config_var("Py_ENABLE_SHARED") or base.is_relative_to("/usr"):
        return Finding(name="interpreter", status="ok", detail=detail)
    library = sysconfig.get_config_var("INSTSONAME") or "libpython3.so"
    if (base / "lib" / library).exists():
        return Finding(name="interpreter", status="ok", detail=f"{detail}, with {library}")
    return Finding(
        name="interpreter",
        status="failed",
        detail=detail,
        cause=f"it needs {library}, which is not in {base / 'lib'}",
        fix="use a Python whose shared library lies beside it, such as /usr/bin/python3",
    )
