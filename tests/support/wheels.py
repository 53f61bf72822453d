"""Wheels made by hand, and a store that knows nothing but them: an index that needs no network."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZipFile

from assay.sandbox.packages.store import PackageStore
from assay.sandbox.packages.target import Target, own_target


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    files: Mapping[str, str] | None = None,
    commands: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel that holds a module of its own name, unless other files are given."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {other}\n" for other in requires)
    content = {
        **(
            files or {f"{name}.py": f"VERSION = {version!r}\n\n\ndef main():\n    print('hello')\n"}
        ),
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    if commands:
        lines = "".join(f"{command} = {place}\n" for command, place in commands.items())
        content[f"{about}/entry_points.txt"] = f"[console_scripts]\n{lines}"
    record = "".join(
        f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in content.items()
    )
    content[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n"
    path = folder / f"{name}-{version}-{tag}.whl"
    with ZipFile(path, "w") as wheel:
        for member, text in content.items():
            wheel.writestr(member, text)
    return path


def _digest(text: str) -> str:
    raw = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def only_from(wheels: Path) -> dict[str, str]:
    """Return the environment of somebody whose packages come from one folder."""
    return {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "HOME": str(wheels),
    }


def a_store(folder: Path, *, max_bytes: int = 1 << 30) -> PackageStore:
    """Build a store in a folder, with the wheels that are in its folder `index`."""
    index = folder / "index"
    index.mkdir(exist_ok=True)
    return PackageStore(folder / "store", environment=only_from(index), max_bytes=max_bytes)


def a_target(*present: str) -> Target:
    """Return this interpreter, with these packages loaded."""
    own = own_target(())
    return Target(
        python=own.python, platform=own.platform, present=present, interpreter=own.interpreter
    )
