"""Tool arguments of a model: validation with error messages that let the model correct itself."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from assay.contracts.errors import ToolError, UsageError, WorkspaceError
from assay.contracts.execution import WORKSPACE
from assay.contracts.messages import ToolSpec


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


@contextmanager
def told_to_the_model() -> Generator[None]:
    """Turn the errors of a sandbox into messages for the model."""
    try:
        yield
    except (WorkspaceError, UsageError) as error:
        raise ToolError(f"{error}{f'; {error.hint}' if error.hint else ''}") from error
