"""The loop of a terminal session: read a message, run it as a command or turn, show it.

Input has history, multiple lines and completion; without a terminal it is plain lines.
"""

import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread
from rich.console import Console
from rich.text import Text

from assay.asyncx.owned_context import open_task_group
from assay.chat.open_session import open_chat_session, open_resources
from assay.chat.session import ChatSession
from assay.cli.chat import view
from assay.cli.chat.commands import COMMANDS, CommandContext, Next, dispatch
from assay.cli.chat.view import ChatView
from assay.cli.render.text import one_line
from assay.cli.terminal import open_progress, run_until_interrupted
from assay.contracts.chat import StoredArtifact, ToolAsk, TurnEnded
from assay.contracts.errors import require
from assay.settings.load import Settings, terminal_graphics
from assay.storage.chat_store import ARTIFACTS, Session, SessionStore

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.key_binding import KeyBindings


_TAKE_PATHS: Final = frozenset({"/load", "/export"})


Read = Callable[[], Awaitable[str | None]]
"""Returns the next message, or None when there is no more.

A KeyboardInterrupt says that the user discards the input.
"""


async def _read_line() -> str | None:
    line = await to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    return line.rstrip("\n") if line else None


def open_prompt(history: Path) -> Read:
    """Open a prompt at a terminal; without a terminal, return a reader of lines.

    At the prompt, Enter sends; Alt+Enter, or a backslash at the end, adds a line.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _read_line
    with require("a conversation in the terminal", extra="chat"):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory
    history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    session: PromptSession[str] = PromptSession(
        message="> ",
        history=FileHistory(str(history)),
        completer=open_completer(tuple(COMMANDS)),
        complete_while_typing=True,
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation="  ",
    )

    async def read() -> str | None:
        try:
            return await session.prompt_async()
        except EOFError:
            return None

    return read


def _keys() -> "KeyBindings":
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    @keys.add("c-j")  # Enter, if pressed before the prompt was there
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None
        elif buffer.document.current_line.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def open_completer(commands: tuple[str, ...]) -> "Completer":
    """Return the completer of commands and of file names after commands that take them."""
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(expanduser=True)

    class Commands(Completer):
        """A completer of commands with their slash, and of file names after some commands."""

        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterator[Completion]:
            text = document.text_before_cursor
            name, space, rest = text.partition(" ")
            if space and name in _TAKE_PATHS:
                word = rest.rpartition(" ")[2]
                yield from paths.get_completions(Document(word), complete_event)
            elif not space and text.startswith("/"):
                for command in commands:
                    if command.startswith(text):
                        yield Completion(command, start_position=-len(text))

    return Commands()


_HISTORY: Final = "chat_history"


async def converse(
    session: Session,
    settings: Settings,
    console: Console,
    *,
    model: str,
    files: Sequence[Path],
    packages: tuple[str, ...],
) -> None:
    """Run sessions until the user exits; a command can switch to another session.

    The model, the files and the packages are for the first session only.
    """
    store = SessionStore(settings.state_dir)
    read = open_prompt(settings.state_dir / _HISTORY)
    following: Next = session
    while isinstance(following, Session):
        repl = _ChatRepl(settings, store, console, read, following)
        following = await repl.run(model, files, packages)
        model, files, packages = "", (), ()


class _ChatRepl:
    """The loop of one session."""

    def __init__(
        self,
        settings: Settings,
        store: SessionStore,
        console: Console,
        read: Read,
        session: Session,
    ) -> None:
        self._settings = settings
        self._store = store
        self._console = console
        self._read = read
        self._session = session
        self._figures: list[StoredArtifact] = []
        self._view = ChatView(console, session.folder / ARTIFACTS, self._figures.append)

    async def run(self, model: str, files: Sequence[Path], packages: tuple[str, ...]) -> Next:
        """Run the session until the user leaves it."""
        resources = open_resources(
            self._settings,
            project=Path(),
            on_notice=lambda text: self._console.print(Text(f"note: {one_line(text, 400)}", "dim")),
        )
        async with open_chat_session(
            self._session,
            self._settings,
            resources,
            model=model,
            listeners=(self._view,),
            approve=self._approve,
            preparing=open_progress,
        ) as chat:
            name = f"session {self._session.id}"
            if turns := chat.history.turns:
                asked = one_line(turns[-1].message, 100)
                self._console.print(Text(f"{name}, {len(turns)} turns so far; the last: {asked}"))
            else:
                self._console.print(Text(f"{name}; /help lists the commands", style="dim"))
            try:
                if packages:
                    await chat.add_packages(packages)
                await chat.wake()
                for file in files:
                    await chat.load_file(file)
                return await self._attend(chat)
            finally:
                self._view.close()

    async def _attend(self, chat: ChatSession) -> Next:
        """Read messages and commands until one of them leaves the session."""
        context = CommandContext(
            chat=chat, session=self._session, store=self._store, console=self._console
        )
        while True:
            try:
                message = await self._read()
            except KeyboardInterrupt:
                continue
            if message is None:
                return "quit"
            if not message.strip():
                continue
            if not message.lstrip().startswith("/"):
                await take_turn(chat, message)
                await self._show_figures(chat)
                continue
            try:
                # Ctrl-C stops the command and not the session.
                following = await run_until_interrupted(partial(dispatch, message.strip(), context))
            finally:
                self._view.close()
            if following is not None:
                return following

    async def _approve(self, ask: ToolAsk) -> bool:
        """Ask whether a tool may run; without a terminal the answer is no."""
        if not sys.stdin.isatty():
            return False
        self._view.close()
        question = f"Use {one_line(ask.tool)} with {one_line(ask.arguments, 400)}? [y/N] "
        self._console.print(Text(question, style="yellow"))
        try:
            answer = await self._read()
        except KeyboardInterrupt:
            return False
        return (answer or "").strip().lower() in {"y", "yes"}

    async def _show_figures(self, chat: ChatSession) -> None:
        """Draw a turn's figures if the terminal can."""
        waiting, self._figures[:] = list(self._figures), []
        chosen = self._settings.chat.figures
        kind = terminal_graphics() if chosen == "auto" else chosen
        if kind == "file" or not sys.stdout.isatty():
            return
        for figure in waiting:
            if figure.media_type != "image/png":
                continue
            try:
                png = (self._session.folder / ARTIFACTS / figure.name).read_bytes()
            except OSError:
                continue  # Removed meanwhile; its name was shown.
            if kind == "kitty":
                sequences = tuple(view.kitty(png))
            elif kind == "iterm":
                sequences = tuple(view.iterm(png))
            elif sandbox := chat.notebook.sandbox:
                sequences = (await view.sixel(png, sandbox) or b"",)
            else:
                sequences = ()
            sys.stdout.buffer.writelines(sequences)
            sys.stdout.buffer.write(b"\n")
            sys.stdout.buffer.flush()


async def take_turn(chat: ChatSession, message: str) -> TurnEnded:
    """Take one turn; Ctrl-C stops it and not the session."""
    with anyio.open_signal_receiver(signal.SIGINT) as signals:

        async def listen() -> None:
            async for _ in signals:
                chat.interrupt()

        async with open_task_group() as tasks:
            tasks.start_soon(listen)
            return await chat.say(message)
