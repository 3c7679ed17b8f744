"""The part of a peer's address that stands for one subscriber of the network."""

from __future__ import annotations

import ipaddress


def address_of(peer: str) -> str | None:
    """Return the address of a `Link.peer`; None over a Unix socket, which has none."""
    if peer.startswith("/"):
        return None
    return network(peer.rpartition(":")[0])


def network(address: str) -> str:
    """Return an IPv4 address as it is, and an IPv6 address's /64, which one subscriber has."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
