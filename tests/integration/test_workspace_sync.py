"""Files into a real sandbox and back out of it, also when what comes back is hostile."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path, PurePosixPath

import pytest

import assay
from assay.contracts.errors import UsageError
from assay.contracts.ports import SandboxBackend
from assay.contracts.workspace import FileChange
from assay.runs.workspace_sync import Changes, Upload, download, upload
from tests.support.backends import open_native

LIMITS = assay.Limits(wall_s=20, disk_mb=128)


@pytest.fixture(scope="module")
async def backend() -> AsyncGenerator[SandboxBackend]:
    async with open_native("namespaces") as opened:
        yield opened


@pytest.fixture
async def box(backend: SandboxBackend) -> AsyncGenerator[assay.Sandbox]:
    async with backend.open_sandbox(LIMITS) as sandbox:
        yield sandbox


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("print('one')\n")
    (folder / "notes.txt").write_text("keep\n")
    (folder / "old.txt").write_text("old\n")
    tool = folder / "tool.sh"
    tool.write_text("#!/bin/sh\necho tool\n")
    tool.chmod(0o750)
    return folder


async def run_in(box: assay.Sandbox, source: str) -> None:
    result = await box.run(assay.PythonCode(source=source.encode()))
    assert result.succeeded, result.stderr


async def changed_by(box: assay.Sandbox, folder: Path, source: str) -> Changes:
    sent = await upload(box, folder)
    await run_in(box, source)
    return await sent.changes()


def kinds(changes: tuple[FileChange, ...]) -> dict[str, str]:
    return {str(change.path): change.kind for change in changes}


async def test_what_is_withheld_stays_out_and_as_it_is(box: assay.Sandbox, project: Path) -> None:
    (project / ".gitignore").write_text("local.json\n")
    (project / "local.json").write_text("mine")
    (project / ".env").write_text("A=1")
    act = (
        "import os; assert not os.path.exists('local.json'); assert os.path.exists('.env')\n"
        "open('local.json', 'w').write('theirs'); open('made.txt', 'w').write('x')"
    )

    sent = await upload(box, project, include=[".env"])
    await run_in(box, act)
    changes = await sent.changes()
    await changes.apply()

    assert kinds(changes.files) == {"made.txt": "added"}
    assert [str(one.path) for one in changes.left_out] == ["local.json"]
    assert (project / "local.json").read_text() == "mine"


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


async def test_a_program_works_on_a_copy(box: assay.Sandbox, project: Path) -> None:
    before = contents(project)

    changes = await changed_by(
        box,
        project,
        "import os; open('src/main.py', 'a').write('# more\\n'); os.remove('old.txt');"
        "open('out.csv', 'w').write('a,b\\n')",
    )

    assert contents(project) == before
    assert kinds(changes.files) == {
        "old.txt": "deleted",
        "out.csv": "added",
        "src/main.py": "modified",
    }
    assert "+# more" in changes.diff()
    assert [(str(one.path), one.media_type) for one in changes.artifacts] == [
        ("out.csv", "text/csv"),
        ("src/main.py", "text/x-python"),
    ]


async def test_changes_are_applied_on_request_with_modes_and_deletions(
    box: assay.Sandbox, project: Path
) -> None:
    changes = await changed_by(
        box,
        project,
        "import os; os.remove('old.txt'); open('tool.sh', 'a').write('# x\\n');"
        "os.makedirs('new/deep'); open('new/deep/run', 'w').write('#!/bin/sh\\n');"
        "os.chmod('new/deep/run', 0o755)",
    )

    await changes.apply()

    assert sorted(contents(project)) == ["new/deep/run", "notes.txt", "src/main.py", "tool.sh"]
    assert (project / "tool.sh").stat().st_mode & 0o777 == 0o750
    assert os.access(project / "new" / "deep" / "run", os.X_OK)


async def test_a_file_that_was_changed_meanwhile_is_a_conflict_and_nothing_is_written(
    box: assay.Sandbox, project: Path
) -> None:
    changes = await changed_by(
        box, project, "open('notes.txt', 'w').write('theirs'); open('a-first', 'w').write('x')"
    )
    (project / "notes.txt").write_text("mine\n")
    before = contents(project)

    with pytest.raises(UsageError, match=r"notes\.txt: differs"):
        await changes.apply()

    assert contents(project) == before


async def test_a_new_file_does_not_write_over_one_that_came_meanwhile(
    box: assay.Sandbox, project: Path
) -> None:
    changes = await changed_by(box, project, "open('new.txt', 'w').write('theirs')")
    (project / "new.txt").write_text("mine")

    with pytest.raises(UsageError, match=r"new\.txt: is there already"):
        await changes.apply()

    assert (project / "new.txt").read_text() == "mine"


async def test_links_devices_and_pipes_stay_in_the_sandbox(
    box: assay.Sandbox, project: Path
) -> None:
    changes = await changed_by(
        box,
        project,
        "import os; os.symlink('/etc/passwd', 'leak'); os.mkfifo('pipe');"
        "os.symlink('..', 'up'); os.link('notes.txt', 'twin')",
    )

    assert kinds(changes.files) == {"twin": "added"}
    assert {str(one.path) for one in changes.left_out} == {"leak", "pipe", "up"}
    await changes.apply()
    assert (project / "twin").read_text() == "keep\n"
    assert not (project / "leak").exists()


async def test_a_file_that_became_a_link_is_not_deleted_from_the_folder(
    box: assay.Sandbox, project: Path
) -> None:
    changes = await changed_by(
        box,
        project,
        "import os, shutil; os.remove('notes.txt'); os.symlink('/etc/passwd', 'notes.txt');"
        "shutil.rmtree('src'); os.symlink('/etc', 'src')",
    )

    assert changes.files == ()
    await changes.apply()
    assert contents(project)["notes.txt"] == "keep\n"
    assert contents(project)["src/main.py"] == "print('one')\n"


async def test_what_is_too_large_stays_and_is_named(box: assay.Sandbox, project: Path) -> None:
    changes = await changed_by(
        box,
        project,
        "open('huge', 'wb').truncate(100 << 20); open('notes.txt', 'wb').truncate(90 << 20)",
    )

    assert changes.files == ()
    assert {str(one.path) for one in changes.left_out} == {"huge", "notes.txt"}


async def test_a_link_in_the_folder_is_not_written_through(
    box: assay.Sandbox, project: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / "data").symlink_to(outside)
    changes = await changed_by(
        box, project, "import os; os.mkdir('data'); open('data/x', 'w').write('out')"
    )

    with pytest.raises(UsageError, match="nothing was written"):
        await changes.apply()

    assert list(outside.iterdir()) == []


async def test_links_of_the_folder_are_not_copied(
    box: assay.Sandbox, project: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (project / "link").symlink_to(secret)

    await upload(box, project)

    assert "link" not in {str(entry.path) for entry in await box.list_files()}


async def test_what_is_left_out_of_the_copy_is_left_alone_in_the_folder(
    box: assay.Sandbox, project: Path
) -> None:
    (project / ".git").mkdir()
    (project / ".git" / "config").write_text("mine")
    (project / "big.bin").write_text("mine")
    sent = await upload(box, project, exclude=["*.bin"])
    await run_in(
        box,
        "import os; os.mkdir('.git'); open('.git/config', 'w').write('theirs');"
        "open('big.bin', 'w').write('theirs'); os.mkdir('env');"
        "open('env/pyvenv.cfg', 'w').close(); open('env/x', 'w').close()",
    )

    changes = await sent.changes()

    assert changes.files == ()
    assert [str(one.path) for one in changes.left_out] == ["env"]


async def test_odd_names_come_back_and_are_quoted_in_the_diff(
    box: assay.Sandbox, project: Path
) -> None:
    changes = await changed_by(
        box,
        project,
        r"""
