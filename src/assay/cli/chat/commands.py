"""The slash commands of a terminal session."""

import shlex
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.chat.open_session import OpenChat
from assay.cli.render.text import one_line
from assay.contracts.chat import History, StoredArtifact
from assay.contracts.errors import AssayError, UsageError
from assay.storage.chat_export import is_picture, to_markdown, to_notebook
from assay.storage.chat_store import ARTIFACTS, Session, SessionStore

_TITLE: Final = 60


@dataclass(frozen=True, slots=True)
class GoTo:
    """Leave this session for another one."""

    session: Session


@dataclass(frozen=True, slots=True)
class Leave:
    """Exit the terminal session."""


Next = GoTo | Leave | None
"""What comes after a command; None: the session continues."""


@dataclass(slots=True, kw_only=True)
class CommandContext:
    """The session, store and console of the commands."""

    conversation: OpenChat
    store: SessionStore
    console: Console

    def say(self, text: str) -> None:
        self.console.print(Text(text))


Act = Callable[[CommandContext, list[str]], Awaitable[Next]]


async def _new(desk: CommandContext, words: list[str]) -> Next:
    return GoTo(desk.store.create(" ".join(words)))


async def _sessions(desk: CommandContext, words: list[str]) -> Next:
    del words
    desk.console.print(session_table(desk.store.list()))
    return None


async def _open(desk: CommandContext, words: list[str]) -> Next:
    session = desk.store.open(_one(words, "the name of a session"))
    return GoTo(session)


async def _rename(desk: CommandContext, words: list[str]) -> Next:
    if not words:
        raise UsageError("a title is missing", hint="/rename TITLE")
    desk.conversation.session = desk.store.rename(desk.conversation.session.id, " ".join(words))
    desk.say(f"called {one_line(desk.conversation.session.title)}")
    return None


async def _load(desk: CommandContext, words: list[str]) -> Next:
    if not words:
        raise UsageError("the name of a file is missing", hint="/load FILE")
    for word in words:
        await desk.conversation.load_file(_path(word))
    return None


async def _files(desk: CommandContext, words: list[str]) -> Next:
    del words
    history = desk.conversation.dialogue.history
    for file in history.files:
        desk.say(f"in   {one_line(file.path)}  {file.size_bytes} bytes")
    folder = desk.conversation.record.folder / ARTIFACTS
    for artifact in _artifacts(desk):
        desk.say(f"out  {folder / artifact.name}  {artifact.media_type}")
    if not history.files and not _artifacts(desk):
        desk.say("no files yet; /load FILE puts one into the workspace")
    return None


async def _package(desk: CommandContext, words: list[str]) -> Next:
    if not words:
        packages = desk.conversation.dialogue.history.packages
        desk.say(", ".join(packages) or "no packages were added; /package NAME adds one")
        return None
    desk.say("installing; then the interpreter restarts and runs its cells again")
    await desk.conversation.dialogue.add_packages(tuple(words))
    return None


async def _model(desk: CommandContext, words: list[str]) -> Next:
    if words:
        await desk.conversation.use_model(words[0])
    else:
        desk.say(f"{desk.conversation.dialogue.model.name} answers")
    return None


async def _cost(desk: CommandContext, words: list[str]) -> Next:
    del words
    usage = desk.conversation.dialogue.history.usage
    cost = "an unknown price" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    desk.say(
        f"{usage.calls} replies, {usage.input_tokens} tokens read, "
        f"{usage.output_tokens} written, {cost}"
    )
    return None


async def _undo(desk: CommandContext, words: list[str]) -> Next:
    del words
    await desk.conversation.dialogue.undo()
    return None


async def _export(desk: CommandContext, words: list[str]) -> Next:
    path = _path(_one(words, "the name of a file, ending in .ipynb or .md"))
    conversation = desk.conversation
    write_export(path, conversation.dialogue.history, conversation.record.folder)
    desk.say(f"written to {path}")
    return None


async def _help(desk: CommandContext, words: list[str]) -> Next:
    del words
    table = Table.grid(padding=(0, 2))
    for name, (usage, about, _) in COMMANDS.items():
        table.add_row(Text(f"{name} {usage}".strip(), style="cyan"), Text(about))
    desk.console.print(table)
    desk.say("Enter sends, Alt+Enter starts a new line, Ctrl-C interrupts, Ctrl-D exits.")
    return None


