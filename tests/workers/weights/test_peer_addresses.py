"""A worker connects to no address that cannot be a peer's, whatever another worker names as its own."""

import pytest

from workers.weights.peers.peer_addresses import PeerAddresses, Refused


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254", "fe80::1", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "::ffff:169.254.169.254",
        "0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1", "127.0.0.1", "127.9.9.9", "::1",
        "::ffff:127.0.0.1",
    ],
)  # fmt: skip
def test_what_cannot_be_a_peer_is_refused(host: str) -> None:
    with pytest.raises(Refused, match="no address of a peer"):
        PeerAddresses((), own_host="10.0.0.1").check(host)


@pytest.mark.parametrize(
    "host", ["10.0.0.2", "192.168.3.4", "172.16.0.1", "100.64.0.7", "8.8.8.8", "fd00::7", "2a00::8"]
)
def test_any_other_address_may_be_a_peer(host: str) -> None:
    PeerAddresses((), own_host="10.0.0.1").check(host)


@pytest.mark.parametrize("own_host", ["127.0.0.1", "::1"])
def test_on_one_machine_peers_may_be_at_its_own_address(own_host: str) -> None:
    for host in ("127.0.0.1", "::1", "10.0.0.2"):
        PeerAddresses((), own_host).check(host)


def test_networks_that_are_configured_decide_alone() -> None:
    addresses = PeerAddresses(("10.1.0.0/16", "169.254.7.0/24", "fd00::/8"), own_host="127.0.0.1")
    for host in ("10.1.2.3", "169.254.7.1", "fd00::1", "::ffff:10.1.2.3"):
        addresses.check(host)
    for host in ("10.2.0.1", "127.0.0.1", "169.254.169.254", "8.8.8.8", "::1"):
        with pytest.raises(Refused):
            addresses.check(host)


@pytest.mark.parametrize("address", ["", ":", "nowhere", "a..b:80", "127.0.0.1:99999", "no-host.invalid:80", "x:y"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises((Refused, OSError)):
        PeerAddresses((), "127.0.0.1").place_of(address)


def test_an_address_is_resolved_once_and_then_checked() -> None:
    addresses = PeerAddresses((), "127.0.0.1")
    assert addresses.place_of("localhost:80")[1] == 80
    assert addresses.place_of("[::1]:443") == ("::1", 443)
    with pytest.raises(Refused):
        PeerAddresses((), "10.0.0.1").place_of("localhost:80")
