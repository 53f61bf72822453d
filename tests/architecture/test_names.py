"""Names of the glossary: retired words in documents, help texts, modules and classes."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import click
import pytest

from assay.cli.main import cli
from tests.support.sources import PACKAGE, ROOT, modules, name_of, parse

BANNED = frozenset({"util", "utils", "misc", "helper", "helpers"})
NEED_A_NOUN = frozenset(
    {"core", "handler", "handlers", "manager", "managers", "service", "services"}
)

FENCED_BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
CODE_SPAN = re.compile(r"`[^`\n]+`")


@cache
def retired(kind: str) -> frozenset[str]:
    """Return the words of the paragraph of the glossary that starts with `kind`."""
    section = (ROOT / "GLOSSARY.md").read_text().partition("## Retired words")[2]
    (paragraph,) = (text for text in section.split("\n\n") if text.strip().startswith(kind))
    return frozenset(span.strip("`") for span in CODE_SPAN.findall(paragraph))


def retired_in(text: str) -> list[str]:
    """Return the retired words of a text outside code."""
    prose = CODE_SPAN.sub("", FENCED_BLOCK.sub("", text))
    words = sorted(retired("Documents"), key=len, reverse=True)
    pattern = "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in words)
    found = re.findall(rf"\b(?:{pattern})\b", prose, re.IGNORECASE)
    return [" ".join(words.lower().split()) for words in found]


def documents() -> Iterator[str]:
    for folder in (".", "docs/**", "examples/**", ".github/**"):
        for path in sorted(ROOT.glob(f"{folder}/*.md")):
            yield path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("name", tuple(documents()))
def test_a_document_has_no_retired_word(name: str) -> None:
    assert retired_in((ROOT / name).read_text()) == []


def test_retired_words_are_found_in_prose_and_not_in_code() -> None:
    assert retired_in("Try\nanew, all at\nonce.") == ["anew", "at once"]
    assert retired_in("`anew`\n```\nanew\n```\n") == []


def help_texts(
    command: click.Command, name: str = "assay", parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the full name and the help text of a command and of everything below it."""
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            assert below is not None
            yield from help_texts(below, f"{name} {word}", context)


def test_help_texts_have_no_retired_word() -> None:
    found = {name for name, text in help_texts(cli) if retired_in(text)}

    assert found == set()


def words_of(name: str) -> list[str]:
    """Split a module name or a class name into lowercase words."""
    spelled = re.findall(r"[A-Z][a-z0-9]*", name) if name != name.lower() else name.split("_")
    return [word.lower() for word in spelled if word]


def test_names_are_split_into_words() -> None:
    assert words_of("_ChatService") == words_of("chat_service") == ["chat", "service"]


def names() -> Iterator[tuple[str, list[str]]]:
    """Yield each module, package and class with its words."""
    for module in modules():
        path = name_of(module)
        name = module.parent.name if module.stem == "__init__" else module.stem
        yield path, words_of(name)
        for node in ast.walk(parse(module)):
            if isinstance(node, ast.ClassDef):
                yield f"{path}:{node.name}", words_of(node.name)


def test_modules_and_classes_have_no_retired_word() -> None:
    old = retired("Modules and classes do not")
    found = {
        place
        for place, words in names()
        if any(word in old or word.removesuffix("s") in old for word in words)
    }

    assert found == set()


def test_names_say_what_they_mean() -> None:
    assert [place for place, words in names() if says_nothing(place, words)] == []


def says_nothing(place: str, words: list[str]) -> bool:
    is_package = place.endswith("__init__.py")
    return bool(BANNED.intersection(words)) or (not is_package and words[0] in NEED_A_NOUN)


def test_a_noun_makes_a_name_of_some_words() -> None:
    assert says_nothing("chat/service.py", ["service"])
    assert says_nothing("text/file_utils.py", ["file", "utils"])
    assert says_nothing("chat/utils/__init__.py", ["utils"])
    assert not says_nothing("server/services/__init__.py", ["services"])
    assert not says_nothing("chat/chat_service.py", ["chat", "service"])


def test_the_glossary_defines_each_term_once() -> None:
    rows = re.findall(r"^\| (?!term)([^|]+) \| ([^|]+) \| ([^|]+) \|$", glossary(), re.MULTILINE)
    terms = [term for term, _, _ in rows]

    assert len(rows) == glossary().count("\n| ") - 1
    assert terms == sorted(set(terms), key=str.lower)
    assert not retired("Modules and classes do not").intersection(terms)


def test_the_glossary_names_only_classes_that_exist() -> None:
    classes = {place.rpartition(":")[2] for place, _ in names()}
    named = re.findall(r"class `(\w+)`", glossary())

    assert named
    assert [name for name in named if name not in classes] == []


def test_the_glossary_names_only_packages_that_exist() -> None:
    folders = {path.name for path in PACKAGE.rglob("*") if path.is_dir()}

    assert [
        name for name in re.findall(r"package `(\w+)`", glossary()) if name not in folders
    ] == []


def glossary() -> str:
    return (ROOT / "GLOSSARY.md").read_text()
