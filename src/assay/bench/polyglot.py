"""The Polyglot benchmark: 225 Exercism exercises in six languages, from a Git clone.

Includes the download of the clone at a pinned commit, and the old crates without a Debian package
that reference solutions need.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Final, get_args

import anyio
from pydantic import BaseModel, ConfigDict

from assay.bench.exercise import Exercise, Language, Suite
from assay.contracts.errors import AssayError, UsageError
from assay.contracts.workspace import Tree, TreeFile

_HASH: Final = re.compile(r"[0-9a-f]{40}")


def commit_of(folder: Path) -> str | None:
    """Return the commit of a clone; None if the folder is not a clone."""
    git = folder / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if _HASH.fullmatch(head):
            return head
        name = head.removeprefix("ref: ").strip()
        if (git / name).is_file():
            return (git / name).read_text().strip()
        lines = (git / "packed-refs").read_text().splitlines()
    except OSError:
        return None
    return next((line[:40] for line in lines if line[40:].strip() == name), None)


async def pull(
    url: str, commit: str, folder: Path, on_notice: Callable[[str], None] = lambda _: None
) -> bool:
    """Ensure a clone at exactly this commit; returns whether a download was needed.

    Downloads only that commit, and renames the result into place when it is complete and has the
    requested commit: git names commits by content.

    Raises:
        UsageError: If the folder has other content, or the commit does not exist.
        AssayError: If git is not installed, or fails.
    """
    if await anyio.Path(folder).exists():
        found = commit_of(folder)
        if found != commit:
            raise UsageError(
                f"{str(folder)!r} is at {found or 'no commit'}, not at {commit}",
                hint="remove it, or name another folder with --to",
            )
        return False
    if shutil.which("git") is None:
        raise AssayError("git is not installed", hint="run `apt-get install git`")
    on_notice(f"fetching commit {commit[:12]} of {url}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        await _git("init", "--quiet", str(partial))
        await _git("-C", str(partial), "fetch", "--quiet", "--depth", "1", url, commit)
        await _git("-C", str(partial), "checkout", "--quiet", "--detach", "FETCH_HEAD")
        if commit_of(partial) != commit:
            raise UsageError(f"{url} does not have the commit {commit}")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True


async def _git(*words: str) -> None:
    # No hooks, no prompts: nothing from the repository runs here.
    command = ["git", "-c", "core.hooksPath=/dev/null", *words]
    result = await anyio.run_process(command, check=False, stdin=None)
    if result.returncode != 0:
        told = result.stderr.decode("utf-8", "replace").strip().splitlines()
        raise AssayError(
            f"git failed: {told[-1] if told else f'exit code {result.returncode}'}",
            hint="check the address and the network, or clone it yourself and give --dataset",
        )


_VERSION: Final = re.compile(r'((?:^[\w-]+|version)\s*=\s*)"[^"]*"', re.MULTILINE)
_OLD_RAND: Final = re.compile(r'^rand\s*=\s*"0\.3[^"]*"', re.MULTILINE)
_RAND_FOLDER: Final = "rand-0.3"
_RAND_MANIFEST: Final = '[package]\nname = "rand"\nversion = "0.3.0"\nedition = "2021"\n'
_RAND_SOURCE: Final = """\
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

pub struct ThreadRng(u64);

pub fn thread_rng() -> ThreadRng {
    ThreadRng(RandomState::new().build_hasher().finish())
}

pub trait Rng {
    fn next_u64(&mut self) -> u64;

    fn choose<'a, T>(&mut self, values: &'a [T]) -> Option<&'a T> {
        let place = self.next_u64() as usize % values.len().max(1);
        values.get(place)
    }
}

impl Rng for ThreadRng {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 16
    }
}
"""


def relaxed(manifest: str) -> dict[PurePosixPath, str]:
    """Return the files of a manifest that accepts any version of its crates, or a replacement.

    The exact version does not matter if the reference compiles.
    """
    head, mark, dependencies = manifest.partition("[dependencies]")
    files: dict[PurePosixPath, str] = {}
    loose = _VERSION.sub(r'\1"*"', dependencies)
    if _OLD_RAND.search(dependencies):
        loose = re.sub(r"(?m)^rand = .*$", f'rand = {{ path = "{_RAND_FOLDER}" }}', loose)
        files[PurePosixPath(_RAND_FOLDER, "Cargo.toml")] = _RAND_MANIFEST
        files[PurePosixPath(_RAND_FOLDER, "src/lib.rs")] = _RAND_SOURCE
    files[PurePosixPath("Cargo.toml")] = head + mark + loose
    return files


URL: Final = "https://github.com/Aider-AI/polyglot-benchmark"
COMMIT: Final = "7e0611e77b54e2dea774cdc0aa00cf9f7ed6144f"
"""The benchmark's commit that the public leaderboard uses."""
_HIDDEN: Final = frozenset({".meta", ".docs", ".approaches", ".articles", ".git"})
_NOT_NEEDED: Final = frozenset({"gradle", "gradlew", "gradlew.bat", ".gradle", "node_modules"})
_DOCS: Final = ("introduction.md", "instructions.md", "instructions.append.md")
_NEVER_SOLUTION: Final = frozenset({"CMakeLists.txt", "Cargo.toml"})
_HINT: Final = "give --dataset a clone of the benchmark, or run `assay bench pull polyglot`"

