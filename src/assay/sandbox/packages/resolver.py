"""Resolver: uv chooses compatible versions and unpacks wheels; no package code runs.

uv runs in a separate folder, reads no configuration file, and gets only the variables for the
index. It rejects wheels with files outside of the target folder.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE  # noqa: TID251 - a constant for anyio's processes
from typing import Final

import anyio

from assay.contracts.errors import MissingExtraError, PackageError
from assay.sandbox.packages.error_messages import explain
from assay.sandbox.packages.index import index_environment, redacted
from assay.sandbox.packages.requirements import Requirement
from assay.sandbox.packages.target import Target

_PIN: Final = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s\\;]+)")
_HASH: Final = re.compile(r"--hash=(\w+:[0-9a-f]+)")
_RESOLVE_WITHIN_S: Final = 120.0
_FETCH_WITHIN_S: Final = 1800.0
_OFF: Final = frozenset({"", "0", "false", "no", "off"})
_ALWAYS: Final = ("--no-config", "--color", "never", "--no-progress", "--no-python-downloads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One package of a resolved set."""

    name: str
    version: str
    hashes: tuple[str, ...]
    """Digests of its wheels; a downloaded wheel has one of them."""

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def line(self) -> str:
        return " ".join((str(self), *(f"--hash={value}" for value in self.hashes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolver:
    """uv with the user's index and a cache of downloads."""

    wheels: Path
    """The folder of downloaded wheels."""
    environment: Mapping[str, str] = field(repr=False)
    """The user's environment; only index variables are passed on."""

    async def resolve(
        self, asked: Sequence[Requirement], target: Target, folder: Path
    ) -> tuple[Pin, ...]:
        """Choose versions of all needed packages, without those that are already present.

        Raises:
            PackageError: If no versions fit together.
            IndexUnreachableError: If the index does not answer.
            MissingExtraError: If uv is not installed.
        """
        wanted, bound = folder / "wanted.in", folder / "present.txt"
        wanted.write_text("".join(f"{requirement}\n" for requirement in asked))
        bound.write_text("".join(f"{pin}\n" for pin in target.present))
        command = ["pip", "compile", str(wanted), "--constraints", str(bound), *_for(target)]
        options = ["--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
        with anyio.move_on_after(_RESOLVE_WITHIN_S):
            status, said, complaint = await self._run([*command, *options], folder)
            if status:
                raise explain(complaint, asked, target)
            present = {pin.partition("==")[0] for pin in target.present}
            return tuple(pin for pin in _read_pins(said) if pin.name not in present)
        raise PackageError(f"the resolver did not come to an end in {_RESOLVE_WITHIN_S:g} s")

    async def unpack(self, pins: Sequence[Pin], target: Target, folder: Path, into: Path) -> None:
        """Download the wheels of a resolved set and unpack them; raises the errors of `resolve`."""
        if not pins:
            return
        chosen = folder / "chosen.txt"
        chosen.write_text("".join(f"{pin.line}\n" for pin in pins))
        command = ["pip", "install", "--target", str(into), "--requirement", str(chosen)]
        options = ["--no-deps", "--require-hashes", "--link-mode", "copy", "--quiet"]
        with anyio.move_on_after(_FETCH_WITHIN_S):
            status, _, complaint = await self._run([*command, *_for(target), *options], folder)
            if status:
                raise _not_unpacked(complaint, target)
            return
        raise PackageError(f"the packages were not there after {_FETCH_WITHIN_S:g} s")

    async def _run(self, arguments: Sequence[str], folder: Path) -> tuple[int, str, str]:
        environment = index_environment(self.environment) | {
            "PATH": "/usr/bin:/bin",
            "TMPDIR": str(folder),
            "UV_HTTP_RETRIES": "1",
            "UV_CACHE_DIR": str(self.wheels),
        }
        # This option has no variable.
        alone = ["--no-index"] if environment.pop("UV_NO_INDEX", "0") not in _OFF else []
        done = await anyio.run_process(
            [_find_uv(), *arguments, *_ALWAYS, *alone],
            stdout=PIPE,
            stderr=PIPE,
            check=False,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace")


def _find_uv() -> str:
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        raise MissingExtraError("packages in a sandbox", extra="packages") from None


def _for(target: Target) -> list[str]:
    wheels_only = ["--only-binary", ":all:"]
    if target.interpreter is not None:
        return [*wheels_only, "--python", target.interpreter]
    described = ["--python-version", target.python, "--python-platform", target.platform]
    return [*wheels_only, *described]


def _read_pins(text: str) -> list[Pin]:
    # One requirement per line after joining continued lines.
    lines = text.replace("\\\n", " ").splitlines()
    found = ((_PIN.match(line), tuple(sorted(_HASH.findall(line)))) for line in lines)
    return [
        Pin(name=pin["name"], version=pin["version"], hashes=hashes)
        for pin, hashes in found
        if pin is not None
    ]


def _not_unpacked(complaint: str, target: Target) -> PackageError:
    lines = [line.strip() for line in redacted(complaint).splitlines() if line.strip()]
    told = " ".join(line.removeprefix("error:").removeprefix("cause:").strip() for line in lines)
    explained = explain(complaint, (), target)  # raises if the index was the reason
    return PackageError(f"a package cannot be unpacked: {told[:400]}", hint=explained.hint)
