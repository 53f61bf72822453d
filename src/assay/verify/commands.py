"""Split check commands into argument lists, and select the runner with the most evidence.

A command that belongs to no supported test runner is judged only by its exit code
(`PlainRunner`), which never gives the best grade.
"""

import fnmatch
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.errors import UsageError
from assay.contracts.execution import Command
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import CheckReport, Grade
from assay.contracts.workspace import Tree, project_env, project_script
from assay.verify.discovery import checks_for, find_tests
from assay.verify.parse_command import ASSIGNMENT, read_invocation, with_environment
from assay.verify.report_checks import explain_ending, printed_by
from assay.verify.runners.cargo import CargoRunner
from assay.verify.runners.ctest import CTestRunner
from assay.verify.runners.go import GoRunner
from assay.verify.runners.javascript import JestRunner, NodeRunner
from assay.verify.runners.junit import JUnitConsoleRunner, JUnitRunner
from assay.verify.runners.python import PytestRunner, UnittestRunner
from assay.verify.spec import CheckSpec, Observation, Runner

_SHELL: Final = ("bash", "-c")


class PlainRunner:
    """Any command that belongs to no supported test runner."""

    name = "command"
    most = Grade.CHECKED
    configuration: tuple[str, ...] = (
        "Makefile",
        "makefile",
        "GNUmakefile",
        "justfile",
        "tox.ini",
        "vitest.config.*",
        "vitest.workspace.*",
        "jest.config.*",
        ".mocharc*",
    )

    def understands(self, argv: tuple[str, ...]) -> bool:
        return bool(argv)

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        del order, tree
        return frozenset()

    async def run(
        self, order: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        result = await sandbox.run(_command(order), on_output=on_output)
        return Observation(
            report=CheckReport(
                command=order.command,
                runner=self.name,
                passed=result.succeeded,
                exit_code=result.exit_code,
                explanation=explain_ending(result),
                output=printed_by(result),
                duration_s=result.duration_s,
            )
        )


def _command(order: CheckSpec) -> Command:
    if order.argv[:-1] == _SHELL:
        return Command(argv=project_script(order.argv[-1]), timeout_s=order.timeout_s)
    env = project_env(read_invocation(order.argv).cwd)
    return Command(argv=order.argv, env=env, timeout_s=order.timeout_s)


__all__ = ["RUNNERS", "checks_for", "choose_runner", "find_tests", "split_command"]

RUNNERS: Final[tuple[Runner, ...]] = (
    PytestRunner(),
    UnittestRunner(),
    NodeRunner(),
    JestRunner(),
    CargoRunner(),
    GoRunner(),
    CTestRunner(),
    JUnitRunner(),
    JUnitConsoleRunner(),
)
_OPERATORS: Final = frozenset("&|;<>()$`\n{}")
_IN_DOUBLE_QUOTES: Final = frozenset("$`")
_AT_WORD_START: Final = frozenset("~#!")
_WILD: Final = frozenset("*?")
_CHANGE_FOLDER: Final = re.compile(
    r"cd\s+(?P<folder>[^\s&|;<>$`'\"*?]+)\s*&&\s*(?P<rest>.+)", re.DOTALL
)
_SCRIPTED: Final = re.compile(
    r"(?:npm|yarn|pnpm) (?:(?:run|run-script) test|test|t)(?: --)?(?P<rest>(?: .*)?)"
)
_DEEPEST_SCRIPT: Final = 3


def choose_runner(argv: tuple[str, ...]) -> Runner:
    """Return the runner that gives the most evidence for a command."""
    return next((runner for runner in RUNNERS if runner.understands(argv)), PlainRunner())


def split_command(command: str, tree: Tree | None = None) -> tuple[str, ...]:
    """Return the argument list of a command.

    With a tree, globs are expanded and `npm test` is replaced by its script; without one, the shell
    and npm do this.

    Raises:
        UsageError: If the command is empty, or its quotation marks are unbalanced.
    """
    return _split(command, tree, depth=0)


def _split(command: str, tree: Tree | None, depth: int) -> tuple[str, ...]:
    command = command.strip()
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(
            f"the check {command!r} cannot be read: {str(error).lower()}",
            hint="close every quotation mark, or put a backslash before one that is meant as it is",
        ) from error
    if not words:
        raise UsageError("a check is empty", hint='give a command, for example "pytest"')
    shell = ("bash", "-c", command)
    folder, rest = _folder_of(command)
    if _needs_shell(rest):
        return shell
    if rest != command:
        words = tuple(shlex.split(rest))
    env, words = _variables_of(words)
    if not words:
        return shell
    if _has_wildcards(rest):
        if tree is None:
            return shell
        words = tuple(_expanded(words, PurePosixPath(folder), tree))
    argv = with_environment(words, env=env, cwd=folder)
    return argv if tree is None else _script_behind(argv, tree, depth)


def _folder_of(command: str) -> tuple[str, str]:
    match = _CHANGE_FOLDER.fullmatch(command)
    if not match:
        return "", command
    folder = PurePosixPath(match["folder"])
    if folder.is_absolute() or ".." in folder.parts or match["folder"].startswith(("~", "-")):
        return "", command
    return ("" if folder == PurePosixPath() else str(folder)), match["rest"].strip()


def _variables_of(words: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    env: dict[str, str] = {}
    while words and ASSIGNMENT.match(words[0]):
        name, _, value = words[0].partition("=")
        env[name] = value
        words = words[1:]
    return env, words


def _bare(command: str) -> Iterator[tuple[str, str, bool]]:
    """Yield each unescaped character, with its quote and whether it starts a word."""
    quote = ""
    begins = True
    hidden = False
    for letter in command:
        if hidden:
            hidden = False
        elif letter == "\\" and quote != "'":
            hidden = True
        elif letter == quote:
            quote = ""
        elif not quote and letter in "'\"":
            quote = letter
        else:
            yield letter, quote, begins
        begins = not quote and letter.isspace() and letter != "\n"


def _needs_shell(command: str) -> bool:
    return any(
        (not quote and (letter in _OPERATORS or (begins and letter in _AT_WORD_START)))
        or (quote == '"' and letter in _IN_DOUBLE_QUOTES)
        for letter, quote, begins in _bare(command)
    )


def _has_wildcards(command: str) -> bool:
    return any(letter in _WILD and not quote for letter, quote, _ in _bare(command))


def _expanded(words: tuple[str, ...], folder: PurePosixPath, tree: Tree) -> Iterator[str]:
    """Yield the words as a shell does: globs are replaced by their matches, if there are any."""
    below = [path.relative_to(folder) for path in tree.files if path.is_relative_to(folder)]
    present = sorted(
        {"/".join(path.parts[: depth + 1]) for path in below for depth in range(len(path.parts))}
    )
    for word in words:
        pattern = word.removeprefix("./")
        prefix = word[: len(word) - len(pattern)]
        found = [name for name in present if _WILD & set(pattern) and _matches(name, pattern)]
        if found:
            yield from (prefix + name for name in found)
        else:
            yield word


def _matches(name: str, pattern: str) -> bool:
    parts, globs = name.split("/"), pattern.rstrip("/").split("/")
    return len(parts) == len(globs) and all(
        fnmatch.fnmatchcase(part, glob) and (not part.startswith(".") or glob.startswith("."))
        for part, glob in zip(parts, globs, strict=True)
    )


def _script_behind(argv: tuple[str, ...], tree: Tree, depth: int) -> tuple[str, ...]:
    """Return the single command behind `npm test`; otherwise the command itself."""
    call = read_invocation(argv)
    match = _SCRIPTED.fullmatch(shlex.join(call.words))
    scripts = _scripts(tree, call.cwd) if match else {}
    script = scripts.get("test")
    # Scripts that run before or after the main script make it more than one command.
    if (
        not match
        or not isinstance(script, str)
        or not script.strip()
        or depth >= _DEEPEST_SCRIPT
        or "pretest" in scripts
        or "posttest" in scripts
    ):
        return argv
    folder = f"cd {shlex.quote(str(call.cwd))} && " if call.cwd.parts else ""
    variables = "".join(f"{name}={shlex.quote(value)} " for name, value in call.env.items())
    try:
        found = _split(f"{folder}{variables}{script}{match['rest']}", tree, depth + 1)
    except UsageError:
        return argv
    return argv if found[:2] == ("bash", "-c") else found


def _scripts(tree: Tree, folder: PurePosixPath) -> dict[str, Any]:
    try:
        package: Any = json.loads(tree.text(folder / "package.json") or "{}")
    except (ValueError, RecursionError):
        return {}
    scripts = cast("dict[str, Any]", package).get("scripts") if isinstance(package, dict) else None
    return cast("dict[str, Any]", scripts) if isinstance(scripts, dict) else {}
