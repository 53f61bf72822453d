"""Literal arguments of `setup.py`, read from its syntax tree; Assay never executes it."""

import ast
import configparser
from typing import Any, Final, cast

from packaging.utils import canonicalize_name

from assay.contracts.errors import PackageError
from assay.environment.declared import ProjectMetadata
from assay.environment.project_files import ENV_OFF, ProjectFiles, strings, table

_NAME: Final = "setup.py"
_UNREAD: Final = object()


def read_setup_script(files: ProjectFiles, metadata: ProjectMetadata) -> None:
    """Add what the call of `setup` states with literals or with names of literals.

    Raises:
        PackageError: If the file is not valid Python.
    """
    text = files.read_text(_NAME)
    if text is None:
        return
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PackageError(f"{_NAME} is not valid Python: {error}", hint=ENV_OFF) from error
    known: dict[str, ast.expr] = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            known[statement.targets[0].id] = statement.value
    call = _setup_call(module)
    if call is None:
        return
    arguments = {word.arg: word.value for word in call.keywords if word.arg is not None}
    values = {name: _literal(value, known) for name, value in arguments.items()}
    if isinstance(values.get("name"), str) and not metadata.name:
        metadata.name = values["name"]
        metadata.files.append(_NAME)
    if isinstance(values.get("version"), str):
        metadata.version = metadata.version or values["version"]
    metadata.requires += _listed(values.get("install_requires"))
    if values.get("install_requires") is _UNREAD:
        metadata.unread.append(f"{_NAME}: install_requires")
    for extra, listed in table(_known(values.get("extras_require"))).items():
        metadata.extras.setdefault(canonicalize_name(str(extra)), _listed(listed))
    if tests := _listed(values.get("tests_require")):
        metadata.groups.setdefault("test", tests)
    _read_entry_points(_known(values.get("entry_points")), metadata)
    root = table(_known(values.get("package_dir"))).get("")
    if isinstance(root, str):
        metadata.folders.append(root)


def _setup_call(module: ast.Module) -> ast.Call | None:
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.id if isinstance(function, ast.Name) else ""
            if isinstance(function, ast.Attribute):
                name = function.attr
            if name == "setup":
                return node
    return None


def _literal(node: ast.expr, known: dict[str, ast.expr], depth: int = 0) -> Any:
    """Return the value of a literal whose parts may be names of other literals."""
    if depth > 20:  # noqa: PLR2004 - deeper than any list of requirements
        return _UNREAD
    if isinstance(node, ast.Name):
        return _literal(known[node.id], known, depth + 1) if node.id in known else _UNREAD
    if isinstance(node, ast.List | ast.Tuple):
        parts = [_literal(part, known, depth + 1) for part in node.elts]
        return _UNREAD if _UNREAD in parts else parts
    if isinstance(node, ast.Dict):
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            name = _literal(key, known, depth + 1) if key is not None else _UNREAD
            if isinstance(name, str):
                found[name] = _literal(value, known, depth + 1)
        return found
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = (_literal(side, known, depth + 1) for side in (node.left, node.right))
        if isinstance(left, list) and isinstance(right, list):
            return cast("list[Any]", left) + cast("list[Any]", right)
        return _UNREAD
    return node.value if isinstance(node, ast.Constant) else _UNREAD


def _known(value: object) -> object:
    return None if value is _UNREAD else value


def _listed(value: object) -> list[str]:
    if isinstance(value, str):
        return [line.strip() for line in value.splitlines() if line.strip()]
    return strings(value)


def _read_entry_points(value: object, metadata: ProjectMetadata) -> None:
    sections = table(value)
    if isinstance(value, str):
        parser = configparser.RawConfigParser(delimiters=("=",))
        parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - the documented way to keep upper case
        try:
            parser.read_string(value)
        except configparser.Error:
            return
        sections = {name: [f"{k}={v}" for k, v in parser.items(name)] for name in parser.sections()}
    for section, listed in sections.items():
        pairs = (line.partition("=") for line in _listed(listed))
        entries = {name.strip(): place.strip() for name, _, place in pairs if place.strip()}
        if entries:
            metadata.entry_points.setdefault(str(section), {}).update(entries)
