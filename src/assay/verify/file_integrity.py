"""Check whether the files of a sandbox still match what was written into it."""

from pathlib import PurePosixPath
from typing import Final

from assay.contracts.errors import WorkspaceError
from assay.contracts.execution import FileInfo
from assay.contracts.ports import Sandbox
from assay.contracts.verdict import Finding, Severity, TamperKind
from assay.contracts.workspace import Tree
from assay.verify.judged_tree import is_protected
from assay.verify.spec import VerificationSpec

_STEERING: Final = frozenset(
    {"conftest.py", "pytest.ini", "sitecustomize.py", "usercustomize.py", "tox.ini", "setup.cfg"}
)
_REPORT_BYTES: Final = 4096


async def changed_files(
    case: VerificationSpec, sandbox: Sandbox, tree: Tree
) -> tuple[Finding, ...]:
    """Compare a sandbox with the files written into it; tests may add new files."""
    now = {info.path: info for info in await sandbox.list_files()}
    findings: list[Finding] = []
    for path, file in tree.files.items():
        if not await _is_same(sandbox, now.get(path), file.content):
            findings.append(_changed(case, tree, path))
    for path, info in now.items():
        if path in tree.files or info.kind != "file":
            continue
        if path.name in _STEERING or path.suffix == ".pth":
            said = f"{path} was written while the tests ran"
            findings.append(_finding("forgery", path, said))
        elif path.suffix == ".xml" and not _asks_for(case, path):
            findings += await _report_of_others(sandbox, path)
    return tuple(findings)


async def _is_same(sandbox: Sandbox, info: FileInfo | None, content: bytes) -> bool:
    if info is None or info.kind != "file" or info.size_bytes != len(content):
        return False
    try:
        return await sandbox.read_file(info.path, max_bytes=len(content) + 1) == content
    except WorkspaceError:
        return False


def _changed(case: VerificationSpec, tree: Tree, path: PurePosixPath) -> Finding:
    proposed = tree.files[path] != case.pristine.files.get(path)
    judges = is_protected(case, path)
    severity: Severity = "forgery" if judges or proposed or path.suffix == ".py" else "note"
    return _finding(severity, path, f"{path} was rewritten while the tests ran")


def _finding(severity: Severity, path: PurePosixPath, said: str) -> Finding:
    return Finding(
        trick=TamperKind.CHANGED_WHILE_TESTED, severity=severity, explanation=said, path=path
    )


def _asks_for(case: VerificationSpec, path: PurePosixPath) -> bool:
    return any(path.name in command for command in case.checks)


async def _report_of_others(sandbox: Sandbox, path: PurePosixPath) -> tuple[Finding, ...]:
    try:
        text = await sandbox.read_file(path, max_bytes=64 << 20)
    except WorkspaceError:
        return ()
    if b"<testsuite" not in text[:_REPORT_BYTES]:
        return ()
    said = f"{path} is a report of tests that no runner was asked to write"
    finding = Finding(
        trick=TamperKind.FORGED_REPORT, severity="forgery", explanation=said, path=path
    )
    return (finding,)
