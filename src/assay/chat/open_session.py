"""Open a session: connect its files on disk, a notebook, a model and tools."""

from collections.abc import AsyncGenerator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass
from pathlib import Path

from assay.asyncx.owned_context import OwnedContext, open_task_group
from assay.chat.notebook import Notebook
from assay.chat.session import Approve, ChatSession, approve_nothing
from assay.contracts.chat import ChatEvent, history_of
from assay.contracts.execution import Limits, SandboxSpec
from assay.contracts.ports import Model, SandboxBackend
from assay.models.open import OpenOptions
from assay.settings.load import Settings
from assay.storage.chat_store import Session, SessionRecord
from assay.storage.journal import Listener
from assay.telemetry.events import note_dialogue
from assay.tools.discover import RegisteredTool
from assay.tools.workspace import WORKSPACE_TOOLS
from assay.wiring import build_screen, open_backend, open_model, open_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatResources:
    """The resources of a session other than its files; the sessions of a server share them."""

    backend: SandboxBackend
    tools: tuple[RegisteredTool, ...]
    open_model: Callable[[str, OpenOptions], AbstractAsyncContextManager[Model]]


@asynccontextmanager
async def open_chat_session(
    session: Session,
    settings: Settings,
    opening: AbstractAsyncContextManager[ChatResources],
    *,
    model: str = "",
    listeners: tuple[Listener[ChatEvent], ...] = (),
    approve: Approve = approve_nothing,
    preparing: Callable[[], AbstractContextManager[OpenOptions]] = lambda: nullcontext(
        OpenOptions()
    ),
    sync_later: bool = False,
) -> AsyncGenerator[ChatSession]:
    """Open a session for chat; the interpreter's state is rebuilt on first use.

    The context `preparing` displays progress while a model is prepared. With `sync_later`, events
    are made durable by `settle`, so that sessions do not wait for each other's disk writes.

    Raises:
        UsageError: If the session is open elsewhere, or a setting is invalid.
        JournalError: If the session cannot be read.
        AssayError: If a resource cannot be opened.
    """
    async with SessionRecord(
        session.folder,
        listeners=(*listeners, note_dialogue(session.id)),
        sync_later=sync_later,
    ) as record:
        history = history_of(record.events)
        async with (
            opening as resources,
            open_task_group() as tasks,
        ):
            model_owner: OwnedContext[Model] = OwnedContext(tasks)

            async def change_model(name: str) -> Model:
                with preparing() as model_options:
                    return await model_owner.take(resources.open_model(name, model_options))

            chosen = await change_model(model or history.model or settings.models.default)
            chat = ChatSession(
                model=chosen,
                history=history,
                notebook=Notebook(
                    backend=resources.backend,
                    # The limits of one cell and its interpreter.
                    limits=Limits(
                        wall_s=settings.chat.cell_timeout_s,
                        cpu_s=2 * settings.chat.cell_timeout_s,
                        memory_mb=settings.chat.memory_mb,
                        disk_mb=settings.chat.disk_mb,
                        processes=256,
                    ),
                    owner=OwnedContext(tasks),
                    equipment=SandboxSpec(packages=tuple(dict.fromkeys(history.packages))),
                ),
                log=record,
                screen=build_screen(settings.screening),
                settings=settings.chat,
                tools=_tools_for(chosen, resources.tools),
                open_model=change_model,
                approve=approve,
            )
            chat.choose(chosen)
            yield chat


@asynccontextmanager
async def open_resources(
    settings: Settings, *, project: Path, on_notice: Callable[[str], None]
) -> AsyncGenerator[ChatResources]:
    """Open a backend, tools and models for one session.

    The folder `project` may define additional tools. `on_notice` receives one line for each part
    that had to be left out.
    """
    async with (
        open_tools(settings, project=project, on_notice=on_notice) as tools,
        open_backend(settings.sandbox) as backend,
    ):
        yield ChatResources(
            backend=backend,
            tools=tools,
            open_model=lambda name, opening: open_model(
                name, settings=settings.models, opening=opening
            ),
        )


def _tools_for(model: Model, tools: tuple[RegisteredTool, ...]) -> dict[str, RegisteredTool]:
    """Return the tools to offer in addition to cells, which replace the built-in workspace tools.

    A model without native tool calls writes better cells with fewer tools in its prompt. It gets
    only tools that the user has configured.
    """
    return {
        each.tool.spec.name: each
        for each in tools
        if each.approval != "deny"
        and each.tool not in WORKSPACE_TOOLS
        and (each.origin != "assay" or model.info.tool_calls)
    }
