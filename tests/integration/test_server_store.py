"""What the service keeps in its database: the same on SQLite and on a real PostgreSQL server."""

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import psycopg
import pytest

from assay.contracts.errors import JournalError, UsageError
from assay.contracts.messages import Usage
from assay.server.auth import ApiKeys, Authenticator, digest_of
from assay.server.db.database import open_database
from assay.server.db.models import AuditEntry, AuditPage, DailyUsage, Page, RunRow, SessionRow
from assay.server.db.store import Store, count_usage, open_store
from assay.server.errors import RequestRejectedError
from assay.server.services.quotas import Quotas, daily_usage, new_hold, new_turn_hold
from assay.settings.sections import QuotaSettings

SESSION = SessionRow(id="calm-owl-1", user="ada", title="ü", created_at=1.5, updated_at=1.5)
RUN = RunRow(
    id="calm-hare-1",
    user="ada",
    key_id="k",
    goal="do",
    status="queued",
    model="auto",
    created_at=2.5,
)


@asynccontextmanager
async def opened(folder: Path, url: str) -> AsyncGenerator[Store]:
    async with open_store(folder, url) as store:
        yield store


async def add_usage(store: Store, used: DailyUsage) -> None:
    await store.transact(lambda db: count_usage(db, used, seen_at=1.0))


async def test_what_is_kept_is_there_when_it_is_opened_again(tmp_path: Path, url: str) -> None:
    async with opened(tmp_path, url) as store:
        await store.put_session(SESSION)
        await store.put_run(RUN)
    async with opened(tmp_path, url) as store:
        assert await store.session("ada", SESSION.id) == SESSION
        assert await store.run("ada", RUN.id) == RUN


async def test_nothing_is_found_under_another_user(tmp_path: Path, url: str) -> None:
    async with opened(tmp_path, url) as store:
        await store.put_session(SESSION)
        await store.put_run(RUN)
        await store.put_thread("ada", "digest", SESSION.id)
        assert await store.session("ben", SESSION.id) is None
        assert await store.run("ben", RUN.id) is None
        assert await store.sessions("ben", Page()) == ()
        assert await store.runs("ben", Page()) == ()
        assert await store.thread("ben", "digest") is None
        assert not await store.delete_session("ben", SESSION.id)
        assert not await store.delete_run("ben", RUN.id)
        assert await store.thread("ada", "digest") == SESSION.id


async def test_lists_come_newest_first_in_parts(tmp_path: Path, url: str) -> None:
    async with opened(tmp_path, url) as store:
        for number in range(5):
            row = replace(SESSION, id=f"owl-{number}", updated_at=float(number))
            await store.put_session(row)
            await store.put_run(replace(RUN, id=f"hare-{number}", created_at=float(number)))
        first = await store.sessions("ada", Page(limit=2))
        assert [row.id for row in first] == ["owl-4", "owl-3"]
        rest = await store.sessions("ada", Page(limit=9, before=first[-1].updated_at))
        assert [row.id for row in rest] == ["owl-2", "owl-1", "owl-0"]
        assert [row.id for row in await store.runs("ada", Page(limit=1))] == ["hare-4"]


async def test_what_was_under_way_is_found_after_a_crash(tmp_path: Path, url: str) -> None:
    async with opened(tmp_path, url) as store:
        await store.put_session(replace(SESSION, busy=True))
        await store.put_session(replace(SESSION, id="idle-owl"))
        await store.put_run(replace(RUN, status="running"))
        await store.put_run(replace(RUN, id="done", status="accepted"))
        assert [row.id for row in await store.busy_sessions()] == [SESSION.id]
        assert [row.id for row in await store.unfinished_runs()] == [RUN.id]
        assert await store.count_unfinished("k") == 1


async def test_usage_adds_up_by_key_and_day(tmp_path: Path, url: str) -> None:
    async with opened(tmp_path, url) as store:
        for _ in range(3):
            added = DailyUsage(key_id="k", day="2026-01-01", requests=1, tokens=5, cost_usd=0.5)
            await add_usage(store, added)
        used = await store.usage("k", "2026-01-01")
        assert used == replace(added, requests=3, tokens=15, cost_usd=1.5)
        assert (await store.usage("k", "2026-01-02")).requests == 0


async def test_many_at_once_lose_nothing(tmp_path: Path, url: str) -> None:
    async with opened(tmp_path, url) as store:

        async def add() -> None:
            await add_usage(store, DailyUsage(key_id="k", day="d", requests=1))

        async with anyio.create_task_group() as tasks:
            for _ in range(200):
                tasks.start_soon(add)
        assert (await store.usage("k", "d")).requests == 200


async def test_the_audit_log_keeps_what_was_done(tmp_path: Path, url: str) -> None:
    async with opened(tmp_path, url) as store:
        entries = [
            AuditEntry(
                id=str(number),
                at=float(number),
                user="ada",
                key_id="k",
                action="run.create",
                target="x",
                outcome="done",
            )
            for number in range(3)
        ]
        for entry in entries:
            await store.add_audit(entry)
        assert await store.audit(AuditPage(limit=2)) == (entries[2], entries[1])


async def test_a_key_is_kept_as_a_digest_and_ends_when_it_is_revoked(
    tmp_path: Path, url: str
) -> None:
    async with opened(tmp_path, url) as store:
        keys, access = ApiKeys(store), Authenticator(store, QuotaSettings(), open_to_local=True)
        assert (await access.identify("")).user == "local"
        record, key = await keys.create(user="ada", name="laptop", runs=7)
        assert await store.key_with(digest_of(key)) == record
        caller = await access.identify(f"Bearer {key}")
        assert (caller.user, caller.role, caller.quota.runs) == ("ada", "user", 7)
        for header in ("", "Bearer wrong", f"Basic {key}", f"Bearer {key}x"):
            with pytest.raises(RequestRejectedError) as refused:
                await access.identify(header)
            assert refused.value.why == "unauthorized"
        await keys.revoke(record.id)
        with pytest.raises(RequestRejectedError):
            await keys.revoke(record.id)
        # Once there was a key, the service never opens again by itself.
        for header in ("", f"Bearer {key}"):
            with pytest.raises(RequestRejectedError):
                await access.identify(header)


