"""Quotas under 200 parallel requests: reserved in one transaction, settled once."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from assay.asyncx.owned_context import open_task_group
from assay.contracts.errors import BudgetExceededError
from assay.contracts.goal import RunRequest
from assay.contracts.messages import Message, ModelInfo, Request, Usage
from assay.models.scripted import Script, ScriptedModel, ScriptLine
from assay.server.db.models import Caller, Quota, RunRow
from assay.server.db.store import RUNS, Store, open_store
from assay.server.errors import RequestRejectedError
from assay.server.services.event_stream import EventStreams
from assay.server.services.quotas import (
    Quotas,
    daily_usage,
    drop_abandoned,
    new_hold,
    new_turn_hold,
    release,
    settle,
)
from assay.server.services.run_service import RunService
from assay.settings.load import Settings
from tests.doubles.fake_sandbox import FakeBackend
from tests.support.served import script

PARALLEL = 200
CAP = 1_500
ADA = Caller(
    user="ada",
    role="user",
    key_id="k",
    key_name="laptop",
    quota=Quota(requests_per_minute=1, runs=3),
    by_key=True,
)
RUN = RunRow(
    id="calm-hare-1",
    user="ada",
    key_id="k",
    goal="do",
    status="running",
    model="auto",
    created_at=2.5,
)
REQUEST = Request(messages=(Message(role="user", text="hello"),))
LONG_REQUEST = Request(messages=(Message(role="user", text="hello " * 200),))
"""Estimated at more than the 300 tokens that its reply says were read."""


def with_quota(tokens: int | None = None, usd: float | None = None) -> Caller:
    return replace(ADA, quota=replace(ADA.quota, tokens_per_day=tokens, usd_per_day=usd))


@asynccontextmanager
async def connections(folder: Path, url: str, count: int = 4) -> AsyncGenerator[list[Store]]:
    """Open one database several times, as several processes would."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_store(folder, url)) for _ in range(count)]


async def test_no_more_runs_start_than_a_key_may_have(tmp_path: Path, url: str) -> None:
    outcomes: Counter[str] = Counter()
    async with connections(tmp_path, url) as stores, anyio.create_task_group() as tasks:

        async def start(number: int) -> None:
            try:
                await Quotas(stores[number % len(stores)]).reserve(ADA, new_hold(ADA, "run"))
                outcomes["started"] += 1
            except RequestRejectedError as refused:
                outcomes[refused.why] += 1

        for number in range(PARALLEL):
            tasks.start_soon(start, number)
    assert outcomes == {"started": ADA.quota.runs, "quota-exceeded": PARALLEL - ADA.quota.runs}


async def test_parallel_turns_do_not_use_more_tokens_than_the_quota(
    tmp_path: Path, url: str
) -> None:
    caller = with_quota(tokens=CAP)
    outcomes: Counter[str] = Counter()
    async with connections(tmp_path, url) as stores, anyio.create_task_group() as tasks:

        async def turn(number: int) -> None:
            store = stores[number % len(stores)]
            quotas = Quotas(store)
            try:
                hold = await quotas.reserve(caller, new_turn_hold(caller, "hello"))
            except RequestRejectedError as refused:
                outcomes[refused.why] += 1
                return
            used = Usage(input_tokens=300, output_tokens=100)
            said = ScriptLine.model_validate(
                {"text": "hello", "usage": {"input_tokens": 300, "output_tokens": 100}}
            )
            model = quotas.held(ScriptedModel(Script(lines=(said,))), caller, hold.id)
            try:
                assert (await model.reply(LONG_REQUEST)).usage.input_tokens == used.input_tokens
                outcomes["answered"] += 1
            except BudgetExceededError:
                outcomes["too little left"] += 1
                used = Usage()
            counted = daily_usage(caller.key_id, used)
            await store.transact(lambda db: settle(db, hold.id, counted, at=1.0))

        for number in range(PARALLEL):
            tasks.start_soon(turn, number)
    async with open_store(tmp_path, url) as store:
        quotas = Quotas(store)
        used = await quotas.used(caller)
        assert 0 < used.tokens <= CAP
        assert outcomes["answered"] == used.tokens // 400
        # Nothing stays reserved: what is left can be had by the next turn.
        assert (await quotas.reserve(caller, new_hold(caller, "turn"))).tokens == CAP - used.tokens


