"""The independent check of an attempt: fresh sandboxes, original tests, and inverted tests.

After each run, the files of the sandbox must still match what was written into it.
"""

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

import anyio

from assay.contracts.errors import WorkspaceError
from assay.contracts.execution import FileInfo, Limits
from assay.contracts.ports import OnOutput, Sandbox, SandboxBackend, ignore_output
from assay.contracts.verdict import CheckReport, Finding, Grade, Severity, TamperKind, Verdict
from assay.contracts.workspace import Tree
from assay.sandbox.tree_io import write_tree
from assay.verify import judged_tree as pristine
from assay.verify.inverted_tests import Words, rewrite_tests
from assay.verify.judged_tree import is_protected
from assay.verify.parse_command import read_invocation, split_command
from assay.verify.runners.python import Conditions, PythonRun, PythonRunner
from assay.verify.runners.registry import choose_runner
from assay.verify.spec import CheckSpec, Observation, VerificationSpec
from assay.verify.static_analysis import attributable, read_proposal
from assay.verify.verdicts import (
    Check,
    added_tests,
    changed_python,
    compare_repetition,
    conclude,
    judge_turned_tests,
    missing_tests,
    not_executed,
    nothing_changed,
    passed_before,
    removed_python,
    says_nothing_new,
    skipped_tests,
)

_STEERING: Final = frozenset(
    {"conftest.py", "pytest.ini", "sitecustomize.py", "usercustomize.py", "tox.ini", "setup.cfg"}
)
_HEAD_BYTES: Final = 4096


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
        kind=TamperKind.CHANGED_WHILE_TESTED, severity=severity, explanation=said, path=path
    )


def _asks_for(case: VerificationSpec, path: PurePosixPath) -> bool:
    return any(path.name in command for command in case.checks)


async def _report_of_others(sandbox: Sandbox, path: PurePosixPath) -> tuple[Finding, ...]:
    try:
        text = await sandbox.read_file(path, max_bytes=64 << 20)
    except WorkspaceError:
        return ()
    if b"<testsuite" not in text[:_HEAD_BYTES]:
        return ()
    said = f"{path} is a report of tests that no runner was asked to write"
    finding = Finding(
        kind=TamperKind.FORGED_REPORT, severity="forgery", explanation=said, path=path
    )
    return (finding,)


_REPORT_BYTES: Final = 8 << 20
"""The space for a report of about ten thousand tests."""
_NO_TESTS: Final = 5
"""The exit code of pytest and of the unittest driver if they found no tests."""
_ZONES: Final = ("Pacific/Auckland", "America/Caracas", "Asia/Kathmandu", "UTC-9", "UTC+7")


