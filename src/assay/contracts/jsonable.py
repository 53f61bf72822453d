"""Conversion of values to plain JSON, for journals, checkpoints and certificates."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any, Final, cast

_AS_IT_IS: Final = frozenset({str, int, float, bool, type(None)})


def jsonable(value: object) -> Any:
    """Return a value that consists only of JSON types; defaults are included.

    Text that is not UTF-8, such as a file name, survives the conversion.
    """
    # The most frequent types first: states of a run are large, and written after every step.
    if type(value) in _AS_IT_IS:
        return value
    if names := _fields_of(type(value)):
        return {name: jsonable(getattr(value, name)) for name in names}
    match value:
        case list() | tuple():
            plain = [jsonable(item) for item in cast("Sequence[object]", value)]
        case Enum():
            plain = value.value
        case PurePath():
            plain = str(value)
        case Mapping():
            pairs = cast("Mapping[object, object]", value)
            plain = {str(jsonable(name)): jsonable(item) for name, item in pairs.items()}
        case _:
            plain = value
    return plain


@cache
def _fields_of(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
