"""Definitions that the map of a workspace shows."""

import pytest

from assay.agent.definitions import find_definitions


def names(suffix: str, source: str) -> list[str]:
    return [found.name for found in find_definitions(suffix, source.encode())]


def test_python_is_parsed() -> None:
    source = "if True:\n    class A:\n        @property\n        def b(self): ...\ndef c(): ...\n"

    assert names(".py", source) == ["A", "A.b", "c"]


@pytest.mark.parametrize(
    ("suffix", "source", "expected"),
    [
        (
            ".cpp",
            "int main(int argc) {\nvoid Foo::bar() const {\n  if (x) {\n",
            ["main", "Foo::bar"],
        ),
        (".go", "func (r *Repo) Get(x int) error {\ntype X struct {\n", ["Get", "X"]),
        (".js", "export const a = (x) => 1\nexport default class Q {\n", ["a", "Q"]),
        (".rs", "pub(crate) fn go() {\nimpl Foo for Bar {\n", ["go", "Foo"]),
    ],
)
def test_declarations_of_other_languages_are_found(
    suffix: str, source: str, expected: list[str]
) -> None:
    assert names(suffix, source) == expected


@pytest.mark.parametrize(
    "source", ["a*" * 60_000 + ";\n", "public\n" * 28_000, "func (\n" * 28_000, "a a(" * 40_000]
)
def test_hostile_text_is_searched_in_linear_time(source: str) -> None:
    # A search that tries all ways to split the text would not end within the test's time limit.
    assert names(".c", source) == []
