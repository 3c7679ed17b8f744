"""Events for one peer, in the wire's form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...accounts import measure
from ._packets import TurnEvent, encode_event
from ._port import HANDLELESS, Made
from ._preserves import Value
from ._runs import MESSAGE_HEAD
from ._shown import shown_value
from ._sturdy import Caveat, attenuate_value, max_attenuated_size
from ._values import encode_integer, encoded

if TYPE_CHECKING:
    from ._connection import Connection
    from ._entities import Answer, Entity, Proxy
    from ._membrane import Membrane
    from ._vocabulary import Vocabulary

ASSERT_HEAD = b"\xb4\xb3\x01A"
_RETRACT_HEAD = b"\xb4\xb3\x01R"


class Writer:
    """Makes the events of one connection: bytes for a peer that speaks binary, else `TurnEvent`s.

    Received bytes are used unchanged, unless they contain references, which have to pass the
    membrane. All methods raise `LocalProtocolError` for an event that the peer cannot be told:
    a message with a reference that the peer does not know, or one live assertion too many.
    """

    __slots__ = ("_attenuate", "_connection", "_membrane", "_vocabulary")

    def __init__(
        self,
        connection: Connection,
        membrane: Membrane[Entity],
        vocabulary: Vocabulary,
        attenuate: Callable[[Entity, tuple[Value, ...]], Entity],
    ) -> None:
        self._connection = connection
        self._membrane = membrane
        self._vocabulary = vocabulary
        self._attenuate = attenuate

    def _raw(self, item: Any, caveats: Sequence[Caveat]) -> bytes | None:
        return None if caveats or self._connection.text else encoded(item)

    def _value(self, item: Any, caveats: Sequence[Caveat]) -> Value | None:
        value = shown_value(item, self._vocabulary)
        if not caveats:
            return value
        size = max_attenuated_size(measure(item))
        return attenuate_value(caveats, value, self._attenuate, max_size=size)

    def _finish(self, event: TurnEvent) -> TurnEvent | bytes:
        return event if self._connection.text else encode_event(event)

    def message(
        self, target: Proxy, item: Any, caveats: Sequence[Caveat]
    ) -> TurnEvent | bytes | None:
        """Make a message; None if the caveats do not let it through."""
        raw = self._raw(item, caveats)
        if raw is not None:
            oid = encode_integer(self._membrane.oid_of(target))
            return b"".join((b"\xb5", oid, MESSAGE_HEAD, raw, b"\x84\x84"))
        value = self._value(item, caveats)
        if value is None:
            return None
        return self._finish(self._membrane.send_message(target, value))

    def assertion(
        self, target: Proxy, item: Any, made: Made, caveats: Sequence[Caveat]
    ) -> TurnEvent | bytes | None:
        """Make an assertion, and note its handle; None if the caveats do not let it through."""
        raw = self._raw(item, caveats)
        if raw is not None:
            return self.plain_assertion(target, raw, made)
        value = self._value(item, caveats)
        if value is None:
            return None
        event = self._membrane.send_assert(target, value)
        made.handle = event.event.handle  # type: ignore[union-attr]
        return self._finish(event)

    def retraction(self, made: Made) -> TurnEvent | bytes | None:
        """Make a retraction; None if it was never asserted."""
        if made.handle == HANDLELESS:
            return None
        if self._connection.text:
            return self._membrane.send_retract(made.handle)
        return self.plain_retraction(made)

    def plain_assertion(self, target: Proxy, raw: bytes, made: Made) -> bytes:
        """Make an assertion of `raw`, which has no references, in binary; note its handle."""
        oid, made.handle = self._membrane.plain_assert(target)
        number, handle = encode_integer(oid), encode_integer(made.handle)
        return b"".join((b"\xb5", number, ASSERT_HEAD, raw, handle, b"\x84\x84"))

    def plain_retraction(self, made: Made) -> bytes:
        """Make a retraction in binary."""
        number = encode_integer(self._membrane.plain_retract(made.handle))
        handle = encode_integer(made.handle)
        return b"".join((b"\xb5", number, _RETRACT_HEAD, handle, b"\x84\x84"))

    @property
    def may_assert(self) -> bool:
        """Whether the peer can be told of one more assertion."""
        return self._membrane.may_send

    def sync(self, target: Proxy, answer: Answer) -> TurnEvent | bytes:
        """Ask a peer's entity to sync."""
        event, pin = self._membrane.send_sync(target, answer)
        answer.asked(target.session, pin)
        return self._finish(event)
