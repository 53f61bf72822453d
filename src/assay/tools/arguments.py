"""Tool arguments of a model: schemas, and errors that let the model correct itself.

Assay's tools declare their arguments as models. A schema of another author can block its
validator (`pattern`) or load other documents (`$ref`). So tools declared in files may use only
plain keywords, and for other servers only those are applied.
"""

from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from assay.contracts.errors import AssayError, ToolError, UsageError, WorkspaceError, require
from assay.contracts.execution import WORKSPACE
from assay.contracts.messages import ToolSpec
from assay.contracts.ports import OnOutput, Sandbox, ignore_output


class Arguments(BaseModel):
    """The arguments of one tool. A misspelled name is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)


def build_spec(name: str, description: str, arguments: type[Arguments]) -> ToolSpec:
    """Build the specification of a tool from the model of its arguments."""
    return ToolSpec(name=name, description=description, parameters=plain_schema(arguments))


def plain_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of values, without texts for developers."""
    schema = _without_titles(model.model_json_schema())
    schema.pop("description", None)
    return schema


def _without_titles(schema: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            plain[key] = {name: _without_titles(each) for name, each in value.items()}
        elif key != "title":
            plain[key] = value
    return plain


def read_arguments(
    spec: ToolSpec, kind: type[ArgumentsT], arguments: Mapping[str, Any]
) -> ArgumentsT:
    """Validate and return the arguments.

    Raises:
        ToolError: If an argument is missing, unknown or has the wrong type.
    """
    try:
        return kind.model_validate(dict(arguments))
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg'].lower()}"
            for each in error.errors(include_url=False, include_input=False)
        )
        taken = ", ".join(kind.model_fields)
        raise ToolError(f"{spec.name} cannot be called so ({wrong}); it takes {taken}") from error


def workspace_path(written: str) -> PurePosixPath:
    """Return a path relative to the workspace root.

    Raises:
        ToolError: If it leads out of the workspace.
    """
    path = PurePosixPath(written.strip().strip("`'\"").strip() or ".")
    if path.is_relative_to(WORKSPACE):
        path = path.relative_to(WORKSPACE)
    if path.is_absolute() or ".." in path.parts:
        raise ToolError(
            f"{written[:200]!r} is outside the workspace: give a path from the workspace root"
        )
    return path


def with_hint(error: AssayError) -> str:
    """Return the message of an error with its hint, for the model."""
    return f"{error}; {error.hint}" if error.hint else str(error)


@contextmanager
def errors_for_model() -> Generator[None]:
    """Turn the errors of a sandbox into messages for the model."""
    try:
        yield
    except (WorkspaceError, UsageError) as error:
        raise ToolError(with_hint(error)) from error


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool made of a function."""

    spec: ToolSpec
    _arguments: type[Arguments]
    _function: Callable[..., Awaitable[str]]
    _streams: bool
    """The function takes `on_output`."""

    async def call(
        self,
        arguments: Mapping[str, Any],
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> str:
        wanted = dict(read_arguments(self.spec, self._arguments, arguments))
        if self._streams:
            wanted["on_output"] = on_output
        with errors_for_model():
            return await self._function(sandbox, **wanted)


def describe_function(
    function: Callable[..., Awaitable[Any]], base: type[ArgumentsT]
) -> tuple[ToolSpec, type[ArgumentsT]]:
    """Return the specification and the arguments of a tool that is made of a function.

    The first parameter and `on_output` are not arguments.
    """
    _, *parameters = signature(function).parameters.values()
    fields: dict[str, Any] = {
        each.name: (each.annotation, ... if each.default is each.empty else each.default)
        for each in parameters
        if each.name != "on_output"
    }
    arguments = create_model(function.__name__, __base__=base, **fields)
    description = " ".join((function.__doc__ or "").split())
    return build_spec(function.__name__, description, arguments), arguments


def tool(function: Callable[..., Awaitable[str]]) -> FunctionTool:
    """Make a tool of a function: its name, its docstring, and the schema of its parameters.

    The function takes the sandbox first and may take `on_output`; neither is an argument.
    """
    spec, arguments = describe_function(function, Arguments)
    streams = "on_output" in signature(function).parameters
    return FunctionTool(spec, arguments, function, streams)


SchemaPath = tuple[str | int, ...]

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


def keywords(schema: object, path: SchemaPath = ()) -> Iterator[tuple[SchemaPath, str]]:
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


def find_fault(schema: Mapping[str, Any]) -> tuple[SchemaPath, str] | None:
    """Return where and why a schema is invalid for a declared tool; None if it is valid."""
    validator = _validator()
    if schema.get("type") != "object":
        return ("type",), "must be `object`"
    for path, key in keywords(schema):
        if key not in _PLAIN:
            return path, f"cannot be used here; known are {', '.join(sorted(_PLAIN))}"
    for error in validator.iter_errors(schema):
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
    errors = sorted(_validator(schema).iter_errors(dict(arguments)), key=str)
    if not errors:
        return
    wrong = "; ".join(
        f"{'.'.join(map(str, error.absolute_path)) or 'arguments'}: {error.message[:200]}"
        for error in errors[:5]
    )
    taken = ", ".join(schema.get("properties", {})) or "no arguments"
    raise ToolError(f"{name} cannot be called so ({wrong}); it takes {taken}")


def _validator(schema: Mapping[str, Any] | None = None) -> Any:
    """Return a validator for values of a schema, or for schemas if there is none.

    A schema cannot load other documents.
    """
    with require("a tool of one's own", extra="chat"):
        from jsonschema import Draft202012Validator
        from referencing import Registry
    kind: Any = Draft202012Validator
    registry: Any = Registry
    if schema is None:
        return kind(kind.META_SCHEMA)
    return kind(dict(schema), registry=registry())