for name in [b"line\nbreak", b"caf\xe9", b"\x1b[31mred", "A.txt", "a.txt", "e\u0301", "\u00e9"]:
    open(name, "w").write("x\n")
""",
    )

    assert len(changes.files) == 7
    assert "\x1b" not in changes.diff()
    assert '+++ b/"line\\nbreak"' in changes.diff()
    await changes.apply()
    assert (project / "line\nbreak").read_text() == "x\n"
    assert (project / "caf\udce9").read_text() == "x\n"


async def test_one_file_is_uploaded_by_its_name(box: assay.Sandbox, project: Path) -> None:
    sent = await assay.upload(box, project / "notes.txt")

    assert isinstance(sent, Upload)
    assert [str(entry.path) for entry in await box.list_files()] == ["notes.txt"]
    await run_in(box, "open('notes.txt', 'a').write('more\\n')")
    await (await sent.changes()).apply()
    assert (project / "notes.txt").read_text() == "keep\nmore\n"


async def test_a_download_does_not_write_over_files_unless_asked(
    box: assay.Sandbox, tmp_path: Path
) -> None:
    await box.write_file(PurePosixPath("a/b.json"), b"{}")
    await box.write_file(PurePosixPath("c"), b"new")
    out = tmp_path / "out"

    assert [one.media_type for one in await download(box, out)] == [
        "application/json",
        "text/plain",
    ]
    (out / "c").write_text("mine")
    with pytest.raises(UsageError, match="c: is there already"):
        await download(box, out)
    assert (out / "c").read_text() == "mine"
    await assay.download(box, out, replace=True)
    assert (out / "c").read_text() == "new"


async def test_a_download_does_not_follow_links_of_its_folder(
    box: assay.Sandbox, tmp_path: Path
) -> None:
    await box.write_file(PurePosixPath("a/b"), b"out")
    outside = tmp_path / "outside"
    outside.mkdir()
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").symlink_to(outside)

    with pytest.raises(UsageError, match="nothing was written"):
        await download(box, out, replace=True)

    assert list(outside.iterdir()) == []


async def test_progress_is_told_in_bytes(box: assay.Sandbox, project: Path) -> None:
    told: list[tuple[int, int, str]] = []

    await upload(box, project, on_progress=lambda *what: told.append(what))

    total = sum(len(text) for text in contents(project).values())
    assert told[0] == (0, total, "notes.txt")
    assert told[-1] == (total, total, "")


async def test_what_cannot_be_uploaded_says_why(box: assay.Sandbox, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(UsageError, match="No such file"):
        await upload(box, tmp_path / "nothing")
    with pytest.raises(UsageError, match="neither a folder nor a file"):
        await upload(box, tmp_path / "pipe")
