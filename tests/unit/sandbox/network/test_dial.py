from collections.abc import Sequence

import anyio.abc
import pytest

from assay.sandbox.network.dial import DeniedError, Dialer, DirectDialer, NoSuchHostError
from assay.sandbox.network.policy import parse_policy

GOOD = "93.184.216.34"


class World:
    """Answers questions about names in turn, and remembers whom one connected to."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []
        self.connected: list[tuple[str, int]] = []

    async def look_up(self, name: str) -> tuple[str, ...]:
        self.asked.append(name)
        return tuple(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])

    async def connect(self, address: str, port: int) -> anyio.abc.ByteStream:
        self.connected.append((address, port))
        raise ConnectionRefusedError("nobody is there")

    def dialer(self, *hosts: str) -> Dialer:
        outside = DirectDialer(look_up=self.look_up, connect=self.connect)
        return Dialer(policy=parse_policy(hosts), outside=outside)


async def test_the_connection_goes_to_the_address_that_was_looked_at() -> None:
    world = World([GOOD], ["127.0.0.1"])
    dialer = world.dialer("example.org")

    await dialer.addresses("example.org")
    with pytest.raises(ConnectionRefusedError):
        await dialer.dial("example.org", 443)

    assert world.connected == [(GOOD, 443)]
    assert world.asked == ["example.org"], "the second question could be answered otherwise"


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::ffff:10.0.0.1", "::1"])
async def test_a_host_on_the_list_that_leads_inside_is_denied(address: str) -> None:
    world = World([address])

    with pytest.raises(DeniedError, match="it leads to"):
        await world.dialer("example.org").dial("example.org", 443)

    assert world.connected == []


async def test_of_several_addresses_only_good_ones_are_tried() -> None:
    world = World(["10.0.0.1", GOOD, "::1"])

    with pytest.raises(ConnectionRefusedError):
        await world.dialer("example.org").dial("example.org", 443)

    assert world.connected == [(GOOD, 443)]


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("other.org", 443),
        ("example.org", 22),
        ("www.example.org", 443),
        (GOOD, 443),
        ("10.0.0.1", 443),
    ],
)
async def test_what_is_not_on_the_list_is_not_even_asked_for(host: str, port: int) -> None:
    world = World([GOOD])

    with pytest.raises(DeniedError):
        await world.dialer("example.org").dial(host, port)

    assert world.asked == []


async def test_an_address_on_the_list_still_must_be_a_good_one() -> None:
    world = World([GOOD])
    dialer = world.dialer(f"{GOOD}:443", "10.0.0.1:443")

    with pytest.raises(ConnectionRefusedError):
        await dialer.dial(GOOD, 443)
    with pytest.raises(DeniedError, match="private"):
        await dialer.dial("10.0.0.1", 443)


async def test_a_host_that_does_not_exist_is_not_denied() -> None:
    with pytest.raises(NoSuchHostError):
        await World([]).dialer("example.org").addresses("example.org")


async def test_there_is_an_end_to_the_names_that_are_asked_for() -> None:
    world = World([])
    dialer = world.dialer("*.example.org")
    dialer.questions = 3

    for number in range(3):
        with pytest.raises(NoSuchHostError):
            await dialer.addresses(f"n{number}.example.org")
    with pytest.raises(DeniedError, match="more names"):
        await dialer.addresses("n3.example.org")

    assert len(world.asked) == 3
