"""Sandbox on an executor that waits while its executor is busy."""

import anyio

from assay.contracts.execution import ExecutionResult, Limits, Program
from assay.contracts.ports import OnOutput, ignore_output
from assay.sandbox.rpc.client_sandbox import FarSandbox
from assay.sandbox.rpc.messages.failures import ExecutorBusyError
from assay.sandbox.rpc.transport import Caller

NAME = "remote"


class RemoteSandbox(FarSandbox):
    """Retries a request only if nothing was started."""

    def __init__(self, caller: Caller, limits: Limits, *, patience_s: float) -> None:
        super().__init__(caller, NAME, limits)
        self._patience_s = patience_s

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        deadline = anyio.current_time() + self._patience_s
        while True:
            try:
                return await super().run(program, on_output=on_output)
            except ExecutorBusyError as busy:
                if anyio.current_time() + busy.retry_after_s > deadline:
                    raise
                await anyio.sleep(busy.retry_after_s)
