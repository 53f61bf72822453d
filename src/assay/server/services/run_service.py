"""Runs of all users: executed in the background, and resumed after a restart."""

import logging
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, get_args

import anyio
import anyio.abc
from anyio import to_thread

from assay.contracts.errors import AssayError, JournalError, UsageError
from assay.contracts.events import Passing, RunEvent
from assay.contracts.goal import RunRequest, RunResult
from assay.contracts.messages import Usage
from assay.contracts.ports import SandboxBackend
from assay.contracts.workspace import Tree
from assay.files import make_folder, write_file
from assay.runs.request import RunCallbacks
from assay.runs.runner import Lent, create_run, resume_run
from assay.server.auth import settings_of
from assay.server.db.models import UNFINISHED, AuditEntry, Caller, Hold, Page, RunRow
from assay.server.db.store import RUNS, Store
from assay.server.errors import RequestRejectedError, not_found
from assay.server.services.audit_log import RunAudit
from assay.server.services.event_stream import EventStream, EventStreams, StreamKey
from assay.server.services.quotas import (
    Quotas,
    check_price,
    daily_usage,
    new_hold,
    settle,
    shrink,
)
from assay.server.services.run_progress import RunProgress, progress_of
from assay.server.services.shared_resources import price_of
from assay.settings.load import Settings
from assay.storage.blob_store import BlobStore
from assay.storage.journal import read_events
from assay.storage.run_store import RunStore
from assay.text.diffs import unified_diff
from assay.text.sql_tables import Statements

_LOG: Final = logging.getLogger(__name__)
_PASSING: Final = get_args(Passing)
_WORKSPACES: Final = "workspaces"

Listener = Callable[[str, RunEvent], None]


