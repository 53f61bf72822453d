"""Certificates: accepted files, their checks and the environment, with a signature.

The environment is the interpreter, the machine, the sandbox and the packages of a verification.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, cast

from pydantic import TypeAdapter, ValidationError

from assay.contracts.distribution import DISTRIBUTION
from assay.contracts.errors import JournalError, UsageError
from assay.contracts.execution import DEFAULT_SPEC, EditableProject, SandboxSpec
from assay.contracts.goal import RunSpec
from assay.contracts.jsonable import jsonable
from assay.contracts.messages import Usage
from assay.contracts.verdict import Finding, Grade, TestStatus, Verdict
from assay.contracts.workspace import FileChange, Tree, changes_between
from assay.files import sync_folder, write_draft
from assay.storage.signing_keys import SigningKey, is_signed_by

_NAMED: Final = frozenset(
    {
        *("pytest", "pluggy", "iniconfig", "hypothesis", "pytest-asyncio", "pytest-timeout"),
        *("numpy", "pandas", "scipy", "scikit-learn", "matplotlib"),
    }
)
"""Packages whose versions are listed; the digest covers all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The facts other than the files on which a result may depend."""

    python: str
    """Implementation and version."""
    system: str
    machine: str
    kernel: str
    backend: str
    isolation: str
    packages: Mapping[str, str]
    digest: str
    """SHA-256 of the interpreter, the machine and every installed package."""
    given: tuple[str, ...] = ()
    """Packages that the sandboxes received in addition, `name==version`; those of a project's
    environment with the hashes of their files."""
    hosts: tuple[str, ...] = ()
    """Hosts that the sandboxes could reach."""
    project: EditableProject | None = None
    """The project, as programs in the sandboxes saw it installed."""
    mounted: tuple[str, ...] = ()
    """Packages of a mounted virtual environment, `name==version sha256:…` of their file lists."""


def describe_environment(
    *,
    backend: str,
    isolation: str,
    equipment: SandboxSpec = DEFAULT_SPEC,
    mounted: tuple[str, ...] = (),
) -> Environment:
    """Describe the interpreter that runs sandboxed Python."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    installed = {
        name.lower(): distribution.version
        for distribution in metadata.distributions()
        if (name := distribution.name)
    }
    about = [python, platform.system(), platform.machine(), sorted(installed.items())]
    return Environment(
        python=python,
        system=platform.system(),
        machine=platform.machine(),
        kernel=platform.release(),
        backend=backend,
        isolation=isolation,
        packages={name: installed[name] for name in sorted(_NAMED & installed.keys())},
        digest=hashlib.sha256(json.dumps(about).encode()).hexdigest(),
        given=equipment.packages,
        hosts=equipment.hosts,
        project=equipment.project,
        mounted=mounted,
    )


_KIND: Final = "assay-certificate/"
FORMAT: Final = "assay-certificate/1"
_LARGEST_BYTES: Final = 64 << 20
_MODE: Final = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedFile:
    """One file of the verified tree."""

    sha256: str
    executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedTest:
    """The result of one test."""

    check: str
    """The command that ran it."""
    id: str
    status: TestStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """Planted tests that had to fail."""

    planted: int
    caught: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """All data needed to check the files and to run the checks again."""

    format: Literal["assay-certificate/1"]
    run: str
    issued_at: str
    """RFC 3339, UTC."""
    assay: str
    """The version of Assay that verified."""
    goal: str
    grade: Grade
    reason: str
    checks: tuple[str, ...]
    check_timeout_s: float
    """The timeout of each check."""
    files: Mapping[str, CertifiedFile]
    """By path from the root."""
    protected: tuple[PurePosixPath, ...]
    """The files that decide; the agent could not change them."""
    changes: tuple[FileChange, ...]
    """The changes of the agent in the workspace."""
    tree: str
    """Digest of the verified files."""
    pristine: str
    """Digest of the files before the run."""
    tests: tuple[CertifiedTest, ...]
    canaries: Canaries
    findings: tuple[Finding, ...]
    environment: Environment
    model: str
    usage: Usage
    key: str
    """Ed25519 public key, hexadecimal."""
    signature: str = ""
    """Over the canonical JSON of all other fields, hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The inputs of a certificate."""

    run: str
    spec: RunSpec
    checks: tuple[str, ...]
    """The checks that decided, including those that the agent found or wrote."""
    protected: tuple[PurePosixPath, ...]
    """Files, and folders of files, that the agent could not change."""
    pristine: Tree
    tree: Tree
    """The verified tree."""
    verdict: Verdict
    environment: Environment
    model: str
    usage: Usage


@cache
def _adapter() -> TypeAdapter[Certificate]:
    return TypeAdapter(Certificate)


