from pathlib import PurePosixPath

from assay.agent.snippets import snippets_in
from assay.contracts.lessons import Snippet
from assay.contracts.workspace import Tree, TreeFile

MODULE = '''\
"""Words."""

import os
import re
from functools import lru_cache

import helpers

DASH = "-"
print("loaded")


@lru_cache
def slug(title: str) -> str:
    # Every run of other characters becomes one dash.
    return re.sub(WORD, DASH, title.lower()).strip(DASH)


def shout(title: str) -> str:
    return helpers.upper(title)


WORD = r"[^a-z0-9]+"


def initials(name: str) -> str:
    return "".join(part[0] for part in name.split())


if __name__ == "__main__":
    print(slug(os.environ["TITLE"]))
'''
TESTS = """\
import pytest
from words import initials, shout, slug

CASES = [("A b", "a-b"), ("x", "x")]


@pytest.fixture
def title():
    return "A b"


@pytest.mark.parametrize(("title", "wanted"), CASES)
def test_slug(title, wanted):
    assert slug(title) == wanted


def test_slug_of_a_fixture(title):
    assert slug(title) == "a-b"


def test_shout():
    assert shout("a") == "A"


class TestInitials:
    def test_two(self):
        assert initials("Ada Lovelace") == "AL"
"""


def harvest(files: dict[str, str], tests: tuple[str, ...] = ("test_words.py",)) -> list[Snippet]:
    whole = {PurePosixPath(name): TreeFile(text.encode()) for name, text in files.items()}
    paths = tuple(PurePosixPath(name) for name in tests)
    before = Tree(files={path: whole[path] for path in paths})
    return list(snippets_in(before, Tree(files=whole), paths))


def test_what_stands_alone_is_cut_out_with_its_own_tests() -> None:
    slug, initials = harvest({"words.py": MODULE, "test_words.py": TESTS})

    assert slug.names == ("slug",)
    assert slug.source == (
        "import re\nfrom functools import lru_cache\n\n\n"
        'DASH = "-"\n\n\n@lru_cache\ndef slug(title: str) -> str:\n'
        "    # Every run of other characters becomes one dash.\n"
        "    return re.sub(WORD, DASH, title.lower()).strip(DASH)\n\n\n"
        'WORD = r"[^a-z0-9]+"\n'
    )
    assert "from words import slug\n" in slug.test
    assert "def title():" in slug.test
    assert "shout" not in slug.test
    assert initials.names == ("initials",)
    assert initials.test.startswith("from words import initials\n")
    assert "class TestInitials" in initials.test


def test_names_that_one_test_needs_stay_together() -> None:
    tests = (
        "import words\n\n\ndef test_both():\n    assert words.slug(words.initials('A b')) == 'a'\n"
    )

    (snippet,) = harvest({"words.py": MODULE, "test_words.py": tests})

    assert snippet.names == ("slug", "initials")


def test_what_leans_on_the_project_is_no_helper() -> None:
    needs_helpers = "from words import shout\n\n\ndef test_it():\n    assert shout('a') == 'A'\n"
    test_needs = (
        "import helpers\nfrom words import slug\n\n\ndef test_it():\n    assert slug(helpers.X)\n"
    )
    relative = "from . import other\n\n\ndef slug(x):\n    return other.f(x)\n"
    plain = "from words import slug\n\n\ndef test_it():\n    assert slug('a')\n"

    assert not harvest({"words.py": MODULE, "test_words.py": needs_helpers})
    assert not harvest({"words.py": MODULE, "test_words.py": test_needs})
    assert not harvest({"words.py": relative, "test_words.py": plain})
    assert not harvest({"words.py": "from os import *\n" + MODULE, "test_words.py": plain})
    assert not harvest({"words.py": "def slug(:", "test_words.py": plain})
    assert not harvest(
        {"words.py": f"def slug(x):\n    return '{'x' * 5000}'\n", "test_words.py": plain}
    )


def test_what_was_there_before_is_nobodys_achievement() -> None:
    words = PurePosixPath("words.py")
    tree = Tree(
        files={
            words: TreeFile(MODULE.encode()),
            PurePosixPath("test_words.py"): TreeFile(TESTS.encode()),
        }
    )

    assert not list(snippets_in(tree, tree, (PurePosixPath("test_words.py"),)))
