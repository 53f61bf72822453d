"""Every selector of the executor's alert rules matches numbers that a running executor exports."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import grpc.aio
import httpx2
import yaml
from prometheus_client.parser import text_string_to_metric_families

from assay.auth.tokens import executor_tokens
from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import ExecutionResult, Program, PythonCode
from assay.executor.serve import Executor
from assay.sandbox.rpc.messages import executor_pb2
from tests.doubles.fake_sandbox import FakeBackend, FakeSandbox, answer_with
from tests.support.executor_stub import ExecutorStub
from tests.support.executors import open_served
from tests.support.slow_sandboxes import OneSandbox, SlowSandbox
from tests.support.sources import ROOT

RULES = ROOT / "deploy" / "executor-alerts.yaml"
SELECTOR = re.compile(r"\b(assay_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')

Samples = list[tuple[str, dict[str, str]]]


def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
    del sandbox
    assert isinstance(program, PythonCode)
    if program.source == b"lost":
        raise SandboxUnavailableError("the sandbox is gone", dispatch="maybe_ran")
    if program.source == b"defect":
        raise ZeroDivisionError
    return answer_with("42")


def asked(number: int, source: bytes = b"print(42)") -> executor_pb2.ExecuteRequest:
    return executor_pb2.ExecuteRequest(
        execution_id=f"execution-{number:08}",
        program=executor_pb2.Program(python={"source": source}),
        fresh=executor_pb2.FreshSandbox(limits=executor_pb2.Limits(wall_s=5)),
    )


async def numbers(executor: Executor) -> Samples:
    async with httpx2.AsyncClient() as http:
        text = (await http.get(f"http://127.0.0.1:{executor.metrics_port}/metrics")).text
    families = text_string_to_metric_families(text)
    return [(sample.name, sample.labels) for family in families for sample in family.samples]


async def trouble(folder: Path, port: int) -> Samples:
    """Have an executor meet everything that its rules are about, except a queue that is full."""
    token = ("authorization", f"Bearer {executor_tokens(folder / 'tokens').add('alice')}")
    settings = {
        "metrics_port": port,
        "token_file": folder / "tokens",
        "deny_modules": ("socket",),
        "client_sandboxes": 1,
        "client_per_minute": 4,
    }
    async with (
        open_served(FakeBackend(answer=answer), folder, **settings) as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
    ):
        stub = ExecutorStub(channel)
        with suppress(grpc.aio.AioRpcError):
            await stub.Execute(asked(0))
        sources = (b"print(42)", b"lost", b"defect", b"import socket", b"one more than the rate")
        for number, source in enumerate(sources, 1):
            with suppress(grpc.aio.AioRpcError):
                await stub.Execute(asked(number, source), metadata=[token])
        for name in ("sandbox-number-1", "sandbox-number-2"):
            opening = executor_pb2.OpenSandboxRequest(
                sandbox_id=name, limits=executor_pb2.Limits(wall_s=5)
            )
            with suppress(grpc.aio.AioRpcError):
                await stub.OpenSandbox(opening, metadata=[token])
        return await numbers(executor)


async def full_queue(folder: Path, port: int) -> Samples:
    slow = SlowSandbox()
    settings = {"metrics_port": port, "max_queued": 1, "client_executions": 1}
    async with (
        open_served(OneSandbox(slow), folder, **settings) as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
        anyio.create_task_group() as tasks,
    ):

        async def run(number: int) -> None:
            with suppress(grpc.aio.AioRpcError):
                await ExecutorStub(channel).Execute(asked(number))

        for number in range(3):
            tasks.start_soon(run, number)

        async def refused() -> bool:
            return ("assay_refusals_total", {"why": "queue"}) in await numbers(executor)

        with anyio.fail_after(60):
            while not await refused():
                await anyio.lowlevel.checkpoint()
        slow.go_on.set()
        return await numbers(executor)


def selectors() -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            for name, braces in SELECTOR.findall(rule["expr"]):
                matchers = MATCHER.findall(braces)
                assert len(matchers) == braces.count('="') + braces.count("=~")
                yield rule["alert"], name, matchers


def fits(labels: dict[str, str], matcher: tuple[str, str, str]) -> bool:
    label, how, wanted = matcher
    given = labels.get(label, "")
    return given == wanted if how == "=" else bool(re.fullmatch(wanted, given))


async def test_every_alert_rule_matches_what_an_executor_exports(
    tmp_path: Path, free_tcp_port_factory: Callable[[], int]
) -> None:
    (tmp_path / "queue").mkdir()
    samples = await trouble(tmp_path, free_tcp_port_factory())
    samples += await full_queue(tmp_path / "queue", free_tcp_port_factory())

    found = list(selectors())
    assert {alert for alert, _, _ in found} >= {"AssayExecutorFaults", "AssayExecutorStrangers"}
    silent = [
        (alert, name, matchers)
        for alert, name, matchers in found
        if not any(
            name == sample and all(fits(labels, matcher) for matcher in matchers)
            for sample, labels in samples
        )
    ]
    assert silent == [], sorted({str(sample) for sample in samples})
    # A defect of the executor is a failure as well, for metrics as in the audit log.
    log = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    ended = [(entry["outcome"], entry.get("why")) for entry in log if entry["event"] == "ended"]
    assert ended[1:3] == [
        ("failed", "SandboxUnavailableError"),
        ("failed", "ZeroDivisionError"),
    ]
    # Each reason by itself, as alternatives of one selector hide each other.
    reasons = {labels["why"] for name, labels in samples if name == "assay_refusals_total"}
    assert reasons >= {"stranger", "policy", "queue", "rate", "sandboxes"}
