"""The fake sandbox keeps the promises that need no program, so tests may stand on it."""

import pytest

from assay.contracts.execution import Command, ExecutionResult, Limits, OutputChunk, Program
from assay.contracts.ports import SandboxBackend
from assay.selftest.checks import Check
from assay.selftest.conformance import REQUIREMENTS
from tests.doubles.fake_sandbox import FakeBackend, FakeSandbox, answer_with


def _say_hello(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
    del program, sandbox
    return answer_with("hello", exit_code=3)


NEED_A_PROGRAM = {
    "a_listing_names_links_and_does_not_follow_them",
    "a_program_reads_the_files_of_its_workspace",
    "a_program_may_change_modes_and_times_of_its_files",
    "a_program_may_change_the_files_of_its_workspace",
    "an_executable_file_can_be_run",
    "files_of_a_program_can_be_replaced_and_removed",
    "files_of_a_program_can_be_read",
    "links_out_of_the_workspace_are_refused",
    "unusual_names_created_by_a_program_are_kept",
    "pipes_and_sockets_are_not_files",
    "removing_a_link_keeps_what_it_points_to",
}
FILES = [
    check for check in REQUIREMENTS if check.group == "files" and check.name not in NEED_A_PROGRAM
]


@pytest.mark.parametrize("check", FILES, ids=lambda check: check.name)
async def test_fake_keeps(check: Check) -> None:
    backend: SandboxBackend = FakeBackend()

    await check.run(backend)


async def test_fake_answers_as_it_was_told_and_remembers_the_question() -> None:
    heard: list[OutputChunk] = []
    sandbox = FakeSandbox(limits=Limits(), answer=_say_hello)

    result = await sandbox.run(Command(argv=("greet",)), on_output=heard.append)

    assert (result.stdout, result.exit_code) == ("hello", 3)
    assert heard == [OutputChunk(stream="stdout", data=b"hello")]
    assert sandbox.programs == [Command(argv=("greet",))]
