"""The requests of readers, and what they and their answers are made of."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

UNKNOWN = bytes(16)
"""An incarnation that is not known."""


class Start(enum.StrEnum):
    """Where a first reader begins; as Kafka's `auto.offset.reset`."""

    EARLIEST = "earliest"
    """With the oldest message that is still owed for."""
    LATEST = "latest"
    """With the first message after its first request."""


class AfterGrace(enum.StrEnum):
    """The policy for a subscription's debt when no reader has come back within its grace."""

    HOLD = "hold"
    """It stays; publishers wait by their limits (backpressure). The log names both sides."""
    DROP = "drop"
    """The subscription is forgotten with its messages, which are repaid as `dropped`."""
    WRITE_OFF = "write_off"
    """It stays; its messages are written off, and new ones dropped until a reader attaches."""


class Head(NamedTuple):
    """The messages that can be fetched: from `low` to before `next`."""

    low: int
    next: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's first frame."""

    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class Auth:
    """The client's name and password."""

    user: str
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask for a PONG."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Attach to a subscription, and make it if it does not exist."""

    name: str
    generation: int = 0
    incarnation: bytes = UNKNOWN
    filters: tuple[str, ...] = ()
    grace: float | None = None
    after_grace: AfterGrace | None = None
    durable: bool = False
    start: Start | None = None
    join: bool = False


@dataclass(frozen=True, slots=True)
class Detach:
    """End an attachment."""

    handle: int


@dataclass(frozen=True, slots=True)
class AskHead:
    """Ask which messages can be fetched."""

    handle: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask for messages."""

    handle: int
    start: int
    end: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledge everything below `upto`."""

    handle: int
    upto: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the subscription."""

    handle: int


@dataclass(frozen=True, slots=True)
class Reach:
    """Ask how many messages a number of bytes covers."""

    handle: int
    start: int
    max_bytes: int
