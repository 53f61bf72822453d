import errno
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.sandbox.native.kernel import syscalls
from assay.sandbox.native.kernel.seccomp import KILL_PROCESS, build_filter, compile_policy
from assay.sandbox.native.kernel.seccomp_policy import Condition, Policy, Rule, build_policy
from tests.support import bpf
from tests.support.filters import (
    X32_BIT,
    Filter,
    expected_action,
    filter_for,
    names_by_number,
)

MACHINES = sorted(syscalls.NUMBERS)
LONGEST_PROGRAM = 4095

every_machine = pytest.mark.parametrize("machine", MACHINES)
every_tier = pytest.mark.parametrize("own_namespaces", [True, False], ids=["own", "shared"])


@every_machine
@every_tier
def test_a_filter_is_well_formed(machine: str, *, own_namespaces: bool) -> None:
    assert_well_formed(filter_for(machine, own_namespaces=own_namespaces).instructions)


def assert_well_formed(program: list[bpf.Instruction]) -> None:
    assert 0 < len(program) <= LONGEST_PROGRAM
    for position, instruction in enumerate(program):
        assert instruction.operation in bpf.OPERATIONS
        assert all(goal < len(program) for goal in bpf.successors(position, instruction))


@every_machine
@every_tier
def test_no_call_costs_more_than_a_few_comparisons(machine: str, *, own_namespaces: bool) -> None:
    chosen = filter_for(machine, own_namespaces=own_namespaces)

    steps = [chosen.answer(number).steps for number in syscalls.NUMBERS[machine].values()]

    assert max(steps) <= 24


words = st.integers(min_value=0, max_value=2**64 - 1)
calls = st.tuples(*[words] * 6)


@given(
    machine=st.sampled_from(MACHINES),
    own_namespaces=st.booleans(),
    number=st.integers(min_value=0, max_value=600) | st.integers(min_value=0, max_value=2**32 - 1),
    arguments=calls,
    arch=st.sampled_from([None, 0]) | st.integers(min_value=0, max_value=2**32 - 1),
)
def test_a_filter_does_what_its_policy_says(
    machine: str,
    *,
    own_namespaces: bool,
    number: int,
    arguments: tuple[int, ...],
    arch: int | None,
) -> None:
    foreign = arch not in {None, syscalls.AUDIT_ARCH[machine]}
    dodging = machine == "x86_64" and number >= X32_BIT
    name = names_by_number(machine).get(number)
    expected = expected_action(build_policy(own_namespaces=own_namespaces), name, arguments)

    answer = filter_for(machine, own_namespaces=own_namespaces).answer(
        number, *arguments, arch=arch
    )

    assert answer.action == (KILL_PROCESS if foreign or dodging else expected)


def conditions() -> st.SearchStrategy[Condition]:
    small = st.integers(min_value=0, max_value=400)
    return st.builds(
        Condition,
        argument=st.integers(min_value=0, max_value=5),
        values=st.frozensets(small | st.just(0xFFFFFFFF), max_size=150),
        mask=st.sampled_from([0xFFFFFFFF, 0xFF, 0x7E020000]),
    )


def rules() -> st.SearchStrategy[Rule]:
    alternative = st.lists(conditions(), min_size=1, max_size=3).map(tuple)
    return st.builds(
        Rule,
        alternatives=st.lists(alternative, min_size=1, max_size=3).map(tuple),
        refusal=st.sampled_from([errno.EPERM, errno.EINVAL, errno.ENOTTY]),
    )


def policies() -> st.SearchStrategy[Policy]:
    name = st.sampled_from(sorted(syscalls.NUMBERS["x86_64"]))
    return st.builds(
        Policy,
        allowed=st.frozensets(name),
        hidden=st.just(frozenset[str]()),
        rules=st.dictionaries(name, rules(), max_size=4),
    )


@given(
    policy=policies(),
    arguments=st.tuples(*[st.integers(min_value=0, max_value=400) | words] * 6),
    data=st.data(),
)
def test_any_policy_compiles_to_what_it_says(
    policy: Policy, arguments: tuple[int, ...], data: st.DataObject
) -> None:
    table = syscalls.NUMBERS["x86_64"]
    asked = data.draw(st.sampled_from([*sorted(policy.rules), *sorted(table)]))

    chosen = Filter(compile_policy(policy, machine="x86_64"), "x86_64")

    assert_well_formed(chosen.instructions)
    for name in (asked, "read", *policy.rules):
        answer = chosen.answer(table[name], *arguments)
        assert answer.action == expected_action(policy, name, arguments)


@pytest.mark.parametrize("size", [10, 127, 128, 138, 141, 144, 255, 256, 257, 700])
def test_a_policy_too_long_for_one_jump_still_says_what_it_means(size: int) -> None:
    values = frozenset(range(0, 2 * size, 2))
    test = Condition(argument=0, values=values)
    other = Condition(argument=1, values=frozenset({7}))
    rule = Rule(alternatives=((test, other), (other, other)), refusal=errno.EINVAL)
    policy = Policy(allowed=frozenset(), hidden=frozenset(), rules={"ioctl": rule})

    chosen = Filter(compile_policy(policy, machine="x86_64"), "x86_64")

    assert_well_formed(chosen.instructions)
    for value, second in itertools.product(range(2 * size + 2), (0, 7)):
        arguments = (value, second, 0, 0, 0, 0)
        action = chosen.answer(syscalls.NUMBERS["x86_64"]["ioctl"], *arguments).action
        assert action == expected_action(policy, "ioctl", arguments), arguments


def test_an_unknown_machine_has_no_filter() -> None:
    with pytest.raises(syscalls.UnsupportedMachineError):
        build_filter(machine="pdp11")
