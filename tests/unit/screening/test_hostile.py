"""Files that were written to make their reader crash, hang, or look away."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.screening.rules import ScreeningPolicy
from assay.screening.scan import Screening

MAIN = PurePosixPath("main.py")
SCREEN = Screening(ScreeningPolicy())

TOO_DEEP = {
    "signs": "-" * 100_000 + "1",
    "attributes": "x" + ".a" * 100_000,
    "sums": "1" + "+1" * 100_000,
    "calls": "f" + "()" * 100_000,
    "lambdas": "lambda:" * 50_000 + "1",
    "choices": "1 if x else " * 40_000 + "1",
}

EXPLOSIVE = {
    "names for names": "\n".join(f"x{i} = x{i + 1}.a\nx{i} = x{i + 1}.b" for i in range(40)),
    "a circle": "a = b\nb = a\na.system()",
    "itself": "a = a.b\n" * 5000,
    "paths": "\n".join(f"a{i} = a{i + 1} + a{i + 1}" for i in range(40)) + "\nopen(a0, 'w')",
    "nested getattr": "getattr(" * 80 + "os" + ", 'a')" * 80,
    "fields": "'" + "{a" * 100_000 + "'",
}

TOKENS = (
    *("import ", "from ", "os", "eval", "open", "getattr", "__import__", "sys.modules", "vars"),
    *("(", ")", "[", "]", "{", "}", ":", ",", ".", "=", ":=", "*", "**", "->", "@", "\\\n"),
    *("\n", "\n    ", " ", "lambda ", "def f(", "class C", "global x", "del x", "async ", "await "),
    *("for x in y", "with x as y", "try:", "except* E", "match x:", "case _:", "if ", "else:"),
    *("'a'", '"/etc/x"', "f'{x!r:>{w}}'", "b'x'", "'w'", "1", "0x", "...", "#", "\t", "\x0c"),
    *(
        "\0",
        "\ufeff",
        "\ud800",
        "é",
        "x",
        "__builtins__",
        "as y",
        "# coding: latin-1\n",
        "type X = ",
    ),
)


@pytest.mark.parametrize("code", TOO_DEEP.values(), ids=TOO_DEEP)
def test_what_is_nested_too_deeply_is_said_to_be_unreadable(code: str) -> None:
    (finding,) = SCREEN(MAIN, code.encode())

    assert (finding.rule, finding.line) == ("unreadable", 1)


@pytest.mark.parametrize("code", EXPLOSIVE.values(), ids=EXPLOSIVE)
def test_no_program_takes_longer_than_it_is_long(code: str) -> None:
    # Each of these would take years if every way through it were followed.
    SCREEN(MAIN, code.encode())


@pytest.mark.parametrize("name", ["main.py", "main.js", "main.sh"])
def test_a_huge_file_is_said_to_be_unreadable(name: str) -> None:
    (finding,) = SCREEN(PurePosixPath(name), b"x = 1\n" * (10 << 20))

    assert finding.rule == "unreadable"


@pytest.mark.parametrize(
    "code", [b"def f(:\n", b"import subprocess\nx = (", b"x = 1\0\nimport subprocess", b"\xff\xfe"]
)
def test_what_is_no_program_is_left_to_the_interpreter(code: bytes) -> None:
    assert SCREEN(MAIN, code) == ()


@pytest.mark.parametrize("encoding", ["utf-7", "punycode", "unicode_escape", "rot13", "utf-16"])
def test_an_encoding_that_hides_code_is_named(encoding: str) -> None:
    code = f"# coding: {encoding}\nx = 1\n".encode()

    assert [finding.rule for finding in SCREEN(MAIN, code)] == ["unreadable"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf8", "latin-1", "cp1252", "ascii"])
def test_an_ordinary_encoding_is_read(encoding: str) -> None:
    code = f"# coding: {encoding}\nimport socket\n".encode()

    assert [finding.line for finding in SCREEN(MAIN, code)] == [2]


def test_a_byte_order_mark_hides_nothing() -> None:
    assert [finding.line for finding in SCREEN(MAIN, b"\xef\xbb\xbfimport socket")] == [1]


def test_a_warning_of_the_compiler_is_no_error() -> None:
    assert [finding.line for finding in SCREEN(MAIN, b"x = '\\d'\nx is 1\nimport socket")] == [3]


def test_of_very_many_findings_the_first_are_told() -> None:
    findings = SCREEN(MAIN, b"eval('1')\n" * 5000)

    assert [finding.line for finding in findings] == list(range(1, 51))


@pytest.mark.parametrize("unit", ["curl ", "rm -r ", " ", ";", "dd ", ":()", "sudo;", "\\\n"])
def test_no_script_takes_longer_than_it_is_long(unit: str) -> None:
    SCREEN(PurePosixPath("a.sh"), unit.encode() * (300_000 // len(unit)))


@given(st.binary(max_size=400), st.sampled_from(["a.py", "a.js", "a.sh", "a.txt"]))
def test_any_bytes_can_be_looked_at(content: bytes, name: str) -> None:
    SCREEN(PurePosixPath(name), content)


@given(st.lists(st.sampled_from(TOKENS), max_size=60), st.sampled_from(["a.py", "a.js", "a.sh"]))
@settings(max_examples=500)
def test_any_words_can_be_looked_at(tokens: list[str], name: str) -> None:
    content = "".join(tokens).encode("utf-8", "surrogatepass")

    for finding in SCREEN(PurePosixPath(name), content):
        assert 1 <= finding.line <= content.count(b"\n") + content.count(b"\r") + 1
        assert finding.explanation.isprintable()
