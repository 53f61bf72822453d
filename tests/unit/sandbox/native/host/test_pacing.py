import pytest

from assay.sandbox.native.host.supervisor import LARGE_BYTES, READ_EVERY_S, READS_AHEAD, Pace

WRITES = 200_000


def reads_of(*, every_s: float, size: int) -> int:
    """How often a stream is read to which a program writes so much every so often."""
    pace, reads, held, resume = Pace(), 0, 0, 0.0
    for number in range(WRITES):
        now = number * every_s
        held += size
        if now >= resume:
            reads += 1
            resume = now + pace.pause_s(held, now)
            held = 0
    return reads


@pytest.mark.parametrize("every_s", [1e-6, 1e-5, 1e-4, 1e-3])
def test_two_hundred_thousand_writes_of_one_byte_are_few_reads(every_s: float) -> None:
    reads = reads_of(every_s=every_s, size=1)

    assert reads <= READS_AHEAD + WRITES * every_s / READ_EVERY_S + 1
    assert reads < WRITES / 3


def test_large_pieces_are_read_without_a_pause() -> None:
    assert reads_of(every_s=1e-5, size=LARGE_BYTES) == WRITES


def test_a_few_lines_are_read_without_a_pause() -> None:
    pace = Pace()

    assert [pace.pause_s(10, 1.0) for _ in range(READS_AHEAD)] == [0.0] * READS_AHEAD
    assert pace.pause_s(10, 1.0) == READ_EVERY_S


def test_lines_that_come_seldom_are_never_delayed() -> None:
    assert reads_of(every_s=2 * READ_EVERY_S, size=10) == WRITES