async def test_a_reply_is_no_longer_than_what_is_left(tmp_path: Path) -> None:
    caller = with_quota(tokens=CAP)
    async with open_store(tmp_path) as store:
        quotas = Quotas(store)
        hold = await quotas.reserve(caller, new_turn_hold(caller, "hello"))
        script = Script(lines=(ScriptLine(text="x", repeat=True),))
        scripted = ScriptedModel(script)
        await quotas.held(scripted, caller, hold.id).reply(REQUEST)
        longest = scripted.asked[0].max_output_tokens
        assert longest is not None
        assert 256 <= longest < CAP
        with pytest.raises(RequestRejectedError, match="reserved by unfinished"):
            await quotas.reserve(caller, new_turn_hold(caller, "hello"))


async def test_a_model_without_a_price_is_refused_to_a_key_with_a_quota_in_dollars(
    tmp_path: Path,
) -> None:
    info = ModelInfo(context_tokens=1000, max_output_tokens=100, tool_calls=False, price=None)
    model = ScriptedModel(Script(lines=(ScriptLine(text="x"),), info=info), name="vllm:x")
    async with open_store(tmp_path) as store:
        quotas = Quotas(store)
        hold = await quotas.reserve(ADA, new_turn_hold(ADA, "hello"))
        assert quotas.held(model, ADA, hold.id) is model
        with pytest.raises(RequestRejectedError, match="no price is known for 'vllm:x'") as refused:
            quotas.held(model, with_quota(usd=5.0), hold.id)
        assert refused.value.why == "unpriced-model"


async def test_after_a_crash_only_unfinished_runs_keep_their_reservation(
    tmp_path: Path, url: str
) -> None:
    caller = with_quota(tokens=CAP)
    async with open_store(tmp_path, url) as store:
        quotas = Quotas(store)
        kept = await quotas.reserve(caller, new_hold(caller, "run", tokens=100))
        await store.transact(lambda db: RUNS.put(db, RUN))
        await store.transact(
            lambda statements: statements.run(
                "UPDATE assay_holds SET target = ? WHERE id = ?", (RUN.id, kept.id)
            )
        )
        await quotas.reserve(caller, new_hold(caller, "run", tokens=100))
        await quotas.reserve(caller, new_hold(caller, "turn", tokens=100))
    async with open_store(tmp_path, url) as store:
        await store.transact(drop_abandoned)
        found = await store.hold_of(RUN.id, RUN.key_id)
        assert found is not None
        assert found.id == kept.id
        assert (await Quotas(store).reserve(caller, new_hold(caller, "turn"))).tokens == CAP - 100
        await store.transact(lambda statements: release(statements, kept.id))
        assert await store.hold_of(RUN.id, RUN.key_id) is None


async def test_of_200_runs_asked_for_together_as_many_begin_as_the_quota_allows(
    tmp_path: Path,
) -> None:
    outcomes: Counter[str] = Counter()
    async with open_store(tmp_path) as store, open_task_group() as seats:
        settings = Settings(state_dir=tmp_path)
        runs = RunService(settings, store, FakeBackend(), EventStreams(), Quotas(store), seats)
        # Its model takes longer than everything else here.
        slow = script(tmp_path / "script.jsonl", [{"text": "x", "delay_s": 60, "repeat": True}])
        asked = RunRequest(goal="do", model=slow)
        begun: list[str] = []

        async def start() -> None:
            try:
                begun.append((await runs.create(ADA, asked, {})).id)
                outcomes["begun"] += 1
            except RequestRejectedError as refused:
                outcomes[refused.why] += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(PARALLEL):
                tasks.start_soon(start)
        assert outcomes == {"begun": ADA.quota.runs, "quota-exceeded": PARALLEL - ADA.quota.runs}
        for run in begun:
            assert await runs.cancel(ADA.user, run)
        for _ in begun:
            await Quotas(store).reserve(ADA, new_hold(ADA, "run"))
