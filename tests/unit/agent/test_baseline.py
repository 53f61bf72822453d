"""What keeps a check from ever passing is told from work that is still to be done."""

from collections.abc import Callable
from pathlib import PurePosixPath

import pytest

from assay.agent.baseline import failing_before, hanging, trouble_in
from assay.contracts.verdict import CheckReport, TestStatus
from assay.contracts.workspace import Tree, TreeFile, Withheld
from assay.verify.report_checks import a_test

GOAL = "Make the tests pass"


def files(**texts: str) -> Tree:
    return Tree(
        files={PurePosixPath(name): TreeFile(text.encode()) for name, text in texts.items()}
    )


def failed(*messages: str) -> CheckReport:
    tests = tuple(
        a_test(f"test_{number}", TestStatus.ERROR, message=message, detail=message)
        for number, message in enumerate(messages)
    )
    return CheckReport(command="pytest", runner="pytest", passed=False, tests=tests)


def ended(explanation: str, output: str = "") -> CheckReport:
    return CheckReport(
        command="make it", runner="command", passed=False, explanation=explanation, output=output
    )


def hint_of(report: CheckReport, tree: Tree | None = None, statement: str = GOAL) -> str:
    found = trouble_in([report], tree or Tree(), statement)
    return found.hint if found else ""


@pytest.mark.parametrize(
    ("module", "declared", "package"),
    [
        ("freezegun", "", "freezegun"),
        ("yaml", "", "PyYAML"),
        ("odd_helper", '[project]\nname = "it"\ndependencies = ["odd-helper>=2"]\n', "odd_helper"),
    ],
)
def test_a_missing_package_is_named_with_its_option(
    module: str, declared: str, package: str
) -> None:
    report = failed(f"ModuleNotFoundError: No module named '{module}.sub'")

    found = trouble_in([report], files(**{"pyproject.toml": declared}), GOAL)

    assert found is not None
    assert package in found.message
    assert found.hint == f"add --package {package}"


@pytest.mark.parametrize(
    ("module", "tree", "statement"),
    [
        ("two_bucket", files(), GOAL),
        ("requests", files(), "Write requests.py, a fake of the library"),
        ("rich", files(**{"src/rich/text.py": ""}), GOAL),
        ("tool", files(**{"pyproject.toml": '[project]\nname = "tool"\n'}), GOAL),
    ],
)
def test_a_module_that_the_goal_is_to_create_is_work(
    module: str, tree: Tree, statement: str
) -> None:
    report = failed(f"ModuleNotFoundError: No module named '{module}'")

    assert not hint_of(report, tree, statement)


