"""A folder is read without following anything out of it, and not without end."""

import os
from pathlib import Path, PurePosixPath

import pytest

from assay.contracts.errors import UsageError
from assay.contracts.workspace import Tree, TreeFile
from assay.storage.read_workspace import Caps, read_workspace, write_tree


def fill(folder: Path, *paths: str, content: bytes = b"x") -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def names(tree: Tree) -> list[str]:
    return sorted(str(path) for path in tree.files)


def test_files_are_read_with_contents_and_modes(tmp_path: Path) -> None:
    fill(tmp_path, "a.py", "deep/er/b.bin", content=b"\x00\xff")
    fill(tmp_path, "run.sh")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "nothing in it").mkdir()

    assert read_workspace(tmp_path) == Tree(
        files={
            PurePosixPath("a.py"): TreeFile(b"\x00\xff"),
            PurePosixPath("deep/er/b.bin"): TreeFile(b"\x00\xff"),
            PurePosixPath("run.sh"): TreeFile(b"x", executable=True),
        }
    )


def test_a_link_is_named_and_not_followed(tmp_path: Path) -> None:
    fill(tmp_path, "secret/key", "work/a.py")
    work = tmp_path / "work"
    (work / "file").symlink_to(tmp_path / "secret" / "key")
    (work / "folder").symlink_to(tmp_path / "secret")
    (work / "circle").symlink_to(work)
    os.mkfifo(work / "pipe")

    tree = read_workspace(work)

    assert names(tree) == ["a.py"]
    assert [str(link) for link in tree.links] == ["circle", "file", "folder", "pipe"]


def test_a_workspace_may_itself_be_reached_through_a_link(tmp_path: Path) -> None:
    fill(tmp_path, "real/a.py")
    (tmp_path / "link").symlink_to(tmp_path / "real")

    assert names(read_workspace(tmp_path / "link")) == ["a.py"]


def test_what_can_be_made_again_is_left_out(tmp_path: Path) -> None:
    fill(tmp_path, "a.py", ".gitignore", "src/git/b.py", "target/keep.rs", "notes/CACHEDIR.TAG")
    fill(tmp_path, ".git/config", "sub/.git", "src/__pycache__/a.pyc", "stray.pyc")
    fill(tmp_path, "node_modules/x/i.js", ".venv/x", ".assay/x.certificate.json", ".tox/x")
    fill(tmp_path, "env-by-another-name/pyvenv.cfg", "env-by-another-name/lib/x.py")
    fill(tmp_path, "built/debug/app")
    fill(
        tmp_path,
        "built/CACHEDIR.TAG",
        content=b"Signature: 8a477f597d28d172789f06886806bc55\n# made by a tool",
    )

    assert names(read_workspace(tmp_path)) == [
        ".gitignore",
        "a.py",
        "notes/CACHEDIR.TAG",
        "src/git/b.py",
        "target/keep.rs",
    ]


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        (("*.csv",), ["a.py", "data/b.py", "data/raw/d.py"]),
        (("data",), ["a.py", "c.csv"]),
        (("data/",), ["a.py", "c.csv"]),
        (("data/raw",), ["a.py", "c.csv", "data/b.py", "data/c.csv"]),
        (("data/*.csv", "a.py"), ["c.csv", "data/b.py", "data/raw/d.py"]),
        (("b.p[xy]", "raw"), ["a.py", "c.csv", "data/c.csv"]),
    ],
)
def test_a_person_can_leave_more_out(
    tmp_path: Path, exclude: tuple[str, ...], left: list[str]
) -> None:
    fill(tmp_path, "a.py", "c.csv", "data/b.py", "data/c.csv", "data/raw/d.py")

    assert names(read_workspace(tmp_path, exclude=exclude)) == left


