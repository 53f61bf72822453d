"""Verified helpers: code that was of use, kept with its test, and tested again before it is reused.

Nothing is handed out on trust. A helper is kept only if its test passes with it and fails without
it, in a sandbox, and it is handed out only after the test has passed again, here and now.
"""

import re
import sqlite3
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

import anyio.to_thread

from assay.contracts.errors import JournalError, UsageError
from assay.contracts.execution import Command, Reason
from assay.contracts.ports import Sandbox
from assay.memory.database import open_database
from assay.memory.redaction import redact

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_MAX_CHARS: Final = 40_000
_TEST_S: Final = 60.0
_MOST_FAILURES: Final = 3
"""In a row, before a helper is not tried any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A module of Python that does one thing, and a module of tests that says so."""

    name: str
    """Of the module; its tests import it by this name."""
    purpose: str
    source: str
    test: str
    """A program that ends with 0 if, and only if, the helper does what it should."""
    project: str = ""
    passed: int = 0
    failed: int = 0
    checked_at: float = 0.0


Check = Callable[[Skill], Awaitable[bool]]
"""Runs the test of a skill in a sandbox, and says whether it passed."""


class SkillShelf:
    """Skills in the file of the memory."""

    def __init__(self, path: Path, check: Check) -> None:
        self._path = path
        self._check = check

    async def keep(self, skill: Skill) -> bool:
        """Keep a helper if its test proves something; returns whether it does.

        Raises:
            UsageError: If its name is not that of a module, or it is too long.
            JournalError: If it cannot be written.
        """
        if not _NAME.fullmatch(skill.name):
            raise UsageError(f"{skill.name!r} is no name for a module", hint="use lower_case")
        if len(skill.source) + len(skill.test) > _MAX_CHARS:
            raise UsageError(f"the skill {skill.name!r} is too long to be kept")
        if redact(skill.source) != skill.source or redact(skill.test) != skill.test:
            # Taking it out would change what the code does.
            raise UsageError(f"the skill {skill.name!r} holds what looks like a secret")
        proves_nothing = await self._check(replace(skill, source=""))
        if proves_nothing or not await self._check(skill):
            return False
        skill = replace(skill, passed=1, failed=0, checked_at=time.time())
        await anyio.to_thread.run_sync(self._write, skill)
        return True

    async def names(self, project: str = "") -> tuple[tuple[str, str], ...]:
        """Return name and purpose of every skill that this project may use."""
        rows = await anyio.to_thread.run_sync(self._rows, project)
        return tuple((skill.name, skill.purpose) for skill in rows if not _is_broken(skill))

    async def reuse(self, name: str, project: str = "") -> Skill | None:
        """Return a helper whose test has just passed; None if there is none, or it fails now."""
        rows = await anyio.to_thread.run_sync(self._rows, project)
        known = next((skill for skill in rows if skill.name == name), None)
        if known is None or _is_broken(known):
            return None
        passed = await self._check(known)
        checked = replace(
            known,
            passed=known.passed + passed,
            failed=0 if passed else known.failed + 1,
            checked_at=time.time(),
        )
        await anyio.to_thread.run_sync(self._write, checked)
        return checked if passed else None

    def _rows(self, project: str) -> list[Skill]:
        with _explained(), closing(open_database(self._path)) as database:
            rows = database.execute(
                "SELECT name, purpose, source, test, project, passed, failed, checked_at "
                "FROM skills WHERE project IN ('', ?) ORDER BY project = '', name",
                (project,),
            ).fetchall()
        return [
            Skill(
                name=row[0],
                purpose=row[1],
                source=row[2],
                test=row[3],
                project=row[4],
                passed=row[5],
                failed=row[6],
                checked_at=row[7],
            )
            for row in rows
        ]

    def _write(self, skill: Skill) -> None:
        with _explained(), closing(open_database(self._path)) as database:
            database.execute(
                "INSERT OR REPLACE INTO skills "
                "(project, name, purpose, source, test, passed, failed, checked_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (skill.project, skill.name, skill.purpose, skill.source, skill.test,
                 skill.passed, skill.failed, skill.checked_at),
            )  # fmt: skip


def check_in(open_sandbox: Callable[[], AbstractAsyncContextManager[Sandbox]]) -> Check:
    """Build a check that runs each test in a sandbox of its own."""

    async def check(skill: Skill) -> bool:
        async with open_sandbox() as sandbox:
            module, test = f"{skill.name}.py", f"check_{skill.name}.py"
            await sandbox.write_file(PurePosixPath(module), skill.source.encode())
            await sandbox.write_file(PurePosixPath(test), skill.test.encode())
            result = await sandbox.run(Command(argv=("python3", test), timeout_s=_TEST_S))
        return result.reason is Reason.COMPLETED and result.exit_code == 0

    return check


def _is_broken(skill: Skill) -> bool:
    return skill.failed >= _MOST_FAILURES


@contextmanager
def _explained() -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise JournalError(f"the skills: {error}") from error
