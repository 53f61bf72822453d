"""Test runners of other languages, really run: right, wrong, and lied to."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from assay.contracts.execution import Command, Limits
from assay.contracts.ports import Sandbox
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.parse_command import split_command
from assay.verify.runners.registry import choose_runner
from assay.verify.spec import CheckSpec, Observation
from tests.support.native import open_own
from tests.support.requirements import require
from tests.support.runner_cases import CASES, NODE, RunnerCase

LIMITS = Limits(wall_s=100, cpu_s=200, memory_mb=2048, processes=256, disk_mb=1024)
PRESENT: dict[str, bool] = {}
"""What sandboxes of this machine have; looked at once."""


@asynccontextmanager
async def sandbox_with(
    case: RunnerCase, content: str, runtime_dir: Path, *, limits: Limits = LIMITS
) -> AsyncGenerator[Sandbox]:
    if case.component not in PRESENT:
        async with (
            open_own(runtime_dir, pool_size=0) as backend,
            backend.open_sandbox(limits) as box,
        ):
            found = await box.run(Command(argv=("sh", "-c", case.probe)))
        PRESENT[case.component] = found.succeeded
    # Outside of the engine, whose task group would take a skip for an error.
    require(case.component, available=PRESENT[case.component], why="the sandbox does not have it")
    async with (
        open_own(runtime_dir, pool_size=0) as backend,
        backend.open_sandbox(limits) as sandbox,
    ):
        for name, text in {**case.files, case.target: content}.items():
            await sandbox.write_file(PurePosixPath(name), text.encode())
        yield sandbox


def order_for(case: RunnerCase, *, canaries: bool) -> CheckSpec:
    return CheckSpec(
        command=case.command,
        argv=split_command(case.command),
        protected=case.protected,
        canaries=canaries,
        timeout_s=90,
    )


async def observe(
    case: RunnerCase, content: str, runtime_dir: Path, *, canaries: bool
) -> Observation:
    async with sandbox_with(case, content, runtime_dir) as sandbox:
        return await case.runner.run(order_for(case, canaries=canaries), sandbox)


def named(case: object) -> str:
    return case.runner.name if isinstance(case, RunnerCase) else str(case)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_command_is_understood(case: RunnerCase) -> None:
    assert choose_runner(split_command(case.command)).name == case.runner.name


@pytest.mark.parametrize("case", CASES, ids=named)
def test_what_is_expected_is_what_is_reported(case: RunnerCase) -> None:
    tree = Tree(files={PurePosixPath(n): TreeFile(t.encode()) for n, t in case.files.items()})

    expected = case.runner.expected(order_for(case, canaries=False), tree)

    assert expected
    assert expected <= case.passed


@pytest.mark.parametrize("case", CASES, ids=named)
async def test_what_is_right_passes_and_every_planted_test_fails(
    case: RunnerCase, tmp_path: Path
) -> None:
    async with sandbox_with(case, case.right, tmp_path) as sandbox:
        before = await sandbox.list_files()
        plain = await case.runner.run(order_for(case, canaries=False), sandbox)
        watched = await case.runner.run(order_for(case, canaries=True), sandbox)
        after = await sandbox.list_files()

    for observation in (plain, watched):
        assert observation.report.passed, observation.report.explanation
        assert {test.id for test in observation.report.tests if test.passed} == case.passed
        assert not observation.findings
    assert plain.report.canaries_planted == 0
    assert watched.report.canaries_planted == watched.report.canaries_caught >= 3
    assert after == before


@pytest.mark.parametrize("case", CASES, ids=named)
async def test_what_is_wrong_fails_with_a_reason_and_without_a_suspicion(
    case: RunnerCase, tmp_path: Path
) -> None:
    observation = await observe(case, case.wrong, tmp_path, canaries=True)

    failed = [test for test in observation.report.tests if not test.passed]
    assert not observation.report.passed
    assert failed
    assert any(test.message for test in failed)
    assert observation.report.canaries_caught == observation.report.canaries_planted
    assert not [finding for finding in observation.findings if finding.severity == "forgery"]


@pytest.mark.parametrize("case", CASES, ids=named)
async def test_what_cannot_be_read_fails_and_says_where(case: RunnerCase, tmp_path: Path) -> None:
    observation = await observe(case, "((( no language\n", tmp_path, canaries=True)

    assert not observation.report.passed
    assert not [finding for finding in observation.findings if finding.severity == "forgery"]
    told = [observation.report.output, *(test.detail for test in observation.report.tests)]
    assert any(case.target in text for text in told)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=named)
async def test_a_lie_that_deceives_an_exit_code_is_seen(
    case: RunnerCase, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    # One after the other in one sandbox: compilers are slow where they remember nothing.
    async with sandbox_with(case, case.right, tmp_path) as sandbox:
        for lie, content in case.lies.items():
            await sandbox.write_file(PurePosixPath(case.target), content.encode())
            deceived = await sandbox.run(Command(argv=("sh", "-c", case.plain)))
            observation = await case.runner.run(order_for(case, canaries=True), sandbox)

            with subtests.test(lie):
                assert deceived.succeeded, deceived.stdout + deceived.stderr
                assert not observation.report.passed
                assert observation.report.canaries_planted
                assert [one for one in observation.findings if one.severity == "forgery"]


async def test_tests_that_rewrite_their_file_are_seen(tmp_path: Path) -> None:
    liar = (
        "import fs from 'node:fs';\n"
        "fs.writeFileSync(new URL('./add.test.mjs', import.meta.url), '');\n" + NODE.right
    )

    observation = await observe(NODE, liar, tmp_path, canaries=True)

    assert [f.path for f in observation.findings] == [PurePosixPath("add.test.mjs")]
    assert observation.findings[0].severity == "forgery"


async def test_a_filter_leaves_planted_tests_out_and_a_doubt_behind(tmp_path: Path) -> None:
    case = replace(NODE, command="node --test --test-name-pattern=adds add.test.mjs")

    observation = await observe(case, NODE.right, tmp_path, canaries=True)

    assert observation.report.passed
    assert observation.report.canaries_planted == 0
    assert [finding.severity for finding in observation.findings] == ["doubt"]


async def test_a_check_that_does_not_end_says_so(tmp_path: Path) -> None:
    async with sandbox_with(NODE, "for (;;) {}\nexport const add = 0;\n", tmp_path) as sandbox:
        order = replace(order_for(NODE, canaries=False), timeout_s=3)
        observation = await NODE.runner.run(order, sandbox)

    assert not observation.report.passed
    assert observation.report.explanation == "it did not end in time"


async def test_node_runs_within_the_usual_limits(tmp_path: Path) -> None:
    async with sandbox_with(NODE, NODE.right, tmp_path, limits=Limits()) as sandbox:
        observation = await NODE.runner.run(order_for(NODE, canaries=True), sandbox)

    assert observation.report.passed, observation.report.explanation


async def test_jest_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    case = replace(NODE, command="npx jest")
    jest = choose_runner(split_command(case.command))

    async with sandbox_with(case, "", tmp_path) as sandbox:
        observation = await jest.run(order_for(case, canaries=True), sandbox)

    assert not observation.report.passed
    assert "sandbox.read_only" in observation.report.explanation
