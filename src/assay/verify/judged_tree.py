"""Build the tree to verify: the original files, with only the changes that count.

Tests and runner configuration come from the goal. Changes to them are left out and reported, so
they have no effect. Build files also configure tests: a solution may need a new dependency or
source file, so the agent may write them, but settings for tests decide what a passed test is
worth.
"""

import importlib.machinery
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.verdict import Finding, Severity, TamperKind
from assay.contracts.workspace import FileChange, Tree, TreeFile, changes_between
from assay.sandbox.tree_io import build_folders, is_work
from assay.text.globs import matches
from assay.verify.discovery import is_test_file
from assay.verify.spec import VerificationSpec

_Words = frozenset[str]
_Objection = tuple[TamperKind, Severity, str]

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


_TEST_FOLDERS: Final = frozenset({"tests", "test"})
_STARTUP: Final = frozenset({"sitecustomize.py", "usercustomize.py", "pyvenv.cfg"})
_RUNNER_MODULES: Final = frozenset(
    {
        "pytest", "_pytest", "py", "pluggy", "iniconfig", "exceptiongroup", "unittest",
        "doctest", "anyio", "hypothesis",
    }
)  # fmt: skip
# Modules that the runner and the tests need; a workspace file of this name shadows them.
_LEANED_ON: Final = _RUNNER_MODULES | frozenset(
    {
        "abc", "argparse", "ast", "asyncio", "atexit", "builtins", "codecs", "collections",
        "contextlib", "copy", "dataclasses", "difflib", "enum", "errno", "fnmatch",
        "functools", "gc", "glob", "hashlib", "hmac", "importlib", "inspect", "io",
        "itertools", "json", "linecache", "locale", "logging", "marshal", "math", "operator",
        "os", "pathlib", "pickle", "platform", "posix", "posixpath", "pprint", "random", "re",
        "reprlib", "runpy", "select", "shlex", "shutil", "signal", "site", "socket", "stat",
        "string", "struct", "subprocess", "sys", "sysconfig", "tempfile", "textwrap",
        "threading", "time", "tokenize", "traceback", "types", "typing", "uuid", "warnings",
        "weakref", "xml", "zipfile",
    }
)  # fmt: skip
_PROGRAMS: Final = frozenset(
    {
        "pytest", "py.test", "python", "python3", "node", "npm", "npx", "jest", "cargo",
        "rustc", "go", "ctest", "cmake", "make", "sh", "bash", "env",
    }
)  # fmt: skip
# Files that other tools use too: without runner settings, changes are only left out.
_SHARED: Final = {
    "pyproject.toml": ("[tool.pytest", "[tool.coverage"),
    "setup.cfg": ("[tool:pytest", "[coverage"),
    "tox.ini": ("[pytest", "[tool:pytest"),
    "package.json": ("jest", '"test"', "mocha", "vitest"),
}
_UNSEEN: Final = ("pom.xml", "*.gradle", "*.gradle.kts")


