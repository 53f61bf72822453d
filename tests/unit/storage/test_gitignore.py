import os
import shutil
import subprocess  # noqa: TID251 - git is what this is compared with
from pathlib import Path

import pytest

from assay.storage.gitignore import is_ignored, look_up_repository, parse_rules

PATHS = [
    "a.log", "keep.log", "sub/a.log", "sub/keep.log", "build/out.bin", "sub/build/out.bin",
    "doc/a.txt", "doc/deep/a.txt", "x/y/z.tmp", "x/z.tmp", "foo", "foo/bar", "a b", "a ", "#hash",
    "!bang", "b1.c", "b2.c", "bx.c", "b].c", "b-.c", "star*name", "starxname", "q?", "qq",
    "deep/a/b/c.dat", "c.dat", ".env", "sub/.env", "A.LOG", "[a]", "x/build",
]  # fmt: skip
TABLE = [
    "*.log\n!keep.log",
    "build/",
    "/build/",
    "build",
    "doc/*.txt",
    "doc/**",
    "doc/**/*.txt",
    "**/z.tmp",
    "x/**/z.tmp",
    "/foo",
    "foo/\n!foo/bar",
    "foo/*\n!foo/bar",
    "a\\ \na b   ",
    "a   ",
    "\\#hash\n# comment",
    "\\!bang",
    "b[0-9].c",
    "b[!0-9].c",
    "b[^0-9].c",
    "b[]-].c",
    "b[[:digit:]].c",
    "star\\*name",
    "q?",
    "deep/**/c.dat",
    "deep/**/",
    "**",
    "*",
    "*\n!*/\n!*.c",
    "\ufeff*.log",
    "*.log\r\nfoo\r\n",
    "[a",
    "\\[a\\]",
    "foo\\",
    "sub/*.log",
    "/*.log",
    "sub**log",
    "***.log",
    "/",
    "!",
]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not there")
    git(tmp_path, "init", "--quiet")
    return tmp_path


def git(root: Path, *words: str, given: str = "") -> str:
    program = shutil.which("git")
    assert program
    # Without the person's own ignore file.
    surroundings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(root)}
    done = subprocess.run(
        [program, "-C", str(root), *words],
        input=given.encode(),
        env=surroundings,
        stdout=subprocess.PIPE,
        check=False,
    )
    return done.stdout.decode()


def ours(rules_by_folder: dict[str, str], path: str) -> bool:
    """Go down to a path as a walk over folders does."""
    rules = parse_rules(rules_by_folder[""].encode(), "")
    parts = path.split("/")
    for depth in range(1, len(parts)):
        folder = "/".join(parts[:depth])
        if is_ignored(rules, folder, folder=True):
            return True
        rules += parse_rules(rules_by_folder.get(folder, "").encode(), f"{folder}/")
    return is_ignored(rules, path, folder=False)


@pytest.mark.parametrize("rules", TABLE)
def test_the_same_is_ignored_as_by_git(repository: Path, rules: str) -> None:
    (repository / ".gitignore").write_bytes(rules.encode())

    told = git(repository, "check-ignore", "--no-index", "-z", "--stdin", given="\0".join(PATHS))

    assert [path for path in PATHS if ours({"": rules}, path)] == told.split("\0")[:-1]


def test_nested_files_add_to_the_outer_ones_and_override_them(repository: Path) -> None:
    nested = {"": "*.log\nfoo\n", "sub": "!keep.log\n.env\n/build", "doc": "*.txt\n!/a.txt"}
    for folder, rules in nested.items():
        (repository / folder).mkdir(exist_ok=True)
        (repository / folder / ".gitignore").write_text(rules)

    told = git(repository, "check-ignore", "--no-index", "-z", "--stdin", given="\0".join(PATHS))

    assert [path for path in PATHS if ours(nested, path)] == told.split("\0")[:-1]


@pytest.mark.parametrize("version", ["2", "4"])
def test_tracked_files_are_read_from_the_index(repository: Path, version: str) -> None:
    names = ["tracked/one.txt", "tracked/inner/two.txt", "tracked/inner/zwei-ü.txt"]
    for name in names:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(name)
    git(repository, "add", "--force", *names)
    (repository / "tracked" / "intended").write_text("")
    git(repository, "add", "--intent-to-add", "--force", "tracked/intended")
    git(repository, "update-index", "--index-version", version)

    found = look_up_repository(repository / "tracked")

    assert found.prefix == "tracked/"
    assert found.tracked >= {*names, "tracked", "tracked/inner", "tracked/intended"}


@pytest.mark.parametrize("where", ["usual", "named"])
def test_the_own_ignore_file_of_a_person_counts_and_is_the_weakest(
    repository: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    home = repository / "home"
    (home / ".config" / "git").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL"):
        monkeypatch.delenv(name, raising=False)
    if where == "named":
        (home / ".gitconfig").write_text("[user]\n\tname = x\n[core]\n\texcludesFile = ~/mine\n")
    path = home / "mine" if where == "named" else home / ".config" / "git" / "ignore"
    path.write_text("*.private\n*.log\n")
    (repository / ".git" / "info").mkdir(exist_ok=True)
    (repository / ".git" / "info" / "exclude").write_text("!keep.log\n")

    rules = look_up_repository(repository).rules

    told = [is_ignored(rules, name, folder=False) for name in ("a.private", "a.log", "keep.log")]
    assert told == [True, True, False]


def test_a_worktree_has_the_excluded_paths_of_its_repository(repository: Path) -> None:
    git(
        repository,
        "-c",
        "user.name=x",
        "-c",
        "user.email=x@x",
        "commit",
        "-qm",
        "x",
        "--allow-empty",
    )
    git(repository, "worktree", "add", "-q", "there")
    (repository / ".git" / "info" / "exclude").write_text("private.txt\n")

    rules = look_up_repository(repository / "there").rules

    assert is_ignored(rules, "private.txt", folder=False)


def test_a_folder_that_is_ignored_itself_has_no_rules_from_above(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / ".gitignore").write_text("made/\n*.log\n")
    (repository / "made" / "here").mkdir(parents=True)
    (repository / "other").mkdir(exist_ok=True)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(repository / "none"))

    assert not look_up_repository(repository / "made" / "here").rules
    assert len(look_up_repository(repository / "other").rules) == 2


def test_an_index_that_is_damaged_tracks_nothing(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(b"DIRC\0\0\0\2\0\0\0\5short")

    assert look_up_repository(tmp_path).tracked == frozenset()
