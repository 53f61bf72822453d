"""Entry points: parts that other installed distributions add to Assay."""

from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from assay.contracts.errors import UsageError

T = TypeVar("T")


def find_extensions(group: str, *, taken: Collection[str] = ()) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name. Reads metadata only; imports nothing.

    Raises:
        UsageError: If two distributions declare one name, or one declares a name of Assay.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        if entry.name in taken:
            raise UsageError(
                f"{declared_by(entry)} has the name of a part of Assay", hint=_how_to_remove(entry)
            )
        if entry.name in found and found[entry.name] != entry:
            raise UsageError(
                f"{declared_by(entry)}, and {declared_by(found[entry.name])}",
                hint=_how_to_remove(entry),
            )
        found[entry.name] = entry
    return found


def load_extension(entry: EntryPoint, kind: type[T], *, call: bool = False) -> T:
    """Import the object of an entry point; if `call` is set, return what it returns.

    Raises:
        UsageError: If it cannot be loaded, or is of another type; names the distribution.
    """
    try:
        loaded = entry.load()
        if call:
            loaded = loaded()
    except Exception as error:
        raise UsageError(
            f"{declared_by(entry)}, which cannot be loaded: {type(error).__name__}: {error}",
            hint=_how_to_remove(entry),
        ) from error
    if not isinstance(loaded, kind):
        raise UsageError(
            f"{declared_by(entry)}, which is a {type(loaded).__name__}, not a {kind.__name__}",
            hint=_how_to_remove(entry),
        )
    return loaded


def declared_by(entry: EntryPoint) -> str:
    """Say which distribution declares an entry point, for errors."""
    source = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
    return f"the distribution {source} declares {entry.name!r} of {entry.group} as {entry.value!r}"


def _how_to_remove(entry: EntryPoint) -> str:
    name = entry.dist.name if entry.dist else "it"
    return f"update it, or remove it: pip uninstall {name}"
