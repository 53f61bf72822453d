import shlex
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.errors import UsageError
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.parse_command import read_invocation, split_command
from assay.verify.runners.registry import choose_runner


def a_tree(**files: str) -> Tree:
    return Tree(files={PurePosixPath(n): TreeFile(t.encode()) for n, t in files.items()})


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("pytest -q 'a b.py'", ("pytest", "-q", "a b.py")),
        ("pytest t.py::test_a[1-x]", ("pytest", "t.py::test_a[1-x]")),
        ("FOO=1 BAR='x y' pytest", ("env", "FOO=1", "BAR=x y", "pytest")),
        ("cd sub && go test ./...", ("env", "--chdir=sub", "go", "test", "./...")),
        ("cd sub && A=1 make", ("env", "--chdir=sub", "A=1", "make")),
        ("cd . && pytest", ("pytest",)),
        ("echo 'a|b;c&d>e$f'", ("echo", "a|b;c&d>e$f")),
        (r"echo a\|b", ("echo", "a|b")),
    ],
)
def test_a_plain_command_needs_no_shell(command: str, argv: tuple[str, ...]) -> None:
    assert split_command(command) == argv


@pytest.mark.parametrize(
    "command",
    [
        "pytest && echo done",
        "pytest | tee log",
        "pytest; true",
        "pytest > log",
        "pytest $(cat files)",
        'pytest "$FILE"',
        "pytest `ls`",
        "pytest *.py",
        "pytest {a,b}.py",
        "cd .. && pytest",
        "cd /etc && pytest",
        "pytest ~/x",
        "! pytest",
        "A=1",
        "pytest\nrm x",
    ],
)
def test_what_needs_a_shell_gets_one_and_is_known_by_its_exit_code(command: str) -> None:
    argv = split_command(command)

    assert argv == ("bash", "-c", command)
    assert choose_runner(argv).name == "command"


@pytest.mark.parametrize("command", ["", "   ", "pytest 'a", 'pytest "a', "pytest \\"])
def test_a_command_that_cannot_be_read_is_refused_with_a_hint(command: str) -> None:
    with pytest.raises(UsageError) as refusal:
        split_command(command)

    assert refusal.value.hint


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5))
def test_a_quoted_command_comes_back_word_for_word(words: list[str]) -> None:
    words = ["echo", *words]

    assert split_command(shlex.join(words)) == tuple(words)


@given(st.text(max_size=60))
def test_any_text_is_either_a_command_or_refused(command: str) -> None:
    try:
        argv = split_command(command, a_tree())
    except UsageError:
        return
    assert argv
    assert choose_runner(argv)


@pytest.mark.parametrize(
    ("command", "runner"),
    [
        ("pytest", "pytest"),
        ("py.test -q", "pytest"),
        ("python -m pytest tests", "pytest"),
        ("python3.11 -B -m pytest", "pytest"),
        ("uv run --frozen pytest", "pytest"),
        ("poetry run pytest", "pytest"),
        ("FOO=1 pytest", "pytest"),
        ("python3 -m unittest discover", "unittest"),
        ("node --test", "node"),
        ("npx jest --coverage", "jest"),
        ("/opt/js/node_modules/.bin/jest", "jest"),
        ("cargo test -- --include-ignored", "cargo"),
        ("go test ./...", "go"),
        ("ctest", "ctest"),
        ("cmake -S . -B b -DX=1 && cmake --build b && ctest --test-dir b", "ctest"),
        ("./gradlew --offline test", "junit"),
        ("mvn test", "junit"),
        ("cmake -S . -B b && cmake --build b", "command"),
        ("ctest; true", "command"),
        ("node main.js", "command"),
        ("cargo build", "command"),
        ("go vet ./...", "command"),
        ("python main.py", "command"),
        ("npm test", "command"),
        ("env -i pytest", "command"),
        ("make test", "command"),
    ],
)
def test_a_check_is_run_by_who_understands_it(command: str, runner: str) -> None:
    assert choose_runner(split_command(command)).name == runner


def test_npm_test_is_what_its_script_says() -> None:
    tree = a_tree(**{"package.json": '{"scripts": {"test": "NODE_ENV=test jest ./*"}}', "a.js": ""})

    assert split_command("npm test", tree) == (
        "env", "NODE_ENV=test", "jest", "./a.js", "./package.json",
    )  # fmt: skip
    assert split_command("npm run test -- -t 'a b'", tree)[-2:] == ("-t", "a b")


@pytest.mark.parametrize(
    "package",
    [
        "{}",
        "[]",
        "not json",
        '{"scripts": []}',
        '{"scripts": {"test": 7}}',
        '{"scripts": {"test": "jest && eslint ."}}',
        '{"scripts": {"pretest": "tsc", "test": "jest"}}',
        '{"scripts": {"test": "npm test"}}',
        '{"scripts": {"test": "jest \'"}}',
    ],
)
def test_a_script_that_is_more_than_one_command_is_left_to_npm(package: str) -> None:
    assert split_command("npm test", a_tree(**{"package.json": package})) == ("npm", "test")


def test_globs_are_matched_in_the_tree_as_a_shell_would() -> None:
    tree = a_tree(**{"tests/b.py": "", "tests/a.py": "", "tests/.c.py": "", "tests/d/e.py": ""})

    assert split_command("pytest tests/*.py", tree) == ("pytest", "tests/a.py", "tests/b.py")
    assert split_command("pytest none/*.py", tree) == ("pytest", "none/*.py")
    assert split_command("cd tests && pytest d/*", tree)[2:] == ("pytest", "d/e.py")


def test_an_invocation_names_folder_variables_and_program() -> None:
    call = read_invocation(split_command("cd a/b && X=1 uv run python -W error -m pytest -x"))

    assert (call.words, dict(call.env), call.cwd) == (
        ("pytest", "-x"),
        {"X": "1"},
        PurePosixPath("a/b"),
    )
