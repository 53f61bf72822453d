"""The independent check of an attempt: fresh sandboxes, original tests, and inverted tests.

After each run, the files of the sandbox must still match what was written into it.
"""

import random
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

import anyio

from assay.contracts.errors import WorkspaceError
from assay.contracts.execution import FileInfo, Limits
from assay.contracts.ports import OnOutput, Sandbox, SandboxBackend, ignore_output
from assay.contracts.verdict import CheckReport, Finding, Grade, TamperKind, Verdict
from assay.contracts.workspace import Tree, changes_between
from assay.sandbox.tree_io import open_tree
from assay.verify.inverted_tests import Words, rewrite_tests
from assay.verify.judged_tree import filter_changes, is_protected
from assay.verify.known_failures import (
    has_failed_tests,
    judge_by_difference,
    lost_tests,
    without_witness,
)
from assay.verify.parse_command import read_invocation, split_command
from assay.verify.runners.python import Conditions, PythonRun, PythonRunner
from assay.verify.runners.registry import choose_runner
from assay.verify.spec import CheckSpec, Observation, VerificationSpec, forgery
from assay.verify.static_analysis import attributable, read_proposal
from assay.verify.verdicts import (
    Check,
    added_tests,
    changed_paths,
    changed_python,
    check_inverted_tests,
    compare_repetition,
    conclude,
    fixes_given_tests,
    missing_tests,
    not_executed,
    nothing_changed,
    passed_before,
    removed_python,
    says_nothing_new,
    skipped_tests,
    without_added_tests,
)

_STEERING: Final = frozenset(
    {"conftest.py", "pytest.ini", "sitecustomize.py", "usercustomize.py", "tox.ini", "setup.cfg"}
)
_HEAD_BYTES: Final = 4096
_REPORT_BYTES: Final = 8 << 20
"""The space for a report of about ten thousand tests."""
_NO_TESTS: Final = 5
"""The exit code of pytest and of the unittest driver if they found no tests."""
_ZONES: Final = ("Pacific/Auckland", "America/Caracas", "Asia/Kathmandu", "UTC-9", "UTC+7")