@pytest.mark.parametrize(
    ("message", "included"),
    [
        ("ModuleNotFoundError: No module named 'pkg._version'", "src/pkg/_version.py"),
        ("No such file or directory: '/app/tests/certs/server.key'", "tests/certs/server.key"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'made/a.csv'", "made/a.csv"),
        ("No such file or directory: 'other/server.key'", ""),
        ("No such file or directory: '.env'", ""),
    ],
)
def test_a_withheld_file_that_a_check_needs_is_named_with_its_option(
    message: str, included: str
) -> None:
    withheld = (
        Withheld(path=PurePosixPath("src/pkg/_version.py"), why="ignored by git"),
        Withheld(path=PurePosixPath("tests/certs/server.key"), why="holds a private key"),
        Withheld(path=PurePosixPath("made"), why="ignored by git", folder=True),
        Withheld(path=PurePosixPath(".env"), why="named like a file with secrets"),
    )
    tree = Tree(withheld=withheld)

    hint = hint_of(failed(message), tree, "Do without the file .env")

    assert hint == (f"add --include '{included}'" if included else "")


def test_a_missing_program_is_named() -> None:
    for report in (
        ended("the program 'cargo' is not in the sandbox"),
        ended("it ended with exit code 127: x", "bash: line 1: cargo: command not found"),
        ended("it ended with exit code 2", "make: cargo: No such file or directory"),
    ):
        assert hint_of(report) == "install cargo, or give another command with --check"


def test_a_program_of_the_workspace_is_work() -> None:
    assert not hint_of(ended("the program './run.sh' is not in the sandbox"))
    assert not hint_of(ended("the program 'tool' is not in the sandbox"), statement="Write tool")


def test_a_refused_connection_is_named_with_its_option() -> None:
    refused = "HTTPSConnectionPool(host='api.example.org', port=443): Max retries exceeded"

    assert hint_of(failed(refused, refused)) == "add --allow-host api.example.org"
    assert hint_of(failed("socket.gaierror: [Errno -3] x")) == "add --allow-host HOST"
    assert not hint_of(failed(refused, "AssertionError: 1 != 2"))


def test_a_check_that_does_not_end_is_no_trouble_of_the_environment() -> None:
    report = ended("it did not end in time")

    assert hanging([report, ended("it ended with exit code 1")]) == (report,)
    assert not hint_of(report)


MANIFEST = '{"name": "mine", "devDependencies": {"left-pad": "1", "@of/it": "1", "mocha": "1"}}'
AT = "the sandbox does not have the npm package"


def node(output: str, *, command: str = "node --test", runner: str = "node") -> CheckReport:
    tests = (a_test("pad.test.js", TestStatus.ERROR, message="test failed"),)
    return CheckReport(command=command, runner=runner, passed=False, tests=tests, output=output)


@pytest.mark.parametrize(
    ("said", "name", "begin"),
    [
        ("Error: Cannot find module 'left-pad'\nRequire stack:", "left-pad", "NODE_PATH=/home/it/"),
        ("Cannot find module '@of/it/sub' from 'a.js'", "@of/it", "NODE_PATH=/home/it/"),
        (
            "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'left-pad' imported from /app/a.js",
            "left-pad",
            "ln -sfn /home/it/node_modules node_modules &&",
        ),
        ("Error: Cannot find module 'undeclared'", "undeclared", "NODE_PATH=/home/it/"),
    ],
)
def test_a_missing_package_of_npm_is_named_with_what_makes_it_readable(
    said: str, name: str, begin: str
) -> None:
    tree = files(**{"package.json": MANIFEST})

    found = trouble_in([node(said)], tree, GOAL, workspace="/home/it")

    assert found is not None
    assert f"{AT} {name!r}; node_modules is left out of every workspace" in found.message
    assert "ASSAY_SANDBOX__READ_ONLY=/home/it/node_modules" in found.hint
    assert f"begin with `{begin}" in found.hint


def test_jest_and_programs_of_npm_come_from_the_folder_of_their_project() -> None:
    tree = files(**{"web/package.json": MANIFEST})

    jest = trouble_in([ended("jest is not in the sandbox: …")], tree, GOAL)
    mocha = trouble_in(
        [ended("it ended with exit code 127", "sh: 1: mocha: not found")], tree, GOAL
    )

    assert jest is not None
    assert "package 'jest'" in jest.message
    assert mocha is not None
    assert "package 'mocha'; web/node_modules is" in mocha.message
    assert "ln -sfn /PROJECT/web/node_modules web/node_modules &&" in mocha.hint


@pytest.mark.parametrize(
    ("said", "report", "statement"),
    [
        ("Cannot find module './left-pad'", node, GOAL),
        ("Cannot find module '/app/left-pad.js' imported from /app/a.js", node, GOAL),
        ("Cannot find package 'mine' imported from /app/a.js", node, GOAL),
        ("Cannot find module 'helpers'", node, GOAL),
        ("Cannot find module 'left-pad'", node, "Replace left-pad"),
    ],
)
def test_a_javascript_file_that_is_to_be_written_is_work(
    said: str, report: Callable[[str], CheckReport], statement: str
) -> None:
    tree = files(**{"package.json": MANIFEST, "lib/helpers/a.js": ""})

    assert not hint_of(report(said), tree, statement)


def test_a_name_that_other_runners_may_find_among_the_files_is_work() -> None:
    said = "Cannot find module 'undeclared'"

    assert not hint_of(node(said, command="NODE_PATH=lib node --test"))
    assert not hint_of(node(said, command="npx jest", runner="jest"))


def not_started(output: str, explanation: str = "the command has a wrong option") -> CheckReport:
    return CheckReport(
        command="pytest", runner="pytest", passed=False, explanation=explanation, output=output
    )


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        (
            "usage: pytest\npytest: error: unrecognized arguments: --cov=it --cov-report=xml",
            "add --package pytest-cov, or remove the option from the command or configuration",
        ),
        (
            "pytest: error: unrecognized arguments: --nosuch",
            "remove the option from the command or configuration",
        ),
        (
            "ERROR: Missing required plugins: pytest-xdist>=2, pytest-mock",
            "add --package pytest-xdist --package pytest-mock, or remove the plugin from",
        ),
        (
            'ImportError: Error importing plugin "pytest_timeout": No module named',
            "add --package pytest-timeout, or remove the plugin from the configuration",
        ),
        (
            "ERROR: not found: /app/test_it.py::test_nope",
            "correct the node ID in --tests or --check",
        ),
    ],
)
def test_an_option_or_plugin_that_pytest_does_not_know_is_named(output: str, hint: str) -> None:
    assert hint_of(not_started(output)).startswith(hint)


def test_a_check_without_tests_is_named_unless_tests_are_the_work() -> None:
    tree = files(**{"test_it.py": "x = 1"})
    report = not_started("", "it found no tests")

    assert "--tests" in hint_of(report, tree)
    assert not hint_of(report, tree, "Write a test for it.py")
    assert not hint_of(report, Tree())
    assert not trouble_in([report], tree, GOAL, given=False)


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("fixture 'mocker' not found", "add --package pytest-mock"),
        ("async def functions are not natively supported.", "add --package pytest-asyncio"),
        (
            'E     File "/app/test_it.py", line 3\nE       def (\nE   SyntaxError: invalid syntax',
            "correct the file",
        ),
        ("SyntaxError: invalid syntax (test_it.py, line 3)", "correct the file"),
    ],
)
def test_a_missing_fixture_and_a_broken_test_file_are_named(message: str, hint: str) -> None:
    tree = files(**{"test_it.py": "def ("})

    assert hint_of(failed(message), tree).startswith(hint)


def test_a_missing_fixture_of_the_project_and_broken_code_are_work() -> None:
    tree = files(**{"test_it.py": "", "it.py": "def ("})

    assert not hint_of(failed("fixture 'stack' not found"), tree)
    assert not hint_of(failed("SyntaxError: invalid syntax (it.py, line 3)"), tree)


def test_tests_that_cannot_pass_do_not_stop_others_that_fail() -> None:
    missing = "ModuleNotFoundError: No module named 'freezegun'"
    report = failed(missing, "AssertionError: 1 != 2")

    assert not hint_of(report)
    (found,) = failing_before([report], Tree(), GOAL)
    assert found[0] == "test_0"
    assert hint_of(failed(missing, "ModuleNotFoundError: No module named 'yaml'")) == (
        "add --package freezegun --package PyYAML"
    )
