"""Every call of an executor is a span, below that of its caller, sent to a collector over OTLP."""

from pathlib import Path

import grpc.aio
import pytest

from assay.sandbox.rpc.messages import executor_pb2
from tests.doubles.fake_sandbox import FakeBackend
from tests.support.executor_stub import ExecutorStub
from tests.support.executors import open_served
from tests.support.otlp_server import attributes_of, open_collector

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


async def test_calls_are_spans_below_those_of_their_callers(tmp_path: Path) -> None:
    request = executor_pb2.ExecuteRequest(
        execution_id="an-execution-of-the-test",
        program=executor_pb2.Program(python={"source": b"secret = 'hunter2'"}),
        fresh=executor_pb2.FreshSandbox(),
    )
    of_nobody = executor_pb2.CancelExecutionsRequest(sandbox_id="nobody-has-this")
    with open_collector() as collector:
        async with (
            open_served(FakeBackend(), tmp_path, otlp_endpoint=collector.endpoint) as executor,
            grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
        ):
            stub = ExecutorStub(channel)
            await stub.Execute(request, metadata=(("traceparent", f"00-{TRACE}-{PARENT}-01"),))
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.CancelExecutions(of_nobody)
        # Whatever was not sent yet is sent when the executor ends.

    done = {attributes_of(span)["rpc.method"]: span for span in collector.spans}
    assert collector.services == {"assay-executor"}
    assert done.keys() == {"Execute", "CancelExecutions"}
    assert done["Execute"].name == "assay.executor.v1.Executor/Execute"
    assert done["Execute"].trace_id.hex() == TRACE
    assert done["Execute"].parent_span_id.hex() == PARENT
    assert done["Execute"].end_time_unix_nano > done["Execute"].start_time_unix_nano
    assert attributes_of(done["Execute"])["rpc.grpc.status"] == "OK"
    assert done["CancelExecutions"].trace_id.hex() != TRACE
    assert attributes_of(done["CancelExecutions"])["rpc.grpc.status"] != "OK"
    assert done["CancelExecutions"].status.code == 2
    assert b"hunter2" not in b"".join(span.SerializeToString() for span in collector.spans)


async def test_a_collector_that_is_not_there_is_no_trouble_for_clients(tmp_path: Path) -> None:
    with open_collector() as collector:
        gone = collector.endpoint
    request = executor_pb2.GetCapabilitiesRequest()
    async with (
        open_served(FakeBackend(), tmp_path, otlp_endpoint=gone) as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
    ):
        answer = await ExecutorStub(channel).GetCapabilities(request)

    assert answer.backend == "fake"
