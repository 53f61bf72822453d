"""Workspaces of MCP clients: each has its own sandbox, and none can name another's.

The protocol has no sessions any more, so a client is told apart by its token, the session of an
older protocol, the user it runs as on this machine, or a handle that was given out with its first
answer and cannot be guessed.
"""

import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from assay.contracts.errors import AssayError, SandboxUnavailableError, ToolError
from assay.contracts.ports import Interpreter, Sandbox

_LOG: Final = logging.getLogger(__name__)
_HANDLE_BYTES: Final = 18
_SPARED_S: Final = 60.0
"""A workspace that was used within this time is not ended to make room for another client's."""
NEW: Final = "new"
"""Given instead of a handle, it asks for one more workspace."""

OpenSandbox = Callable[[], AbstractAsyncContextManager[Sandbox]]


@dataclass(frozen=True, slots=True, kw_only=True)
class McpClient:
    """Who asks, as far as the transport can tell."""

    token: str = ""
    """The name of the token that was shown; empty without one."""
    user: str = ""
    """The user of this machine that the connection belongs to; empty if not known."""
    connection: str = ""
    """What stays the same from call to call; empty where each call stands alone."""

    alone: bool = False
    """Nobody else can be meant, and no other server: handles need not be talked about."""

    @property
    def owner(self) -> str:
        """Whose workspaces the caller may name."""
        return f"token {self.token}" if self.token else f"user {self.user}"

    @property
    def identity(self) -> str:
        """Under which a workspace is kept; empty where nothing stays the same."""
        if self.token or (self.user and not self.connection):
            return self.owner
        return self.connection


@dataclass(slots=True, kw_only=True)
class Workspace:
    """One sandbox that is kept between calls."""

    handle: str
    owner: str
    sandbox: Sandbox
    tasks: TaskGroup
    users: int = 0
    last_used: float = 0.0
    ended: anyio.Event = field(default_factory=anyio.Event)
    _interpreter: Interpreter | None = None
    _interpreter_left: anyio.Event = field(default_factory=anyio.Event)
    _opening: anyio.Lock = field(default_factory=anyio.Lock)

    def idle_s(self) -> float:
        return 0.0 if self.users else anyio.current_time() - self.last_used

    async def interpreter(self) -> Interpreter:
        """Return the interpreter of this workspace, started when it is first asked for.

        Raises:
            SandboxUnavailableError: If none can be started.
        """
        async with self._opening:
            interpreter = self._interpreter
            if interpreter is None:
                interpreter = await self.tasks.start(self._keep_interpreter)
                self._interpreter = interpreter
        return interpreter

    def forget_interpreter(self) -> None:
        """Have the next one who asks get a new one: this one is gone."""
        self._interpreter = None
        self._interpreter_left.set()

    async def _keep_interpreter(self, *, task_status: TaskStatus[Interpreter]) -> None:
        left = self._interpreter_left = anyio.Event()
        try:
            async with self.sandbox.open_interpreter() as interpreter:
                task_status.started(interpreter)
                await left.wait()
        except SandboxUnavailableError:
            if not left.is_set():  # Not opened at all, which is for whoever asked.
                raise


@dataclass(slots=True, kw_only=True)
class Workspaces:
    """All workspaces of the servers of one process."""

    open_sandbox: OpenSandbox
    idle_s: float
    most: int
    _tasks: TaskGroup
    _by_handle: dict[str, Workspace] = field(default_factory=dict[str, Workspace])
    _handles: dict[str, str] = field(default_factory=dict[str, str])
    """By identity, the workspace of those that need not name one."""
    _opening: anyio.Lock = field(default_factory=anyio.Lock)
    _unopened: int = 0

    @asynccontextmanager
    async def lease(self, caller: McpClient, handle: str = "") -> AsyncGenerator[Workspace]:
        """Hold the caller's workspace, or the one it names; with neither or `NEW`, one more.

        Raises:
            ToolError: If it names one that is not its own, or no more can be opened.
            SandboxUnavailableError: If the sandbox is gone; the next call gets a fresh one.
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
        # In the same words either way: whether somebody else's exists is nobody's business.
        if found is None or found.owner != caller.owner:
            raise ToolError(
                "there is no such workspace: it ended because nobody used it, or it is not yours; "
                "leave `workspace` out to get one"
            )
        return found

    async def _own(self, caller: McpClient) -> Workspace:
        identity = caller.identity
        if not identity:
            return await self._open(caller)
        # Two first calls at once are to land in the same workspace.
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
        """Live as long as one workspace: whoever enters a sandbox also has to leave it."""
        handle = f"ws_{secrets.token_urlsafe(_HANDLE_BYTES)}"
        begun = False
        try:
            async with self.open_sandbox() as sandbox, anyio.create_task_group() as tasks:
                workspace = Workspace(
                    handle=handle, owner=caller.owner, sandbox=sandbox, tasks=tasks
                )
                workspace.last_used = anyio.current_time()
                self._by_handle[handle] = workspace
                begun = True
                task_status.started(workspace)
                await self._wait_for_end(workspace)
                self._end(workspace)
                tasks.cancel_scope.cancel()
        except AssayError as error:
            if not begun:  # Not opened at all, which is for whoever asked.
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
    """Keep workspaces until this is left; then all of them end, and what runs in them."""
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