async def test_where_keys_are_required_nobody_comes_in_before_there_is_one(tmp_path: Path) -> None:
    async with opened(tmp_path, "") as store:
        with pytest.raises(RequestRejectedError):
            await Authenticator(store, QuotaSettings(), open_to_local=False).identify("")


async def test_a_key_whose_own_cap_is_nothing_gets_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, "") as store:
        _, key = await ApiKeys(store).create(user="ada", name="x", usd_per_day=0.0)
        access = Authenticator(store, QuotaSettings(usd_per_day=5.0), open_to_local=False)
        assert (await access.identify(f"Bearer {key}")).quota.usd_per_day == 0.0


@pytest.mark.parametrize("name", ["", "..", "a/b", "Ada", "a" * 65, "-a", "ü"])
async def test_a_user_cannot_be_called_by_a_path(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path, "") as store:
        with pytest.raises(UsageError):
            await ApiKeys(store).create(user=name, name="x")


async def test_tokens_money_and_runs_of_a_key_have_an_end(tmp_path: Path, url: str) -> None:
    async with opened(tmp_path, url) as store:
        quotas = Quotas(store)
        _, key = await ApiKeys(store).create(
            user="ada", name="x", tokens_per_day=100, usd_per_day=1.0, runs=1
        )
        caller = await Authenticator(store, QuotaSettings(), open_to_local=False).identify(
            f"Bearer {key}"
        )
        await quotas.reserve(caller, new_hold(caller, "run", tokens=10))
        with pytest.raises(RequestRejectedError, match="unfinished runs"):
            await quotas.reserve(caller, new_hold(caller, "run"))
        used = daily_usage(caller.key_id, Usage(input_tokens=60, output_tokens=40))
        await add_usage(store, used)
        with pytest.raises(RequestRejectedError, match="used up") as refused:
            await quotas.reserve(caller, new_turn_hold(caller, "hello"))
        with pytest.raises(RequestRejectedError, match="used up"):
            await quotas.check_left(caller)
        assert refused.value.retry_after_s


async def test_requests_of_a_key_have_an_end(tmp_path: Path) -> None:
    async with opened(tmp_path, "") as store:
        usual = QuotaSettings(requests_per_minute=3)
        quotas = Quotas(store)
        caller = await Authenticator(store, usual, open_to_local=True).identify("")
        for _ in range(3):
            quotas.count_request(caller)
        with pytest.raises(RequestRejectedError) as refused:
            quotas.count_request(caller)
        assert refused.value.why == "rate-limited"
        assert (await quotas.used(caller)).requests == 3
        await quotas.flush()
        assert (await quotas.used(caller)).requests == 3


async def test_what_the_first_version_has_written_is_read_and_kept(
    tmp_path: Path, url: str
) -> None:
    older = (
        "ALTER TABLE assay_runs DROP COLUMN tokens",
        "ALTER TABLE assay_runs DROP COLUMN cost_usd",
        "ALTER TABLE assay_runs DROP COLUMN grade",
        "ALTER TABLE assay_sessions DROP COLUMN key_id",
        "DROP TABLE assay_holds",
        *(
            f"ALTER TABLE assay_audit DROP COLUMN {name}"
            for name in ("part", "model", "backend", "code_sha256", "duration_s")
        ),
        "UPDATE assay_version SET version = 1",
    )
    async with open_database(tmp_path / "serve.sqlite", url) as database:
        store = Store(database)
        await store.prepare()
        await store.put_run(RUN)
        await store.put_session(SESSION)
        for sql in older:
            await database.transact(lambda db, sql=sql: db.run(sql))
    for _ in range(2):
        async with opened(tmp_path, url) as store:
            assert await store.run(RUN.user, RUN.id) == RUN
            counted = replace(RUN, tokens=7, cost_usd=0.5, grade="proven")
            await store.put_run(counted)
            assert await store.run(RUN.user, RUN.id) == counted
            await store.put_run(RUN)
            assert await store.session(SESSION.user, SESSION.id) == SESSION
            await store.put_session(replace(SESSION, key_id="abc"))
            assert await store.session(SESSION.user, SESSION.id) == replace(SESSION, key_id="abc")
            await store.put_session(SESSION)
            # Unfinished runs of the older version count as well.
            assert await store.hold_of(RUN.id, RUN.key_id) is not None


async def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, ""):
        pass
    with sqlite3.connect(tmp_path / "serve.sqlite") as database:
        database.execute("UPDATE assay_version SET version = 99")
    database.close()
    with pytest.raises(UsageError, match="newer version"):
        async with opened(tmp_path, ""):
            pass


async def test_a_server_that_went_away_is_found_again(postgres_server: str, tmp_path: Path) -> None:
    async with opened(tmp_path, postgres_server) as store:
        with psycopg.connect(postgres_server, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = 'postgres'"
            )
        with pytest.raises(JournalError, match="does not answer"):
            await store.check()
        await store.check()


async def test_a_server_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    url = f"postgresql://ada:hidden-words@/postgres?host={tmp_path}"
    with pytest.raises(JournalError) as told:
        async with opened(tmp_path, url):
            pass
    assert "hidden-words" not in str(told.value)


async def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "state", ""):
        path = tmp_path / "state" / "serve.sqlite"
        assert path.stat().st_mode & 0o077 == 0
