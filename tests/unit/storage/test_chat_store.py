import json
import shutil
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from assay.cli.chat.commands import write_export
from assay.contracts.chat import (
    CellEnded,
    CellOutputDelta,
    CellStarted,
    ChatEvent,
    FileLoaded,
    ReplyDelta,
    StoredArtifact,
    TurnEnded,
    TurnStarted,
    history_of,
)
from assay.contracts.errors import JournalError, UsageError
from assay.contracts.messages import Usage
from assay.storage.chat_export import to_markdown, to_notebook
from assay.storage.chat_store import Session, SessionRecord, SessionStore, read_session_events

PNG = b"\x89PNG\r\n\x1a\nnot really"
FIGURE = StoredArtifact(
    name="figure-1.png", media_type="image/png", size_bytes=len(PNG), sha256="", source="figure"
)
TURN: tuple[ChatEvent, ...] = (
    FileLoaded(path="a.csv", size_bytes=3, about="1 row"),
    TurnStarted(turn=1, message="plot ``` it"),
    CellStarted(turn=1, step=1, thought="I plot.", code="plot()", usage=Usage(calls=1)),
    CellEnded(
        turn=1,
        step=1,
        code="plot()",
        observation="[figure shown]",
        failed=False,
        kept=True,
        artifacts=(FIGURE,),
        duration_s=0.1,
    ),
    TurnEnded(turn=1, status="answered", text="There.", usage=Usage(calls=1)),
)


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path)


@pytest.fixture(name="session")
def _session(store: SessionStore) -> Session:
    return store.create()


async def test_what_was_said_is_there_again(session: Session) -> None:
    async with SessionRecord(session.folder) as record:
        for event in TURN:
            record.emit(event)
    async with SessionRecord(session.folder) as again:
        assert again.events == TURN


async def test_what_only_passes_by_is_told_and_not_written(session: Session) -> None:
    heard: list[ChatEvent] = []
    async with SessionRecord(session.folder, listeners=(heard.append,)) as record:
        record.emit(ReplyDelta(text="hel"))
    assert heard == [ReplyDelta(text="hel")]
    assert read_session_events(session.folder) == ()


async def test_what_a_cell_printed_before_a_crash_is_in_its_history_and_export(
    session: Session,
) -> None:
    began, *_ = (event for event in TURN if isinstance(event, CellStarted))
    async with SessionRecord(session.folder) as record:
        record.emit(TurnStarted(turn=1, message="tick"))
        record.emit(began)
        record.emit(CellOutputDelta(text="tick 0\n"))
        record.emit(CellOutputDelta(text="tick 1\n"))
        record.emit(CellOutputDelta(text="too much\n", kept=False))
    history = history_of(read_session_events(session.folder))
    (cell,) = history.turns[0].cells
    assert cell.observation == "tick 0\ntick 1\nThe cell was cut off."
    assert not cell.kept
    assert "tick 1" in to_markdown(history)
    # The next turn does not change that.
    async with SessionRecord(session.folder) as again:
        again.emit(TurnStarted(turn=2, message="and now?"))
    history = history_of(read_session_events(session.folder))
    assert [len(turn.cells) for turn in history.turns] == [1, 0]


async def test_a_line_that_a_crash_cut_off_is_dropped(session: Session) -> None:
    async with SessionRecord(session.folder) as record:
        for event in TURN:
            record.emit(event)
    path = session.folder / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    async with SessionRecord(session.folder) as again:
        assert again.events == TURN[:-1]


async def test_a_damaged_line_is_named_and_nothing_is_overwritten(session: Session) -> None:
    path = session.folder / "events.jsonl"
    path.write_bytes(b"nonsense\n")
    with pytest.raises(JournalError, match=r"events\.jsonl:1"):
        async with SessionRecord(session.folder):
            pass
    assert path.read_bytes() == b"nonsense\n"


async def test_a_session_is_open_once(store: SessionStore, session: Session) -> None:
    async with SessionRecord(session.folder):
        assert store.open(session.id).in_use
        with pytest.raises(UsageError, match="another process works on the session"):
            async with SessionRecord(session.folder):
                pass
        with pytest.raises(UsageError, match="a process works on the session"):
            store.delete(session.id)
    assert not store.open(session.id).in_use


async def test_files_that_were_loaded_are_kept_and_replaced(session: Session) -> None:
    path = PurePosixPath("data/a.csv")
    async with SessionRecord(session.folder) as record:
        await record.keep_file(path, b"1")
        await record.keep_file(path, b"22")
        tree = await record.files()
    assert tree.text(path) == "22"


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", ".."])
async def test_a_file_cannot_be_kept_outside(session: Session, name: str) -> None:
    async with SessionRecord(session.folder) as record:
        with pytest.raises(UsageError, match="not a name in the workspace"):
            await record.keep_file(PurePosixPath(name), b"")


