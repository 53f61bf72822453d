"""`assay chat` and `assay sessions`: chat with an agent that can run code."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from assay.cli.options import BACKEND, FILE, JSON_ARRAY, YES, json_option, to_json
from assay.cli.terminal import confirm
from assay.contracts.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from assay.settings.load import Settings
    from assay.storage.chat_store import Session, SessionStore


_PAGE: Final = 100
"""Columns of an answer if stdout is not a terminal."""


@click.command(name="chat")
@click.argument("message", required=False)
@click.option("--session", "name", help="Continue this session; `last` is the most recent.")
@click.option("--title", default="", help="Title of a new session.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File to put into the workspace (repeatable).",
)
@click.option(
    "--package",
    "packages",
    multiple=True,
    metavar="NAME",
    help="Install this package for the notebook (repeatable).",
)
@click.option("--model", default="", help="Model to use: `auto`, `local`, PROVIDER[:MODEL] …")
@BACKEND
@json_option("With MESSAGE: print one JSON object.")
def chat(message: str | None, **options: Any) -> int:
    """Chat with an agent that can run code. With MESSAGE, take one turn and exit.

    The session is kept: `assay chat --session last` continues it.
    """
    import anyio

    from assay.settings.load import load_settings, project_notice
    from assay.wiring import check_extras

    if options["as_json"] and message is None:
        raise UsageError("--json needs a message", hint='assay chat --json "what is 2 ** 64?"')
    words = {"sandbox": {"backend": options["backend"]}}
    settings = load_settings(words, project=Path.cwd())
    if notice := project_notice(Path.cwd()):
        click.echo(notice, err=True)
    servers = ("mcp",) if settings.tools.mcp else ()
    # A session that continues may have its own model.
    model = options["model"] or ("" if options["name"] else settings.models.default)
    check_extras("a conversation", settings, "chat", *servers, model=model)
    session = _session(settings, options["name"], options["title"])
    if message is None:
        return anyio.run(_converse, session, settings, options)
    return anyio.run(_ask_once, message, session, settings, options)


def _session(settings: "Settings", name: str | None, title: str) -> "Session":
    from assay.storage.chat_store import SessionStore

    store = SessionStore(settings.state_dir)
    if name is None:
        return store.create(title)
    return store.open("" if name == "last" else name)


async def _converse(session: "Session", settings: "Settings", options: dict[str, Any]) -> int:
    from assay.cli.chat.repl import converse
    from assay.cli.render.view import open_console

    await converse(
        session,
        settings,
        open_console(),
        model=options["model"],
        files=options["files"],
        packages=options["packages"],
    )
    return ExitCode.ACCEPTED


async def _ask_once(
    message: str, session: "Session", settings: "Settings", options: dict[str, Any]
) -> int:
    from assay.chat.open_session import open_chat_session, open_resources
    from assay.cli.chat.repl import take_turn
    from assay.cli.chat.view import ChatView
    from assay.cli.render.view import open_console
    from assay.cli.terminal import open_progress
    from assay.contracts.jsonable import jsonable
    from assay.storage.chat_store import ARTIFACTS

    console = open_console()
    if not console.is_terminal:
        console.width = _PAGE
    view = ChatView(console, session.folder / ARTIFACTS, lambda _: None)
    resources = open_resources(
        settings,
        project=Path(),
        on_notice=lambda text: click.echo(f"note: {text}", err=True),
    )
    async with open_chat_session(
        session,
        settings,
        resources,
        model=options["model"],
        listeners=() if options["as_json"] else (view,),
        preparing=open_progress,
    ) as open_chat:
        if options["packages"]:
            await open_chat.add_packages(options["packages"])
        for file in options["files"]:
            await open_chat.load_file(file)
        try:
            ended = await take_turn(open_chat, message)
        finally:
            view.close()
    if options["as_json"]:
        # Thought, code and observation are separate fields.
        turn = open_chat.history.turns[-1]
        fields = {
            "session_id": session.id,
            "status": ended.status,
            "answer": ended.text,
            "thought": "\n\n".join(thought for thought in turn.thoughts if thought),
            "code": "\n\n".join(cell.code for cell in turn.cells),
            "observation": "\n\n".join(cell.observation for cell in turn.cells),
            "artifacts": jsonable([made for cell in turn.cells for made in cell.artifacts]),
        }
        click.echo(json.dumps(fields, ensure_ascii=False))
    if ended.status == "interrupted":
        return ExitCode.INTERRUPTED
    return ExitCode.ACCEPTED if ended.status == "answered" else ExitCode.NOT_ACCEPTED


@click.group(name="sessions")
def sessions() -> None:
    """List, rename, delete and export sessions."""


@sessions.command(name="list")
@JSON_ARRAY
def list_sessions(*, as_json: bool) -> int:
    """List sessions, the most recently used first."""
    from assay.cli.chat.commands import session_table
    from assay.cli.render.view import open_console
    from assay.contracts.jsonable import jsonable

    found = _store().list()
    if as_json:
        click.echo(to_json(jsonable(found)))
    elif found:
        open_console().print(session_table(found))
    else:
        click.echo("no sessions yet; `assay chat` starts one")
    return ExitCode.ACCEPTED


@sessions.command()
@click.argument("name")
@click.argument("title")
def rename(name: str, title: str) -> int:
    """Give session NAME another TITLE."""
    session = _store().rename(name, title)
    click.echo(f"{session.id} is now called {session.title!r}")
    return ExitCode.ACCEPTED


@sessions.command()
@click.argument("name")
@YES
def delete(name: str, *, yes: bool) -> int:
    """Remove session NAME and all its files."""
    store = _store()
    session = store.open(name)
    confirm(f"Remove {session.id} ({session.turns} turns) and all its files?", yes=yes)
    store.delete(session.id)
    click.echo(f"removed {session.id}")
    return ExitCode.ACCEPTED


@sessions.command()
@click.argument("name")
@click.argument("path", type=FILE)
def export(name: str, path: Path) -> int:
    """Write session NAME to PATH, a notebook (.ipynb) or Markdown (.md)."""
    from assay.cli.chat.commands import write_export
    from assay.contracts.chat import history_of
    from assay.storage.chat_store import read_session_events

    session = _store().open(name)
    write_export(path, history_of(read_session_events(session.folder)), session.folder)
    click.echo(f"written to {path}")
    return ExitCode.ACCEPTED


def _store() -> "SessionStore":
    from assay.settings.load import load_settings
    from assay.storage.chat_store import SessionStore

    return SessionStore(load_settings().state_dir)