def filter_changes(
    case: VerificationSpec,
    proposal: Tree,
    configuration: Iterable[str],
    folders: Iterable[PurePosixPath] = (),
) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree to verify and the omitted changes; checks run in `folders`."""
    sieve = _ChangeFilter(
        case=case,
        proposal=proposal,
        configuration=tuple(configuration),
        folders=frozenset(folders),
        built=build_folders((*case.pristine.files, *proposal.files)),
    )
    findings = list(sieve.links())
    kept: dict[PurePosixPath, TreeFile] = {}
    gone: list[PurePosixPath] = []
    for change in changes_between(case.pristine, proposal):
        if not is_work(change.path, sieve.built):
            continue
        objection = sieve.objection(change)
        if objection is not None:
            findings.append(objection)
        if objection is not None and not _is_kept(objection):
            continue
        if change.kind == "deleted":
            gone.append(change.path)
        else:
            kept[change.path] = proposal.files[change.path]
    pristine = Tree(files=case.pristine.files, origin=case.pristine.origin)
    tree = pristine.without(gone).with_files(kept)
    return tree, tuple(findings)


def is_protected(case: VerificationSpec, path: PurePosixPath) -> bool:
    """Whether a file is protected, or lies in a protected folder."""
    return any(path == root or root in path.parents for root in case.protected)


def _is_kept(finding: Finding) -> bool:
    if finding.kind is TamperKind.RUNNER_CONFIG:
        return finding.severity == "doubt"
    return finding.kind is TamperKind.SHADOWED_RUNNER and finding.severity != "forgery"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangeFilter:
    case: VerificationSpec
    proposal: Tree
    configuration: tuple[str, ...]
    folders: frozenset[PurePosixPath]
    built: frozenset[PurePosixPath]

    def links(self) -> Iterator[Finding]:
        """Report links and special files in place of regular files."""
        for link in self.proposal.links:
            if not is_work(link, self.built) or link in self.case.pristine.links:
                continue
            behind = [p for p in self.case.pristine.files if p == link or link in p.parents]
            behind += [p for p in self.case.protected if p == link or link in p.parents]
            severity: Severity = "forgery" if behind else "note"
            what = f"where {behind[0]} must be" if behind else "and is not taken along"
            said = f"is a link or a special file, {what}"
            yield _finding(link, TamperKind.LINKED_FILE, severity, said)

    def objection(self, change: FileChange) -> Finding | None:
        """Return why a change is left out; None if it counts."""
        found = (
            self._startup(change)
            or self._configuration(change)
            or self._tests(change)
            or self._shadow(change)
            or self._build(change)
        )
        return None if found is None else _finding(change.path, *found)

    def _startup(self, change: FileChange) -> _Objection | None:
        path = change.path
        if change.kind == "deleted" and any(
            link == path or link in path.parents for link in self.proposal.links
        ):
            return TamperKind.LINKED_FILE, "forgery", "is gone: a link is in its place"
        if path.name in _STARTUP or path.suffix == ".pth":
            said = f"was {change.kind}: it runs before the tests"
            return TamperKind.STARTUP_HOOK, "forgery", said
        if any(part.endswith((".dist-info", ".egg-info")) for part in path.parts):
            plugin = "pytest11" in (self.proposal.text(path) or "")
            said = "is the record of an installed package"
            return TamperKind.STARTUP_HOOK, "forgery" if plugin else "note", said
        return None

    def _configuration(self, change: FileChange) -> _Objection | None:
        path = change.path
        if not matches(path, self.configuration) or is_build_file(path):
            return None
        words = _SHARED.get(path.name)
        texts = [tree.text(path) or "" for tree in (self.proposal, self.case.pristine)]
        speaks = words is None or any(word in text for text in texts for word in words)
        said = f"was {change.kind}: it steers the tests, and comes from the goal alone"
        return TamperKind.RUNNER_CONFIG, "forgery" if speaks else "note", said

    def _tests(self, change: FileChange) -> _Objection | None:
        path = change.path
        if is_protected(self.case, path):
            if change.kind == "deleted":
                return TamperKind.TESTS_DELETED, "forgery", "was deleted"
            if change.kind == "modified":
                return TamperKind.TESTS_CHANGED, "forgery", "was changed"
            severity: Severity = "forgery" if path.name == "__init__.py" else "note"
            return TamperKind.TESTS_CHANGED, severity, "was added among the tests, and left out"
        if change.kind == "added" and self._shadows_test(path):
            return TamperKind.TESTS_CHANGED, "forgery", "takes the place of a test file"
        if self.case.pristine.why_withheld(path):
            said = "was withheld from the run, so the person's own stays as it is; left out"
            return TamperKind.NOT_ALLOWED, "note", said
        return None

    def _shadows_test(self, path: PurePosixPath) -> bool:
        tests = [test for test in self.case.protected if is_test_file(test)]
        if path.name == "__init__.py" and path.parent.name in _TEST_FOLDERS:
            # It is imported before the tests of its folder.
            return any(test.parent == path.parent for test in tests)
        taken = {test.with_suffix("") for test in tests}
        same_name = path.suffix == ".py" and path.stem in {test.stem for test in tests}
        return same_name or any(parent in taken for parent in path.parents)

    def _shadow(self, change: FileChange) -> _Objection | None:
        path = change.path
        if change.kind != "added":
            return None
        file = self.proposal.files[path]
        if path.name in _PROGRAMS and (file.executable or file.content.startswith(b"#!")):
            return TamperKind.SHADOWED_RUNNER, "forgery", f"poses as the program {path.name}"
        is_code = path.suffix in {".py", ".so", ".pyd"}
        for name in self._importable_as(path) if is_code else ():
            if name in _LEANED_ON:
                return TamperKind.SHADOWED_RUNNER, "forgery", f"stands in for the module {name}"
            if name in sys.stdlib_module_names or _is_installed(name):
                # The goal may ask for it, which cannot be decided here.
                said = f"has the name of the module {name}"
                if self._is_used_by_tests(name):
                    return TamperKind.SHADOWED_RUNNER, "doubt", f"{said}, which the tests use"
                return TamperKind.SHADOWED_RUNNER, "note", said
        return None

    def _build(self, change: FileChange) -> _Objection | None:
        """Return why an unlisted file or a build file is left out.

        Of a build file, only its settings for tests matter.
        """
        path = change.path
        if self.case.allowed and not matches(path, self.case.allowed):
            said = "is none of the files that may be changed; left out"
            return TamperKind.NOT_ALLOWED, "note", said
        if not matches(path, self.configuration) or not is_build_file(path):
            return None
        before, after = (tree.text(path) or "" for tree in (self.case.pristine, self.proposal))
        if not steers_tests(path, before, after):
            return None
        # The reports of these tools alone do not show an omitted test.
        sure = change.kind != "added" and matches(path, _UNSEEN)
        said = f"was {change.kind}: it says something else about the tests"
        return TamperKind.RUNNER_CONFIG, "forgery" if sure else "doubt", said

    def _is_used_by_tests(self, name: str) -> bool:
        begins = r"^\s*(?:import|from)\s+(?:[\w., ]+,\s*)?"
        imported = re.compile(rf"{begins}{re.escape(name)}\b", re.MULTILINE)
        texts = (
            self.case.pristine.text(path) or ""
            for path in self.case.pristine.files
            if path.suffix == ".py" and is_protected(self.case, path)
        )
        return any(imported.search(text) for text in texts)

    def _importable_as(self, path: PurePosixPath) -> Iterator[str]:
        """Yield top-level import names: below the root, any `src`, and every folder with tests."""
        roots = {PurePosixPath(), PurePosixPath("src"), PurePosixPath("lib"), *self.folders}
        # A folder that is a package is not an import path itself.
        folders = {test.parent for test in self.case.protected if is_test_file(test)}
        folders |= {folder for folder in path.parents if folder.name == "src"}
        roots |= {f for f in folders if f / "__init__.py" not in self.proposal.files}
        for root in roots:
            if root == PurePosixPath() or root in path.parents:
                first = path.relative_to(root).parts[0]
                yield first.partition(".")[0]


def _is_installed(name: str) -> bool:
    """Whether sandboxes probably have a package of this name, judged by this installation."""
    folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    spec = importlib.machinery.PathFinder.find_spec(name, folders)
    # Many packages install their tests under these names.
    return spec is not None and spec.loader is not None and name not in _TEST_FOLDERS


def _finding(path: PurePosixPath, kind: TamperKind, severity: Severity, said: str) -> Finding:
    return Finding(kind=kind, severity=severity, explanation=f"{path} {said}", path=path)
