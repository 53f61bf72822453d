"""Sizes, names and docstrings: what no linter checks."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import functions, modules, name_of, parse

MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 80

NAMES_THAT_SAY_NOTHING = frozenset(
    {"common", "helper", "helpers", "impl", "misc", "util", "utils"},
)
NAMES_THAT_NEED_A_NOUN = frozenset(
    {"base", "core", "handler", "handlers", "manager", "managers", "service", "services"}
)
"""`chat_service` says something, `service` alone does not. A package has its noun in its path."""


def test_modules_are_not_too_long() -> None:
    lines = {name_of(module): len(module.read_text().splitlines()) for module in modules()}

    assert {name: count for name, count in lines.items() if count > MAX_MODULE_LINES} == {}


def test_functions_are_not_too_long() -> None:
    found = [function for module in modules() for function in functions(module)]

    assert [function for function in found if function.lines > MAX_FUNCTION_LINES] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [name_of(module) for module in modules() if not ast.get_docstring(parse(module))]

    assert silent == []


def test_modules_are_named_after_what_they_hold() -> None:
    names = {
        name_of(module): module.parent.name if module.stem == "__init__" else module.stem
        for module in modules()
    }

    assert [
        path
        for path, name in names.items()
        if says_nothing(name.lower().split("_")) and path != "server/services/__init__.py"
    ] == []


def test_classes_are_named_after_what_they_are() -> None:
    assert [
        f"{name_of(module)}: {name}"
        for module in modules()
        for name in class_names(module)
        if says_nothing(words(name))
    ] == []


def says_nothing(words: list[str]) -> bool:
    return bool(NAMES_THAT_SAY_NOTHING.intersection(words)) or words[0] in NAMES_THAT_NEED_A_NOUN


def test_a_noun_makes_a_name_of_some_words() -> None:
    assert says_nothing(["service"])
    assert says_nothing(["file", "utils"])
    assert not says_nothing(["chat", "service"])


def class_names(module: Path) -> Iterator[str]:
    for node in ast.walk(parse(module)):
        if isinstance(node, ast.ClassDef):
            yield node.name


def words(class_name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z][a-z0-9]*", class_name)]
