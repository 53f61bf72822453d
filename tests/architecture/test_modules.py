"""Sizes and docstrings of modules, which no linter checks."""

import ast

from tests.support.sources import functions, modules, name_of, parse

MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 80


def test_modules_are_not_too_long() -> None:
    lines = {name_of(module): len(module.read_text().splitlines()) for module in modules()}

    assert {name: count for name, count in lines.items() if count > MAX_MODULE_LINES} == {}


def test_functions_are_not_too_long() -> None:
    found = [function for module in modules() for function in functions(module)]

    assert [function for function in found if function.lines > MAX_FUNCTION_LINES] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [name_of(module) for module in modules() if not ast.get_docstring(parse(module))]

    assert silent == []