def judged_tree(case: VerificationSpec, proposal: Tree) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the files to verify, and findings about changes that were left out."""
    checks = _checks_of(case)
    configuration = {glob for check in checks for glob in check.runner.configuration}
    folders = {read_invocation(check.spec.argv).cwd for check in checks}
    return filter_changes(case, proposal, sorted(configuration), folders)


def _checks_of(case: VerificationSpec) -> tuple[Check, ...]:
    checks: list[Check] = []
    for command in case.checks:
        argv = split_command(command, case.pristine)
        spec = CheckSpec(
            command=command,
            argv=argv,
            protected=case.protected,
            timeout_s=case.check_timeout_s,
        )
        checks.append(Check(runner=choose_runner(argv), spec=spec))
    return tuple(checks)


async def changed_files(
    case: VerificationSpec, sandbox: Sandbox, tree: Tree
) -> tuple[Finding, ...]:
    """Compare a sandbox with the files written into it; tests may add new files."""
    changes = await sandbox.changes()
    now = {info.path: info for info in changes.written if info.kind != "directory"}
    gone: frozenset[PurePosixPath] = frozenset()
    if tree.origin is not None:
        gone = tree.origin.below((*changes.removed, *now))
    # All other files are still those of the layer.
    suspects = gone | {change.path for change in changes_between(tree.base, tree)}
    findings: list[Finding] = []
    for path in sorted(suspects):
        file = tree.files.get(path)
        if file is None or await _is_same(sandbox, now.get(path), file.content):
            continue
        proposed = file != case.pristine.files.get(path)
        finding = forgery(
            TamperKind.CHANGED_WHILE_TESTED, f"{path} was rewritten while the tests ran", path
        )
        if not (is_protected(case, path) or proposed or path.suffix == ".py"):
            finding = replace(finding, severity="note")
        findings.append(finding)
    restored = tree.base.files.keys() - tree.files.keys() - gone
    added = [path for path, info in now.items() if path not in tree.files and info.kind == "file"]
    for path in sorted((*added, *restored)):
        if path.name in _STEERING or path.suffix == ".pth":
            said = f"{path} was written while the tests ran"
            findings.append(forgery(TamperKind.CHANGED_WHILE_TESTED, said, path))
        elif path.suffix == ".xml" and not _is_requested_report(case, tree, path):
            try:
                content = await sandbox.read_file(path, max_bytes=64 << 20)
            except WorkspaceError:
                continue
            if b"<testsuite" in content[:_HEAD_BYTES]:
                said = f"{path} is a report of tests that no runner was asked to write"
                findings.append(forgery(TamperKind.FORGED_REPORT, said, path))
    return tuple(findings)


def _is_requested_report(case: VerificationSpec, tree: Tree, path: PurePosixPath) -> bool:
    """Whether a check, or a file of the user that is unchanged, names this report."""
    if any(path.name in command for command in case.checks):
        return True
    return any(
        path.name in (case.pristine.text(own) or "")
        for own, file in case.pristine.files.items()
        if tree.files.get(own) == file and (own.suffix != ".py" or is_protected(case, own))
    )


async def _is_same(sandbox: Sandbox, info: FileInfo | None, content: bytes) -> bool:
    if info is None or info.kind != "file" or info.size_bytes != len(content):
        return False
    try:
        return await sandbox.read_file(info.path, max_bytes=len(content) + 1) == content
    except WorkspaceError:
        return False


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
        tree, findings = judged_tree(case, proposal)
        tests = [path for path in case.pristine.files if is_protected(case, path)]
        findings += read_proposal(case.pristine, tree, tests)
        changed, removed = changed_python(case, tree), removed_python(case, tree)
        checks = tuple(
            check.but(changed=changed, removed=removed, canaries=True) for check in _checks_of(case)
        )
        observations: list[Observation] = []
        before: tuple[CheckReport, ...] = ()
        async with self._sandbox_with(case, tree) as sandbox:
            for check in checks:
                observation = await _run(check, sandbox, on_output)
                if has_failed_tests(observation):
                    before = before or await self._reports_before(case, observation.report)
                    earlier = before[len(observations)]
                    paths = changed_paths(case, tree)
                    observation = judge_by_difference(case, observation, earlier, paths)
                    findings += lost_tests(observation.report, earlier)
                observations.append(observation)
                if not observation.report.passed:
                    break
            findings += await changed_files(case, sandbox, tree)
        findings += nothing_changed(case, tree)
        if before and case.changed is None:
            findings += without_witness([seen.report for seen in observations], before)
        for check, observation in zip(checks, observations, strict=False):
            findings += observation.findings
            findings += attributable(case.pristine, tree, observation.seen)
            if observation.report.tests or observation.report.exit_code == _NO_TESTS:
                findings += missing_tests(check, tree, observation.report)
                findings += skipped_tests(case, tree, observation.report)
        findings += not_executed(changed, removed, observations)
        verdict = conclude(case, tree, checks, observations, findings)
        if not verdict.accepted:
            return verdict
        for check, observation in zip(checks, observations, strict=True):
            findings += await self._run_rewritten(case, check, tree, observation.report)
        if not before:
            found, fixed = await self._baseline(case, tree, checks, verdict, on_output)
            findings = (
                (*without_added_tests(findings, case, tree), *found)
                if fixed
                else (*findings, *found)
            )
        return conclude(case, tree, checks, observations, findings)

    async def run_checks(
        self, case: VerificationSpec, tree: Tree, *, on_output: OnOutput = ignore_output
    ) -> tuple[Observation, ...]:
        """Run the checks on a tree as it is, without canaries, in a fresh sandbox.

        Raises:
            SandboxUnavailableError: If no sandbox can be opened.
        """
        async with self._sandbox_with(case, tree) as sandbox:
            return tuple([await _run(check, sandbox, on_output) for check in _checks_of(case)])

    @asynccontextmanager
    async def _sandbox_with(self, case: VerificationSpec, tree: Tree) -> AsyncGenerator[Sandbox]:
        wall_s = max(self._limits.wall_s, case.check_timeout_s)
        limits = replace(self._limits, wall_s=wall_s)
        async with open_tree(self._backend, limits, tree) as sandbox:
            yield sandbox

    async def _reports_before(
        self, case: VerificationSpec, after: CheckReport
    ) -> tuple[CheckReport, ...]:
        """Run all checks on the original files, to learn which tests fail there."""
        if case.changed is not None:
            # Without the original files, `known_failures` alone says which failures were known.
            return (after,) * len(case.checks)
        timeout_s = min(case.check_timeout_s, max(case.baseline_timeout_s, 2 * after.duration_s))
        earlier = replace(case, check_timeout_s=timeout_s)
        return tuple(seen.report for seen in await self.run_checks(earlier, case.pristine))

    async def _run_rewritten(
        self, case: VerificationSpec, check: Check, tree: Tree, first: CheckReport
    ) -> tuple[Finding, ...]:
        """Run Python tests again, under other conditions and inverted."""
        runner = check.runner
        if not isinstance(runner, PythonRunner):
            return ()
        tell, keep, other = (f"_{secrets.token_hex(6)}" for _ in range(3))
        words = Words(tell=tell, keep=keep, other=other)
        tests = rewrite_tests(tree, case.protected, words=words, seed=secrets.randbits(32))
        pick = random.SystemRandom()
        # The hash seed needs no entry: each interpreter start selects a new one.
        env = {"TZ": pick.choice(_ZONES), f"X_{secrets.token_hex(3).upper()}": secrets.token_hex(4)}
        conditions = Conditions(env=env, reverse=True, brief=True, words=words)
        versions = [tree.with_files(tests.same), tree.with_files(tests.turned)]
        runs: dict[int, tuple[PythonRun, tuple[Finding, ...]]] = {}

        async def run(number: int) -> None:
            async with self._sandbox_with(case, versions[number]) as sandbox:
                ended = await runner.run_under(conditions, check.spec, sandbox)
                runs[number] = ended, await changed_files(case, sandbox, versions[number])

        async with anyio.create_task_group() as tasks:
            for number in pick.sample(range(2), 2):
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
            *check_inverted_tests(first, same, turned, tests),
        )

    async def _baseline(
        self,
        case: VerificationSpec,
        tree: Tree,
        checks: Sequence[Check],
        verdict: Verdict,
        on_output: OnOutput,
    ) -> tuple[tuple[Finding, ...], bool]:
        """Run the checks on the original files; a pass there says nothing about the change.

        Returns also whether one of the given tests failed there and passes now.
        """
        if case.changed is not None or case.most is Grade.RAN:
            return (), False
        # Added tests count only if they fail without the rest of the change.
        added = added_tests(case, tree)
        before = case.pristine.with_files(added)
        async with self._sandbox_with(case, before) as sandbox:
            for check, after in zip(checks, verdict.reports, strict=True):
                timeout_s = min(
                    case.check_timeout_s, max(case.baseline_timeout_s, 2 * after.duration_s)
                )
                limited = check.but(timeout_s=timeout_s, changed=(), removed=(), canaries=False)
                earlier = await _run(limited, sandbox, on_output)
                if not says_nothing_new(earlier.report, after):
                    return (), fixes_given_tests(earlier.report, after, added)
        return (passed_before(),), False


async def _run(check: Check, sandbox: Sandbox, on_output: OnOutput) -> Observation:
    return await check.runner.run(check.spec, sandbox, on_output=on_output)
