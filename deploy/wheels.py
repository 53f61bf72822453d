"""Collect the wheels for image builds: Assay and its locked dependencies.

    python deploy/wheels.py [--pip 'python3 -m pip'] BASE_IMAGE

pip downloads them with its own settings, so that an image build needs no network and no package
index. The dependencies go to build/images/wheels, in the versions and with the hashes of
requirements.lock and for the Python of the base image. Assay itself goes to build/images/own, so
that a change of Assay does not reinstall its dependencies.
"""

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from assay.contracts.distribution import DISTRIBUTION

ROOT: Final = Path(__file__).parents[1]
CONTEXT: Final = ROOT / "build" / "images"
WHEELS: Final = CONTEXT / "wheels"
OWN: Final = CONTEXT / "own"
EXTRAS: Final = (
    *("executor", "packages", "data", "docker"),
    "mcp",
    *("serve", "agent", "chat", "openai", "anthropic", "gemini"),
)
"""Extras of all images together."""
_ASK_VERSION: Final = "import sys; print('%d.%d' % sys.version_info[:2])"


def closure(name: str, extras: tuple[str, ...]) -> set[str]:
    """Return the names of all dependencies, from the packages that are installed here."""
    found: set[str] = set()
    waiting = [(name, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted, its_extras = waiting.pop()
        if (wanted, its_extras) in seen:
            continue
        seen.add((wanted, its_extras))
        found.add(wanted)
        for text in importlib.metadata.requires(wanted) or ():
            requirement = Requirement(text)
            if _applies(requirement, its_extras):
                needed = canonicalize_name(requirement.name)
                waiting.append((needed, frozenset(requirement.extras)))
    return found - {name}


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})


def locked(names: set[str]) -> Iterator[str]:
    """Yield the lines of the lock file for these names, with their hashes.

    Raises:
        SystemExit: If one of them is not in the lock.
    """
    missing = set(names)
    keeping = False
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if begun := re.match(r"([A-Za-z0-9._-]+)(\[[^]]*\])?==", line):
            keeping = canonicalize_name(begun[1]) in names
            missing.discard(canonicalize_name(begun[1]))
        if keeping and not line.startswith("#"):
            yield line
    if missing:
        sys.exit(f"not in requirements.lock: {', '.join(sorted(missing))}; run `make lock`")


def fetch(names: set[str], python_version: str, pip: list[str]) -> None:
    """Download wheels for that Python with pip, unless they exist."""
    wanted = WHEELS / "requirements.txt"
    words = "\n".join([f"# for Python {python_version}", *locked(names)]) + "\n"
    if wanted.exists() and wanted.read_text() == words:
        return
    shutil.rmtree(WHEELS, ignore_errors=True)
    WHEELS.mkdir(parents=True)
    draft = CONTEXT / "requirements.txt"
    draft.write_text(words)
    strict = ("-qq", "--no-deps", "--require-hashes", "--only-binary=:all:")
    target = (f"--python-version={python_version}", f"--dest={WHEELS}")
    _run([*pip, "download", *strict, *target, f"--requirement={draft}"])
    draft.replace(wanted)  # last, so that this file marks a complete download


def build_own() -> None:
    """Build the wheel of Assay itself."""
    shutil.rmtree(OWN, ignore_errors=True)
    uv = str(Path(sys.executable).with_name("uv"))
    alone = ("--quiet", "--wheel", "--offline", "--no-build-isolation")
    _run([uv, "build", *alone, f"--python={sys.executable}", f"--out-dir={OWN}", str(ROOT)])
    (OWN / ".gitignore").unlink(missing_ok=True)


def python_of(base_image: str) -> str:
    """Return the Python version of an image."""
    asking = ["docker", "run", "--rm", "--network=none", "--entrypoint=python3", base_image]
    return subprocess.run(
        [*asking, "-c", _ASK_VERSION], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base_image")
    parser.add_argument(
        "--pip", default="python3 -m pip", help="command that runs pip [default: %(default)s]"
    )
    given = parser.parse_args()
    CONTEXT.mkdir(parents=True, exist_ok=True)
    version = python_of(given.base_image)
    fetch(closure(DISTRIBUTION, EXTRAS), version, given.pip.split())
    build_own()
    shutil.copy(ROOT / "deploy" / "with_keys.sh", CONTEXT)
    print(f"{len(list(WHEELS.glob('*.whl')))} wheels for Python {version}")


if __name__ == "__main__":
    main()
