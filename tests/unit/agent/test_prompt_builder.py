from pathlib import PurePosixPath

from assay.agent.prompt_builder import fenced, first_message, prompt
from assay.agent.state import Plan
from assay.contracts.workspace import Tree, TreeFile

TARGET, TEST, DATA = PurePosixPath("a.py"), PurePosixPath("test_a.py"), PurePosixPath("d.csv")
TREE = Tree(
    files={
        TARGET: TreeFile(b"x = 1\n"),
        TEST: TreeFile(b"import a\n"),
        DATA: TreeFile(b"one,two\n" * 1000),
        PurePosixPath("notes/other.md"): TreeFile(b"# more"),
        PurePosixPath("logo.png"): TreeFile(b"\x89PNG\xff"),
    }
)
PLAN = Plan(targets=(TARGET,), protected=(TEST,))


def test_the_first_message_has_goal_file_tests_and_data() -> None:
    text = first_message("Do it", PLAN, TREE, max_chars=10_000)

    assert text.startswith("# Goal\nDo it")
    assert "x = 1" in text
    assert "import a" in text
    assert "one,two" in text
    assert "`notes/`: other.md" in text
    assert "logo.png" in text


def test_data_is_shown_by_its_beginning_only() -> None:
    text = first_message("Do it", Plan(), TREE, max_chars=10_000)

    assert text.count("one,two") < 500


def test_files_that_do_not_fit_are_named() -> None:
    text = first_message("Do it", PLAN, TREE, max_chars=0)

    assert "x = 1" not in text
    assert "`a.py`" in text


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    assert fenced(PurePosixPath("a.md"), "```\ncode\n```").startswith("````markdown\n")


def test_prompts_are_filled_in() -> None:
    assert prompt("loop", protocol="SPEAK SO").endswith("SPEAK SO")
