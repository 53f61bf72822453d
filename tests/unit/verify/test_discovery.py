from pathlib import PurePosixPath

import pytest

from assay.contracts.errors import UsageError
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.discovery import checks_for, find_tests

NODE = "import test from 'node:test';\n"
JEST = "test('a', () => { expect(1).toBe(1); });\n"


def a_tree(files: dict[str, str]) -> Tree:
    return Tree(files={PurePosixPath(n): TreeFile(t.encode()) for n, t in files.items()})


def paths(*names: str) -> tuple[PurePosixPath, ...]:
    return tuple(PurePosixPath(name) for name in names)


def test_tests_are_found_by_name_and_folder_and_foreign_ones_are_not() -> None:
    tests = [
        "test_a.py", "b_test.py", "tests/data.json", "src/c.spec.js", "d_test.go", "tests/e.rs",
        "f_test.cpp", "src/test/java/GTest.java", "__tests__/h.js", "i.test.ts",
    ]  # fmt: skip
    others = [
        "main.py", "latest.py", "contest.js", "node_modules/x/x.test.js", "vendor/y_test.go",
        "target/tests/z.rs", ".venv/lib/test_q.py", "attest.go", "testing.md",
    ]  # fmt: skip
    tree = a_tree(dict.fromkeys([*tests, *others], ""))

    assert {str(path) for path in find_tests(tree)} == set(tests)


@pytest.mark.parametrize(
    ("files", "tests", "checks"),
    [
        ({"test_a.py": ""}, ["test_a.py"], ("pytest test_a.py",)),
        (
            {"tests/test_a.py": "", "tests/conftest.py": "", "tests/x.js": "", "tests/d.txt": ""},
            ["tests/test_a.py", "tests/conftest.py", "tests/x.js", "tests/d.txt"],
            ("pytest tests/test_a.py",),
        ),
        ({"checks.py": ""}, ["checks.py"], ("pytest checks.py",)),
        ({"my test_a.py": "", "test_b.py": ""}, ["test_b.py"], ("pytest test_b.py",)),
        ({"a.test.js": NODE}, ["a.test.js"], ("node --test a.test.js",)),
        ({"a.test.js": JEST}, ["a.test.js"], ("npx jest a.test.js",)),
        (
            {"package.json": '{"devDependencies": {"jest": "1"}}', "a.spec.ts": JEST},
            ["a.spec.ts"],
            ("npx jest a.spec.ts",),
        ),
        (
            {"package.json": '{"scripts": {"test": "vitest run"}}', "a.spec.ts": JEST},
            ["a.spec.ts"],
            ("npm test",),
        ),
        ({"Cargo.toml": "", "tests/a.rs": ""}, ["tests/a.rs"], ("cargo test",)),
        (
            {"Cargo.toml": "", "tests/a.rs": "#[test]\n#[ignore]\nfn a() {}"},
            ["tests/a.rs"],
            ("cargo test -- --include-ignored",),
        ),
        ({"go.mod": "", "a_test.go": ""}, ["a_test.go"], ("go test ./...",)),
        (
            {"m/go.mod": "", "m/b/a_test.go": "", "m/a_test.go": ""},
            ["m/b/a_test.go", "m/a_test.go"],
            ("cd m && go test ./...",),
        ),
        (
            {"CMakeLists.txt": "", "a_test.cpp": "", "test/catch.hpp": ""},
            ["a_test.cpp", "test/catch.hpp"],
            ("ctest",),
        ),
        (
            {"build.gradle": "", "gradlew": "", "src/test/java/ATest.java": ""},
            ["src/test/java/ATest.java"],
            ("./gradlew --offline test",),
        ),
        ({"test_a.sh": ""}, ["test_a.sh"], ("bash test_a.sh",)),
        ({}, [], ()),
        (
            {"test_a.py": "", "go.mod": "", "b_test.go": ""},
            ["test_a.py", "b_test.go"],
            ("pytest test_a.py", "go test ./..."),
        ),
    ],
)
def test_test_files_lead_to_the_command_that_runs_them(
    files: dict[str, str], tests: list[str], checks: tuple[str, ...]
) -> None:
    assert checks_for(paths(*tests), a_tree(files)) == checks


@pytest.mark.parametrize(
    ("files", "test"),
    [
        ({"spec_test.rb": ""}, "spec_test.rb"),
        ({"tests/data.json": ""}, "tests/data.json"),
        ({"a_test.go": ""}, "a_test.go"),
        ({"tests/a.rs": ""}, "tests/a.rs"),
        ({"a_test.cpp": ""}, "a_test.cpp"),
        ({"ATest.java": ""}, "ATest.java"),
        ({"a.test.ts": "import 'x';"}, "a.test.ts"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_hint(files: dict[str, str], test: str) -> None:
    with pytest.raises(UsageError) as refusal:
        checks_for(paths(test), a_tree(files))

    assert refusal.value.hint
    assert test in str(refusal.value)
