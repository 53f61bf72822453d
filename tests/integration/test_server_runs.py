"""Runs of the service that are asked for at the same time, or fail where no run should."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from assay.asyncx.owned_context import open_task_group
from assay.server.db.database import open_database
from assay.server.db.models import Caller, Quota, RunRow
from assay.server.db.store import Store
from assay.server.errors import RequestRejectedError
from assay.server.services.event_stream import EventStreams
from assay.server.services.quotas import Quotas
from assay.server.services.run_service import RunService
from assay.settings.load import Settings
from tests.doubles.fake_sandbox import FakeBackend
from tests.support.eventually import eventually

ADA = Caller(
    user="ada",
    role="user",
    key_id="k",
    key_name="laptop",
    quota=Quota(requests_per_minute=1, runs=1),
    by_key=True,
)
STOPPED = RunRow(
    id="calm-hare-1",
    user="ada",
    key_id="k",
    goal="do",
    status="cancelled",
    model="auto",
    created_at=2.5,
)


class BrokenStore(Store):
    """Makes a mistake that nobody foresaw when a run begins."""

    async def put_run(self, row: RunRow) -> None:
        if row.status == "running":
            raise ZeroDivisionError
        await super().put_run(row)


@asynccontextmanager
async def hosted(
    folder: Path, kind: type[Store] = Store
) -> AsyncGenerator[tuple[RunService, Store]]:
    """Open runs with one that has stopped; its record is lost, so that it fails at once."""
    async with open_database(folder / "serve.sqlite", "") as database, open_task_group() as tasks:
        store = kind(database)
        await store.prepare()
        await store.put_run(STOPPED)
        settings = Settings(state_dir=folder)
        yield (
            RunService(settings, store, FakeBackend(), EventStreams(), Quotas(store), tasks),
            store,
        )


async def test_a_run_that_is_resumed_twice_at_once_is_resumed_once(tmp_path: Path) -> None:
    async with hosted(tmp_path) as (runs, store):
        answers: list[str] = []

        async def resume() -> None:
            try:
                answers.append((await runs.resume(ADA, STOPPED.id)).status)
            except RequestRejectedError as refused:
                answers.append(refused.why)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resume)
            tasks.start_soon(resume)
        assert sorted(answers) == ["busy", "queued"]
        assert await eventually(lambda: not runs.unfinished_count)
        row = await store.run("ada", STOPPED.id)
        assert row is not None
        assert row.status == "failed"
        assert (await runs.resume(ADA, STOPPED.id)).status == "queued"


async def test_a_run_whose_resuming_was_refused_can_be_resumed(tmp_path: Path) -> None:
    async with hosted(tmp_path) as (runs, _):
        nothing = replace(ADA, quota=replace(ADA.quota, runs=0))
        with pytest.raises(RequestRejectedError, match="unfinished runs"):
            await runs.resume(nothing, STOPPED.id)
        assert (await runs.resume(ADA, STOPPED.id)).status == "queued"


async def test_a_run_that_is_about_to_be_resumed_is_not_deleted(tmp_path: Path) -> None:
    async with hosted(tmp_path) as (runs, _), anyio.create_task_group() as tasks:
        tasks.start_soon(runs.resume, ADA, STOPPED.id)
        await anyio.lowlevel.checkpoint()
        with pytest.raises(RequestRejectedError, match="being worked on"):
            await runs.delete("ada", STOPPED.id)


async def test_a_mistake_in_one_run_does_not_end_the_others(tmp_path: Path) -> None:
    async with hosted(tmp_path, BrokenStore) as (runs, store):
        await runs.resume(ADA, STOPPED.id)
        assert await eventually(lambda: not runs.unfinished_count)
        assert await store.run("ada", STOPPED.id) is not None
