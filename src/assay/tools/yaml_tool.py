"""Tools declared in YAML files: validation with the line of each error.

The reader accepts a safe subset of YAML and returns the line of every key.
"""

import json
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from assay.contracts.errors import ToolError, UsageError, require
from assay.contracts.execution import Command, Program, PythonCode
from assay.contracts.messages import ToolSpec
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.settings.sections import Approval
from assay.tools.arguments import check_arguments, errors_for_model, find_fault, strict
from assay.tools.run import run_program

KeyPath = tuple[str | int, ...]
MOST_BYTES: Final = 64 << 10
_DEEPEST: Final = 20


class YamlError(ValueError):
    """The text is not valid for this reader; has the line."""

    def __init__(self, message: str, *, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Read:
    """The parsed data and its lines."""

    value: Any
    lines: dict[KeyPath, int]

    def line_of(self, path: KeyPath) -> int:
        """Return the line of a path, or of its nearest parent."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_yaml(text: str) -> Read:
    """Read plain data: no aliases, no language tags, no duplicate keys.

    Raises:
        YamlError: If it is anything else.
        MissingExtraError: If the YAML library is not installed.
    """
    with require("a tool of one's own", extra="chat"):
        yaml: Any = import_module("yaml")
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            # A few lines of aliases can expand beyond the available memory.
            if isinstance(event, yaml.AliasEvent):
                raise YamlError("aliases cannot be used here", line=event.start_mark.line + 1)
        node = yaml.compose(text, yaml.SafeLoader)
        lines: dict[KeyPath, int] = {}
        return Read(_value(node, (), lines, yaml), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(str(error.problem), line=mark.line + 1 if mark else 1) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, YamlError):
            raise
        raise YamlError("this cannot be read as YAML", line=1) from error


def _value(node: Any, path: KeyPath, lines: dict[KeyPath, int], yaml: Any) -> Any:
    if node is None:
        return None
    lines.setdefault(path, node.start_mark.line + 1)
    if len(path) > _DEEPEST:
        raise YamlError("this is nested too deep", line=node.start_mark.line + 1)
    constructor = yaml.constructor.SafeConstructor()
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = cast("Hashable", constructor.construct_object(key_node))
            if not isinstance(key, str):
                raise YamlError(f"the key {key!r} is not text: put it in quotes", line=line)
            if key in found:
                raise YamlError(f"the key {key!r} is there twice", line=line)
            lines[(*path, key)] = line
            found[key] = _value(value_node, (*path, key), lines, yaml)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_value(each, (*path, place), lines, yaml) for place, each in enumerate(node.value)]
    return constructor.construct_object(node)


_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LONGEST_S: Final = 3600.0


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Run(_Part):
    argv: list[str] | None = Field(default=None, min_length=1)
    python: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.argv is None) == (self.python is None):
            raise ValueError("give either argv or python")
        return self


class _Limits(_Part):
    timeout_s: float = Field(default=60.0, gt=0, le=_LONGEST_S)


class _Declaration(_Part):
    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    description: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = Field(
        max_length=2000
    )
    arguments: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    run: _Run
    limits: _Limits = Field(default_factory=_Limits)
    approval: Approval = "ask"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTool:
    """A tool declared in a file."""

    spec: ToolSpec
    argv: tuple[str, ...]
    """Empty if it is Python."""
    source: bytes
    timeout_s: float
    approval: Approval
    """The approval in its file; the loader decides whether it counts."""

    async def call(
        self,
        arguments: Mapping[str, Any],
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> str:
        properties: Mapping[str, Any] = self.spec.parameters.get("properties", {})
        check_arguments(self.spec.name, self.spec.parameters, arguments)
        usual: dict[str, Any] = {
            name: cast("Mapping[str, Any]", schema)["default"]
            for name, schema in properties.items()
            if isinstance(schema, Mapping) and "default" in schema
        }
        with errors_for_model():
            program = self._program({**usual, **arguments}, sandbox)
        return await run_program(program, sandbox, on_output)

    def _program(self, arguments: Mapping[str, Any], sandbox: Sandbox) -> Program:
        stdin = json.dumps(arguments).encode()
        timeout_s = min(self.timeout_s, sandbox.limits.wall_s)
        if self.argv:
            words = _fill(self.argv, arguments)
            return Command(argv=words, stdin=stdin, timeout_s=timeout_s, cwd=PurePosixPath())
        name = f"{self.spec.name}.py"
        return PythonCode(source=self.source, filename=name, stdin=stdin, timeout_s=timeout_s)


def _fill(template: tuple[str, ...], arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Put arguments into a command line, each as one word.

    A word whose argument is missing is omitted; a list as a whole word becomes several words.

    Raises:
        ToolError: If a program would take an argument for an option.
    """
    words: list[str] = []
    for word in template:
        names = _PLACEHOLDER.findall(word)
        if any(name not in arguments for name in names):
            continue
        whole = _PLACEHOLDER.fullmatch(word)
        values = arguments[whole[1]] if whole else None
        if isinstance(values, list):
            filled = [_as_word(each) for each in cast("list[Any]", values)]
        else:
            filled = [_PLACEHOLDER.sub(lambda found: _as_word(arguments[found[1]]), word)]
        if word.startswith("{") and names and "--" not in words:
            number = isinstance(arguments[names[0]], int | float)
            if not number and any(each.startswith("-") for each in filled):
                raise ToolError(
                    f"{names[0]} must not begin with `-`: it would be taken for an option"
                )
        words += filled
    return tuple(words)


def _as_word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def load_tool(path: Path) -> DeclaredTool:
    """Read one file.

    Raises:
        UsageError: If it is not a tool; has the file, the line and the key.
        MissingExtraError: If the YAML library is not installed.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"{path}: more than {MOST_BYTES} bytes are no description of a tool")
    try:
        read = read_yaml(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: this is not text") from error
    except YamlError as error:
        raise _fault(path, Read(None, {(): error.line}), (), str(error)) from error
    return _build(path, read)


def _build(path: Path, read: Read) -> DeclaredTool:
    try:
        found = _Declaration.model_validate(read.value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = first["msg"].removeprefix("Value error, ").lower()
        raise _fault(path, read, tuple(first["loc"]), message) from error
    fault = find_fault(found.arguments)
    if fault is not None:
        raise _fault(path, read, ("arguments", *fault[0]), fault[1])
    known = found.arguments.get("properties", {})
    for place, word in enumerate(found.run.argv or ()):
        if unknown := [name for name in _PLACEHOLDER.findall(word) if name not in known]:
            message = f"there is no argument {unknown[0]!r}"
            raise _fault(path, read, ("run", "argv", place), message)
    parameters = strict(found.arguments)
    return DeclaredTool(
        spec=ToolSpec(name=found.name, description=found.description, parameters=parameters),
        argv=tuple(found.run.argv or ()),
        source=(found.run.python or "").encode(),
        timeout_s=found.limits.timeout_s,
        approval=found.approval,
    )


def _fault(path: Path, read: Read, where: KeyPath, message: str) -> UsageError:
    key = f", {'.'.join(map(str, where))}" if where else ""
    return UsageError(
        f"{path}, line {read.line_of(where)}{key}: {message}",
        hint="docs/reference/tools.md has examples",
    )
