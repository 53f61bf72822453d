"""Puts tests that must fail into the test files, for the length of one check.

They stand in the same file as the person's own tests, so that whatever is done to those is done to
them. Afterwards the files are as they were, and what happened to them meanwhile is told.
"""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

import anyio

from assay.contracts.errors import SandboxUnavailableError, WorkspaceError
from assay.contracts.ports import Sandbox
from assay.contracts.verdict import Finding, TamperKind

_CLEAN_UP_S: Final = 10
_WORDS: Final = (
    "accepts", "answers", "builds", "counts", "finds", "gives", "handles", "keeps", "leaves",
    "makes", "orders", "reads", "refuses", "returns", "sorts", "splits", "takes", "writes",
)  # fmt: skip


def new_canary_name() -> str:
    """Return a name for a planted test that nobody could guess, and that looks like no other."""
    # No common beginning: what could be recognised could be treated as an exception.
    return f"{secrets.choice(_WORDS)}_{secrets.token_hex(6)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to write into which files."""

    files: Mapping[PurePosixPath, bytes] = field(default_factory=dict[PurePosixPath, bytes])
    """Whole contents, by path."""
    names: frozenset[str] = frozenset()
    """Of the planted tests."""


async def read_texts(
    sandbox: Sandbox, paths: tuple[PurePosixPath, ...]
) -> dict[PurePosixPath, str]:
    """Return the files that are there and are text."""
    texts: dict[PurePosixPath, str] = {}
    for path in paths:
        try:
            texts[path] = (await sandbox.read_file(path)).decode()
        except (WorkspaceError, UnicodeDecodeError):
            continue
    return texts


@asynccontextmanager
async def planted(sandbox: Sandbox, plan: Plan) -> AsyncGenerator[list[Finding]]:
    """Have these files in place inside the context. The list fills when it is left.

    Raises:
        SandboxUnavailableError: If the sandbox is gone.
    """
    before = {path: await _content(sandbox, path) for path in plan.files}
    findings: list[Finding] = []
    try:
        for path, content in plan.files.items():
            await sandbox.write_file(path, content)
        yield findings
    finally:
        with anyio.move_on_after(_CLEAN_UP_S, shield=True):
            for path, content in plan.files.items():
                findings.extend(await _restore(sandbox, path, content, before[path]))


async def _content(sandbox: Sandbox, path: PurePosixPath) -> bytes | None:
    try:
        return await sandbox.read_file(path)
    except WorkspaceError:
        return None


async def _restore(
    sandbox: Sandbox, path: PurePosixPath, written: bytes, original: bytes | None
) -> tuple[Finding, ...]:
    try:
        found = await _content(sandbox, path)
        if original is not None:
            await sandbox.write_file(path, original)
        elif found is not None:
            await sandbox.remove_path(path)
    except (WorkspaceError, SandboxUnavailableError):
        found = None
    if found == written:
        return ()
    explanation = f"{path} was rewritten while its tests ran"
    return (
        Finding(
            trick=TamperKind.CHANGED_WHILE_TESTED,
            severity="forgery",
            explanation=explanation,
            path=path,
        ),
    )
