"""Valid package requests: a name and a version, never a location."""

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
    """One requested package in a canonical form that can be compared."""

    name: str
    extras: tuple[str, ...]
    versions: str

    @property
    def exact(self) -> bool:
        """Whether it always resolves to the same version."""
        return bool(_EXACT.fullmatch(self.versions))

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}{self.versions}"


def parse_requirements(texts: Sequence[str]) -> tuple[Requirement, ...]:
    """Parse requested packages; returns them sorted, without duplicates.

    Raises:
        PackageError: If an entry is not a name with an optional version.
    """
    if len(texts) > _MOST:
        raise PackageError(f"{len(texts)} packages are more than a sandbox can have ({_MOST})")
    found = {parse_requirement(text) for text in texts}
    return tuple(sorted(found, key=str))


def parse_requirement(text: str) -> Requirement:
    """Parse one requirement; raises the errors of `parse_requirements`."""
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
    """Return the canonical name, which is equal for `Foo.Bar`, `foo_bar` and `foo-bar`."""
    return re.sub(r"[-_.]+", "-", name).lower()
