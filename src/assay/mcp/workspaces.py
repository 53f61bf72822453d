"""Workspaces of MCP clients: each client has its own sandboxes, and cannot access others'.

The current protocol has no sessions. Assay identifies a client by its token, the session of an
older protocol, its user on this machine, or an unguessable handle from its first answer.
"""

import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from assay.asyncx.owned_context import OwnedContext, open_task_group
from assay.contracts.errors import AssayError, SandboxUnavailableError, ToolError
from assay.contracts.ports import Interpreter, Sandbox

_LOG: Final = logging.getLogger(__name__)
_HANDLE_BYTES: Final = 18
_SPARED_S: Final = 60.0
"""A workspace used within this time is not closed to make room for another client's."""
NEW: Final = "new"
"""Requests one more workspace, in place of a handle."""

OpenSandbox = Callable[[], AbstractAsyncContextManager[Sandbox]]


@dataclass(frozen=True, slots=True, kw_only=True)
class McpClient:
    """Identity of a client, as far as the transport knows it."""

    token: str = ""
    """Name of the client's token; empty without one."""
    user: str = ""
    """Local user that owns the connection; empty if unknown."""
    connection: str = ""
    """Identifier that is stable across calls; empty if each call stands alone."""

    alone: bool = False
    """Only one client and one server are possible, so answers need not name the handle."""

    @property
    def owner(self) -> str:
        """Owner of the workspaces that the caller may name."""
        return f"token {self.token}" if self.token else f"user {self.user}"

    @property
    def identity(self) -> str:
        """Key of the default workspace; empty if no identifier is stable."""
        if self.token or (self.user and not self.connection):
            return self.owner
        return self.connection


@dataclass(slots=True, kw_only=True)
class Workspace:
    """One sandbox that stays open between calls."""

    handle: str
    owner: str
    sandbox: Sandbox
    tasks: TaskGroup
    users: int = 0
    last_used: float = 0.0
    ended: anyio.Event = field(default_factory=anyio.Event)
    _interpreter: Interpreter | None = None
    _owned: OwnedContext[Interpreter] = field(init=False)
    _opening: anyio.Lock = field(default_factory=anyio.Lock)

    def __post_init__(self) -> None:
        self._owned = OwnedContext(self.tasks)

    def idle_s(self) -> float:
        return 0.0 if self.users else anyio.current_time() - self.last_used

    async def interpreter(self) -> Interpreter:
        """Return the interpreter of this workspace; start it on first use.

        Raises:
            SandboxUnavailableError: If the interpreter cannot start.
        """
        async with self._opening:
            if self._interpreter is None:
                self._interpreter = await self._owned.take(self._open_interpreter())
            return self._interpreter

    async def close_interpreter(self) -> None:
        """Close a lost interpreter, so that the next caller gets a new one."""
        self._interpreter = None
        await self._owned.vacate()

    @asynccontextmanager
    async def _open_interpreter(self) -> AsyncGenerator[Interpreter]:
        is_open = False
        try:
            async with self.sandbox.open_interpreter() as interpreter:
                is_open = True
                yield interpreter
        except SandboxUnavailableError:
            # An interpreter that is lost cannot be closed properly.
            if not is_open:
                raise


