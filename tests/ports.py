"""Ports for listeners that go and come back."""

from __future__ import annotations

import random
import socket
from typing import Final

BELOW_EPHEMERAL: Final = range(20_000, 32_000)
"""Linux takes the ports of outgoing connections, and those of who asks for any, from 32,768 on
(`net.ipv4.ip_local_port_range`): while a listener is gone, another test would get its port."""


def lasting_port() -> int:
    """Return a port of 127.0.0.1 that nobody has, and nobody gets by chance.

    Raises:
        OSError: All that were tried are taken.
    """
    for port in random.sample(BELOW_EPHEMERAL, 20):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError("all ports that were tried are taken")
