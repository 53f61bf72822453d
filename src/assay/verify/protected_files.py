"""Find the files of a workspace that decide a check command's result: they are protected.

A command runs the program to be written as well as the script that tests it. A script decides if no
other command reads its output. Reference files for a comparison decide too, and so do files named
as checks.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise, takewhile
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.workspace import Tree
from assay.verify.parse_command import ASSIGNMENT, Invocation, read_invocation

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
