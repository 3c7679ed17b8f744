"""What persistence needs of the outlets: to send what has become safe."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Sending(Protocol):
    """Sends to connections; a `clearfunds.transports.Flusher`."""

    corks: int
    """The number of blocks that hand over without sending, as `corked` does."""

    def corked(self) -> AbstractContextManager[None]:
        """Let confirms in the block hand over without sending."""
        ...

    def flush_now(self) -> None:
        """Send to every outlet that has something; never raises."""
        ...
