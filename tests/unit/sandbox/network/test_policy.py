import pytest

from assay.contracts.errors import UsageError
from assay.sandbox.network.policy import parse_policy


def test_a_host_without_a_port_is_for_the_web() -> None:
    policy = parse_policy(["Example.org."])

    assert policy.allows("example.org", 443)
    assert policy.allows("example.org", 80)
    assert not policy.allows("example.org", 8443)


def test_a_port_is_for_that_host_alone() -> None:
    policy = parse_policy(["a.org:8443", "b.org"])

    assert policy.allows("a.org", 8443)
    assert not policy.allows("a.org", 443)
    assert not policy.allows("b.org", 8443)


def test_a_star_is_for_what_is_below_and_not_for_the_name_itself() -> None:
    policy = parse_policy(["*.example.org"])

    assert policy.names("a.example.org")
    assert policy.names("a.b.example.org")
    assert not policy.names("example.org")
    assert not policy.names("badexample.org")
    assert not policy.names("example.org.evil.net")


def test_an_empty_list_names_nothing() -> None:
    assert not parse_policy([]).names("example.org")


@pytest.mark.parametrize("host", ["a.org:0", "a.org:70000", "a..org", "*.", f"{'a' * 64}.org"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(UsageError):
        parse_policy([host])


def test_there_is_an_end_to_how_many_ports() -> None:
    with pytest.raises(UsageError, match="25 different ports"):
        parse_policy([f"a.org:{9000 + number}" for number in range(25)])