@pytest.mark.parametrize(
    "name", ["../../x.png", "\x1b[31m.png", ".hidden", "-rf", "a/b.png", "x" * 300, "", "ü.png"]
)
async def test_names_from_a_sandbox_become_harmless(session: Session, name: str) -> None:
    async with SessionRecord(session.folder) as record:
        kept = await record.keep_exhibit(name, PNG, media_type="image/png", source="file")
        again = await record.keep_exhibit(name, PNG, media_type="image/png", source="file")
    folder = session.folder / "artifacts"
    assert kept.name != again.name
    assert {place.name for place in folder.iterdir()} == {kept.name, again.name}
    assert kept.name.isascii()
    assert kept.name.isprintable()
    assert not kept.name.startswith((".", "-"))


async def test_sessions_are_listed_with_how_they_began(store: SessionStore) -> None:
    session = store.create()
    async with SessionRecord(session.folder) as record:
        record.emit(TurnStarted(turn=1, message="hello\nthere"))
    (listed,) = store.list()
    assert (listed.title, listed.turns) == ("hello there", 1)
    assert store.rename(session.id, "greetings").title == "greetings"


def test_a_session_is_found_by_how_its_name_begins(store: SessionStore) -> None:
    session = store.create()
    assert store.open(session.id[:6]).id == session.id
    with pytest.raises(UsageError, match="no session 'nobody'"):
        store.open("nobody")


def test_without_sessions_that_is_said(store: SessionStore) -> None:
    with pytest.raises(UsageError, match="no sessions yet"):
        store.open()
    assert store.list() == ()


def test_one_that_cannot_be_read_is_listed_with_its_trouble(
    store: SessionStore, session: Session
) -> None:
    (session.folder / "session.json").write_text("{")
    (listed,) = store.list()
    assert listed.trouble
    with pytest.raises(JournalError, match="cannot be read"):
        store.open(session.id)


def test_a_deleted_session_is_gone_with_its_files(store: SessionStore, session: Session) -> None:
    store.delete(session.id)
    assert not session.folder.exists()


def test_a_notebook_has_words_code_and_pictures() -> None:
    notebook = json.loads(to_notebook(history_of(TURN), lambda _: PNG))
    kinds = [cell["cell_type"] for cell in notebook["cells"]]
    assert kinds == ["markdown", "markdown", "markdown", "code", "markdown"]
    code = notebook["cells"][3]
    assert code["source"] == "plot()"
    assert "image/png" in code["outputs"][0]["data"]
    assert notebook["nbformat"] == 4


def test_a_notebook_begins_with_the_imports_that_cells_rely_on() -> None:
    cells = [
        replace(event, code="x = pd.Series([1])\nnp.sum(x)")
        if isinstance(event, CellEnded)
        else event
        for event in TURN
    ]

    notebook = json.loads(to_notebook(history_of(cells), lambda _: PNG))

    first, second = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    assert first["source"] == "import numpy as np\nimport pandas as pd"
    names: dict[str, object] = {}
    for cell in (first, second):
        exec(cell["source"], names)  # noqa: S102 - the cells of this test
    assert "x" in names


def test_exported_markdown_takes_its_figures_along(tmp_path: Path) -> None:
    session = tmp_path / "state" / "session"
    (session / "artifacts").mkdir(parents=True)
    (session / "artifacts" / "figure-1.png").write_bytes(PNG)

    write_export(tmp_path / "out.md", history_of(TURN), session)

    assert "](out_files/figure-1.png)" in (tmp_path / "out.md").read_text()
    assert (tmp_path / "out_files" / "figure-1.png").read_bytes() == PNG


def test_markdown_has_the_same_and_links_pictures() -> None:
    text = to_markdown(history_of(TURN), artifacts=PurePosixPath("my artifacts"))
    assert "## plot ``` it" in text
    assert "```python\nplot()\n```" in text
    assert "![figure-1.png](my%20artifacts/figure-1.png)" in text
    assert text.rstrip().endswith("There.")


async def test_a_session_that_was_removed_while_open_says_so(session: Session) -> None:
    async with SessionRecord(session.folder) as record:
        record.emit(TurnStarted(turn=1, message="hello"))
        shutil.rmtree(session.folder)

        with pytest.raises(JournalError, match="was removed while it was open"):
            record.emit(TurnStarted(turn=2, message="again"))


def test_a_session_that_is_not_there_leads_to_the_list(
    store: SessionStore, session: Session
) -> None:
    del session
    with pytest.raises(UsageError) as refused:
        store.open("nosuch")

    assert "assay sessions list" in refused.value.hint
