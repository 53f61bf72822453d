"""The judged tree has only what counts, and says what it leaves out."""

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from assay.contracts.verdict import Finding, TamperKind
from assay.contracts.workspace import Tree, TreeFile, Withheld
from assay.verify.judged_tree import filter_changes
from assay.verify.runners.python import PytestRunner
from assay.verify.runners.registry import RUNNERS, ExitCodeRunner
from assay.verify.spec import VerificationSpec

CONFIGURATION = PytestRunner.configuration


def tree(**files: str) -> Tree:
    return Tree(
        files={PurePosixPath(path): TreeFile(text.encode()) for path, text in files.items()}
    )


BEFORE = tree(**{"calc.py": "old", "tests/test_calc.py": "tests", "data/a.txt": "a"})
CASE = VerificationSpec(
    pristine=BEFORE, checks=("pytest",), protected=(PurePosixPath("tests/test_calc.py"),)
)


def judge(case: VerificationSpec = CASE, **files: str) -> tuple[Tree, tuple[Finding, ...]]:
    return filter_changes(case, BEFORE.with_files(tree(**files).files), CONFIGURATION)


def test_changes_to_other_files_are_taken() -> None:
    judged, findings = judge(**{"calc.py": "new", "kit/more.py": "x = 1"})

    assert judged == BEFORE.with_files(tree(**{"calc.py": "new", "kit/more.py": "x = 1"}).files)
    assert not findings


def test_what_was_withheld_is_not_written_over() -> None:
    withheld = (
        Withheld(path=PurePosixPath(".env"), why="secret"),
        Withheld(path=PurePosixPath("out"), why="ignored", folder=True),
    )
    case = replace(CASE, pristine=replace(BEFORE, withheld=withheld))

    judged, findings = judge(case, **{".env": "A=2", "out/token.py": "x", "calc.py": "new"})

    assert judged.files == BEFORE.with_files(tree(**{"calc.py": "new"}).files).files
    assert [(found.kind, found.severity, str(found.path)) for found in findings] == [
        (TamperKind.NOT_ALLOWED, "note", ".env"),
        (TamperKind.NOT_ALLOWED, "note", "out/token.py"),
    ]


def test_a_folder_is_taken_for_built_only_beside_what_builds_it() -> None:
    written = {"src/target/model.py": "x", "target/model.py": "x", "rust/Cargo.toml": ""}

    judged, findings = judge(**written, **{"rust/target/debug/app": "x"})

    assert judged == BEFORE.with_files(tree(**written).files)
    assert not findings


def test_a_file_may_be_deleted() -> None:
    judged, findings = filter_changes(
        CASE, BEFORE.without([PurePosixPath("data/a.txt")]), CONFIGURATION
    )

    assert PurePosixPath("data/a.txt") not in judged.files
    assert not findings


@pytest.mark.parametrize(
    ("path", "kind", "severity"),
    [
        ("tests/test_calc.py", TamperKind.TESTS_CHANGED, "forgery"),
        ("tests/__init__.py", TamperKind.TESTS_CHANGED, "forgery"),
        ("tests/test_calc/__init__.py", TamperKind.TESTS_CHANGED, "forgery"),
        ("test_calc.py", TamperKind.TESTS_CHANGED, "forgery"),
        ("conftest.py", TamperKind.RUNNER_CONFIG, "forgery"),
        ("deep/er/conftest.py", TamperKind.RUNNER_CONFIG, "forgery"),
        ("pytest.ini", TamperKind.RUNNER_CONFIG, "forgery"),
        ("pyproject.toml", TamperKind.RUNNER_CONFIG, "note"),
        ("sitecustomize.py", TamperKind.STARTUP_HOOK, "forgery"),
        ("lib/x.pth", TamperKind.STARTUP_HOOK, "forgery"),
        ("pytest.py", TamperKind.SHADOWED_RUNNER, "forgery"),
        ("src/pytest/__init__.py", TamperKind.SHADOWED_RUNNER, "forgery"),
        ("packages/one/src/json.py", TamperKind.SHADOWED_RUNNER, "forgery"),
        ("tests/json.py", TamperKind.SHADOWED_RUNNER, "forgery"),
    ],
)
def test_what_could_forge_is_left_out_and_named(path: str, kind: TamperKind, severity: str) -> None:
    judged, findings = judge(**{path: "something else"})

    assert judged.digest == BEFORE.digest
    assert [(finding.kind, finding.severity) for finding in findings] == [(kind, severity)]
    assert findings[0].path == PurePosixPath(path)
    assert path in findings[0].explanation


def test_deleted_tests_come_back() -> None:
    judged, findings = filter_changes(
        CASE, BEFORE.without([PurePosixPath("tests/test_calc.py")]), CONFIGURATION
    )

    assert judged.digest == BEFORE.digest
    assert [finding.kind for finding in findings] == [TamperKind.TESTS_DELETED]


