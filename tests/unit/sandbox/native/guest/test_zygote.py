import os
import resource

from assay.sandbox.native.guest.zygote import pin_inherited_limits
from tests.support.forked import outcome_of


def test_a_soft_limit_that_was_inherited_cannot_be_raised_by_programs() -> None:
    def raise_it() -> object:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 46, hard))
        pin_inherited_limits()
        assert resource.getrlimit(resource.RLIMIT_AS) == (1 << 46, 1 << 46)
        try:
            resource.setrlimit(resource.RLIMIT_AS, (1 << 46, hard))
        except ValueError:
            return "refused"
        return "raised"

    nobody = 65534 if os.geteuid() == 0 else None
    assert outcome_of(raise_it, uid=nobody) == "'refused'"


def test_deeply_recursive_programs_can_still_have_a_larger_stack() -> None:
    def raise_it() -> object:
        _, hard = resource.getrlimit(resource.RLIMIT_STACK)
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, hard))
        pin_inherited_limits()
        return resource.getrlimit(resource.RLIMIT_STACK)[1] == hard

    assert outcome_of(raise_it) == "True"
