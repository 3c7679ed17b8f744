"""Host names by which a browser may know this machine.

A page on the Web may have its own name point to an address of ours (DNS rebinding). The browser
then sends that name in `Host` and `Origin`. An attacker's name cannot be an address, nor this
machine's own name: the author of the page has no say in where those lead.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit


def host_of(given: str) -> str | None:
    """Return the name or address in `HOST:PORT`, in lower case; None if there is none."""
    try:
        found = urlsplit(f"//{given}").hostname
    except ValueError:
        return None
    return None if found is None else found.rstrip(".")


def is_own(host: str, names: Collection[str] = ()) -> bool:
    """Whether no attacker can have chosen a host: an address, localhost, or one of our names.

    Args:
        host: As from `host_of`.
        names: The configured names; the machine's own is always one.
    """
    return host in names or host in ("localhost", socket.gethostname().lower()) or is_address(host)


def is_address(host: str) -> bool:
    """Whether it is an address of IPv4 or IPv6."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
