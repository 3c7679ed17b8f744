"""Requests of a client that await an answer: SUBSCRIBE and UNSUBSCRIBE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs
import trio

from ..._errors import RemoteProtocolError
from ..codec._identifiers import PacketIds
from ..codec._options import NO_LOCAL, RETAIN_AS_PUBLISHED, RETAINED_TO_NEW, RETAINED_TO_NONE
from ..codec._packets import SubAck, UnsubAck
from ..codec._reasons import Reason
from ._errors import SubscriptionRefusedError

RETAIN_HANDLINGS: Final = {"always": 0, "new": RETAINED_TO_NEW, "never": RETAINED_TO_NONE}
"""When a server sends retained messages (MQTT 5, section 3.8.3.1), by name."""


@attrs.define(eq=False)
class Request:
    """A SUBSCRIBE or UNSUBSCRIBE that waits for its answer."""

    answer: type[SubAck | UnsubAck]
    filters: tuple[str, ...]
    reasons: tuple[int, ...] = ()
    """The codes of the answer, one for each filter; empty if the answer has none."""
    reason_string: str | None = None
    finished: bool = False
    waiter: trio.Event | None = None

    def check(self) -> tuple[int, ...]:
        """Return the codes of the answer.

        Raises:
            SubscriptionRefusedError: one of them is a refusal.
        """
        failed = {
            name: code
            for name, code in zip(self.filters, self.reasons, strict=False)
            if code >= Reason.UNSPECIFIED_ERROR
        }
        if not failed:
            return self.reasons
        granted = {
            name: None if code >= Reason.UNSPECIFIED_ERROR else code
            for name, code in zip(self.filters, self.reasons, strict=True)
        }
        if self.answer is SubAck:
            raise SubscriptionRefusedError(granted, failed, self.reason_string)
        what = "end this client's subscription to"
        raise SubscriptionRefusedError(granted, failed, self.reason_string, what)


class Requests:
    """The unanswered requests of one client.

    Args:
        ids: The packet identifiers that theirs are taken from.
    """

    __slots__ = ("_by_id", "_ids")

    def __init__(self, ids: PacketIds) -> None:
        self._ids = ids
        self._by_id: dict[int, Request] = {}

    def begin(self, packet_id: int, request: Request) -> None:
        """Note a request that was sent."""
        self._by_id[packet_id] = request

    def unfinished(self) -> Iterable[Request]:
        """Return the unanswered requests."""
        return self._by_id.values()

    def finish(self, packet: SubAck | UnsubAck) -> None:
        """Handle an answer.

        Raises:
            RemoteProtocolError: it answers no request of this client, or not each filter.
        """
        request = self._by_id.get(packet.packet_id)
        if request is None or type(packet) is not request.answer:
            raise RemoteProtocolError(
                f"the server sent {type(packet).__name__.upper()} for packet identifier "
                f"{packet.packet_id}, which awaits none [MQTT-2.3.1-7]"
            )
        codes = packet.return_codes if isinstance(packet, SubAck) else packet.reasons
        # UNSUBACK of 3.1.1 has no codes.
        if len(codes) != len(request.filters) and (codes or isinstance(packet, SubAck)):
            raise RemoteProtocolError(
                f"the server answered {len(request.filters)} topic filters with "
                f"{len(codes)} return codes [MQTT-3.8.4-5]"
            )
        request.reasons = codes
        request.reason_string = packet.properties.reason_string
        del self._by_id[packet.packet_id]
        self._ids.release(packet.packet_id)
        request.finished = True
        if request.waiter is not None:
            request.waiter.set()

    def clear(self) -> None:
        """Drop the unanswered requests, and release their identifiers."""
        for packet_id in self._by_id:
            self._ids.release(packet_id)
        self._by_id.clear()


def options_of(
    *, no_local: bool = False, retain_as_published: bool = False, retained: str = "always"
) -> int:
    """Return the options of a subscription, without its QoS; MQTT 3.1.1 only has 0.

    Raises:
        ValueError: `retained` is none of `RETAIN_HANDLINGS`.
    """
    if retained not in RETAIN_HANDLINGS:
        raise ValueError(f"retained is one of {', '.join(RETAIN_HANDLINGS)}, not {retained!r}")
    return (
        no_local * NO_LOCAL | retain_as_published * RETAIN_AS_PUBLISHED | RETAIN_HANDLINGS[retained]
    )
