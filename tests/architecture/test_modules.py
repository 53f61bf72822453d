"""Sizes, names and docstrings: what no linter checks."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import functions, modules, name_of, parse

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

NAMES_THAT_SAY_NOTHING = frozenset(
    {
        *("base", "common", "core", "handler", "handlers", "helper", "helpers", "impl"),
        *("manager", "managers", "misc", "service", "services", "util", "utils"),
    }
)

every_module = pytest.mark.parametrize("module", modules(), ids=name_of)


@every_module
def test_a_module_fits_in_one_reading(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= MAX_MODULE_LINES


@every_module
def test_a_function_fits_on_one_screen(module: Path) -> None:
    too_long = [function for function in functions(module) if function.lines > MAX_FUNCTION_LINES]

    assert not too_long


@every_module
def test_a_module_says_what_it_is_for(module: Path) -> None:
    assert ast.get_docstring(parse(module))


@every_module
def test_a_module_is_named_after_what_it_holds(module: Path) -> None:
    name = module.parent.name if module.stem == "__init__" else module.stem

    assert not NAMES_THAT_SAY_NOTHING.intersection(name.lower().split("_"))


@every_module
def test_a_class_is_named_after_what_it_is(module: Path) -> None:
    pattern_names = [
        name for name in class_names(module) if NAMES_THAT_SAY_NOTHING.intersection(words(name))
    ]

    assert not pattern_names


def class_names(module: Path) -> Iterator[str]:
    for node in ast.walk(parse(module)):
        if isinstance(node, ast.ClassDef):
            yield node.name


def words(class_name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z][a-z0-9]*", class_name)]