def test_everything_in_a_protected_folder_is_protected() -> None:
    case = VerificationSpec(
        pristine=BEFORE, checks=("pytest",), protected=(PurePosixPath("tests"),)
    )

    judged, findings = judge(case, **{"tests/test_calc.py": "x", "tests/test_more.py": "y"})

    assert judged.digest == BEFORE.digest
    assert [finding.severity for finding in findings] == ["forgery", "note"]


def test_settings_for_the_runner_in_a_shared_file_are_forgery() -> None:
    _, findings = judge(**{"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--co'\n"})

    assert findings[0].severity == "forgery"


def test_a_path_that_is_not_allowed_is_only_left_out() -> None:
    case = VerificationSpec(
        pristine=BEFORE, checks=("pytest",), protected=(), allowed=("calc.py", "kit/*")
    )

    judged, findings = judge(case, **{"calc.py": "new", "kit/a/b.py": "", "other.py": "x"})

    assert PurePosixPath("other.py") not in judged.files
    assert PurePosixPath("kit/a/b.py") in judged.files
    assert [(finding.severity, str(finding.path)) for finding in findings] == [("note", "other.py")]


def test_caches_and_compiled_files_are_not_worth_a_word() -> None:
    files = {"__pycache__/calc.cpython-311.pyc": "", "calc.pyc": "", ".pytest_cache/v/x": ""}

    judged, findings = judge(**files)

    assert judged.digest == BEFORE.digest
    assert not findings


def test_a_name_of_the_standard_library_that_nobody_leans_on_is_taken() -> None:
    judged, findings = judge(**{"calendar.py": "x = 1"})

    assert PurePosixPath("calendar.py") in judged.files
    assert [finding.severity for finding in findings] == ["note"]


def test_a_package_may_have_tests_in_it() -> None:
    tests = (PurePosixPath("kit/test_a.py"), PurePosixPath("kit/shapes.py"))
    case = VerificationSpec(pristine=BEFORE, checks=("pytest",), protected=tests)
    files = {"kit/__init__.py": "", "kit/json.py": "", "shapes.py": ""}

    judged, findings = judge(case, **files)

    assert judged == BEFORE.with_files(tree(**files).files)
    assert not findings


def test_a_link_above_a_test_is_forgery_and_elsewhere_a_note() -> None:
    proposal = Tree(
        files=BEFORE.without([PurePosixPath("tests/test_calc.py")]).files,
        links=(PurePosixPath("tests"), PurePosixPath("shortcut")),
    )

    judged, findings = filter_changes(CASE, proposal, CONFIGURATION)

    assert judged.digest == BEFORE.digest
    assert {finding.kind for finding in findings} == {TamperKind.LINKED_FILE}
    assert {str(f.path): f.severity for f in findings if len(f.path.parts) == 1} == {
        "tests": "forgery",
        "shortcut": "note",
    }


STEERING = {
    "cargo": (".cargo/config.toml", "rust-toolchain", "vendor/rand/src/lib.rs"),
    "go": ("vendor/github.com/stretchr/testify/assert/assert.go",),
    "ctest": ("CMakePresets.json", "catch.hpp", "doctest.h"),
    "jest": (
        *("jest.config.js", "jest.setup.js", "babel.config.js", ".babelrc", "package.json"),
        "__mocks__/fs.js",
    ),
    "junit": ("gradle.properties", "gradlew", "mvnw", ".mvn/maven.config"),
    "command": ("vitest.config.ts", ".mocharc.json", "Makefile"),
}


def globs_of(runner: str) -> tuple[str, ...]:
    runners = (*RUNNERS, ExitCodeRunner())
    return tuple(glob for one in runners if one.name == runner for glob in one.configuration)


@pytest.mark.parametrize("folder", ["", "deep/er/"])
@pytest.mark.parametrize(
    ("runner", "path"), [(r, p) for r, paths in STEERING.items() for p in paths]
)
def test_what_steers_a_runner_comes_from_the_goal_wherever_it_is(
    runner: str, path: str, folder: str
) -> None:
    after = BEFORE.with_files(tree(**{f"{folder}{path}": "'jest'"}).files)

    judged, findings = filter_changes(CASE, after, globs_of(runner))

    assert judged.digest == BEFORE.digest
    assert [(f.kind, f.severity) for f in findings] == [(TamperKind.RUNNER_CONFIG, "forgery")]


