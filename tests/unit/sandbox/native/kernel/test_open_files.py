"""Limits of open files: sandboxes start below any common one, and say so where it does not do."""

import os
import resource
import sys
from collections.abc import Callable

import pytest

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.native.guest import pid1
from assay.sandbox.native.host.branch import BranchPipes
from assay.sandbox.native.host.messages import RefusedError
from assay.sandbox.native.kernel.open_files import TOO_FEW_HINT, highest, raise_limit
from tests.support.channels import a_channel, open_descriptors

_LOWEST = 3
"""The first descriptor that is free where only the standard streams are open."""


@pytest.mark.parametrize("limit", [256, 512, 1024, 1025, 4096])
def test_the_sleeper_is_found_below_the_limit(limit: int) -> None:
    def open_it() -> bool:
        program = pid1.open_program()
        return program == min(limit - 1, 1024)

    assert _holds_with((limit, limit), open_it)


def test_without_room_for_the_sleeper_there_is_none() -> None:
    assert _holds_with((3, 3), lambda: pid1.open_program() is None)


@pytest.mark.parametrize("soft", [256, 1024])
def test_the_soft_limit_goes_up_to_the_hard_one(soft: int) -> None:
    def raise_it() -> bool:
        raise_limit()
        return resource.getrlimit(resource.RLIMIT_NOFILE) == (1024, 1024) and highest(99) == 98

    assert _holds_with((soft, 1024), raise_it)


def test_a_branch_without_room_for_its_events_is_refused_and_leaves_nothing() -> None:
    def is_refused() -> bool:
        try:
            BranchPipes(1)
        except SandboxUnavailableError as error:
            return error.hint == TOO_FEW_HINT and _first_free() == _LOWEST
        return False

    assert _holds_with((_LOWEST + 8, _LOWEST + 8), is_refused)


async def test_descriptors_that_do_not_fit_are_a_refusal_and_the_channel_lives_on() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with a_channel() as (channel, peer):
        before = open_descriptors()
        peer.say({}, (0, 0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (_first_free() + 1, hard))
        try:
            with pytest.raises(RefusedError, match="Too many open files"):
                await channel.hear()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        peer.say({"after": True})

        assert await channel.hear() == ({"after": True}, [])
        assert open_descriptors() == before


def _first_free() -> int:
    number = os.dup(0)
    os.close(number)
    return number


def _holds_with(limits: tuple[int, int], claim: Callable[[], bool]) -> bool:
    """Whether something is true in a process with these limits, soft and hard."""
    pid = os.fork()
    if pid == 0:
        held = False
        try:
            os.closerange(3, 1 << 16)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            held = claim()
        finally:
            sys.stderr.flush()
            os._exit(not held)
    _, status = os.waitpid(pid, 0)
    return status == 0
