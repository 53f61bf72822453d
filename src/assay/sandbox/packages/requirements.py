"""What may be asked for: packages by name and version, never a place to get them from."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from assay.contracts.errors import PackageError

_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_CLAUSE: Final = r"(?:===|==|!=|<=|>=|~=|<|>)\s*[A-Za-z0-9._+!*-]+"
_REQUIREMENT: Final = re.compile(
    rf"(?P<name>{_NAME})\s*(?:\[(?P<extras>[A-Za-z0-9._,\s-]*)\])?"
    rf"\s*(?P<versions>(?:{_CLAUSE}(?:\s*,\s*{_CLAUSE})*)?)"
)
_EXACT: Final = re.compile(r"==[^*,]+")
_MOST: Final = 100
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One package that was asked for, written in the one way that is compared."""

    name: str
    extras: tuple[str, ...]
    versions: str

    @property
    def exact(self) -> bool:
        """Whether it means the same tomorrow."""
        return bool(_EXACT.fullmatch(self.versions))

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}{self.versions}"


def parse_requirements(texts: Sequence[str]) -> tuple[Requirement, ...]:
    """Read what was asked for, sorted and each once.

    Raises:
        PackageError: If something is not a name with perhaps a version.
    """
    if len(texts) > _MOST:
        raise PackageError(f"{len(texts)} packages are more than a sandbox can have ({_MOST})")
    found = {parse_requirement(text) for text in texts}
    return tuple(sorted(found, key=str))


def parse_requirement(text: str) -> Requirement:
    """Read one requirement; raises like `parse_requirements`."""
    matched = _REQUIREMENT.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if matched is None:
        raise PackageError(
            f"not a package and a version: {text[:_LONGEST]!r}",
            hint="write requests, requests==2.32.* or uvicorn[standard]>=0.30; addresses, paths, "
            "options and markers are not taken",
        )
    extras = {canonical_name(extra) for extra in re.split(r"[\s,]+", matched["extras"] or "")}
    clauses = (re.sub(r"\s", "", clause) for clause in matched["versions"].split(","))
    return Requirement(
        name=canonical_name(matched["name"]),
        extras=tuple(sorted(extras - {""})),
        versions=",".join(sorted(clauses)),
    )


def canonical_name(name: str) -> str:
    """Write a name the way in which `Foo.Bar`, `foo_bar` and `foo-bar` are the same."""
    return re.sub(r"[-_.]+", "-", name).lower()
