"""Read check commands without running them.

`read_invocation` returns the program that an argument list really starts, its folder and its
environment. `find_deciders` returns the files of a workspace that decide a command's result:
they are protected. A script decides if no other command reads its output; so do reference files
for a comparison, and files named as checks.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise, takewhile
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.workspace import Tree

ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
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
        while words and ASSIGNMENT.match(words[0]):
            name, _, value = words[0].partition("=")
            env[name] = value
            words = words[1:]
        if words[:1] and words[0].startswith("-"):
            # An unknown option of `env`: the rest cannot be interpreted.
            return Invocation(words=argv, env={}, cwd=PurePosixPath())
    words = _without_python(_without_launcher(words))
    path = words[0] if words else ""
    if words:
        name = PurePosixPath(path).name
        words = (_OTHER_NAMES.get(name, name), *words[1:])
    return Invocation(words=words, env=env, cwd=cwd, path=path)


def with_environment(
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
                yield from (p for p in self.tree.files if _is_meant(p, path))

    def _modules(self, words: list[str], folder: PurePosixPath) -> _Paths:
        for option, name in pairwise(words):
            if option == "-m":
                parts = folder.joinpath(*name.split("."))
                files = (parts.with_name(f"{parts.name}.py"), parts / "__main__.py")
                yield from (p for p in (*files, parts / "__init__.py") if p in self.tree.files)

    def _within(self, words: list[str], folder: PurePosixPath, depth: int) -> _Paths:
        """Yield the protected files of texts that this command passes to a shell or to npm."""
        for option, text in pairwise(words):
            if option in _TEXT_OPTIONS and not words[0].startswith("python"):
                yield from self.read(text, folder, depth)
        package = folder / "package.json"
        if words[0] in _PACKAGED and package in self.tree.files:
            yield package
            for script in _scripts(self.tree.text(package) or "", words):
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
    return word in _LEADING or bool(ASSIGNMENT.match(word))


def _run_by(words: list[str], call: Invocation) -> list[str]:
    """Return what a command runs: itself, and the first argument of an interpreter."""
    if PurePosixPath(words[0]).name in _STARTERS:
        return words
    given = [word for word in call.arguments if not word.startswith("-")]
    script = given[:1] if _INTERPRETERS.fullmatch(call.program) else []
    return [words[0], call.path, *script]


def _joined(folder: PurePosixPath, word: str) -> PurePosixPath:
    return PurePosixPath(posixpath.normpath(str(folder / word)))


def _is_meant(path: PurePosixPath, glob: PurePosixPath) -> bool:
    return len(path.parts) == len(glob.parts) and all(
        fnmatchcase(part, pattern) for part, pattern in zip(path.parts, glob.parts, strict=True)
    )


def _scripts(package: str, words: list[str]) -> Iterator[str]:
    try:
        fields: Any = json.loads(package)
    except (ValueError, RecursionError):
        return
    scripts = _table(_table(fields).get("scripts"))
    for word in words[1:]:
        for name in (f"pre{word}", word, f"post{word}"):
            script = scripts.get(name)
            if isinstance(script, str):
                yield script


def _table(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
