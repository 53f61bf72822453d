"""A Python that has only pip, and a pip that has only what a test gives it."""

import stat
import sys
import textwrap
import zipfile
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = """\
#!{python} -I
import json, os, pathlib, shutil, sys

home = pathlib.Path({home!r})
with (home / "calls").open("a") as calls:
    calls.write(json.dumps({{"argv": sys.argv[1:], "environ": dict(os.environ)}}) + "\\n")
words = sys.argv[1:]
if words[:2] == ["-m", "venv"]:
    binaries = pathlib.Path(words[2], "bin")
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(home / "made")
elif "download" in words:
    wheel = home / "index" / (words[-1] + ".whl")
    if not wheel.exists():
        print("ERROR: No matching distribution at https://me:secret@index/simple", file=sys.stderr)
        sys.exit(1)
    shutil.copy(wheel, words[words.index("--dest") + 1])
elif {broken!r}:
    sys.exit(1)
"""


@dataclass(frozen=True, kw_only=True)
class FakePip:
    """The interpreter, and the index that its pip knows."""

    python: Path
    home: Path

    @property
    def calls(self) -> list[str]:
        """What it was asked to do, a line of JSON each."""
        return (self.home / "calls").read_text().splitlines()

    @property
    def downloads(self) -> list[str]:
        return [call for call in self.calls if '"download"' in call]

    def publish(self, requirement: str, members: dict[str, bytes]) -> Path:
        """Put a wheel with these members into the index."""
        wheel = self.home / "index" / f"{requirement}.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return wheel

    def publish_parts(self, requirement: str, content: bytes, part_bytes: int) -> int:
        """Cut some bytes into packages; return how many."""
        starts = range(0, len(content), part_bytes)
        for number, start in enumerate(starts, 1):
            data = content[start : start + part_bytes]
            members = {"a/__init__.py": b"raise SystemExit", f"a/data/part{number:02}.bin": data}
            self.publish(requirement.format(number=number), members)
        return len(starts)


def build_fake_pip(home: Path, *, without_pip: bool = False) -> FakePip:
    """Make an interpreter; without pip, it can still make an environment that has one."""
    (home / "index").mkdir(parents=True)
    for name, broken in (("python3", without_pip), ("made", False)):
        script = home / name
        text = _SCRIPT.format(python=sys.executable, home=str(home), broken=broken)
        script.write_text(textwrap.dedent(text))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return FakePip(python=home / "python3", home=home)
