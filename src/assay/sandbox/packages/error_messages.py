"""Translation of resolver output into one short error that a model or a person can act on."""

import re
from collections.abc import Sequence
from typing import Final

from assay.contracts.errors import PackageError
from assay.sandbox.packages.index import redacted
from assay.sandbox.packages.requirements import Requirement, canonical_name
from assay.sandbox.packages.suggestions import likely_name
from assay.sandbox.packages.target import Target

_UNKNOWN: Final = re.compile(r"(\S+) was not found in the (?:package registry|provided package)")
_NO_VERSION: Final = re.compile(r"there (?:is|are) no versions? of (.+?)(?: and | that |, |$)")
_ONLY_OTHERS: Final = re.compile(r"only (.+?) (?:is|are) available and you require ([^\s,]+)")
_NO_WHEEL: Final = re.compile(r"no usable wheels|no wheels with a matching|no matching wheels")
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
        return _no_wheel(flat, asked, target)
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
    return PackageError(f"the packages cannot be had together: {_short(flat)}")


def _unknown(name: str, asked: Sequence[Requirement]) -> PackageError:
    if name not in {requirement.name for requirement in asked}:
        return PackageError(f"a package that was asked for needs {name!r}, which does not exist")
    meant = likely_name(name)
    return PackageError(
        f"there is no package named {name!r}" + (f"; did you mean {meant!r}?" if meant else ""),
        hint="packages are not always called like the module that is imported",
    )


def _no_wheel(flat: str, asked: Sequence[Requirement], target: Target) -> PackageError:
    named = [str(one) for one in asked if re.search(rf"\b{re.escape(one.name)}\b", flat)]
    others = [meant for one in asked if one.name in flat and (meant := likely_name(one.name))]
    hint = f"did you mean {others[0]!r}?" if others else "ask for another version or package"
    return PackageError(
        f"there is no wheel of {' or '.join(named) or 'a package'} for {target.words}, and nothing "
        "is built from source",
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