def build_certificate(
    proof: Proof, key: SigningKey, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Certificate:
    """Build and sign a certificate.

    Raises:
        UsageError: If the verdict is about other files, or rejects.
    """
    verdict = proof.verdict
    if not verdict.accepted or verdict.grade is None:
        raise UsageError("only what was accepted gets a certificate")
    if verdict.tree != proof.tree.digest:
        raise UsageError("the verdict is about other files than these")
    unsigned = Certificate(
        format=FORMAT,
        run=proof.run,
        issued_at=now().isoformat(timespec="seconds"),
        assay=metadata.version(DISTRIBUTION),
        goal=proof.spec.goal,
        grade=verdict.grade,
        reason=verdict.reason,
        checks=proof.checks,
        check_timeout_s=proof.spec.limits.check_timeout_s,
        files={
            str(path): CertifiedFile(sha256=file.sha256, executable=file.executable)
            for path, file in sorted(proof.tree.files.items())
        },
        protected=_protected(proof),
        changes=changes_between(proof.pristine, proof.tree),
        tree=proof.tree.digest,
        pristine=proof.pristine.digest,
        tests=tuple(
            CertifiedTest(check=report.command, id=test.id, status=test.status)
            for report in verdict.reports
            for test in report.tests
        ),
        canaries=Canaries(
            planted=sum(report.canaries_planted for report in verdict.reports),
            caught=sum(report.canaries_caught for report in verdict.reports),
        ),
        findings=verdict.findings,
        environment=proof.environment,
        model=proof.model,
        usage=proof.usage,
        key=key.public,
    )
    # Decoded first: otherwise an integer in a float field would be encoded differently then.
    fields = certificate_to_json(_adapter().validate_python(certificate_to_json(unsigned)))
    fields["signature"] = key.sign(canonical(fields))
    return _adapter().validate_python(fields)


def _protected(proof: Proof) -> tuple[PurePosixPath, ...]:
    roots = frozenset(proof.protected)
    return tuple(
        path
        for path in sorted(proof.tree.files)
        if path in roots or not roots.isdisjoint(path.parents)
    )


def certificate_to_json(certificate: Certificate) -> dict[str, Any]:
    """Return the text of the certificate file."""
    return jsonable(certificate)


def canonical(fields: Mapping[str, Any]) -> bytes:
    """Return the signed bytes: sorted names, no spaces, UTF-8, no signature."""
    signed = {name: value for name, value in fields.items() if name != "signature"}
    text = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # File names need not be text; a lone surrogate is encoded in three bytes.
    return text.encode("utf-8", "surrogatepass")


def write_certificate(path: Path, certificate: Certificate) -> None:
    """Write a certificate atomically, readable for all users.

    Raises:
        UsageError: If it cannot be written there.
    """
    fields = certificate_to_json(certificate)
    try:
        content = json.dumps(fields, indent=2, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        content = json.dumps(fields, indent=2).encode() + b"\n"
    _place(path, content)


def copy_certificate(source: Path, target: Path) -> None:
    """Copy a certificate byte for byte; raises as `write_certificate` does."""
    try:
        content = source.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the certificate {str(source)!r} cannot be read: {error.strerror}"
        ) from error
    _place(target, content)


def _place(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.is_symlink():
            raise UsageError(f"{str(path.parent)!r} is a link, so nothing was written there")
        draft = write_draft(path.parent, content)
        draft.chmod(_MODE)
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise UsageError(
            f"the certificate {str(path)!r} cannot be written: {error.strerror}"
        ) from error


def read_certificate(path: Path) -> Certificate:
    """Read a certificate and check its signature.

    Raises:
        UsageError: If there is none, or its format is unknown.
        JournalError: If it was changed after the signature.
        MissingExtraError: If the library for signatures is not installed.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    return certificate_of(content, repr(str(path)))


def certificate_of(content: bytes, name: str) -> Certificate:
    """Parse and check the bytes of a certificate; raises the errors of `read_certificate`."""
    fields = _fields(content, name)
    kind = fields.get("format")
    if not isinstance(kind, str) or not kind.startswith(_KIND):
        raise UsageError(f"{name} is not a certificate of Assay")
    if kind != FORMAT:
        raise UsageError(
            f"{name} has the format {kind!r}; this version of Assay knows {FORMAT!r}",
            hint="use the version of Assay that made it, or a later one",
        )
    key, signature = fields.get("key"), fields.get("signature")
    if not isinstance(key, str) or not isinstance(signature, str):
        raise _tampered(name)
    if not is_signed_by(key, signature, canonical(fields)):
        raise _tampered(name)
    try:
        certificate = _adapter().validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{name} is no whole certificate: {place}: {first['msg']}") from error
    return certificate


def _fields(content: bytes, name: str) -> dict[str, Any]:
    if len(content) > _LARGEST_BYTES:
        raise UsageError(f"{name} is too large for a certificate")
    try:
        found = json.loads(content, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not a certificate: it is not JSON") from error
    if not isinstance(found, dict):
        raise UsageError(f"{name} is not a certificate of Assay")
    return cast("dict[str, Any]", found)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    # Readers differ in which duplicate they use, so that one signature could cover two meanings.
    if len(fields) != len(pairs):
        raise ValueError("a name is there twice")
    return fields


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _tampered(name: str) -> JournalError:
    return JournalError(
        f"the certificate {name} was changed after it was signed",
        hint="do not trust it; ask for the original",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """The differences from a certificate."""

    changed: tuple[PurePosixPath, ...]
    missing: tuple[PurePosixPath, ...]
    extra: tuple[PurePosixPath, ...]
    """Files that the certificate does not list. They take no part in its checks."""

    @property
    def any(self) -> bool:
        """Whether a certified file differs."""
        return bool(self.changed or self.missing)


def compare_files(certificate: Certificate, tree: Tree) -> Differences:
    """Compare a tree with the files of a certificate, mode included."""
    changed: list[PurePosixPath] = []
    missing: list[PurePosixPath] = []
    certified = {PurePosixPath(path): file for path, file in certificate.files.items()}
    for path, was in sorted(certified.items()):
        file = tree.files.get(path)
        if file is None:
            missing.append(path)
        elif (file.sha256, file.executable) != (was.sha256, was.executable):
            changed.append(path)
    extra = sorted(tree.files.keys() - certified.keys())
    return Differences(changed=tuple(changed), missing=tuple(missing), extra=tuple(extra))
