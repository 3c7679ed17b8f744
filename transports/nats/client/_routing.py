"""Which call a received message is for: a subscription, or a request's answer. No I/O."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeAlias

import attrs

from ....sockets import TransportError
from ..codec._commands import encode_subscribe
from ..codec._messages import Message
from ._errors import ConnectionLostError, RefusedError

Done: TypeAlias = Callable[[Message | TransportError], object]
"""It takes the answer to a request, or the reason why there will be none. It must not block."""

_ANSWERS = 1
"""The number of the subscription for all answers to requests."""


@attrs.frozen(eq=False)
class Route:
    """A subscription, over all connections.

    Attributes:
        subject: The subject, which may have wildcards.
        queue: The queue group, or empty.
        deliver: Takes each message. It must not block.
        ended: Called when nothing more comes: with a sentence if the server does not allow the
            subscription, with None if the client has been left.
        resumed: Called when a new connection has the subscription.
    """

    subject: str
    queue: str
    deliver: Callable[[Message], object]
    ended: Callable[[str | None], object]
    resumed: Callable[[], object] | None = None


class Routing:
    """The subscriptions of a client, and the requests that wait for an answer.

    Args:
        inbox_prefix: The beginning of subjects for answers, which the server has to allow.
    """

    __slots__ = ("_answers", "_inbox", "_last_answer", "_last_sid", "_routes", "_waiting")

    def __init__(self, inbox_prefix: str = "_INBOX") -> None:
        # As long as a NUID of the other clients; nobody else should guess it.
        self._inbox = f"{inbox_prefix}.{secrets.token_hex(11)}"
        self._answers = f"{self._inbox}.a."
        self._routes: dict[int, Route] = {}
        self._waiting: dict[str, Done] = {}
        self._last_sid = _ANSWERS
        self._last_answer = 0

    @property
    def subscriptions(self) -> int:
        """The number of subscriptions."""
        return len(self._routes)

    @property
    def requests(self) -> int:
        """The number of requests without an answer."""
        return len(self._waiting)

    def add(self, route: Route) -> int:
        """Add a subscription, and return its number."""
        self._last_sid += 1
        self._routes[self._last_sid] = route
        return self._last_sid

    def remove(self, sid: int) -> bool:
        """Remove a subscription; return whether there was one."""
        return self._routes.pop(sid, None) is not None

    def resume(self) -> bytes:
        """Return the SUB of all subscriptions, for a new connection."""
        lines = [encode_subscribe(_ANSWERS, f"{self._answers}*")]
        lines += [
            encode_subscribe(sid, route.subject, route.queue) for sid, route in self._routes.items()
        ]
        return b"".join(lines)

    def resumed(self) -> None:
        """Note that a new connection has all subscriptions."""
        for route in list(self._routes.values()):
            if route.resumed is not None:
                route.resumed()

    def new_inbox(self) -> str:
        """Return a subject of this client's own, to subscribe to."""
        self._last_answer += 1
        return f"{self._inbox}.{self._last_answer}"

    def ask(self, done: Done) -> str:
        """Note a request, and return the subject for its answer."""
        self._last_answer += 1
        reply = f"{self._answers}{self._last_answer}"
        self._waiting[reply] = done
        return reply

    def forget(self, reply: str) -> None:
        """Drop a request: its answer is not wanted any more."""
        self._waiting.pop(reply, None)

    def dispatch(self, message: Message) -> None:
        """Hand a message to its subscription or request; drop one that nobody wants any more."""
        if message.sid == _ANSWERS:
            done = self._waiting.pop(message.subject, None)
            if done is not None:
                done(message)
            return
        route = self._routes.get(message.sid)
        if route is not None:
            route.deliver(message)

    def refused(self, subject: str, queue: str, why: str) -> None:
        """Note that the server refused a subscription to this subject, in this queue group."""
        if subject == f"{self._answers}*":
            self._fail(RefusedError(f"answers to requests cannot come: {why}"))
        for sid, route in list(self._routes.items()):
            if (route.subject, route.queue) == (subject, queue):
                del self._routes[sid]
                route.ended(why)

    def lost(self, why: str) -> None:
        """Note that the connection has ended: no answer will come to what it was asked."""
        self._fail(ConnectionLostError(why))

    def _fail(self, error: TransportError) -> None:
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for done in waiting:
            done(error)

    def end(self) -> None:
        """Note that the client has been left: nothing more comes to its subscriptions."""
        routes = list(self._routes.values())
        self._routes.clear()
        for route in routes:
            route.ended(None)
