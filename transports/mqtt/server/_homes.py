"""The place of a client's persistent session, where several relays are a cluster.

The relay that a client connects to may not be the one that has its session. `clearfunds.cluster`
says which one has it, and takes the client there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from ..._session import Hold

if TYPE_CHECKING:
    from collections.abc import Generator

    from ..._link import Link, Voucher


class UnavailableError(Exception):
    """A client's session cannot be reached now; the message says why."""


@attrs.frozen
class Guest:
    """A client that has sent CONNECT and may come in."""

    key: str
    """See `identity`."""
    older_key: str | None
    """The key of a session that it would adopt; None: of none."""
    resumes: bool
    """Whether it wants the session that there is."""
    keeps: bool
    """Whether its session is to outlive the connection."""


@attrs.frozen
class Passage:
    """A client's connection, to be served by another relay."""

    link: Link
    first: bytes
    """CONNECT, without a password, and all that has come behind it."""
    listener: str
    """The name of the listener that the client has come by."""
    voucher: Voucher


class Bridge(Hold, Protocol):
    """A connection that another relay serves, for as long as `wait` lasts."""

    @property
    def refusal(self) -> str | None:
        """Why the other relay does not serve it; None: it does, or did."""
        ...

    @property
    def why(self) -> str:
        """Why it has ended."""
        ...


class Visit(Protocol):
    """A client that looks for its session."""

    def find(self) -> Generator[Hold, None, str | None]:
        """Find the relay that has the session, or is to have it; None: this one.

        Raises:
            UnavailableError: It cannot be reached now.
        """
        ...

    def cross(self, relay: str, passage: Passage) -> Bridge:
        """Have another relay serve the client."""
        ...

    def close(self) -> None:
        """Give up the right to make a session, if none has been made. Idempotent."""
        ...


class Homes(Protocol):
    """Knows which relay has which session."""

    def visit(self, guest: Guest) -> Visit:
        """Let a client look for its session."""
        ...
