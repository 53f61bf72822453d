"""JSON Schemas of tools from other authors, and validation of a model's arguments.

A schema can block its validator (`pattern`) or load other documents (`$ref`). So tools declared in
files may use only plain keywords, and for other servers only those are applied.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from assay.contracts.errors import MissingExtraError, ToolError

Path = tuple[str | int, ...]

_PLAIN: Final = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items", "anyOf", "oneOf"),
        *("enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems"),
        *("title", "description", "default", "examples"),
    }
)
_BY_NAME: Final = frozenset({"properties"})
_IN_A_LIST: Final = frozenset({"anyOf", "oneOf"})
_ONE: Final = frozenset({"items", "additionalProperties"})


def keywords(schema: object, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield every keyword of a schema with its location."""
    if not isinstance(schema, Mapping):
        return
    for key, value in cast("Mapping[str, Any]", schema).items():
        here = (*path, key)
        yield here, key
        if key in _BY_NAME and isinstance(value, Mapping):
            for name, inner in cast("Mapping[str, Any]", value).items():
                yield from keywords(inner, (*here, name))
        elif key in _IN_A_LIST and isinstance(value, list):
            for place, inner in enumerate(cast("list[Any]", value)):
                yield from keywords(inner, (*here, place))
        elif key in _ONE:
            yield from keywords(value, here)


def find_fault(schema: Mapping[str, Any]) -> tuple[Path, str] | None:
    """Return where and why a schema is invalid for a declared tool; None if it is valid."""
    validator = _validator()
    if schema.get("type") != "object":
        return ("type",), "must be `object`"
    for path, key in keywords(schema):
        if key not in _PLAIN:
            return path, f"cannot be used here; known are {', '.join(sorted(_PLAIN))}"
    for error in validator.META.iter_errors(schema):
        return tuple(error.absolute_path), error.message[:200]
    return None


def strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that rejects unknown names, unless it sets this itself."""
    return {"additionalProperties": False, "properties": {}, **schema, "type": "object"}


def applicable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a schema that Assay applies; its author checks the rest."""
    plain = strict(_reduced(schema))
    if find_fault(plain) is not None:
        return {"type": "object"}
    # A removed keyword may have allowed more names.
    if not schema.keys() <= _PLAIN | {"$schema", "$defs"}:
        plain["additionalProperties"] = schema.get("additionalProperties", True) is not False
    return plain


def _reduced(schema: object) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    plain: dict[str, Any] = {}
    for key, value in cast("Mapping[str, Any]", schema).items():
        if key in _BY_NAME and isinstance(value, Mapping):
            inner = cast("Mapping[str, Any]", value)
            plain[key] = {name: _reduced(each) for name, each in inner.items()}
        elif key in _IN_A_LIST and isinstance(value, list):
            # Without the removed keywords, two alternatives may be equal and both match.
            plain["anyOf"] = [_reduced(each) for each in cast("list[Any]", value)]
        elif key in _ONE:
            plain[key] = _reduced(value)
        elif key in _PLAIN:
            plain[key] = value
    return plain


def check_arguments(name: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Validate arguments against a schema.

    Raises:
        ToolError: If arguments are missing, unknown or have the wrong type; lists all errors.
    """
    errors = sorted(_validator().of(schema).iter_errors(dict(arguments)), key=str)
    if not errors:
        return
    wrong = "; ".join(f"{_place(error)}: {error.message[:200]}" for error in errors[:5])
    taken = ", ".join(schema.get("properties", {})) or "no arguments"
    raise ToolError(f"{name} cannot be called so ({wrong}); it takes {taken}")


def _place(error: Any) -> str:
    return ".".join(map(str, error.absolute_path)) or "arguments"


class _Validators:
    """Validators without access to other documents."""

    def __init__(self) -> None:
        from jsonschema import Draft202012Validator
        from referencing import Registry

        registry: Any = Registry
        self._kind: Any = Draft202012Validator
        self._registry = registry()
        self.META: Any = Draft202012Validator(Draft202012Validator.META_SCHEMA)

    def of(self, schema: Mapping[str, Any]) -> Any:
        return self._kind(dict(schema), registry=self._registry)


def _validator() -> _Validators:
    try:
        return _Validators()
    except ImportError as error:
        raise MissingExtraError("a tool of one's own", extra="chat") from error
