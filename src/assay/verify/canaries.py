"""Plant canaries, which are tests that must fail, in the test files for one check.

Canaries are in the same files as the user's tests, so that tampering with those affects both.
Afterwards the files are restored, and changes to them in between are reported.
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
    """Return a name for a canary that cannot be guessed and resembles no other."""
    # No common prefix: code could treat recognizable names as an exception.
    return f"{secrets.choice(_WORDS)}_{secrets.token_hex(6)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The files to write and the names of the canaries in them."""

    files: Mapping[PurePosixPath, bytes] = field(default_factory=dict[PurePosixPath, bytes])
    """Complete contents, by path."""
    names: frozenset[str] = frozenset()
    """The names of the canaries."""


async def read_texts(
    sandbox: Sandbox, paths: tuple[PurePosixPath, ...]
) -> dict[PurePosixPath, str]:
    """Return the existing text files among these paths."""
    texts: dict[PurePosixPath, str] = {}
    for path in paths:
        try:
            texts[path] = (await sandbox.read_file(path)).decode()
        except (WorkspaceError, UnicodeDecodeError):
            continue
    return texts


@asynccontextmanager
async def planted(sandbox: Sandbox, plan: Plan) -> AsyncGenerator[list[Finding]]:
    """Keep these files in place inside the context. On exit, the list receives the findings.

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
            kind=TamperKind.CHANGED_WHILE_TESTED,
            severity="forgery",
            explanation=explanation,
            path=path,
        ),
    )
