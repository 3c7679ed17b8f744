"""Where this relay and RabbitMQ 3.10 differ, and the reason: the table of docs/rabbitmq.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs


@attrs.frozen
class Difference:
    """A case in which the two differ. The case itself asserts both."""

    rabbitmq: str
    """The behaviour of RabbitMQ 3.10."""
    clearfunds: str
    """The behaviour of the relay."""
    why: str


DIFFERENCES: Final[Mapping[str, Difference]] = {}