def test_a_file_that_is_too_large_is_withheld_with_its_size(tmp_path: Path) -> None:
    fill(tmp_path, "data/big.bin", content=b"x" * 1001)
    path = PurePosixPath("data/big.bin")

    (withheld,) = read_workspace(tmp_path, caps=Caps(file_bytes=1000)).withheld
    assert (withheld.path, withheld.why) == (path, "too large: 1,001 bytes")
    assert names(read_workspace(tmp_path, caps=Caps(file_bytes=1001))) == ["data/big.bin"]
    included = read_workspace(tmp_path, include=(path,), caps=Caps(file_bytes=1000))
    assert names(included) == ["data/big.bin"]

    with pytest.raises(UsageError, match=r"'data/big\.bin' has 1,001 bytes") as refusal:
        read_workspace(tmp_path, include=(path,), caps=Caps(file_bytes=9, total_bytes=1000))
    assert "--exclude 'data/big.bin'" in refusal.value.hint


def test_names_that_the_user_adds_are_withheld(tmp_path: Path) -> None:
    fill(tmp_path, "a.vault", "vault/key", "sub/b.vault", "kept")

    read = read_workspace(tmp_path, secret_names=("*.vault", "vault"))

    assert names(read) == ["kept"]
    assert [str(one) for one in read.withheld] == ["a.vault", "sub/b.vault", "vault/"]
    assert "workspace.secret_names" in read.withheld[0].why
    path = PurePosixPath("a.vault")
    read = read_workspace(tmp_path, include=(path,), secret_names=("*.vault", "vault"))
    assert names(read) == ["a.vault", "kept"]


def test_too_much_in_all_names_what_is_largest(tmp_path: Path) -> None:
    fill(tmp_path, "data/1", "data/2", content=b"x" * 400)
    fill(tmp_path, "a.py", "z/3", content=b"x" * 300)

    with pytest.raises(
        UsageError, match=r"1,000 bytes in all; .*: data \(800 bytes\), "
    ) as refusal:
        read_workspace(tmp_path, caps=Caps(total_bytes=1000))

    assert "--exclude 'data'" in refusal.value.hint
    assert len(read_workspace(tmp_path, caps=Caps(total_bytes=1400)).files) == 4


def test_too_many_files_name_where_they_are(tmp_path: Path) -> None:
    fill(tmp_path, *(f"many/{number}" for number in range(10)))

    with pytest.raises(UsageError, match=r"more than 9 files; .*: many \(9 files\)"):
        read_workspace(tmp_path, caps=Caps(files=9))

    assert len(read_workspace(tmp_path, caps=Caps(files=10)).files) == 10


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, "file")

    with pytest.raises(UsageError, match="is not a folder"):
        read_workspace(tmp_path / "file")
    with pytest.raises(UsageError, match="No such file"):
        read_workspace(tmp_path / "nothing")


def test_names_that_are_not_text_are_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "from") + b"/\xff")).write_bytes(b"x")

    tree = read_workspace(tmp_path / "from")
    write_tree(tmp_path / "to", tree)

    assert names(tree) == ["\udcff"]
    assert read_workspace(tmp_path / "to") == tree


def test_a_tree_is_written_into_a_new_folder(tmp_path: Path) -> None:
    fill(tmp_path / "from", "a.py", "b/c.sh")
    (tmp_path / "from/b/c.sh").chmod(0o755)
    tree = read_workspace(tmp_path / "from")

    write_tree(tmp_path / "deep" / "to", tree)

    assert read_workspace(tmp_path / "deep" / "to") == tree


def test_a_folder_that_holds_something_is_not_written_over(tmp_path: Path) -> None:
    fill(tmp_path, "mine")

    with pytest.raises(UsageError, match="is not empty"):
        write_tree(tmp_path, Tree(files={PurePosixPath("mine"): TreeFile(b"yours")}))

    assert (tmp_path / "mine").read_bytes() == b"x"


@pytest.mark.parametrize("path", ["../out", "/out", "a/../../out"])
def test_a_tree_cannot_be_written_outside_its_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(UsageError, match="leads out"):
        write_tree(tmp_path / "in", Tree(files={PurePosixPath(path): TreeFile(b"")}))

    assert not (tmp_path / "out").exists()