class RunService:
    """Operations on runs. Each user can access only their own."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        backend: SandboxBackend,
        streams: EventStreams,
        quotas: Quotas,
        tasks: anyio.abc.TaskGroup,
        listener: Listener = lambda _run, _event: None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._backend = backend
        self._streams = streams
        self._quotas = quotas
        self._tasks = tasks
        self._turns = anyio.Semaphore(settings.serve.max_concurrent_runs)
        self._scopes: dict[StreamKey, anyio.CancelScope] = {}
        self._ended: dict[StreamKey, anyio.Event] = {}
        self._ending = False
        self._listener = listener

    @property
    def unfinished_count(self) -> int:
        return len(self._scopes)

    async def create(
        self, caller: Caller, asked: RunRequest, files: Mapping[PurePosixPath, bytes]
    ) -> RunRow:
        """Store a new run on these files, and start it.

        Raises:
            RequestRejectedError: If the quota of the caller does not allow another run.
            UsageError: If the request is invalid.
        """
        if caller.quota.usd_per_day is not None:
            check_price(caller, asked.model, await price_of(asked.model, self._settings))
        requested = new_hold(caller, "run", tokens=asked.budget_tokens, usd=asked.budget_usd)
        hold = await self._quotas.reserve(caller, requested)
        try:
            return await self._created(caller, asked, files, hold)
        except BaseException:
            self._quotas.release(hold)
            raise

    async def _created(
        self,
        caller: Caller,
        asked: RunRequest,
        files: Mapping[PurePosixPath, bytes],
        hold: Hold,
    ) -> RunRow:
        settings = settings_of(self._settings, caller.user)
        workspace = settings.state_dir / _WORKSPACES / secrets.token_hex(8)
        await to_thread.run_sync(_write_files, workspace, files)
        asked = replace(asked, workspace=workspace)
        try:
            run = await create_run(asked, settings)
        except AssayError:
            await to_thread.run_sync(_remove, workspace)
            raise
        row = RunRow(
            id=run.id,
            user=caller.user,
            key_id=caller.key_id,
            goal=asked.goal,
            status="queued",
            model=asked.model,
            created_at=run.created_at,
        )
        await self._store.transact(partial(_queue, row, hold))
        self._start(row)
        return row

    async def list(self, user: str, page: Page) -> tuple[RunRow, ...]:
        return tuple([await self._graded(row) for row in await self._store.runs(user, page)])

    async def _graded(self, row: RunRow) -> RunRow:
        """Return a row with its grade, which older versions stored only in the run's folder."""
        if row.status != "accepted" or row.grade:
            return row
        with suppress(JournalError):
            graded = replace(row, grade=_grade_of((await self.progress(row)).outcome))
            await self._store.put_run(graded)
            return graded
        return row

    async def find(self, user: str, run_id: str) -> RunRow:
        """Return a run of this user.

        Raises:
            RequestRejectedError: If the user has no such run.
        """
        row = await self._store.run(user, run_id)
        if row is None:
            raise not_found("run", run_id)
        return row

    async def progress(self, row: RunRow) -> RunProgress:
        """Return the progress of a run; raises `JournalError` if it cannot be read."""
        return await to_thread.run_sync(_progress, self._folder(row))

    async def asked(self, row: RunRow) -> RunRequest:
        """Return the request of a run; raises `JournalError` if it cannot be read."""
        store = RunStore(settings_of(self._settings, row.user).state_dir)
        run = await to_thread.run_sync(store.open, row.id)
        return run.request

    async def tree(self, row: RunRow) -> Tree:
        """Return the current files of a run."""
        return (await to_thread.run_sync(_trees, self._folder(row)))[1]

    async def diff(self, row: RunRow) -> str:
        """Return the changes of a run."""

        def read() -> str:
            return unified_diff(*_trees(self._folder(row)))

        return await to_thread.run_sync(read)

    async def certificate(self, row: RunRow) -> bytes:
        """Return the certificate of an accepted run, byte for byte.

        Raises:
            RequestRejectedError: If the run has no certificate.
        """
        outcome = (await self.progress(row)).outcome
        if outcome is None or not outcome.certificate:
            raise RequestRejectedError(f"the run {row.id!r} has no certificate", why="not-found")
        try:
            return await anyio.Path(outcome.certificate).read_bytes()
        except OSError as error:
            raise JournalError(f"the certificate cannot be read: {error.strerror}") from error

    async def cancel(self, user: str, run_id: str) -> bool:
        """Stop a run, which can be resumed; return False if it was not in progress.

        Raises:
            RequestRejectedError: If there is no such run.
        """
        row = await self.find(user, run_id)
        key = _key(row)
        if key not in self._scopes:
            return False
        self._scopes[key].cancel()
        await self._ended[key].wait()
        return True

    async def resume(self, caller: Caller, run_id: str) -> RunRow:
        """Resume a stopped run.

        Raises:
            RequestRejectedError: If there is no such run, or it cannot be resumed.
        """
        key = StreamKey(kind="run", user=caller.user, id=run_id)
        if key in self._scopes:
            raise RequestRejectedError(f"the run {run_id!r} is being worked on", why="busy")
        # Claimed before the first await, so that only one of several parallel requests resumes it.
        self._claim(key)
        try:
            row = await self._queued_again(caller, run_id)
        except BaseException:
            self._give_up(key)
            raise
        self._tasks.start_soon(self._work, row, key)
        return row

    async def _queued_again(self, caller: Caller, run_id: str) -> RunRow:
        row = await self.find(caller.user, run_id)
        if row.status not in {"cancelled", "failed", "out_of_budget", "interrupted"}:
            if row.status in UNFINISHED:
                raise RequestRejectedError(f"the run {run_id!r} is not finished", why="busy")
            ended = row.status.replace("_", " ")
            raise RequestRejectedError(
                f"the run {run_id!r} is already {ended}", why="not-resumable"
            )
        tokens, usd = await self._budget_left(row)
        hold = await self._quotas.reserve(caller, new_hold(caller, "run", tokens=tokens, usd=usd))
        row = replace(row, status="queued", ended_at=None, error="", key_id=caller.key_id)
        try:
            await self._store.transact(partial(_queue, row, hold))
        except BaseException:
            self._quotas.release(hold)
            raise
        return row

    async def _budget_left(self, row: RunRow) -> tuple[int | None, float | None]:
        """Return the rest of a run's own budget; None without one."""
        try:
            asked = await self.asked(row)
        except AssayError:
            return None, None
        tokens, usd = asked.budget_tokens, asked.budget_usd
        return (
            None if tokens is None else max(1, tokens - row.tokens),
            None if usd is None else max(0.0, usd - row.cost_usd),
        )

    async def delete(self, user: str, run_id: str) -> None:
        """Delete a run with all its files.

        Raises:
            RequestRejectedError: If there is none, or it is in progress.
        """
        row = await self.find(user, run_id)
        if row.status in UNFINISHED or _key(row) in self._scopes:
            raise RequestRejectedError(
                "this run is being worked on", why="busy", hint="cancel it first"
            )
        store = RunStore(settings_of(self._settings, user).state_dir)

        def remove() -> None:
            with suppress(AssayError):
                workspace = store.open(run_id).request.workspace
                if workspace:
                    _remove(workspace)
            if (store.folder / run_id).is_dir():
                store.delete(run_id)

        await to_thread.run_sync(remove)
        await self._store.delete_run(user, run_id)
        self._streams.close(_key(row))

    @asynccontextmanager
    async def stream(self, row: RunRow) -> AsyncGenerator[EventStream]:
        """Open the event stream of a run."""
        async with self._streams.hold(_key(row), self._folder(row)) as stream:
            yield stream

    async def recover(self) -> None:
        """Resume every run that was unfinished when the last process ended."""
        for row in await self._store.unfinished_runs():
            self._start(row)

    async def drain(self) -> None:
        """Stop all runs; the next process resumes them."""
        self._ending = True
        for scope in self._scopes.values():
            scope.cancel()
        for ended in tuple(self._ended.values()):
            await ended.wait()

    def _folder(self, row: RunRow) -> Path:
        return RunStore(settings_of(self._settings, row.user).state_dir).folder / row.id

    def _start(self, row: RunRow) -> None:
        key = _key(row)
        self._claim(key)
        self._tasks.start_soon(self._work, row, key)

    def _claim(self, key: StreamKey) -> None:
        self._scopes[key], self._ended[key] = anyio.CancelScope(), anyio.Event()

    def _give_up(self, key: StreamKey) -> None:
        del self._scopes[key]
        self._ended.pop(key).set()

    async def _work(self, row: RunRow, key: StreamKey) -> None:
        final = replace(row, status="cancelled")
        try:
            with self._scopes[key]:
                async with self._turns:
                    row = replace(row, status="running")
                    await self._store.put_run(row)
                    final = await self._carried_out(row, key)
            # Runs that stop because of the shutdown resume after the restart.
            goes_on = self._ending and final.status == "cancelled"
            await self._settle(row if goes_on else replace(final, ended_at=time.time()))
        except AssayError as error:
            _LOG.error("a run could not be noted: %s", error)
        except Exception as error:  # noqa: BLE001 - a defect in one run must not end other runs
            _LOG.critical("%s", error, exc_info=error)
        finally:
            self._give_up(key)
            self._streams.close(key)

    async def _carried_out(self, row: RunRow, key: StreamKey) -> RunRow:
        """Execute a run to its end, and return its final row."""
        settings = settings_of(self._settings, row.user)
        new_entry = partial(
            AuditEntry,
            user=row.user,
            key_id=row.key_id,
            target=row.id,
            model=row.model,
            backend=self._backend.name,
        )
        audit = RunAudit(new_entry, self._store)
        try:
            async with self._streams.hold(key, self._folder(row)) as stream:

                def on_event(event: RunEvent) -> None:
                    stream.send(event, kept=not isinstance(event, _PASSING))
                    self._listener(row.id, event)

                callbacks = RunCallbacks(listeners=(on_event, audit.on_event))
                lent = await self._lent(row)
                outcome = await resume_run(row.id, settings, callbacks, lent=lent)
                return replace(row, status=outcome.status.value, error="", grade=_grade_of(outcome))
        except AssayError as error:
            hint = f" ({error.hint})" if error.hint else ""
            return replace(row, status="failed", error=f"{error}{hint}")
        except Exception as error:  # noqa: BLE001 - a defect in one run must not end other runs
            _LOG.critical("%s", error, exc_info=error)
            return replace(row, status="failed", error="Internal error; see the server log")
        finally:
            # Outcome for an attempt that has no end of its own.
            audit.finish("interrupted" if self._ending else "stopped")

    async def _lent(self, row: RunRow) -> Lent:
        """Return the resources of a run: the backend, and caps from its reservation."""
        hold = await self._store.hold_of(row.id, row.key_id)
        return Lent(
            backend=self._backend,
            most_tokens=row.tokens + hold.tokens if hold and hold.tokens else None,
            most_usd=row.cost_usd + hold.cost_usd if hold and hold.cost_usd else None,
        )

    async def _settle(self, row: RunRow) -> None:
        """Store the status of a run, and count its usage since the last count."""
        hold = await self._store.hold_of(row.id, row.key_id)
        used, counted = Usage(), row
        # Without a readable record, its usage is unknown.
        with suppress(JournalError):
            usage = (await self.progress(row)).usage
            used = usage - Usage(input_tokens=row.tokens, cost_usd=row.cost_usd)
            tokens = usage.input_tokens + usage.output_tokens
            counted = replace(row, tokens=tokens, cost_usd=usage.cost_usd or row.cost_usd)
        added, now = daily_usage(row.key_id, used), time.time()

        def write(db: Statements) -> None:
            RUNS.put(db, counted)
            if hold is not None and row.status in UNFINISHED:
                shrink(db, hold, added, at=now)
            else:
                settle(db, hold.id if hold else "", added, at=now)

        await self._store.transact(write)


