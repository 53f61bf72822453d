"""YAML reader with the line of every key, for a safe subset of YAML."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, cast

from assay.contracts.errors import MissingExtraError

Path = tuple[str | int, ...]
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
    lines: dict[Path, int]

    def line_of(self, path: Path) -> int:
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
    yaml = _library()
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            # A few lines of aliases can expand beyond the available memory.
            if isinstance(event, yaml.AliasEvent):
                raise YamlError("aliases cannot be used here", line=event.start_mark.line + 1)
        node = yaml.compose(text, yaml.SafeLoader)
        lines: dict[Path, int] = {}
        return Read(_value(node, (), lines, yaml), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(str(error.problem), line=mark.line + 1 if mark else 1) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, YamlError):
            raise
        raise YamlError("this cannot be read as YAML", line=1) from error


def _library() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError("a tool of one's own", extra="chat") from error
    return yaml


def _value(node: Any, path: Path, lines: dict[Path, int], yaml: Any) -> Any:
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
