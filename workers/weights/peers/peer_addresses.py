"""Decides to which addresses a worker connects: other workers name theirs themselves, and any of them may name any.

- Networks that are configured decide alone. Without them every address may be a peer's, except one that never is: of
  this link alone, of many receivers, of a cloud's metadata service, and, unless Redis is reached so, of this machine.
- A name is resolved once, and the address that was checked is the one to which the connection is made.
"""

import re
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from echo_queue.records.foreign_numbers import whole

Address = IPv4Address | IPv6Address
Place = tuple[str, int]
"""An address and a port, as sockets take them."""

HOST = re.compile(r"[\w.:\[\]-]+", re.ASCII)
MOST_PORT = (1 << 16) - 1
METADATA = frozenset(map(ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254")))
"""The metadata services of clouds that do not have an address of the link (169.254.0.0/16)."""


class Refused(Exception):
    """The address cannot be that of a peer."""


class PeerAddresses:
    """Checks the addresses of peers. `networks`: `weights.peer_networks`. `own_host`: the own address towards Redis."""

    def __init__(self, networks: Sequence[str], own_host: str) -> None:
        self._networks = tuple(map(ip_network, networks))
        self._one_machine = _parsed(own_host).is_loopback

    def check(self, host: str) -> None:
        """Raises `Refused` unless a peer may have the address `host`, which is no name."""
        if not self._allows(_parsed(host)):
            raise Refused(f"{host} is no address of a peer")

    def place_of(self, address: str) -> Place:
        """Resolves `host:port`, and checks the result. Raises `Refused`, or `OSError` for an unknown name."""
        host, _, port = address.rpartition(":")
        if not HOST.fullmatch(host):
            raise Refused(f"{address!r:.100} is no host and port")
        try:
            number = whole(port, MOST_PORT)
            found = socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM) if number else []
        except ValueError:  # no port, or a host with bytes that no name has
            found = []
        if not found:
            raise Refused(f"{address!r:.100} is no host and port")
        place = found[0][4]
        self.check(str(place[0]))
        return str(place[0]), number

    def _allows(self, address: Address) -> bool:
        if self._networks:
            return any(address in network for network in self._networks)
        if address.is_loopback:
            return self._one_machine
        never = address.is_unspecified or address.is_multicast or address.is_reserved or address.is_link_local
        return not never and address not in METADATA


def _parsed(host: str) -> Address:
    """Parses an address; one of IPv4 that is written as one of IPv6 counts as that of IPv4."""
    try:
        address = ip_address(host)
    except ValueError:
        raise Refused(f"{host!r:.100} is no address") from None
    return getattr(address, "ipv4_mapped", None) or address
