"""A program that writes single bytes is read in few pieces, however often it wakes its reader."""

import pytest

from assay.contracts.execution import Limits, OutputChunk
from assay.sandbox.native.host.supervisor import READ_EVERY_S, READS_AHEAD
from tests.support.backends import TIERS, Tier, open_native
from tests.support.native import python

WRITES = 1000
BYTE_BY_BYTE = f"""
import fcntl, os, time
for _ in range({WRITES}):
    os.write(1, b"x")
    # As on a busy machine: the reader takes each byte before the next is written. FIONREAD says
    # how much of the pipe is not read yet.
    given_up = time.monotonic() + 0.001
    while fcntl.ioctl(1, 0x541B, bytes(4)) != bytes(4) and time.monotonic() < given_up:
        pass
"""
SLACK = 8


@pytest.mark.parametrize("tier", TIERS)
async def test_single_bytes_of_a_program_are_read_in_few_pieces(tier: Tier) -> None:
    heard: list[OutputChunk] = []

    async with open_native(tier) as backend, backend.open_sandbox(Limits()) as sandbox:
        result = await sandbox.run(python(BYTE_BY_BYTE), on_output=heard.append)

    assert result.stdout_bytes == b"x" * WRITES
    assert b"".join(chunk.data for chunk in heard) == result.stdout_bytes
    assert len(heard) <= READS_AHEAD + SLACK + result.duration_s / READ_EVERY_S


@pytest.mark.parametrize("tier", TIERS)
async def test_single_bytes_of_a_cell_are_read_in_few_pieces(tier: Tier) -> None:
    heard: list[OutputChunk] = []

    async with (
        open_native(tier) as backend,
        backend.open_sandbox(Limits()) as sandbox,
        sandbox.open_interpreter() as interpreter,
    ):
        result = await interpreter.run_cell(BYTE_BY_BYTE, on_output=heard.append)

    assert result.execution.stdout_bytes == b"x" * WRITES
    assert len(heard) <= READS_AHEAD + SLACK + result.execution.duration_s / READ_EVERY_S
