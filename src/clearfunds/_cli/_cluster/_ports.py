"""Free ports of 127.0.0.1 for servers that must know each other's ports before they start."""

import random
import socket
from contextlib import ExitStack, suppress
from typing import Final

from .._errors import CommandFailedError

LOOPBACK: Final = "127.0.0.1"
"""The address of everything that a cluster for trying listens on."""

_BELOW_EPHEMERAL: Final = range(20_000, 32_000)
# Linux takes the ports of outgoing connections from 32,768 on, so none of these is taken by chance
# between this look and the server's start.

_TRIES: Final = 1_000
# Ports that are tried at most.


def free_ports(count: int) -> list[int]:
    """Return different ports that nobody listens on now.

    Raises:
        CommandFailedError: Too few of those that were tried are free.
    """
    found: list[int] = []
    with ExitStack() as held:
        for port in random.sample(_BELOW_EPHEMERAL, _TRIES):
            if len(found) == count:
                return found
            sock = held.enter_context(socket.socket())
            with suppress(OSError):
                sock.bind((LOOPBACK, port))
                found.append(port)
    msg = f"there are no {count} free ports on {LOOPBACK}"
    raise CommandFailedError(msg)
