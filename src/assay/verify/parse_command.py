"""Read an argument list: the program that it really starts, its folder and its environment.

`env FOO=1 uv run pytest -x`, `python3 -m pytest -x` and `pytest -x` are the same check.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

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
