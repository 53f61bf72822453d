"""Documents name what exists, contracts are held to, and the lock holds what is declared."""

import ast
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from assay.contracts.distribution import DISTRIBUTION
from tests.support.sources import PACKAGE, ROOT

DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "AGENTS.md")
MAX_MAP_LINES = 150
QUESTIONS = 20

FENCED_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE_SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.-]+(/[\w.-]+)*/?")
FILE_SUFFIX = re.compile(r"\.(lock|md|proto|py|toml|typed)$")


def paths_named_in(text: str) -> set[str]:
    """Return the code spans that are meant as paths of this repository."""
    spans = CODE_SPAN.findall(FENCED_BLOCK.sub("", text))
    return {span for span in spans if PATH.fullmatch(span) and is_meant_as_a_path(span)}


def is_meant_as_a_path(span: str) -> bool:
    if "/" not in span:
        return span == "Makefile" or bool(re.fullmatch(r"[A-Z]+\.md|\w+\.(lock|toml)", span))
    first = span.partition("/")[0]
    is_known = any((folder / first).exists() for folder in (ROOT, PACKAGE))
    return is_known or span.endswith("/") or bool(FILE_SUFFIX.search(span))


def exists(path: str) -> bool:
    return (ROOT / path).exists() or (PACKAGE / path).exists()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_names_only_paths_that_exist(name: str) -> None:
    named = paths_named_in((ROOT / name).read_text())

    assert sorted(path for path in named if not exists(path)) == []


def tree_of_the_map() -> set[str]:
    """Return the folders in the tree of ARCHITECTURE.md, as paths inside the package."""
    _, _, tree = (ROOT / "ARCHITECTURE.md").read_text().partition("\n```\nsrc/assay/")
    parents: list[str] = []
    folders: set[str] = set()
    for indent, name in re.findall(r"^( +)(\w+)/ ", tree.partition("```")[0], re.MULTILINE):
        parents[len(indent) // 2 - 1 :] = [name]
        folders.add("/".join(parents))
    return folders


def test_the_map_names_every_folder_of_the_package() -> None:
    files = (path for path in PACKAGE.rglob("*") if path.suffix in {".js", ".md", ".py", ".yaml"})
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in files} - {"."}

    assert tree_of_the_map() == folders


def test_the_map_fits_on_a_few_pages() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= MAX_MAP_LINES


def test_each_question_about_a_place_has_an_answer_that_exists() -> None:
    text = (ROOT / "docs" / "project" / "where-things-live.md").read_text()
    answers = re.findall(r"^\| (.+) \| `([^`]+)` \|$", text, re.MULTILINE)

    assert len(answers) == QUESTIONS
    assert [path for _, path in answers if not (PACKAGE / path).exists()] == []


def test_paths_are_told_from_other_code() -> None:
    text = "`src/nowhere.py`, `lost/`, `README.md`, `a/b`, `assay run`, `/tmp/x.py`, `main.py`"

    assert paths_named_in(text) == {"src/nowhere.py", "lost/", "README.md"}


def promised_errors() -> set[str]:
    """Return every class named under `Raises:` in the ports."""
    tree = ast.parse((PACKAGE / "contracts" / "ports.py").read_text())
    functions = (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    sections = ((ast.get_docstring(node) or "").partition("Raises:")[2] for node in functions)
    return {
        name for section in sections for name in re.findall(r"^ {4}(\w+):", section, re.MULTILINE)
    }


def test_every_promised_error_has_a_promise_in_the_conformance_suite() -> None:
    suite = "\n".join(
        path.read_text()
        for folder in (PACKAGE / "selftest", ROOT / "tests")
        for path in folder.glob("conformance/**/*.py")
    )

    assert promised_errors()
    assert sorted(name for name in promised_errors() if name not in suite) == []


def locked_requirements() -> list[Requirement]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [Requirement(line.rstrip(" \\")) for line in lines if re.match(r"\w", line)]


def declared_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional = project["project"]["optional-dependencies"]
    # What `all` leaves out is too heavy to be installed with everything else.
    (whole,) = optional["all"]
    extras = [optional[name] for name in sorted(Requirement(whole).extras)]
    groups = project["dependency-groups"].values()
    lists = [project["project"]["dependencies"], *extras, *groups]
    found = [Requirement(text) for texts in lists for text in texts]
    return [requirement for requirement in found if requirement.name != DISTRIBUTION]


def test_the_name_of_the_distribution_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION

    # What `pip install` would fetch under the name of the module is another project.
    folders = ("src", "docs", "deploy", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    wrong = re.compile(r"(?<![\w.-])assay\[[a-z0-9,]+\]")
    for path in (*files, *ROOT.glob("*.toml"), ROOT / "README.md", ROOT / "SECURITY.md"):
        text = path.read_text(errors="replace")
        assert not wrong.search(text), f"{path.relative_to(ROOT)} names another distribution"


def test_the_lock_holds_what_is_declared() -> None:
    versions: dict[str, list[str]] = {}
    for locked in locked_requirements():
        (pin,) = locked.specifier
        versions.setdefault(canonicalize_name(locked.name), []).append(pin.version)

    for declared in declared_requirements():
        pinned = versions.get(canonicalize_name(declared.name), [])
        assert pinned, f"{declared.name} is not locked: run `make lock`"
        assert all(version in declared.specifier for version in pinned), declared


def test_the_lock_names_no_place_to_download_from() -> None:
    lock = (ROOT / "requirements.lock").read_text()

    assert "://" not in lock
    assert "--index" not in lock


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs" / "decisions").glob("0*.md"))]

    assert numbers == list(range(1, len(numbers) + 1))


def test_a_decision_begins_with_its_number_and_its_status() -> None:
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        assert re.match(rf"# {path.name[:4]}\. .+\n\nStatus: \w", path.read_text()), path.name
