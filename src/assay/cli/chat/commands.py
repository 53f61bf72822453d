"""The slash commands of a terminal session."""

import shlex
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.chat.session import ChatSession
from assay.cli.render.text import one_line
from assay.contracts.chat import History, StoredArtifact
from assay.contracts.errors import AssayError, UsageError
from assay.storage.chat_export import is_picture, to_markdown, to_notebook
from assay.storage.chat_store import ARTIFACTS, Session, SessionStore

_TITLE: Final = 60


Next = Session | Literal["quit"] | None
"""What comes after a command: another session, the exit, or more of this session."""


@dataclass(slots=True, kw_only=True)
class CommandContext:
    """The session, store and console of the commands."""

    chat: ChatSession
    session: Session
    store: SessionStore
    console: Console

    def say(self, text: str) -> None:
        self.console.print(Text(text))


Act = Callable[[CommandContext, list[str]], Awaitable[Next]]


async def _new(context: CommandContext, words: list[str]) -> Next:
    return context.store.create(" ".join(words))


async def _sessions(context: CommandContext, words: list[str]) -> Next:
    del words
    context.console.print(session_table(context.store.list()))
    return None


async def _open(context: CommandContext, words: list[str]) -> Next:
    return context.store.open(_one(words, "the name of a session"))


async def _rename(context: CommandContext, words: list[str]) -> Next:
    if not words:
        raise UsageError("a title is missing", hint="/rename TITLE")
    context.session = context.store.rename(context.session.id, " ".join(words))
    context.say(f"called {one_line(context.session.title)}")
    return None


async def _load(context: CommandContext, words: list[str]) -> Next:
    if not words:
        raise UsageError("the name of a file is missing", hint="/load FILE")
    for word in words:
        await context.chat.load_file(_path(word))
    return None


async def _files(context: CommandContext, words: list[str]) -> Next:
    del words
    history = context.chat.history
    for file in history.files:
        context.say(f"in   {one_line(file.path)}  {file.size_bytes} bytes")
    folder = context.session.folder / ARTIFACTS
    artifacts = _artifacts(history)
    for artifact in artifacts:
        context.say(f"out  {folder / artifact.name}  {artifact.media_type}")
    if not history.files and not artifacts:
        context.say("no files yet; /load FILE puts one into the workspace")
    return None


async def _package(context: CommandContext, words: list[str]) -> Next:
    if not words:
        packages = context.chat.history.packages
        context.say(", ".join(packages) or "no packages were added; /package NAME adds one")
        return None
    context.say("installing; then the interpreter restarts and runs its cells again")
    await context.chat.add_packages(tuple(words))
    return None


async def _model(context: CommandContext, words: list[str]) -> Next:
    if words:
        await context.chat.use_model(words[0])
    else:
        context.say(f"{context.chat.model.name} answers")
    return None


async def _cost(context: CommandContext, words: list[str]) -> Next:
    del words
    usage = context.chat.history.usage
    cost = "an unknown price" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    context.say(
        f"{usage.calls} replies, {usage.input_tokens} tokens read, "
        f"{usage.output_tokens} written, {cost}"
    )
    return None


async def _undo(context: CommandContext, words: list[str]) -> Next:
    del words
    await context.chat.undo()
    return None


async def _export(context: CommandContext, words: list[str]) -> Next:
    path = _path(_one(words, "the name of a file, ending in .ipynb or .md"))
    write_export(path, context.chat.history, context.session.folder)
    context.say(f"written to {path}")
    return None


async def _help(context: CommandContext, words: list[str]) -> Next:
    del words
    table = Table.grid(padding=(0, 2))
    for name, (usage, about, _) in COMMANDS.items():
        table.add_row(Text(f"{name} {usage}".strip(), style="cyan"), Text(about))
    context.console.print(table)
    context.say("Enter sends, Alt+Enter starts a new line, Ctrl-C interrupts, Ctrl-D exits.")
    return None


async def _quit(context: CommandContext, words: list[str]) -> Next:
    del context, words
    return "quit"


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


async def dispatch(line: str, context: CommandContext) -> Next:
    """Run a line that begins with a slash; its errors are printed, not raised."""
    try:
        name, *words = shlex.split(line)
    except ValueError as error:
        context.say(f"invalid command line: {error}")
        return None
    if name not in COMMANDS:
        context.say(f"unknown command {one_line(name)}; /help lists all commands")
        return None
    try:
        return await COMMANDS[name][2](context, words)
    except AssayError as error:
        context.console.print(Text(one_line(str(error)), style="red"))
        if error.hint:
            context.console.print(Text(f"hint: {error.hint}", style="cyan"))
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
            beside = path.with_name(f"{path.stem}_files")
            for artifact in filter(is_picture, _artifacts(history)):
                beside.mkdir(exist_ok=True)
                shutil.copyfile(folder / artifact.name, beside / artifact.name)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _artifacts(history: History) -> list[StoredArtifact]:
    return [made for turn in history.turns for cell in turn.cells for made in cell.artifacts]


def _path(word: str) -> Path:
    from assay.settings.load import expand_home

    return expand_home(Path(word))


def _one(words: list[str], what: str) -> str:
    if len(words) != 1:
        raise UsageError(f"give {what}")
    return words[0]
