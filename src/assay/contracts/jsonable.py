"""Values as plain JSON: what a journal, a checkpoint or a certificate can hold."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any, cast


def jsonable(value: object) -> Any:  # noqa: ANN401 - JSON is anything
    """Return a value with nothing in it but what JSON has; defaults are written out too.

    Text that is not UTF-8, such as the name of a file, comes through unharmed.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in fields(value)}
    match value:
        case Enum():
            plain = value.value
        case PurePath():
            plain = str(value)
        case Mapping():
            pairs = cast("Mapping[object, object]", value)
            plain = {str(jsonable(name)): jsonable(item) for name, item in pairs.items()}
        case list() | tuple():
            plain = [jsonable(item) for item in cast("Sequence[object]", value)]
        case _:
            plain = value
    return plain
