"""Facts about the machine that a reader needs to interpret the numbers."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

from benchmarks.comparison.runners import IMAGE

_IN_IMAGE = "import platform, numpy, pandas; print(platform.python_version(), pandas.__version__)"


def describe_machine() -> dict[str, str]:
    found = {
        "processors": f"{len(os.sched_getaffinity(0))} x {_processor()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "pandas": _version("pandas"),
        "user": "root" if os.geteuid() == 0 else "ordinary user",
        "bubblewrap": _said("bwrap", "--version"),
        "docker": _said("docker", "version", "--format", "{{.Server.Version}}"),
        "python and pandas in the image": _said(
            *("docker", "run", "--rm", "--network", "none", IMAGE, "python3", "-c", _IN_IMAGE)
        ),
        "llm-sandbox": _version("llm-sandbox"),
    }
    return {name: value for name, value in found.items() if value}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _said(*argv: str) -> str:
    try:
        asked = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""