def judged_tree(case: VerificationSpec, proposal: Tree) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the files to verify, and findings about changes that were left out."""
    checks = _checks_of(case)
    configuration = {glob for check in checks for glob in check.runner.configuration}
    folders = {read_invocation(check.order.argv).cwd for check in checks}
    return pristine.judged_tree(case, proposal, sorted(configuration), folders)


def _checks_of(case: VerificationSpec) -> tuple[Check, ...]:
    checks: list[Check] = []
    for command in case.checks:
        argv = split_command(command, case.pristine)
        order = CheckSpec(
            command=command, argv=argv, protected=case.protected, timeout_s=case.check_timeout_s
        )
        checks.append(Check(runner=choose_runner(argv), order=order))
    return tuple(checks)


@dataclass(frozen=True, slots=True)
class _Sitting:
    """The results of one run in one fresh sandbox."""

    observations: tuple[Observation, ...]
    findings: tuple[Finding, ...]


class Verifier:
    """Decide whether an attempt is accepted, and with which evidence."""

    def __init__(self, backend: SandboxBackend, limits: Limits) -> None:
        self._backend = backend
        self._limits = replace(limits, output_bytes=max(limits.output_bytes, _REPORT_BYTES))

    async def verify(
        self, case: VerificationSpec, proposal: Tree, *, on_output: OnOutput = ignore_output
    ) -> Verdict:
        """Verify an attempt.

        Raises:
            UsageError: If a check is not a valid command.
            SandboxUnavailableError: If no sandbox can be opened.
        """
        checks = _checks_of(case)
        tree, findings = judged_tree(case, proposal)
        findings += read_proposal(case.pristine, tree, _test_files(case))
        changed, removed = changed_python(case, tree), removed_python(case, tree)
        checks = tuple(
            replace(check, order=replace(check.order, changed=changed, removed=removed))
            for check in checks
        )
        first = await self._first_run(case, checks, tree, on_output)
        findings += first.findings + nothing_changed(case, tree)
        for check, observation in zip(checks, first.observations, strict=False):
            findings += observation.findings
            findings += attributable(case.pristine, tree, observation.seen)
            if observation.report.tests or observation.report.exit_code == _NO_TESTS:
                findings += missing_tests(check, tree, observation.report)
                findings += skipped_tests(case, tree, observation.report)
        findings += not_executed(changed, removed, first.observations)
        verdict = conclude(case, tree, checks, first.observations, findings)
        if not verdict.accepted:
            return verdict
        findings += await self._second_look(case, checks, tree, first.observations)
        findings += await self._baseline(case, tree, checks, verdict, on_output)
        return conclude(case, tree, checks, first.observations, findings)

    async def run_checks(
        self, case: VerificationSpec, tree: Tree, *, on_output: OnOutput = ignore_output
    ) -> tuple[Observation, ...]:
        """Run the checks on a tree as it is, without canaries, in a fresh sandbox.

        Raises:
            SandboxUnavailableError: If no sandbox can be opened.
        """
        async with self._backend.open_sandbox(self._limits_for(case)) as sandbox:
            await write_tree(sandbox, tree)
            checks = _checks_of(case)
            return tuple([await _run(check, sandbox, on_output) for check in checks])

    def _limits_for(self, case: VerificationSpec) -> Limits:
        return replace(self._limits, wall_s=max(self._limits.wall_s, case.check_timeout_s))

    async def _first_run(
        self, case: VerificationSpec, checks: Sequence[Check], tree: Tree, on_output: OnOutput
    ) -> _Sitting:
        observations: list[Observation] = []
        async with self._backend.open_sandbox(self._limits_for(case)) as sandbox:
            await write_tree(sandbox, tree)
            for check in checks:
                watched = replace(check, order=replace(check.order, canaries=True))
                observations.append(await _run(watched, sandbox, on_output))
                if not observations[-1].report.passed:
                    break
            findings = await changed_files(case, sandbox, tree)
        return _Sitting(tuple(observations), findings)

    async def _second_look(
        self,
        case: VerificationSpec,
        checks: Sequence[Check],
        tree: Tree,
        observations: Sequence[Observation],
    ) -> tuple[Finding, ...]:
        findings: tuple[Finding, ...] = ()
        for check, observation in zip(checks, observations, strict=True):
            if isinstance(check.runner, PythonRunner):
                findings += await self._run_rewritten(case, check, tree, observation.report)
        return findings

    async def _run_rewritten(
        self, case: VerificationSpec, check: Check, tree: Tree, first: CheckReport
    ) -> tuple[Finding, ...]:
        tell, keep, other = (f"_{secrets.token_hex(6)}" for _ in range(3))
        words = Words(tell=tell, keep=keep, other=other)
        tests = rewrite_tests(tree, case.protected, words=words, seed=secrets.randbits(32))
        conditions = _other_conditions(words)
        versions = [tree.with_files(tests.same), tree.with_files(tests.turned)]
        runs: dict[int, tuple[PythonRun, tuple[Finding, ...]]] = {}

        async def run(number: int) -> None:
            runs[number] = await self._run_once(case, check, versions[number], conditions)

        order = [0, 1]
        random.SystemRandom().shuffle(order)
        async with anyio.create_task_group() as tasks:
            for number in order:
                tasks.start_soon(run, number)
        (same, changed), (turned, also_changed) = runs[0], runs[1]
        return (
            *changed,
            *also_changed,
            *same.observation.findings,
            *turned.observation.findings,
            *attributable(case.pristine, tree, same.observation.seen),
            *attributable(case.pristine, tree, turned.observation.seen),
            *compare_repetition(first, same, reverse=conditions.reverse),
            *judge_turned_tests(first, same, turned, tests),
        )

    async def _run_once(
        self, case: VerificationSpec, check: Check, tree: Tree, conditions: Conditions
    ) -> tuple[PythonRun, tuple[Finding, ...]]:
        assert isinstance(check.runner, PythonRunner)  # noqa: S101 - chosen by the only caller
        order = replace(check.order, canaries=True)
        async with self._backend.open_sandbox(self._limits_for(case)) as sandbox:
            await write_tree(sandbox, tree)
            run = await check.runner.run_under(conditions, order, sandbox)
            return run, await changed_files(case, sandbox, tree)

    async def _baseline(
        self,
        case: VerificationSpec,
        tree: Tree,
        checks: Sequence[Check],
        verdict: Verdict,
        on_output: OnOutput,
    ) -> tuple[Finding, ...]:
        """Run the checks on the original files; a pass there says nothing about the change."""
        if case.changed is not None or case.most is Grade.RAN:
            return ()
        async with self._backend.open_sandbox(self._limits_for(case)) as sandbox:
            # Added tests count only if they fail without the rest of the change.
            await write_tree(sandbox, case.pristine.with_files(added_tests(case, tree)))
            for check, after in zip(checks, verdict.reports, strict=True):
                limit = min(
                    case.check_timeout_s, max(case.baseline_timeout_s, 2 * after.duration_s)
                )
                limited = replace(
                    check, order=replace(check.order, timeout_s=limit, changed=(), removed=())
                )
                before = await _run(limited, sandbox, on_output)
                if not says_nothing_new(before.report, after):
                    return ()
        return (passed_before(),)


async def _run(check: Check, sandbox: Sandbox, on_output: OnOutput) -> Observation:
    return await check.runner.run(check.order, sandbox, on_output=on_output)


def _test_files(case: VerificationSpec) -> tuple[PurePosixPath, ...]:
    return tuple(p for p in case.pristine.files if pristine.is_protected(case, p))


def _other_conditions(words: Words) -> Conditions:
    pick = random.SystemRandom()
    # The hash seed needs no entry: each interpreter start selects a new one.
    env = {"TZ": pick.choice(_ZONES), f"X_{secrets.token_hex(3).upper()}": secrets.token_hex(4)}
    return Conditions(env=env, reverse=True, brief=True, words=words)
