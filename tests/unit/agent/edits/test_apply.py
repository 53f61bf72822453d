"""Edits on a tree: all or nothing, and words that help the model to do better."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.agent.edits.apply import (
    Applied,
    DeleteFile,
    Edit,
    Refused,
    ReplaceText,
    WriteFile,
    apply_edits,
)
from assay.contracts.workspace import Tree, TreeFile

LONG = "".join(f"def f{number}():\n    return {number}\n" for number in range(20))


def tree_of(**files: str | bytes) -> Tree:
    """Build a tree; `a_py` stands for `a.py`."""
    return Tree(
        files={
            path(name.replace("_", ".")): TreeFile(
                text if isinstance(text, bytes) else text.encode()
            )
            for name, text in files.items()
        }
    )


def path(text: str) -> PurePosixPath:
    return PurePosixPath(text)


def write(name: str, text: str) -> WriteFile:
    return WriteFile(path=path(name), text=text)


def replace(name: str, search: str, new: str) -> ReplaceText:
    return ReplaceText(path=path(name), search=search, replace=new)


def anything(target: PurePosixPath) -> str:
    del target
    return ""


def applied(tree: Tree, *edits: Edit) -> Applied:
    outcome = apply_edits(tree, edits, may_change=anything)
    assert isinstance(outcome, Applied), outcome
    return outcome


def refused(tree: Tree, *edits: Edit) -> str:
    outcome = apply_edits(tree, edits, may_change=anything)
    assert isinstance(outcome, Refused), outcome
    return outcome.feedback


def content(outcome: Applied, name: str) -> bytes:
    return outcome.tree.files[path(name)].content


def test_edits_are_applied_in_order_each_to_what_the_last_one_left() -> None:
    outcome = applied(
        tree_of(a_py="x = 1\n", b_py="y = 1\n"),
        write("new/c.py", "z = 1\n"),
        replace("new/c.py", "z = 1\n", "z = 2\n"),
        replace("a.py", "1", "3"),
        DeleteFile(path=path("b.py")),
    )

    assert {str(name): file.content for name, file in outcome.tree.files.items()} == {
        "a.py": b"x = 3\n",
        "new/c.py": b"z = 2\n",
    }
    assert outcome.changed == (path("a.py"), path("b.py"), path("new/c.py"))
    assert outcome.notes == ()


def test_one_bad_edit_undoes_all_and_the_good_ones_are_named() -> None:
    feedback = refused(
        tree_of(a_py="x = 1\n"),
        write("b.py", "y = 1\n"),
        replace("a.py", "nothing like this\n", ""),
        replace("a.py", "x = 1\n", "x = 2\n"),
    )

    assert feedback.startswith("1 of 3 edits cannot be applied, so nothing was changed.")
    assert "Edit 2 (replace in a.py): the SEARCH text is not in the file" in feedback
    assert "no correction: edit 1 (write b.py), 3 (replace in a.py)" in feedback


def test_a_near_miss_is_shown_with_line_numbers() -> None:
    feedback = refused(
        tree_of(a_py="import os\n\n\ndef area(width, height):\n    return width * height\n"),
        replace("a.py", "def area(w, h):\n    return w * h\n", "pass\n"),
    )

    assert "     4 | def area(width, height):\n     5 |     return width * height" in feedback


def test_an_ambiguous_search_shows_the_candidates() -> None:
    feedback = refused(tree_of(a_py="x = 1\ny = 2\nx = 1\n"), replace("a.py", "x = 1\n", "x = 2\n"))

    assert "fits 2 places, which begin at lines 1, 3" in feedback
    assert "     3 | x = 1" in feedback


def test_an_edit_that_is_in_already_is_a_success() -> None:
    tree = tree_of(a_py="import os\nimport sys\n")

    outcome = applied(
        tree,
        replace("a.py", "import os\n", "import os\nimport sys\n"),
        write("a.py", "import os\nimport sys\n"),
        DeleteFile(path=path("gone.py")),
    )

    assert outcome.changed == ()
    assert outcome.tree == tree
    assert [("already applied" in note or "not there" in note) for note in outcome.notes] == [
        True
    ] * 3


def test_searching_for_nothing_makes_a_new_file_and_never_overwrites_one() -> None:
    assert content(applied(tree_of(), replace("a.py", "", "x = 1\n")), "a.py") == b"x = 1\n"
    assert (
        content(applied(tree_of(a_py=""), replace("a.py", "\n", "x = 1\n")), "a.py") == b"x = 1\n"
    )
    assert "SEARCH text is empty" in refused(tree_of(a_py="y\n"), replace("a.py", "", "x = 1\n"))


def test_a_file_that_is_not_there_is_suggested_by_its_name() -> None:
    tree = Tree(files={path("src/shop/cart.py"): TreeFile(b"x\n")})

    feedback = refused(tree, replace("cart.py", "x\n", "y\n"))

    assert "there is no such file; did you mean src/shop/cart.py?" in feedback


@pytest.mark.parametrize(
    ("before", "search", "new", "expected"),
    [
        (b"a\r\nb\r\nc\r\n", "b\n", "x\ny\n", b"a\r\nx\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb\r\n", "c\r\n", b"c\r\n"),
        (b"a\nb\r\nc\n", "c\n", "d\n", b"a\nb\r\nd\n"),
        (b"\xef\xbb\xbfa\nb\n", "a\n", "c\n", b"\xef\xbb\xbfc\nb\n"),
        (b"a\nb", "b\n", "c\n", b"a\nc"),
        (b"a\r\nb", "b\n", "c\nd\n", b"a\r\nc\r\nd"),
        (b"a", "a\n", "", b""),
        (b"a\nb", "b\n", "", b"a"),
        (b"a\nb", "a\n", "c\n", b"c\nb"),
    ],
)
def test_line_ends_and_marks_of_a_file_survive_an_edit(
    before: bytes, search: str, new: str, expected: bytes
) -> None:
    outcome = applied(tree_of(a_txt=before), replace("a.txt", search, new))

    assert content(outcome, "a.txt") == expected


def test_a_file_written_anew_keeps_its_line_ends_and_its_mode() -> None:
    tree = Tree(files={path("run.sh"): TreeFile(b"echo\r\nls\r\n", executable=True)})

    file = applied(tree, write("run.sh", "echo 1\nls\n")).tree.files[path("run.sh")]

    assert file == TreeFile(b"echo 1\r\nls\r\n", executable=True)


@pytest.mark.parametrize(
    "line",
    [
        "# ... rest of the code unchanged ...",
        "# rest of the file remains the same",
        "# ...",
        "    # ... existing code ...",
        "# other methods ...",
        "# the remaining functions stay as before",
        "# (implementation omitted for brevity)",
        "...",
    ],
)
def test_a_whole_file_with_code_left_out_is_refused(line: str) -> None:
    feedback = refused(tree_of(a_py=LONG), write("a.py", f"def f0():\n    return 9\n{line}\n"))

    assert repr(line.strip()) in feedback
    assert "would lose" in feedback


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "class P(Protocol):\n    def f(self): ...\n\n    def g(self):\n        ...\n"),
        (
            "a.py",
            "# the rest of the arguments is passed on to whoever was asked for the answer\nx = 1\n",
        ),
        ("a.py", "# loading...\nx = 1\n"),
        ("a.py", "# keep existing handlers\nx = 1\n"),
        ("a.py", "# leave the order unchanged\nx = 1\n"),
        ("a.py", "x = 1\n"),
    ],
)
def test_a_shorter_file_that_is_complete_is_written(name: str, text: str) -> None:
    assert content(applied(tree_of(a_py=LONG), write(name, text)), name) == text.encode()


def test_dots_in_a_search_are_explained() -> None:
    feedback = refused(tree_of(a_py=LONG), replace("a.py", "def f0():\n...\ndef f9():\n", "x\n"))

    assert "'...' in place of lines" in feedback


def test_code_left_out_of_a_replacement_is_refused() -> None:
    feedback = refused(
        tree_of(a_py=LONG), replace("a.py", "def f0():\n", "# ... existing code ...\ndef g0():\n")
    )

    assert "in place of code" in feedback


def test_an_ellipsis_in_python_is_code() -> None:
    tree = tree_of(a_py="def f():\n    ...\n")

    outcome = applied(tree, replace("a.py", "    ...\n", "    return 1\n"))

    assert content(outcome, "a.py") == b"def f():\n    return 1\n"


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("a.py", "def f(:\n", "a.py: does not parse, line 1: "),
        ("a.json", '{"a": 1,\n}\n', "a.json: does not parse, line 2"),
        ("a.toml", "x = \n", "a.toml: does not parse, "),
    ],
)
def test_a_file_that_does_not_parse_is_written_and_told(name: str, text: str, note: str) -> None:
    outcome = applied(tree_of(), write(name, text))

    assert content(outcome, name) == text.encode()
    (told,) = outcome.notes
    assert told.startswith(note)


def test_a_guess_that_does_not_parse_is_refused() -> None:
    tree = tree_of(a_py="def area(width, height):\n    return width * height\n")
    nearly = "def area(width, heigth):\n    return width * height\n"

    assert "only similar" in refused(tree, replace("a.py", nearly, "def area(:\n"))
    outcome = applied(tree, replace("a.py", nearly, "def area():\n    return 0\n"))
    assert content(outcome, "a.py") == b"def area():\n    return 0\n"
    assert "% the same" in outcome.notes[0]


def test_a_looser_match_is_told() -> None:
    tree = tree_of(a_py="if a:\n    b = 1\n")

    outcome = applied(tree, replace("a.py", "b = 1\n", "b = 2\n"))

    assert content(outcome, "a.py") == b"if a:\n    b = 2\n"
    assert outcome.notes == ("a.py: line 2: matched ignoring indentation",)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/etc/passwd", "absolute"),
        ("C:\\x\\a.py", "absolute"),
        ("../a.py", "`..`"),
        ("a/../../b.py", "`..`"),
        (".", "empty"),
        ("a\0b", "cannot be printed"),
        ("a\nb", "cannot be printed"),
        ("x" * 300, "too long"),
        ("d/" * 2100 + "a", "too long"),
        ("mixed/a\\b.py", "backslash"),
        ("a.py/b.py", "needs a directory"),
        ("dir", "this is a directory"),
        ("link/a.py", "over a link"),
        ("link", "over a link"),
    ],
)
def test_a_path_that_cannot_be_used_is_refused(name: str, reason: str) -> None:
    files = {path("a.py"): TreeFile(b""), path("dir/b.py"): TreeFile(b"")}
    tree = Tree(files=files, links=(path("link"),))

    assert reason in refused(tree, write(name, "x"))


@pytest.mark.parametrize("name", ["./a.py", "/app/a.py", "`a.py`", "src\\a.py"])
def test_a_path_is_read_as_it_is_meant(name: str) -> None:
    outcome = applied(tree_of(), write(name, "x = 1\n"))

    assert outcome.changed in {(path("a.py"),), (path("src/a.py"),)}


def test_what_may_not_be_changed_is_refused_with_the_reason() -> None:
    outcome = apply_edits(
        tree_of(test_py="x\n"),
        [DeleteFile(path=path("test.py"))],
        may_change=lambda target: f"{target} is protected",
    )

    assert outcome == Refused(
        feedback="This edit was not applied (delete test.py): test.py is protected."
    )


@pytest.mark.parametrize("edit", [write("a.py", "\ud800"), replace("a.py", "x\n", "\ud800\n")])
def test_half_a_character_is_refused(edit: Edit) -> None:
    assert "surrogates" in refused(tree_of(a_py="x\n"), edit)


def test_bytes_are_no_text_to_search_but_can_be_overwritten() -> None:
    tree = tree_of(a_bin=b"\xff\x00")

    assert "not UTF-8" in refused(tree, replace("a.bin", "x", "y"))
    assert content(applied(tree, write("a.bin", "x\n")), "a.bin") == b"x\n"


TEXT = st.text(alphabet="ab.# \t\r\n\ufeff", max_size=30)
EDITS = st.one_of(
    st.builds(write, st.sampled_from(["a.py", "b.txt", "a.py/c"]), TEXT),
    st.builds(replace, st.sampled_from(["a.py", "b.txt"]), TEXT, TEXT),
    st.builds(DeleteFile, path=st.sampled_from([path("a.py"), path("b.txt")])),
)


@given(before=TEXT, edits=st.lists(EDITS, max_size=4))
def test_no_edit_breaks_the_tree(before: str, edits: list[Edit]) -> None:
    tree = tree_of(a_py=before)

    outcome = apply_edits(tree, edits, may_change=anything)

    if isinstance(outcome, Applied):
        untouched = outcome.tree.files.keys() - {edit.path for edit in edits}
        assert all(outcome.tree.files[name] == tree.files[name] for name in untouched)
        assert outcome.changed == tuple(
            name
            for name in sorted(tree.files.keys() | outcome.tree.files.keys())
            if tree.files.get(name) != outcome.tree.files.get(name)
        )
    else:
        assert outcome.feedback


@given(chosen=st.integers(0, 19), added=st.lists(st.sampled_from("abc"), min_size=1, max_size=5))
def test_an_edit_sent_twice_is_applied_once(chosen: int, added: list[str]) -> None:
    old = f"def f{chosen}():\n    return {chosen}\n"
    new = f"def f{chosen}():\n" + "".join(f"    call_{name}()\n" for name in added)
    edit = replace("a.py", old, new)

    once = applied(tree_of(a_py=LONG), edit)
    twice = applied(once.tree, edit)

    assert once.changed == (path("a.py"),)
    assert twice.changed == ()
    assert "already applied" in twice.notes[0]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_new_file_holds_what_was_written(text: str) -> None:
    outcome = applied(tree_of(), write("a.txt", text))

    assert content(outcome, "a.txt").decode() == text.removeprefix("\ufeff")