PACKAGE = '[package]\nname = "calc"\n'
HONEST_BUILDS = {
    ("cargo", "Cargo.toml"): (PACKAGE, f'{PACKAGE}[dependencies]\nrand = "0.8"\n'),
    ("cargo", "Cargo.lock"): ("", "version = 3"),
    ("go", "go.mod"): ("module calc\n", "module calc\n\nrequire example.com/a v1.0.0\n"),
    ("go", "go.sum"): ("", "example.com/a v1.0.0 h1:x"),
    ("ctest", "CMakeLists.txt"): (
        "add_library(calc a.cpp)\nadd_test(NAME t COMMAND t)\n",
        "add_library(calc a.cpp b.cpp)\nadd_test(NAME t COMMAND t)\n",
    ),
    ("junit", "pom.xml"): ("<project></project>", "<dependency><scope>test</scope></dependency>"),
    ("junit", "build.gradle"): ("", "dependencies { testImplementation 'org.junit:junit:5' }"),
    ("jest", "tsconfig.json"): ("{}", '{"compilerOptions": {"strict": true}}'),
}
STEERING_BUILDS = {
    ("cargo", "Cargo.toml"): (
        (PACKAGE, f"{PACKAGE}autotests = false\n"),
        (PACKAGE, f"{PACKAGE}[lib]\ntest = false\n"),
        (PACKAGE, f'{PACKAGE}[[test]]\nname = "add"\npath = "src/other.rs"\n'),
        (f'{PACKAGE}[[test]]\npath = "tests/a.rs"\n', f'{PACKAGE}[[test]]\npath = "a.rs"\n'),
        (PACKAGE, f"{PACKAGE}[profile.test]\ndebug-assertions = false\n"),
    ),
    ("cargo", "build.rs"): (("", "fn main() {}"),),
    ("go", "go.mod"): (("module calc\n", "module calc\nreplace example.com/a => ./a\n"),),
    ("ctest", "CMakeLists.txt"): (
        ("enable_testing()\nadd_test(NAME t COMMAND t)", "enable_testing()"),
        ("", "set_tests_properties(t PROPERTIES WILL_FAIL TRUE)"),
        ("", 'set(CMAKE_CXX_FLAGS "-include quiet.h")'),
    ),
    ("jest", "tsconfig.json"): (("{}", '{"compilerOptions": {"plugins": []}}'),),
}  # fmt: skip


@pytest.mark.parametrize("folder", ["", "deep/"])
@pytest.mark.parametrize(
    ("runner", "path", "before", "after"),
    [(*where, *texts) for where, texts in HONEST_BUILDS.items()],
)
def test_how_it_is_built_may_be_part_of_a_solution(
    runner: str, path: str, before: str, after: str, folder: str
) -> None:
    pristine = tree(**{f"{folder}{path}": before})
    proposal = tree(**{f"{folder}{path}": after})

    case = VerificationSpec(pristine=pristine, checks=("c",), protected=())

    judged, findings = filter_changes(case, proposal, globs_of(runner))

    assert judged == proposal
    assert not findings


@pytest.mark.parametrize(
    ("runner", "path", "before", "after"),
    [(*where, *pair) for where, pairs in STEERING_BUILDS.items() for pair in pairs],
)
def test_what_a_build_says_of_tests_is_taken_and_doubted(
    runner: str, path: str, before: str, after: str
) -> None:
    case = VerificationSpec(pristine=tree(**{path: before}), checks=("c",), protected=())

    judged, findings = filter_changes(case, tree(**{path: after}), globs_of(runner))

    assert judged == tree(**{path: after})
    assert [(f.kind, f.severity) for f in findings] == [(TamperKind.RUNNER_CONFIG, "doubt")]


@pytest.mark.parametrize(
    ("path", "after"),
    [
        ("pom.xml", "<project><skipTests>true</skipTests></project>"),
        ("pom.xml", "<project><plugin>maven-surefire-plugin</plugin></project>"),
        ("build.gradle", "test { exclude '**/Calc*' }"),
        ("build.gradle.kts", "tasks.test { ignoreFailures = true }"),
    ],
)
def test_where_a_missing_test_would_not_be_missed_the_build_says_nothing_of_tests(
    path: str, after: str
) -> None:
    case = VerificationSpec(
        pristine=tree(**{path: "<project></project>"}), checks=("c",), protected=()
    )

    judged, findings = filter_changes(case, tree(**{path: after}), globs_of("junit"))

    assert judged == case.pristine
    assert [(f.kind, f.severity) for f in findings] == [(TamperKind.RUNNER_CONFIG, "forgery")]


def test_a_build_that_may_not_be_changed_is_only_left_out() -> None:
    before = tree(**{"Cargo.toml": PACKAGE, "src/lib.rs": ""})
    case = VerificationSpec(pristine=before, checks=("c",), protected=(), allowed=("src/lib.rs",))
    after = before.with_files(tree(**{"Cargo.toml": f"{PACKAGE}autotests = false\n"}).files)

    judged, findings = filter_changes(case, after, globs_of("cargo"))

    assert judged == before
    assert [(f.kind, f.severity) for f in findings] == [(TamperKind.NOT_ALLOWED, "note")]