def _queue(row: RunRow, hold: Hold, db: Statements) -> None:
    RUNS.put(db, row)
    db.run("UPDATE assay_holds SET target = ? WHERE id = ?", (row.id, hold.id))


def _key(row: RunRow) -> StreamKey:
    return StreamKey(kind="run", user=row.user, id=row.id)


def _grade_of(outcome: RunResult | None) -> str:
    return outcome.grade.value if outcome and outcome.grade else ""


def _progress(folder: Path) -> RunProgress:
    return progress_of(recorded.event for recorded in read_events(folder))


def _trees(folder: Path) -> tuple[Tree, Tree]:
    """Return the original and the current files."""
    progress, blobs = _progress(folder), BlobStore(folder)
    if not progress.pristine:
        return Tree(), Tree()
    return blobs.load(progress.pristine), blobs.load(progress.tree)


def _write_files(workspace: Path, files: Mapping[PurePosixPath, bytes]) -> None:
    try:
        make_folder(workspace)
        for path, content in files.items():
            make_folder((workspace / path).parent)
            write_file(workspace / path, content)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        _remove(workspace)
        raise UsageError("one path in these files is both a file and a folder") from error
    except OSError as error:
        _remove(workspace)
        raise JournalError(f"the files of the run cannot be written: {error.strerror}") from error


def _remove(workspace: Path) -> None:
    if workspace.parent.name == _WORKSPACES:
        shutil.rmtree(workspace, ignore_errors=True)
