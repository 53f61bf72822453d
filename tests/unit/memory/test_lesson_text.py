from hypothesis import given
from hypothesis import strategies as st

from assay.memory.lesson_text import lesson_of, one_line

HEAD = "--- a/calc.py\n+++ b/calc.py\n@@ -1,4 +1,5 @@\n"


def test_a_changed_line_is_told_with_what_it_was() -> None:
    fix = f"{HEAD} def add(a, b):\n-    return a - b\n+    return a + b\n"

    lesson = lesson_of("AssertionError: assert N == N", "assert 1 == 3", fix)

    assert lesson == "assert 1 == 3 -> write `return a + b` instead of `return a - b` in calc.py"


def test_a_missing_import_is_told_before_other_changes() -> None:
    fix = (
        f"{HEAD}+import re\n+\n def f(s):\n"
        "-    return re.findall('a', s)\n+    return re.findall('b', s)\n"
    )

    lesson = lesson_of("NameError: name 're' is not defined", "", fix)

    assert "-> add `import re` in calc.py; write" in lesson


def test_the_line_that_names_what_the_error_names_comes_first() -> None:
    fix = (
        f"{HEAD}-x = 1\n+x = 2\n context\n-    return frame['Month'].sum()\n"
        "+    return frame['month_name'].sum()\n context\n-y = 1\n+y = 2\n"
    )

    lesson = lesson_of("KeyError: 'Month'", "KeyError: 'Month'", fix)

    assert "-> write `return frame['month_name'].sum()`" in lesson


def test_a_line_that_only_went_away_is_told_as_such() -> None:
    lesson = lesson_of("RecursionError", "too deep", f"{HEAD}-    return f(n)\n     return 1\n")

    assert lesson == "too deep -> leave out `return f(n)` in calc.py"


def test_without_a_fix_there_is_no_lesson() -> None:
    assert lesson_of("ValueError: N", "ValueError: 3", "") == ""
    assert lesson_of("ValueError: N", "ValueError: 3", "# a.bin: modified, not text\n") == ""


def test_comments_and_empty_lines_teach_nothing() -> None:
    assert lesson_of("E", "m", f"{HEAD}+# a comment\n+\n-    pass\n+)\n") == ""


def test_the_headers_of_a_diff_are_not_its_lines() -> None:
    fix = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n--- a/b.py\n+++ b/b.py\n"

    assert lesson_of("E", "m", fix) == "m -> write `a = 2` instead of `a = 1` in a.py"


@given(st.text(), st.text(), st.text())
def test_a_lesson_is_always_one_line(signature: str, message: str, fix: str) -> None:
    lesson = lesson_of(signature, message, f"{HEAD}+{fix}\n-{message}\n")

    assert len(lesson) <= 320
    assert len(lesson.splitlines()) <= 1


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    line = one_line(text, 50)

    assert len(line) <= 50
    assert len(line.splitlines()) <= 1
