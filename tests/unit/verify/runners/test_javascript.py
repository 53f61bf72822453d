from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.verify.runners.javascript import (
    expected_ids,
    is_module,
    titles_in,
    with_jest_canaries,
    with_node_canaries,
)

FILE = PurePosixPath("a.test.js")


def test_titles_are_found_with_their_groups() -> None:
    text = (
        "test('top', () => {});\n"
        'describe("group", () => {\n'
        "  let x;\n"
        "  beforeEach(() => {\n    x = 1;\n  });\n"
        "  it('one', () => {\n    check(x);\n  });\n"
        "  describe('inner', () => {\n    test('two', () => {});\n  });\n"
        "});\n"
    )

    assert titles_in(text) == {("top",), ("group", "one"), ("group", "inner", "two")}


@pytest.mark.parametrize(
    "text",
    [
        "for (const x of xs) {\n  test('a', () => {});\n}",
        "if (process.env.CI) {\n  test('a', () => {});\n}",
        "describe.skip('g', () => {\n  test('a', () => {});\n});",
        "describe(`g ${x}`, () => {\n  test('a', () => {});\n});",
        "test.skip('a', () => {});",
        "xtest('a', () => {});",
        "test(`a`, () => {});",
        "test('a' + b, () => {});",
        "/*\ntest('a', () => {});\n*/",
        "// test('a', () => {});",
        "const s = `\ntest('a', () => {});\n`;",
        "contest('a', () => {});",
    ],
)
def test_a_test_that_is_not_certain_is_not_expected(text: str) -> None:
    assert not titles_in(text)


def test_a_name_with_a_bracket_is_not_expected_as_it_would_be_cut() -> None:
    assert list(expected_ids(FILE, "test('a [b]', f);\ntest('c', f);\n")) == ["a.test.js > c"]


@given(st.text(alphabet="test('a', () => {});\n `/*describe\"[]", max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    assert isinstance(titles_in(text), frozenset)


@pytest.mark.parametrize(
    ("name", "text", "package_is_module", "module"),
    [
        ("a.mjs", "", False, True),
        ("a.cjs", "import x from 'y';", True, False),
        ("a.js", "import x from 'y';", False, True),
        ("a.js", "const x = require('y');", False, False),
        ("a.js", "const x = 1;", True, True),
        ("a.js", "/*\nimport x from 'y';\n*/", False, False),
    ],
)
def test_modules_are_told_from_scripts(
    *, name: str, text: str, package_is_module: bool, module: bool
) -> None:
    path = PurePosixPath(name)

    assert is_module(path, text, package_is_module=package_is_module) is module


def test_each_assertion_a_file_uses_gets_a_test_that_must_fail() -> None:
    text = "assert.deepStrictEqual(a, b); assert.throws(f);"

    file = with_node_canaries(FILE, text, package_is_module=False)

    planted = file.content.decode()
    assert text in planted.splitlines()[0]
    for call in (
        "assert.deepStrictEqual({",
        "strict.throws(",
        "assert.strictEqual(1, 2)",
        "throw ",
    ):
        assert call in planted
    assert all(planted.count(name) == 1 for name in file.names)


def test_each_matcher_a_file_uses_gets_a_test_that_must_fail() -> None:
    file = with_jest_canaries("expect(a).toMatch(/b/); expect(a).not.toBe(1);")

    planted = file.content.decode()
    assert "expect('a').toMatch(/b/)" in planted
    assert "expect(1).not.toBe(1)" in planted


def test_planted_tests_have_nothing_in_common_to_be_known_by() -> None:
    names = [name for _ in range(20) for name in with_jest_canaries("").names]

    assert len(names) == 60
    assert len({name[:3] for name in names}) > 5
