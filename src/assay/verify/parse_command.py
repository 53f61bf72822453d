"""Read check commands without running them.

`split_command` returns the argument list of a command. `read_invocation` returns the program that
an argument list really starts, its folder and its environment. `find_deciders` returns the files of
a workspace that decide a command's result: they are protected. A script decides if no other command
reads its output; so do reference files for a comparison, and files named as checks.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.errors import UsageError
from assay.contracts.workspace import Tree
from assay.text.globs import matches_in_shell

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_CHDIR: Final = "--chdir="
_PYTHON: Final = re.compile(r"python(?:\d+(?:\.\d+)?)?", re.ASCII)
_PYTHON_FLAGS: Final = frozenset({"-B", "-E", "-I", "-P", "-q", "-s", "-S", "-u"})
_PYTHON_OPTIONS: Final = frozenset({"-W", "-X"})
_LAUNCHERS: Final[Mapping[tuple[str, ...], frozenset[str]]] = {
    # Launchers of the program named after them, with their flags that take no value.
    ("uv", "run"): frozenset({"--frozen", "--locked", "--offline", "--no-sync", "--no-project"}),
    ("poetry", "run"): frozenset(),
    ("pipenv", "run"): frozenset(),
    ("pdm", "run"): frozenset(),
    ("rye", "run"): frozenset(),
    ("hatch", "run"): frozenset(),
    ("npx",): frozenset({"-y", "--yes", "--no", "--no-install", "--offline"}),
    ("pnpm", "exec"): frozenset(),
    ("yarn", "exec"): frozenset(),
}
_OTHER_NAMES: Final = {"py.test": "pytest"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A command without its launchers."""

    words: tuple[str, ...]
    """The program's name and arguments; for `python -m NAME` the name of the module."""
    env: Mapping[str, str]
    cwd: PurePosixPath
    path: str = ""
    """The program as written: `/opt/js/node_modules/.bin/jest` for `jest`."""

    @property
    def program(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.words[1:]


def read_invocation(argv: tuple[str, ...]) -> Invocation:
    """Look behind `env`, launchers such as `uv run` and `npx`, and `python -m`."""
    env: dict[str, str] = {}
    cwd = PurePosixPath()
    words = argv
    if words[:1] == ("env",):
        words = words[1:]
        if words and words[0].startswith(_CHDIR):
            cwd = PurePosixPath(words[0].removeprefix(_CHDIR))
            words = words[1:]
        env, words = _split_variables(words)
        if words[:1] and words[0].startswith("-"):
            # An unknown option of `env`: the rest cannot be interpreted.
            return Invocation(words=argv, env={}, cwd=PurePosixPath())
    words = _without_python(_without_launcher(words))
    path = words[0] if words else ""
    if words:
        name = PurePosixPath(path).name
        words = (_OTHER_NAMES.get(name, name), *words[1:])
    return Invocation(words=words, env=env, cwd=cwd, path=path)


def _split_variables(words: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    env: dict[str, str] = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words[0].partition("=")
        env[name] = value
        words = words[1:]
    return env, words


def _with_environment(
    argv: tuple[str, ...], *, env: Mapping[str, str], cwd: str = ""
) -> tuple[str, ...]:
    """Return a complete command with these variables, in this folder."""
    if not env and not cwd:
        return argv
    folder = (f"{_CHDIR}{cwd}",) if cwd else ()
    return ("env", *folder, *(f"{name}={value}" for name, value in env.items()), *argv)


def _without_launcher(words: tuple[str, ...]) -> tuple[str, ...]:
    for launcher, flags in _LAUNCHERS.items():
        if words[: len(launcher)] != launcher:
            continue
        rest = words[len(launcher) :]
        while rest and rest[0] in flags:
            rest = rest[1:]
        if rest[:1] == ("--",):
            rest = rest[1:]
        return rest if rest and not rest[0].startswith("-") else words
    return words


def _without_python(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or not _PYTHON.fullmatch(PurePosixPath(words[0]).name):
        return words
    rest = words[1:]
    while rest and rest[0] in _PYTHON_FLAGS | _PYTHON_OPTIONS:
        rest = rest[2:] if rest[0] in _PYTHON_OPTIONS else rest[1:]
    return rest[1:] if rest[:1] == ("-m",) and len(rest) > 1 else words


def read_chain(argv: tuple[str, ...]) -> list[list[str]]:
    """Return the commands of `bash -c "A && B"`; none if the text has any other operator."""
    if argv[:-1] != _SHELL or _MORE_THAN_A_CHAIN.search(argv[-1]):
        return []
    try:
        steps = [shlex.split(step) for step in argv[-1].split("&&")]
    except ValueError:
        return []
    return steps if all(steps) else []


def read_package(tree: Tree, folder: PurePosixPath) -> dict[str, Any]:
    """Return the content of a `package.json`; empty if it is missing or invalid."""
    try:
        package: Any = json.loads(tree.text(folder / "package.json") or "{}")
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", package) if isinstance(package, dict) else {}


def table_of(package: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table in a `package.json`; empty if there is none."""
    table = package.get(name)
    return cast("dict[str, Any]", table) if isinstance(table, dict) else {}


_SHELL: Final = ("bash", "-c")
_MORE_THAN_A_CHAIN: Final = re.compile(r"[|;<>$`()]|(?<!&)&(?!&)|&&&")
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
    env, words = _split_variables(words)
    if not words:
        return shell
    if _has_wildcards(rest):
        if tree is None:
            return shell
        words = tuple(_expanded(words, PurePosixPath(folder), tree))
    argv = _with_environment(words, env=env, cwd=folder)
    return argv if tree is None else _script_behind(argv, tree, depth)


def _folder_of(command: str) -> tuple[str, str]:
    match = _CHANGE_FOLDER.fullmatch(command)
    if not match:
        return "", command
    folder = PurePosixPath(match["folder"])
    if folder.is_absolute() or ".." in folder.parts or match["folder"].startswith(("~", "-")):
        return "", command
    return ("" if folder == PurePosixPath() else str(folder)), match["rest"].strip()


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
    present = {path for file in below for path in (file, *file.parents)} - {PurePosixPath()}
    for word in words:
        pattern = word.removeprefix("./")
        prefix = word[: len(word) - len(pattern)]
        glob = PurePosixPath(pattern)
        found = [path for path in present if _WILD & set(pattern) and matches_in_shell(path, glob)]
        yield from sorted(f"{prefix}{path}" for path in found) or (word,)


def _script_behind(argv: tuple[str, ...], tree: Tree, depth: int) -> tuple[str, ...]:
    """Return the single command behind `npm test`; otherwise the command itself."""
    call = read_invocation(argv)
    match = _SCRIPTED.fullmatch(shlex.join(call.words))
    scripts = table_of(read_package(tree, call.cwd), "scripts") if match else {}
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


_Paths = Iterator[PurePosixPath]

_CALLED_A_CHECK: Final = re.compile(
    r"(?:^|[-_./])(?:checks?|tests?|verify|verifier|spec|expected|golden|judge)(?=$|[-_./])",
    re.IGNORECASE,
)
_SEPARATORS: Final = frozenset({"&&", "||", ";", "&", "|", "|&", "(", ")", ";;", "\n"})
_HANDS_ON: Final = frozenset({"|", "|&"})
_WRITES: Final = frozenset({">", ">>", ">|", "&>", ">&"})
_LEADING: Final = frozenset(
    {"!", "{", "if", "then", "else", "do", "while", "until", "time", "exec", "command", "nohup"}
)
_INTERPRETERS: Final = re.compile(
    r"python[\d.]*|node|deno|bun|ruby|perl|php|lua|(?:ba|da|z|k)?sh|source|\.|Rscript"
)
_STARTERS: Final = frozenset({"timeout", "env", "xargs", "sudo", "nice"})
_COMPARING: Final = frozenset({"diff", "cmp", "comm"})
_PACKAGED: Final = frozenset({"npm", "yarn", "pnpm", "npx", "bun"})
_TEXT_OPTIONS: Final = frozenset({"-c", "-lc", "-ec", "-exc"})
_DEEPEST: Final = 3


def find_deciders(command: str, tree: Tree, *, wanted: frozenset[PurePosixPath]) -> _Paths:
    """Yield the files that decide a command's result, except those that the agent must write.

    A file that is named as a check decides even if the goal mentions it.
    """
    here = PurePosixPath()
    for path in dict.fromkeys(_Reader(tree).read(command, here, depth=0)):
        if path not in wanted or _CALLED_A_CHECK.search(str(path)):
            yield path


@dataclass(frozen=True, slots=True)
class _Reader:
    tree: Tree

    def read(self, command: str, folder: PurePosixPath, depth: int) -> _Paths:
        """Yield the protected files of a shell text, in any form."""
        for words, ending in _commands(command):
            if words[0] == "cd" and len(words) > 1:
                folder = _joined(folder, words[1])
                continue
            call = read_invocation(tuple(words))
            inside = _joined(folder, str(call.cwd))
            yield from (p for p in self._files(words, inside) if _CALLED_A_CHECK.search(str(p)))
            if ending not in _HANDS_ON and not _WRITES & set(words):
                yield from self._files(_run_by(words, call), inside)
                yield from self._modules(words, inside)
            if call.program in _COMPARING:
                yield from self._files(words[1:], inside)
            if depth < _DEEPEST:
                yield from self._within(words, inside, depth + 1)

    def _files(self, words: list[str], folder: PurePosixPath) -> _Paths:
        for word in words:
            path = _joined(folder, word.partition("::")[0])
            if path in self.tree.files:
                yield path
            elif set("*?[") & set(word):
                yield from (p for p in self.tree.files if matches_in_shell(p, path))

    def _modules(self, words: list[str], folder: PurePosixPath) -> _Paths:
        for option, name in pairwise(words):
            if option == "-m":
                parts = folder.joinpath(*name.split("."))
                file = parts.with_name(f"{parts.name}.py")
                files = (file, parts / "__main__.py", parts / "__init__.py")
                yield from (path for path in files if path in self.tree.files)

    def _within(self, words: list[str], folder: PurePosixPath, depth: int) -> _Paths:
        """Yield the protected files of texts that this command passes to a shell or to npm."""
        for option, text in pairwise(words):
            if option in _TEXT_OPTIONS and not words[0].startswith("python"):
                yield from self.read(text, folder, depth)
        package = folder / "package.json"
        if words[0] in _PACKAGED and package in self.tree.files:
            yield package
            scripts = table_of(read_package(self.tree, folder), "scripts")
            for word in words[1:]:
                for name in (f"pre{word}", word, f"post{word}"):
                    if isinstance(script := scripts.get(name), str):
                        yield from self.read(script, folder, depth)


def _commands(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield each simple command without its prefix words, and the separator after it."""
    words: list[str] = []
    for word in (*_words(text), ";"):
        if word not in _SEPARATORS:
            words.append(word)
            continue
        leading = len(list(takewhile(_is_leading, words)))
        if words[leading:]:
            yield words[leading:], word
        words = []


def _words(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        try:
            yield from reader
        except ValueError:
            # A quotation over several lines; splitting its words is better than skipping them.
            yield from line.split()
        yield "\n"


def _is_leading(word: str) -> bool:
    return word in _LEADING or bool(_ASSIGNMENT.match(word))


def _run_by(words: list[str], call: Invocation) -> list[str]:
    """Return what a command runs: itself, and the first argument of an interpreter."""
    if PurePosixPath(words[0]).name in _STARTERS:
        return words
    given = [word for word in call.arguments if not word.startswith("-")]
    script = given[:1] if _INTERPRETERS.fullmatch(call.program) else []
    return [words[0], call.path, *script]


def _joined(folder: PurePosixPath, word: str) -> PurePosixPath:
    return PurePosixPath(posixpath.normpath(str(folder / word)))
