"""Resolver: uv chooses compatible versions and unpacks wheels; no package code runs.

uv runs in a separate folder, reads no configuration file, and gets only the variables for the
index: the one that pip is configured for, because uv reads neither pip's variables nor its files.
Its output is translated into one short error that a model or a person can act on.
"""

import configparser
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import PIPE  # noqa: TID251 - a constant for anyio's processes
from typing import Final

import anyio

from assay.contracts.errors import MissingExtraError, PackageError
from assay.sandbox.packages.built import BuiltWheels
from assay.sandbox.packages.requirements import Requirement, canonical_name, likely_name
from assay.sandbox.packages.target import Target

_FOR_UV: Final = re.compile(
    r"UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX|INSECURE_HOST|OFFLINE"
    r"|HTTP_TIMEOUT|NATIVE_TLS|SYSTEM_CERTS|INDEX_\w+_(USERNAME|PASSWORD))"
    r"|(https?|all|no)_proxy|SSL_CERT_(FILE|DIR)|HOME|LANG|LC_ALL|NETRC",
    re.IGNORECASE,
)
_SECTIONS: Final = ("global", "install")
_PIP: Final = {
    "index-url": ("UV_DEFAULT_INDEX", " ", ("UV_INDEX_URL",)),
    "extra-index-url": ("UV_INDEX", " ", ("UV_EXTRA_INDEX_URL",)),
    "find-links": ("UV_FIND_LINKS", ",", ()),
    "trusted-host": ("UV_INSECURE_HOST", " ", ()),
    "no-index": ("UV_NO_INDEX", " ", ()),
    "cert": ("SSL_CERT_FILE", " ", ()),
}
"""By pip's name: uv's variable, the separator of several values, older names of the same."""
_CREDENTIALS: Final = re.compile(r"://[^/@\s]+@")