async def _quit(desk: CommandContext, words: list[str]) -> Next:
    del desk, words
    return Leave()


COMMANDS: Final[dict[str, tuple[str, str, Act]]] = {
    "/new": ("[TITLE]", "start another session", _new),
    "/sessions": ("", "list all sessions", _sessions),
    "/open": ("NAME", "continue another session", _open),
    "/rename": ("TITLE", "give this session a title", _rename),
    "/load": ("FILE …", "put files into the workspace", _load),
    "/files": ("", "list loaded and created files", _files),
    "/package": ("[NAME …]", "list added packages, or install some", _package),
    "/model": ("[NAME]", "show the model, or use another one", _model),
    "/cost": ("", "show the cost of this session", _cost),
    "/undo": ("", "undo the last turn, and what its cells did", _undo),
    "/export": ("FILE", "write a notebook (.ipynb) or Markdown (.md)", _export),
    "/help": ("", "list these commands", _help),
    "/quit": ("", "exit; the session is kept", _quit),
}


async def dispatch(line: str, desk: CommandContext) -> Next:
    """Run a line that begins with a slash; its errors are printed, not raised."""
    try:
        name, *words = shlex.split(line)
    except ValueError as error:
        desk.say(f"invalid command line: {error}")
        return None
    if name not in COMMANDS:
        desk.say(f"unknown command {one_line(name)}; /help lists all commands")
        return None
    try:
        return await COMMANDS[name][2](desk, words)
    except AssayError as error:
        desk.console.print(Text(one_line(str(error)), style="red"))
        if error.hint:
            desk.console.print(Text(f"hint: {error.hint}", style="cyan"))
        return None


def session_table(sessions: tuple[Session, ...]) -> Table:
    """Return a table of the sessions."""
    table = Table(box=None, pad_edge=False)
    for heading in ("session", "last used", "turns", "about"):
        table.add_column(heading)
    for session in sessions:
        when = datetime.fromtimestamp(session.changed_at, UTC).astimezone()
        about = session.trouble or session.title
        mark = " (open)" if session.in_use else ""
        table.add_row(
            session.id + mark,
            when.strftime("%Y-%m-%d %H:%M"),
            str(session.turns),
            one_line(about, _TITLE),
        )
    return table


def write_export(path: Path, history: History, session: Path) -> None:
    """Write a session to a notebook or Markdown file; `session` is the session's folder.

    Pictures of a Markdown file are copied into a folder beside it, named after the file.

    Raises:
        UsageError: If the file has another suffix, or cannot be written.
    """
    folder = session / ARTIFACTS
    if path.suffix not in {".ipynb", ".md"}:
        raise UsageError(
            f"unsupported format {str(path)!r}", hint="use a name that ends in .ipynb or .md"
        )
    try:
        text = (
            to_markdown(history, artifacts=PurePosixPath(f"{path.stem}_files"))
            if path.suffix == ".md"
            else to_notebook(history, lambda artifact: (folder / artifact.name).read_bytes())
        )
    except OSError as error:
        raise UsageError(f"a figure of the session cannot be read: {error}") from error
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        if path.suffix == ".md":
            _copy_pictures(history, folder, path.with_name(f"{path.stem}_files"))
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _copy_pictures(history: History, folder: Path, beside: Path) -> None:
    for artifact in filter(is_picture, _made_in(history)):
        beside.mkdir(exist_ok=True)
        shutil.copyfile(folder / artifact.name, beside / artifact.name)


def _artifacts(desk: CommandContext) -> list[StoredArtifact]:
    return _made_in(desk.conversation.dialogue.history)


def _made_in(history: History) -> list[StoredArtifact]:
    return [made for turn in history.turns for cell in turn.cells for made in cell.artifacts]


def _path(word: str) -> Path:
    from assay.settings.load import expand_home

    return expand_home(Path(word))


def _one(words: list[str], what: str) -> str:
    if len(words) != 1:
        raise UsageError(f"give {what}")
    return words[0]
