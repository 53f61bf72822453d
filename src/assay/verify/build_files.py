"""Read build files, which describe how to build a project and also configure its tests.

A solution may need a new dependency or source file, so the agent may write build files. Settings
for tests, and for code that runs before them, decide what a passed test is worth.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Final, cast

_Words = frozenset[str]

_CARGO_TABLES: Final = ("test", "patch", "replace", "workspace")
_CARGO_KEYS: Final = {
    "lib": ("test", "harness", "doctest", "proc-macro"),
    "package": ("build", "autotests"),
    "profile": ("test", "dev"),
}
_GO: Final = re.compile(
    r"^[ \t]*(?:replace|exclude|toolchain|tool|godebug)\b(?:[ \t]*\([^)]*\)|[^\n]*)", re.MULTILINE
)
_CMAKE_COMMENT: Final = re.compile(r"#[^\n]*")
_CMAKE: Final = re.compile(
    r"\b(?:add_test|set_tests_properties|enable_testing|\w*discover_tests|gtest_\w+"
    r"|include|execute_process|add_custom_(?:command|target)|add_definitions|add_link_options"
    r"|(?:add|target)_compile_(?:definitions|options)|macro|function|return)\s*\([^)]*\)"
    r"|\bset_property\s*\(\s*(?:TEST|DIRECTORY)\b[^)]*\)"
    r"|\bset\s*\(\s*(?:CMAKE_\w*FLAGS\w*|CTEST_\w+|BUILD_TESTING)[^)]*\)",
    re.IGNORECASE,
)
_MAVEN: Final = re.compile(
    r"<plugin>.*?</plugin>|<parent>.*?</parent>"
    r"|<[^/>]*(?:skip|maven\.test|testFailure|testSource|testResource|surefire)[^>]*>[^<]*",
    re.DOTALL | re.IGNORECASE,
)
_GRADLE: Final = re.compile(
    r"^.*(?:\btest\b\s*[{.(]|\bTest\b|\b(?:exclude|include|filter|ignoreFailures|enabled|onlyIf"
    r"|doFirst|doLast|finalizedBy|apply|exec|jvmArgs|systemProperty|tasks)\b).*$",
    re.MULTILINE,
)
_TYPESCRIPT: Final = re.compile(
    r'^.*"(?:paths|plugins|baseUrl|rootDirs|extends|types|typeRoots|ts-node)".*$', re.MULTILINE
)


def _found_by(pattern: re.Pattern[str]) -> Callable[[str], _Words]:
    return lambda text: frozenset(" ".join(found.split()) for found in pattern.findall(text))


def _cargo(text: str) -> _Words:
    try:
        manifest = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return frozenset({text})
    return frozenset(_cargo_words(manifest))


def _cargo_words(manifest: dict[str, Any]) -> Iterator[str]:
    for name in _CARGO_TABLES:
        if name in manifest:
            yield f"[{name}] {manifest[name]!r}"
    for name, keys in _CARGO_KEYS.items():
        table: Any = manifest.get(name)
        for key in keys if isinstance(table, dict) else ():
            if key in table:
                yield f"[{name}] {key} = {cast('dict[str, Any]', table)[key]!r}"


def _cmake(text: str) -> _Words:
    return _found_by(_CMAKE)(_CMAKE_COMMENT.sub("", text))


def _nothing(text: str) -> _Words:
    del text
    return frozenset()


def _everything(text: str) -> _Words:
    return frozenset({text} - {""})


_READERS: Final[tuple[tuple[str, Callable[[str], _Words]], ...]] = (
    ("Cargo.toml", _cargo),
    ("Cargo.lock", _nothing),
    ("build.rs", _everything),
    ("go.mod", _found_by(_GO)),
    ("go.sum", _nothing),
    ("go.work*", _everything),
    ("CTest*.cmake", _everything),
    ("CMakeLists.txt", _cmake),
    ("*.cmake", _cmake),
    ("pom.xml", _found_by(_MAVEN)),
    ("*.gradle", _found_by(_GRADLE)),
    ("*.gradle.kts", _found_by(_GRADLE)),
    ("tsconfig*.json", _found_by(_TYPESCRIPT)),
)


def is_build_file(path: PurePosixPath) -> bool:
    """Whether a file describes the build of a project, and not only its tests."""
    return any(fnmatchcase(path.name, glob) for glob, _ in _READERS)


def steers_tests(path: PurePosixPath, before: str, after: str) -> bool:
    """Whether a build file changes what it says about tests."""
    read = next(read for glob, read in _READERS if fnmatchcase(path.name, glob))
    return read(before) != read(after)
