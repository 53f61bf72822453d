"""Open a session: connect its files on disk, a notebook, a model and tools."""

import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from anyio import to_thread

from assay.asyncx.owned_context import OwnedContext, open_task_group
from assay.chat.config import Approve, ChatConfig, approve_nothing
from assay.chat.notebook import Notebook
from assay.chat.session import ChatDeps, ChatSession
from assay.contracts.chat import ChatEvent, FileLoaded, history_of
from assay.contracts.errors import UsageError
from assay.contracts.execution import DEFAULT_SPEC, Limits, SandboxSpec
from assay.contracts.ports import Model, SandboxBackend, Tool
from assay.models.open import OpenOptions
from assay.settings.load import ChatSettings, Settings
from assay.settings.sections import Approval
from assay.storage.chat_store import Session, SessionRecord
from assay.storage.journal import Listener
from assay.telemetry.events import note_dialogue
from assay.tools.discover import RegisteredTool
from assay.tools.workspace import WORKSPACE_TOOLS
from assay.wiring import build_screen, open_backend, open_model, open_tools

LARGEST_FILE = 256 << 20


def _unseen() -> AbstractContextManager[OpenOptions]:
    return nullcontext(OpenOptions())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCallbacks:
    """The callbacks and the project folder of the client that opens a session."""

    listeners: tuple[Listener[ChatEvent], ...] = ()
    approve: Approve = approve_nothing
    preparing: Callable[[], AbstractContextManager[OpenOptions]] = _unseen
    """Context that displays progress while a model is prepared."""
    project: Path | None = None
    """The project folder, which may define additional tools."""
    on_notice: Callable[[str], None] = lambda _: None
    """Receives one line for each part that had to be left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Resources that the caller opens and closes, shared by many sessions."""

    backend: SandboxBackend
    tools: tuple[RegisteredTool, ...]
    open_model: Callable[[str, OpenOptions], AbstractAsyncContextManager[Model]]


@dataclass(slots=True, kw_only=True)
class OpenChat:
    """An open session, with the operations that a user has in addition to sending messages."""

    session: Session
    dialogue: ChatSession
    record: SessionRecord
    change_model: Callable[[str], Awaitable[Model]]

    async def load_file(self, source: Path, name: str = "") -> FileLoaded:
        """Copy a file from this machine into the workspace, under its own name or another one.

        Raises:
            UsageError: If the file cannot be read, or is too large.
            WorkspaceError: If the file does not fit into the workspace.
        """
        content = await to_thread.run_sync(read_upload, source)
        return await self.dialogue.load(PurePosixPath(name or source.name), content)

    async def use_model(self, name: str) -> Model:
        """Switch to another model for later turns; if `open_model` raises, the old model stays."""
        model = await self.change_model(name)
        self.dialogue.choose(model)
        return model


@asynccontextmanager
async def open_conversation(
    session: Session,
    settings: Settings,
    company: ChatCallbacks | None = None,
    *,
    model: str = "",
    equipment: SandboxSpec = DEFAULT_SPEC,
    shared: Shared | None = None,
) -> AsyncGenerator[OpenChat]:
    """Open a session for chat; the interpreter's state is rebuilt on first use.

    Without `shared`, the session opens a separate backend, tools and model.

    Raises:
        UsageError: If the session is open elsewhere, or a setting is invalid.
        JournalError: If the session cannot be read.
        AssayError: If a resource cannot be opened.
    """
    company = company or ChatCallbacks()
    listeners = (*company.listeners, note_dialogue(session.id))
    # With shared resources, delayed syncs keep sessions from waiting for each other's disk writes.
    async with SessionRecord(
        session.folder, listeners=listeners, sync_later=shared is not None
    ) as record:
        history = history_of(record.events)
        name = model or history.model or settings.models.default
        async with (
            nullcontext(shared) if shared else _open_parts(settings, company) as parts,
            open_task_group() as tasks,
        ):
            seat: OwnedContext[Model] = OwnedContext(tasks)

            async def change_model(name: str) -> Model:
                with company.preparing() as opening:
                    return await seat.take(parts.open_model(name, opening))

            chosen = await change_model(name)
            notebook = Notebook(
                backend=parts.backend,
                limits=limits_of_chat(settings.chat),
                seat=OwnedContext(tasks),
                equipment=replace(
                    equipment,
                    packages=tuple(dict.fromkeys((*equipment.packages, *history.packages))),
                ),
            )
            joined = ChatDeps(
                notebook=notebook,
                record=record,
                screen=build_screen(settings.screening),
                tools=tools_for(chosen, parts.tools),
                config=chat_config_of(settings.chat, parts.tools),
                approve=company.approve,
            )
            dialogue = ChatSession(joined, chosen, history)
            dialogue.choose(chosen)
            yield OpenChat(
                session=session, dialogue=dialogue, record=record, change_model=change_model
            )


@asynccontextmanager
async def _open_parts(settings: Settings, company: ChatCallbacks) -> AsyncGenerator[Shared]:
    def model_named(name: str, opening: OpenOptions) -> AbstractAsyncContextManager[Model]:
        return open_model(name, settings=settings.models, opening=opening)

    async with (
        open_tools(settings, project=company.project, on_notice=company.on_notice) as found,
        open_backend(settings.sandbox) as backend,
    ):
        yield Shared(backend=backend, tools=found, open_model=model_named)


def limits_of_chat(chat: ChatSettings) -> Limits:
    """Return the limits of one cell and its interpreter."""
    return Limits(
        wall_s=chat.cell_timeout_s,
        cpu_s=2 * chat.cell_timeout_s,
        memory_mb=chat.memory_mb,
        disk_mb=chat.disk_mb,
        processes=256,
    )


def chat_config_of(chat: ChatSettings, tools: tuple[RegisteredTool, ...] = ()) -> ChatConfig:
    """Return the session settings."""
    approvals: dict[str, Approval] = {each.tool.spec.name: each.approval for each in tools}
    return ChatConfig(
        steps=chat.steps,
        repairs=chat.repairs,
        screening=chat.screening,
        cells=chat.cells,
        approvals=approvals,
    )


def tools_for(model: Model, tools: tuple[RegisteredTool, ...]) -> tuple[Tool, ...]:
    """Return the tools to offer in addition to cells, which replace the built-in workspace tools.

    A model without native tool calls writes better cells with fewer tools in its prompt. It gets
    only tools that the user has configured.
    """
    return tuple(
        each.tool
        for each in tools
        if each.approval != "deny"
        and each.tool not in WORKSPACE_TOOLS
        and (each.origin != "assay" or model.facts.tool_calls)
    )


def read_upload(source: Path) -> bytes:
    """Read a file that the user loads.

    Raises:
        UsageError: If it cannot be read, is not a file, or is too large.
    """
    try:
        status = source.stat()
        if stat.S_ISDIR(status.st_mode):
            raise UsageError(f"{str(source)!r} is a folder", hint="name a file")
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{str(source)!r} is a device or a pipe", hint="name a file")
        if status.st_size > LARGEST_FILE:
            raise UsageError(
                f"{str(source)!r} holds more than {LARGEST_FILE >> 20} MB",
                hint="load a part of it",
            )
        return source.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {str(source)!r}", hint="check the path") from error
    except OSError as error:
        raise UsageError(f"{str(source)!r} cannot be read: {error.strerror}") from error