@dataclass(slots=True, kw_only=True)
class Workspaces:
    """All workspaces of the servers in one process."""

    open_sandbox: OpenSandbox
    idle_s: float
    most: int
    _tasks: TaskGroup
    _by_handle: dict[str, Workspace] = field(default_factory=dict[str, Workspace])
    _handles: dict[str, str] = field(default_factory=dict[str, str])
    """Handle of the default workspace, by client identity."""
    _opening: anyio.Lock = field(default_factory=anyio.Lock)
    _unopened: int = 0

    @asynccontextmanager
    async def lease(self, caller: McpClient, handle: str = "") -> AsyncGenerator[Workspace]:
        """Use the caller's workspace, or the named one; with neither or `NEW`, open one more.

        Raises:
            ToolError: If the named one belongs to another client, or the maximum is reached.
            SandboxUnavailableError: If the sandbox is lost; the next call gets a fresh one.
        """
        workspace = await self._choose(caller, handle)
        workspace.users += 1
        try:
            yield workspace
        except SandboxUnavailableError as error:
            if error.sandbox_stays:
                raise
            self._end(workspace)
            raise SandboxUnavailableError(
                f"{error}. This workspace and its files are lost; the next call without "
                "`workspace` gets an empty one",
                dispatch=error.dispatch,
                hint=error.hint,
            ) from error
        finally:
            workspace.users -= 1
            workspace.last_used = anyio.current_time()

    def end_all(self) -> None:
        for workspace in [*self._by_handle.values()]:
            self._end(workspace)

    async def _choose(self, caller: McpClient, handle: str) -> Workspace:
        if handle == NEW:
            return await self._open(caller)
        return self._find(caller, handle) if handle else await self._own(caller)

    def _find(self, caller: McpClient, handle: str) -> Workspace:
        found = self._by_handle.get(handle)
        # The same message in both cases, so that it does not reveal whether a handle exists.
        if found is None or found.owner != caller.owner:
            raise ToolError(
                "there is no such workspace: it was closed after inactivity, or it belongs to "
                "another client; omit `workspace` to get a new one"
            )
        return found

    async def _own(self, caller: McpClient) -> Workspace:
        identity = caller.identity
        if not identity:
            return await self._open(caller)
        # Two parallel first calls must get the same workspace.
        async with self._opening:
            known = self._by_handle.get(self._handles.get(identity, ""))
            if known is not None:
                return known
            workspace = await self._open(caller)
            self._handles[identity] = workspace.handle
            return workspace

    async def _open(self, caller: McpClient) -> Workspace:
        self._make_room(caller)
        self._unopened += 1
        try:
            return await self._tasks.start(self._keep, caller)
        finally:
            self._unopened -= 1

    def _make_room(self, caller: McpClient) -> None:
        if len(self._by_handle) + self._unopened < self.most:
            return
        idle = [each for each in self._by_handle.values() if not each.users]
        own = [each for each in idle if each.owner == caller.owner]
        others = [each for each in idle if each.idle_s() >= _SPARED_S]
        oldest = max(own or others, key=Workspace.idle_s, default=None)
        if oldest is None:
            raise ToolError(
                f"calls run in all {self.most} workspaces; give the handle of yours as "
                "`workspace`, or try again in a minute"
            )
        _LOG.info("a workspace that was not used for %g s made room", oldest.idle_s())
        self._end(oldest)

    def _end(self, workspace: Workspace) -> None:
        self._by_handle.pop(workspace.handle, None)
        for identity in [key for key, value in self._handles.items() if value == workspace.handle]:
            del self._handles[identity]
        workspace.ended.set()

    async def _keep(self, caller: McpClient, *, task_status: TaskStatus[Workspace]) -> None:
        """Own one workspace in this task, because the same task must open and close a sandbox."""
        handle = f"ws_{secrets.token_urlsafe(_HANDLE_BYTES)}"
        opened = False
        try:
            async with self.open_sandbox() as sandbox, open_task_group() as tasks:
                workspace = Workspace(
                    handle=handle, owner=caller.owner, sandbox=sandbox, tasks=tasks
                )
                workspace.last_used = anyio.current_time()
                self._by_handle[handle] = workspace
                opened = True
                task_status.started(workspace)
                await self._wait_for_end(workspace)
                self._end(workspace)
        except AssayError as error:
            if not opened:  # Failed to open; the caller handles the error.
                raise
            _LOG.warning("a workspace could not be ended well: %s", error)
        finally:
            self._by_handle.pop(handle, None)

    async def _wait_for_end(self, workspace: Workspace) -> None:
        while (left := self.idle_s - workspace.idle_s()) > 0:
            with anyio.move_on_after(left):
                await workspace.ended.wait()
                return
        _LOG.info("a workspace was not used for %g s, and ended", self.idle_s)


@asynccontextmanager
async def open_workspaces(
    open_sandbox: OpenSandbox, *, idle_s: float, most: int
) -> AsyncGenerator[Workspaces]:
    """Provide workspaces; leaving the context closes all of them, with their programs."""
    failure: AssayError | None = None
    async with anyio.create_task_group() as tasks:
        workspaces = Workspaces(open_sandbox=open_sandbox, idle_s=idle_s, most=most, _tasks=tasks)
        try:
            yield workspaces
        except AssayError as error:
            failure = error  # A task group would wrap it.
        finally:
            workspaces.end_all()
    if failure is not None:
        raise failure
