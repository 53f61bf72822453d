"""Reads what a person types: history, several lines, completion; plain lines where no one types."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from anyio import to_thread

from assay.contracts.errors import MissingExtraError

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.key_binding import KeyBindings


class Reader(Protocol):
    """Where the next message comes from."""

    async def read(self) -> str | None:
        """Return the next message; None when there is no more.

        Raises:
            KeyboardInterrupt: If the person wants to take back what they typed.
        """
        ...


class LineReader:
    """Takes a line at a time from a pipe or a file."""

    async def read(self) -> str | None:
        line = await to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        return line.rstrip("\n") if line else None


class PromptReader:
    """Asks at a terminal. Enter sends; Alt+Enter, or a backslash at the end, adds a line."""

    def __init__(self, history: Path, commands: Iterable[str]) -> None:
        try:
            from prompt_toolkit import PromptSession  # noqa: PLC0415 - an extra, and slow to load
            from prompt_toolkit.history import FileHistory  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("a conversation in the terminal", extra="chat") from error
        history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._session: PromptSession[str] = PromptSession(
            message="> ",
            history=FileHistory(str(history)),
            completer=_completer(tuple(commands)),
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
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent  # noqa: PLC0415

    keys = KeyBindings()

    @keys.add("enter")
    @keys.add("c-j")  # how Enter arrives that was pressed before the prompt was there
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


def _completer(commands: tuple[str, ...]) -> "Completer":
    from prompt_toolkit.completion import (  # noqa: PLC0415
        NestedCompleter,
        PathCompleter,
    )

    paths = PathCompleter(expanduser=True)
    after = {"/load": paths, "/export": paths}
    return NestedCompleter({command: after.get(command) for command in commands})


def open_reader(history: Path, commands: Iterable[str]) -> Reader:
    """Choose by who is in front of us."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return PromptReader(history, commands)
    return LineReader()
