"""Whose workspace an MCP client gets, and which one ends when there are too many."""

import os
import socket
from contextlib import AbstractAsyncContextManager

import pytest

from assay.contracts.errors import SandboxUnavailableError, ToolError
from assay.contracts.execution import Limits
from assay.contracts.ports import Sandbox
from assay.mcp.server import connected_user
from assay.mcp.workspaces import NEW, McpClient, Workspaces, open_workspaces
from assay.sandbox.rpc.messages.failures import ExecutorBusyError
from tests.doubles.fake_sandbox import FakeBackend

ALICE = McpClient(user="1000")
BOB = McpClient(user="1001")


def opened(most: int) -> AbstractAsyncContextManager[Workspaces]:
    def open_sandbox() -> AbstractAsyncContextManager[Sandbox]:
        return FakeBackend().open_sandbox(Limits())

    return open_workspaces(open_sandbox, idle_s=600, most=most)


async def handle_of(workspaces: Workspaces, caller: McpClient, handle: str = "") -> str:
    async with workspaces.lease(caller, handle) as workspace:
        return workspace.handle


async def test_users_keep_their_workspaces_and_cannot_name_each_others() -> None:
    async with opened(most=4) as workspaces:
        alices = await handle_of(workspaces, ALICE)
        bobs = await handle_of(workspaces, BOB)

        assert alices == await handle_of(workspaces, ALICE) != bobs
        with pytest.raises(ToolError, match="no such workspace"):
            await handle_of(workspaces, BOB, alices)


async def test_sessions_and_unknown_users_have_workspaces_of_their_own() -> None:
    session = McpClient(user="1000", connection="session")
    unknown = McpClient()
    async with opened(most=8) as workspaces:
        handles = {
            await handle_of(workspaces, caller)
            for caller in (ALICE, session, session, unknown, unknown)
        }

        assert len(handles) == 4


async def test_the_longest_idle_workspace_of_the_caller_makes_room() -> None:
    async with opened(most=3) as workspaces:
        bobs = await handle_of(workspaces, BOB)
        first = await handle_of(workspaces, ALICE, NEW)
        second = await handle_of(workspaces, ALICE, NEW)
        third = await handle_of(workspaces, ALICE, NEW)

        assert await handle_of(workspaces, BOB, bobs) == bobs
        assert await handle_of(workspaces, ALICE, second) == second
        assert await handle_of(workspaces, ALICE, third) == third
        with pytest.raises(ToolError, match="no such workspace"):
            await handle_of(workspaces, ALICE, first)


async def test_a_workspace_in_use_makes_room_for_nobody() -> None:
    async with opened(most=1) as workspaces, workspaces.lease(ALICE) as used:
        with pytest.raises(ToolError, match="calls run in all 1 workspaces"):
            await handle_of(workspaces, ALICE, NEW)

        assert await handle_of(workspaces, ALICE) == used.handle


async def test_a_lost_sandbox_is_explained_and_replaced() -> None:
    async with opened(most=2) as workspaces:
        lost = await handle_of(workspaces, ALICE)
        with pytest.raises(SandboxUnavailableError, match="its files are lost") as caught:
            async with workspaces.lease(ALICE):
                raise SandboxUnavailableError("there is no such sandbox", dispatch="never_started")

        assert caught.value.dispatch == "never_started"
        assert await handle_of(workspaces, ALICE) != lost


async def test_a_busy_executor_costs_no_workspace() -> None:
    async with opened(most=2) as workspaces:
        kept = await handle_of(workspaces, ALICE)
        with pytest.raises(ExecutorBusyError):
            async with workspaces.lease(ALICE):
                raise ExecutorBusyError("too much to do", retry_after_s=1)

        assert await handle_of(workspaces, ALICE) == kept


def test_the_kernel_says_whose_a_connection_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = listening.getsockname()
        with socket.create_connection(server) as client:
            mine = client.getsockname()

            assert connected_user(mine, server) == str(os.getuid())
            assert connected_user((mine[0], mine[1] ^ 1), server) == ""


def test_connections_from_other_machines_have_no_user() -> None:
    assert connected_user(("192.0.2.1", 4000), ("192.0.2.2", 7101)) == ""
    assert connected_user(("testclient", 4000), ("testserver", 80)) == ""
