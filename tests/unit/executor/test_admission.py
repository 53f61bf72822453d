"""What one client gets of an executor, and what it may ask for."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from assay.contracts.errors import UsageError
from assay.contracts.execution import DEFAULT_SPEC, Command, Limits
from assay.executor.admission import Admission, ClientAdmission, Quotas, share_of
from assay.executor.observer import Observer
from assay.sandbox.rpc.messages.failures import ExecutorBusyError
from assay.sandbox.rpc.open_sandboxes import ExecutionRequest
from assay.settings.executor import ExecutorSettings

ATTEMPT = ExecutionRequest(
    execution_id="0123456789abcdef",
    work=Command(argv=("ls",)),
    limits=Limits(),
    equipment=DEFAULT_SPEC,
)


def admission(log: list[Mapping[str, Any]], *, executions: int = 4, waiting: int = 4) -> Admission:
    quotas = Quotas(
        executions=executions,
        waiting=waiting,
        client_executions=share_of(executions),
        client_sandboxes=10,
        client_per_minute=1000,
        maxima=Limits(),
    )
    return Admission(quotas, Observer(log.append))


@pytest.mark.parametrize("name", ["wall_s", "cpu_s", "memory_mb", "processes", "disk_mb"])
async def test_a_limit_above_the_maximum_is_refused_by_name(name: str) -> None:
    log: list[Mapping[str, Any]] = []
    alice = ClientAdmission(admission(log), "alice")
    maximum = getattr(Limits(), name)
    above = Limits(**{name: maximum + 1})

    with pytest.raises(UsageError, match=f"{name} is .* at most {maximum:g}"):
        async with alice.opening(above, DEFAULT_SPEC):
            pass
    with pytest.raises(UsageError, match=f"{name} is .* at most {maximum:g}"):
        async with alice.executing(
            ExecutionRequest(
                execution_id=ATTEMPT.execution_id,
                work=ATTEMPT.work,
                limits=above,
                equipment=DEFAULT_SPEC,
            )
        ):
            pass
    assert [entry["event"] for entry in log] == ["refused"]


async def test_one_client_holds_neither_all_turns_nor_the_whole_queue() -> None:
    shared = admission([])
    alice, bob = ClientAdmission(shared, "alice"), ClientAdmission(shared, "bob")
    let_go = anyio.Event()

    async def hold() -> None:
        async with alice.executing(ATTEMPT):
            await let_go.wait()

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            for _ in range(3):
                tasks.start_soon(hold)
            await anyio.wait_all_tasks_blocked()
        assert (shared.running, shared.waiting) == (3, 3)
        with pytest.raises(ExecutorBusyError, match="waiting already"):
            async with alice.executing(ATTEMPT):
                pass
        async with bob.executing(ATTEMPT):
            assert shared.running == 4
        let_go.set()


def test_by_default_a_client_gets_less_than_there_is() -> None:
    assert ExecutorSettings().client_executions is None
    assert share_of(32) < 32
    assert share_of(1) == 1
