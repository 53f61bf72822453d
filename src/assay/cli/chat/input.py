"""Input of a chat: history, multiple lines and completion; plain lines without a terminal."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from anyio import to_thread

from assay.contracts.errors import MissingExtraError

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.key_binding import KeyBindings


_TAKE_PATHS: Final = frozenset({"/load", "/export"})


class Reader(Protocol):
    """The source of messages."""

    async def read(self) -> str | None:
        """Return the next message; None when there is no more.

        Raises:
            KeyboardInterrupt: If the user discards the input.
        """
        ...


class LineReader:
    """A reader of lines from a pipe or a file."""

    async def read(self) -> str | None:
        line = await to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        return line.rstrip("\n") if line else None


class PromptReader:
    """A prompt at a terminal. Enter sends; Alt+Enter, or a backslash at the end, adds a line."""

    def __init__(self, history: Path, commands: Iterable[str]) -> None:
        try:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.history import FileHistory
        except ImportError as error:
            raise MissingExtraError("a conversation in the terminal", extra="chat") from error
        history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._session: PromptSession[str] = PromptSession(
            message="> ",
            history=FileHistory(str(history)),
            completer=open_completer(tuple(commands)),
            complete_while_typing=True,
            multiline=True,
            key_bindings=_keys(),
            prompt_continuation="  ",
        )

    async def read(self) -> str | None:
        try:
            return await self._session.prompt_async()
        except EOFError:
            return None


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
    from prompt_toolkit.completion import (
        CompleteEvent,
        Completer,
        Completion,
        PathCompleter,
    )
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


def open_reader(history: Path, commands: Iterable[str]) -> Reader:
    """Return a prompt at a terminal, else a reader of lines."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return PromptReader(history, commands)
    return LineReader()
