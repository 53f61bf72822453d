import pytest

from assay.sandbox.network.policy import address_refusal, is_own_address


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",  # noqa: S104 - not bound to
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "169.254.170.2",
        "168.63.129.16",
        "100.64.0.1",
        "100.100.100.200",
        "192.0.0.192",
        "192.88.99.1",
        "198.18.0.1",
        "192.0.2.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::8.8.8.8",
        "64:ff9b:1::1",
        "2002:7f00:1::1",
        "2002:808:808::1",
        "2001:0:1234::1",
        "2001:db8::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "example.org",
        "",
        "1.2.3",
        "0x7f.1",
        "2130706433",
    ],
)
def test_there_is_no_connection_to(address: str) -> None:
    assert address_refusal(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "::ffff:1.1.1.1", "2606:4700:4700::1111"]
)
def test_there_may_be_a_connection_to(address: str) -> None:
    assert address_refusal(address) == ""


def test_this_machine_knows_its_own_addresses() -> None:
    assert is_own_address("127.0.0.1")
    assert not is_own_address("93.184.216.34")