def index_environment(user: Mapping[str, str]) -> dict[str, str]:
    """Return uv's environment variables from the user's environment and pip's settings."""
    told = {name: value for name, value in user.items() if _FOR_UV.fullmatch(name)}
    for option, value in _pip_options(user).items():
        variable, separator, others = _PIP[option]
        if value and not any(name in told for name in (variable, *others)):
            told[variable] = separator.join(value.split())
            if option == "extra-index-url":
                # Users who configured several indexes for pip expect the best version of all, as
                # from pip.
                told["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return told


def redacted(text: str) -> str:
    """Remove user names and passwords from URLs."""
    return _CREDENTIALS.sub("://", text)


def _pip_options(user: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for path in _pip_files(user):
        options |= _read(path)
    for option in _PIP:
        value = user.get(f"PIP_{option.upper().replace('-', '_')}")
        if value is not None:
            options[option] = value
    return options


def _pip_files(user: Mapping[str, str]) -> list[Path]:
    """Return the files that pip reads, in ascending priority."""
    home = Path(user.get("HOME", "/nonexistent"))
    folders = (user.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    personal = Path(user.get("XDG_CONFIG_HOME") or home / ".config")
    named = user.get("PIP_CONFIG_FILE", "")
    if named == "/dev/null":
        return []
    return [
        *(Path(folder, "pip", "pip.conf") for folder in folders if folder),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        personal / "pip" / "pip.conf",
        Path(sys.prefix, "pip.conf"),
        *([Path(named)] if named else []),
    ]


def _read(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}  # pip itself reports this error to its users
    return {
        option: parser.get(section, option)
        for section in _SECTIONS
        for option in _PIP
        if parser.has_option(section, option)
    }


_UNKNOWN: Final = re.compile(r"(\S+) was not found in the (?:package registry|provided package)")
_NO_VERSION: Final = re.compile(r"there (?:is|are) no versions? of (.+?)(?: and | that |, |$)")
_ONLY_OTHERS: Final = re.compile(r"only (.+?) (?:is|are) available and you require ([^\s,]+)")
_NO_WHEEL: Final = re.compile(r"no usable wheels|no wheels with a matching|no matching wheels")
_NEEDS_WHEEL: Final = re.compile(r"Wheels are required for `([A-Za-z0-9._-]+)`")
_UNREACHABLE: Final = re.compile(
    r"Failed to fetch|error sending request|Request failed|dns error|Connection refused"
    r"|network was disabled|Network connectivity is disabled"
)
_CONCLUSION: Final = re.compile(
    r",? ?we can conclude that (?:your requirements are unsatisfiable|all of:).*", re.DOTALL
)
_LONGEST: Final = 400


class IndexUnreachableError(Exception):
    """The index does not answer; cached data may still be enough."""


def explain(said: str, asked: Sequence[Requirement], target: Target) -> PackageError:
    """Translate a resolver failure into an error of the port.

    Raises:
        IndexUnreachableError: If the index could not be reached.
    """
    text = redacted(said)
    if _UNREACHABLE.search(text):
        raise IndexUnreachableError(_last_cause(text))
    if unknown := _UNKNOWN.search(text):
        return _unknown(canonical_name(unknown[1]), asked)
    flat = _flattened(text)
    for requirement in target.present:
        name, _, version = requirement.partition("==")
        if re.search(rf"\b{re.escape(name)}=={re.escape(version)}(?![\w.])", flat):
            return PackageError(
                f"the sandbox has {name} {version} loaded, which does not fit: {_short(flat)}",
                hint=f"ask for versions that work with {requirement}",
            )
    if _NO_WHEEL.search(flat):
        return _no_wheel(text, flat, asked, target)
    if missing := _NO_VERSION.search(flat):
        return PackageError(
            f"there is no version of {missing[1]} to be had for {target.words}",
            hint="ask for another version, or for none in particular",
        )
    if others := _ONLY_OTHERS.search(flat):
        return PackageError(
            f"there is no version that fits {others[2]} for {target.words}",
            hint=f"there is {others[1][:_LONGEST]}",
        )
    return PackageError(f"the packages conflict with each other: {_short(flat)}")


def _unknown(name: str, asked: Sequence[Requirement]) -> PackageError:
    if name not in {requirement.name for requirement in asked}:
        return PackageError(f"a package that was asked for needs {name!r}, which does not exist")
    meant = likely_name(name)
    return PackageError(
        f"there is no package named {name!r}" + (f"; did you mean {meant!r}?" if meant else ""),
        hint="packages are not always called like the module that is imported",
    )


class NoWheelError(PackageError):
    """A package has no wheel for the interpreter; it could be built from source."""

    def __init__(self, message: str, *, names: tuple[str, ...], hint: str) -> None:
        super().__init__(message, hint=hint)
        self.names = names


def _no_wheel(text: str, flat: str, asked: Sequence[Requirement], target: Target) -> PackageError:
    named = [str(one) for one in asked if re.search(rf"\b{re.escape(one.name)}\b", flat)]
    others = [meant for one in asked if one.name in flat and (meant := likely_name(one.name))]
    hint = f"did you mean {others[0]!r}?" if others else "ask for another version or package"
    return NoWheelError(
        f"there is no wheel of {' or '.join(named) or 'a package'} for {target.words}, and nothing "
        "is built from source",
        names=tuple(map(canonical_name, dict.fromkeys(_NEEDS_WHEEL.findall(text)))),
        hint=hint,
    )


def _flattened(text: str) -> str:
    kept = [line for line in text.splitlines() if not line.startswith("hint:")]
    flat = " ".join(" ".join(kept).split())
    flat = re.sub(r"^error: No solution found when resolving dependencies(?: cause:)?", "", flat)
    return flat.strip(" :")


def _short(flat: str) -> str:
    text = _CONCLUSION.sub("", flat).removeprefix("Because ").strip()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _last_cause(text: str) -> str:
    """Return the innermost cause, without the requested URL."""
    lines = [line.strip().removeprefix("cause:").strip() for line in text.splitlines()]
    told = (line for line in reversed(lines) if line and not line.startswith("hint:"))
    return next(told, "no answer")


_PIN: Final = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s\\;]+)")
_HASH: Final = re.compile(r"--hash=(\w+:[0-9a-f]+)")
_RESOLVE_WITHIN_S: Final = 120.0
_FETCH_WITHIN_S: Final = 1800.0
_OFF: Final = frozenset({"", "0", "false", "no", "off"})
_ALWAYS: Final = ("--color", "never", "--no-progress", "--no-python-downloads")


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
    built: BuiltWheels
    environment: Mapping[str, str] = field(repr=False)
    """The user's environment; only index variables are passed on."""

    async def resolve(
        self,
        asked: Sequence[Requirement],
        target: Target,
        folder: Path,
        *,
        constraints: Sequence[Requirement] = (),
    ) -> tuple[Pin, ...]:
        """Choose versions of all needed packages, without those that are already present.

        If each requirement has hashes, they are all that is needed: nothing is resolved.

        Raises:
            PackageError: If no versions fit together.
            IndexUnreachableError: If the index does not answer.
            MissingExtraError: If uv is not installed.
        """
        present = {pin.partition("==")[0] for pin in target.present}
        if asked and all(requirement.hashes for requirement in asked):
            pins = map(_pin_of, asked)
            return tuple(pin for pin in pins if str(pin) not in target.present)
        wanted, bound = folder / "wanted.in", folder / "present.txt"
        wanted.write_text("".join(f"{requirement}\n" for requirement in asked))
        bound.write_text("".join(f"{pin}\n" for pin in (*target.present, *constraints)))
        command = ["pip", "compile", str(wanted), "--constraints", str(bound), *_for(target)]
        options = ["--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
        options += self.built.find_links()
        with anyio.move_on_after(_RESOLVE_WITHIN_S):
            status, said, complaint = await self._run([*command, *options], folder)
            if status:
                raise explain(complaint, asked, target)
            pins = map(self._with_source, _read_pins(said))
            return tuple(pin for pin in pins if pin.name not in present)
        raise PackageError(f"the resolver did not come to an end in {_RESOLVE_WITHIN_S:g} s")

    async def unpack(self, pins: Sequence[Pin], target: Target, folder: Path, into: Path) -> None:
        """Download the wheels of a resolved set and unpack them; raises the errors of `resolve`."""
        if not pins:
            return
        chosen = folder / "chosen.txt"
        chosen.write_text("".join(f"{self._line(pin)}\n" for pin in pins))
        command = ["pip", "install", "--target", str(into), "--requirement", str(chosen)]
        options = ["--no-deps", "--require-hashes", "--link-mode", "copy", "--quiet"]
        with anyio.move_on_after(_FETCH_WITHIN_S):
            status, _, complaint = await self._run([*command, *_for(target), *options], folder)
            if status:
                raise _not_unpacked(complaint, target)
            return
        raise PackageError(f"the packages were not there after {_FETCH_WITHIN_S:g} s")

    def _with_source(self, pin: Pin) -> Pin:
        """Return a pin with the hash of its source, if its wheel was built here."""
        source = self.built.source_of(pin.hashes)
        return replace(pin, hashes=(source,)) if source else pin

    def _line(self, pin: Pin) -> str:
        """Return the line of a requirements file that installs a pin."""
        wheel = self.built.find(pin.hashes)
        if wheel is None:
            return pin.line
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        return f"{pin.name} @ {wheel.as_uri()} --hash=sha256:{digest}"

    async def describe_source(self, requirement: Requirement, target: Target, folder: Path) -> str:
        """Return uv's lock (PEP 751) of the source distribution of one package.

        Raises the errors of `resolve`. uv would build a package to learn its requirements, so it
        receives an empty list of them.
        """
        wanted, lock, config = (folder / name for name in ("source.in", "pylock.toml", "uv.toml"))
        wanted.write_text(f"{requirement.name}{requirement.versions}\n")
        config.write_text(
            f'[[dependency-metadata]]\nname = "{requirement.name}"\nrequires-dist = []\n'
        )
        command = ["pip", "compile", str(wanted), "--no-deps", "--format", "pylock.toml"]
        options = ["--output-file", str(lock), "--no-binary", ":all:", "--quiet"]
        if target.interpreter is not None:
            options += ["--python", target.interpreter]
        with anyio.move_on_after(_RESOLVE_WITHIN_S):
            status, _, complaint = await self._run([*command, *options], folder, config=config)
            if status:
                raise explain(complaint, (requirement,), target)
            return lock.read_text()
        raise PackageError(f"the resolver did not come to an end in {_RESOLVE_WITHIN_S:g} s")

    async def _run(
        self, arguments: Sequence[str], folder: Path, *, config: Path | None = None
    ) -> tuple[int, str, str]:
        environment = index_environment(self.environment) | {
            "PATH": "/usr/bin:/bin",
            "TMPDIR": str(folder),
            "UV_HTTP_RETRIES": "1",
            "UV_CACHE_DIR": str(self.wheels),
        }
        # This option has no variable.
        alone = ["--no-index"] if environment.pop("UV_NO_INDEX", "0") not in _OFF else []
        configured = ["--no-config"] if config is None else ["--config-file", str(config)]
        done = await anyio.run_process(
            [_find_uv(), *arguments, *configured, *_ALWAYS, *alone],
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


def _pin_of(requirement: Requirement) -> Pin:
    version = requirement.versions.lstrip("=")
    return Pin(name=requirement.name, version=version, hashes=requirement.hashes)


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
    if isinstance(explained, NoWheelError):
        return explained
    return PackageError(f"a package cannot be unpacked: {told[:400]}", hint=explained.hint)