_DISABLED: Final = re.compile(r"@Disabled\([^)]*\)\s*\n")
_DISABLED_IN_ANY_WAY: Final = re.compile(r"@Disabled(?:\([^)]*\))?[ \t]*\n?")
_XTEST: Final = re.compile(r"\bxtest\(")
_SKIPPED_IN_ANY_WAY: Final = re.compile(r"\b(?:x(?=(?:test|it|describe)\()|(?<=test)\.skip(?=\())")


class _Files(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    solution: tuple[str, ...]
    test: tuple[str, ...]
    example: tuple[str, ...] = ()
    editor: tuple[str, ...] = ()


def load_polyglot(folder: Path, *, strict: bool = False) -> Suite:
    """Read every exercise of a clone.

    Args:
        folder: Where the clone is; it may lack languages and exercises.
        strict: Also run tests that the original harness skips.

    Raises:
        UsageError: If there is no exercise, or one of them is damaged.
    """
    exercises = [
        _load(place, language, strict=strict)
        for language in get_args(Language)
        for place in sorted((folder / language / "exercises" / "practice").glob("*"))
        if (place / ".meta" / "config.json").is_file()
    ]
    if not exercises:
        raise UsageError(f"there is no exercise in {str(folder)!r}", hint=_HINT)
    commit = commit_of(folder)
    source = "a folder without a commit" if commit is None else f"commit {commit}"
    if commit not in {None, COMMIT}:
        source += " (not the pinned one)"
    return Suite(name="polyglot", source=source, exercises=tuple(exercises))


def _load(place: Path, language: Language, *, strict: bool) -> Exercise:
    try:
        config: Any = json.loads((place / ".meta" / "config.json").read_text(encoding="utf-8"))
        names = _Files.model_validate(config["files"])
        return _exercise(place.name, language, names, read_files(place), strict=strict)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"the exercise {language}/{place.name} is damaged: {type(error).__name__}: {error}",
            hint=_HINT,
        ) from error


Files = dict[PurePosixPath, TreeFile]


def read_files(folder: Path) -> Files:
    """Read the regular files of a folder, by their path in it."""
    found: Files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts:
            executable = bool(path.stat().st_mode & 0o100)
            found[PurePosixPath(path.relative_to(folder))] = TreeFile(path.read_bytes(), executable)
    return found


def _exercise(
    slug: str, language: Language, names: _Files, files: Files, *, strict: bool
) -> Exercise:
    """Build an exercise from its files; raises `KeyError` if one is missing."""
    solution = tuple(
        path for path in map(PurePosixPath, names.solution) if path.name not in _NEVER_SOLUTION
    )
    if missing := set(solution) - files.keys():
        raise KeyError(*missing)
    # Go tests have their cases in separate files, which contain the answers.
    cases = [name for name in names.editor if name.endswith("_test.go")]
    tests = {
        path: _unskipped(path, files[path], strict=strict)
        for path in map(PurePosixPath, (*names.test, *cases))
    }
    workspace = {
        path: file
        for path, file in files.items()
        if path.parts[0] not in _HIDDEN | _NOT_NEEDED and path not in tests
    }
    # The reference has the file names of the solution; in Java, one for each class.
    by_suffix = {path.suffix: path for path in solution}
    reference: Files = {}
    for path in map(PurePosixPath, names.example):
        if language == "java":
            reference[PurePosixPath("src/main/java", path.name)] = files[path]
        elif path.suffix in by_suffix:
            reference[by_suffix[path.suffix]] = files[path]
    setup: Files = {}
    if manifest := files.get(PurePosixPath(".meta/Cargo-example.toml")):
        for path, text in relaxed(manifest.content.decode()).items():
            setup[path] = TreeFile(text.encode())
    docs = (files.get(PurePosixPath(".docs", name)) for name in _DOCS)
    # CMake derives names from the folder, so the exercise needs a folder with its name.
    root = PurePosixPath(slug) if language == "cpp" else PurePosixPath()

    def tree_of(files: Files) -> Tree:
        return Tree(files={root / path: file for path, file in files.items()})

    return Exercise(
        id=f"{language}/{slug}",
        language=language,
        docs="".join(file.content.decode() for file in docs if file is not None),
        workspace=tree_of(workspace),
        solution=tuple(root / path for path in solution),
        tests=tree_of(tests),
        reference=tree_of(reference),
        reference_setup=tree_of(setup),
        folder=root,
        # One file per class: a solution may need more files than there are stubs.
        allowed=("src/main/java/*.java",) if language == "java" else (),
    )


def _unskipped(path: PurePosixPath, file: TreeFile, *, strict: bool) -> TreeFile:
    """Return a test file with the tests enabled that the harness enables."""
    text = file.content.decode()
    if path.suffix == ".java":
        text = (_DISABLED_IN_ANY_WAY if strict else _DISABLED).sub("", text)
    elif path.suffix == ".js":
        text = _SKIPPED_IN_ANY_WAY.sub("", text) if strict else _XTEST.sub("test(", text)
    return TreeFile(text.encode(), file.executable)
