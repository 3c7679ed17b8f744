"""Server-sent events: a text stream that browsers can read and resume.

HTML Living Standard, section 9.2 ("Server-sent events").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

CONTENT_TYPE: Final = "text/event-stream"


def event(name: str, data: str) -> bytes:
    """Encode one event.

    Args:
        name: The type of the event, for `addEventListener`; one line.
        data: Its content. Each line becomes a field, by any of the three line endings
            of the standard.
    """
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    fields = "".join(f"data: {line}\n" for line in lines)
    return f"event: {name}\n{fields}\n".encode("utf-8", "replace")


def retry(milliseconds: int) -> bytes:
    """Tell browsers how long to wait before they connect again."""
    return f"retry: {milliseconds}\n\n".encode()


class Audience(Protocol):
    """Counts browsers that watch."""

    watching: int


class EventStream:
    """The body of a stream of events; its browser counts as watching until it is closed.

    The generator cannot count it: its `finally` does not run if it is closed before its first
    event, as for HEAD.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], audience: Audience) -> None:
        self._events = events
        self._audience: Audience | None = audience
        audience.watching += 1

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._events)

    async def aclose(self) -> None:
        """End the stream. Idempotent."""
        if self._audience is not None:
            self._audience.watching -= 1
            self._audience = None
        await self._events.aclose()
