"""Output to one peer: framed as turns, in the peer's syntax, and passed to its outlet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ...accounts import Account, Outcome
from ...dataspace import Batch, captured
from .._errors import LocalProtocolError
from .._outlet import Outlet
from ._connection import Connection
from ._packets import Packet, Turn, TurnEvent, decode, encode
from ._port import Gathering, Port
from ._runs import AnyRun, FlatRun

if TYPE_CHECKING:
    from ._turn_credit import Credited
    from ._writer import Writer


class Sender:
    """The way out to one peer.

    Args:
        account: pays for packets that the connection sends on its own.
        outlet: the send buffer.
        connection: knows the syntax of the peer.
        writer: makes the events for the peer.
        complain: logs messages that cannot be expressed to the peer.
        cut: ends the connection.

    Attributes:
        outlet: the send buffer.
        writer: makes the events for the peer.
        gathering: the events of the current commit.
        gone: whether nothing more can be sent to the peer.
        frame: makes the WebSocket message of a packet; None: packets are sent as they are.
        credited: holds sent turns until the peer gives credit for them, if it does.
    """

    __slots__ = (
        "_account", "_complain", "_connection", "_cut", "credited", "frame", "gathering", "gone",
        "outlet", "writer",
    )  # fmt: skip

    def __init__(
        self,
        account: Account,
        outlet: Outlet,
        connection: Connection,
        writer: Writer,
        *,
        complain: Callable[[str], object],
        cut: Callable[[str], object],
    ) -> None:
        self._account = account
        self.outlet = outlet
        self._connection = connection
        self.writer = writer
        self.frame: Callable[[bytes], bytes] | None = None
        self._complain = complain
        self._cut = cut
        self.gathering = Gathering(self)
        self.gone = False
        self.credited: Credited | None = None

    # -- packets that the connection sends on its own -------------------------------------------

    def say(self, packet: Packet) -> None:
        """Send a packet on the connection's own account (rule 2), unless it is closed."""
        with suppress(LocalProtocolError):
            self.put(self._wrapped(self._connection.send(packet)))

    def put(self, data: bytes) -> None:
        """Send bytes unchanged, on the connection's own account (rule 2)."""
        if data:
            account = self._account
            account.borrow(1, len(data))
            outlet = self.outlet
            outlet.hold(account, data, 1, len(data), outlet.ledger.clock())

    # -- events from others ---------------------------------------------------------------------

    def put_turn(
        self,
        account: Account,
        events: list[TurnEvent | bytes],
        items: int,
        nbytes: int,
        now: float,
    ) -> None:
        """Send one turn, for whose events `account` has been charged. For `Gathering`."""
        if self.gone:
            self.outlet.turn_away(account, items, nbytes, Outcome.DROPPED)
            return
        try:
            packet = self._packet(events)
        except Exception as exc:  # noqa: BLE001 (as above, for `Port`)
            self.failed(account, items, nbytes, exc)
            return
        self._hold(account, packet, 1, items, nbytes, now)

    def put_run(self, port: Port, account: Account, run: AnyRun, nbytes: int, now: float) -> None:
        """Send each packet of a run as a turn of its own. For `Port`."""
        if self.credited is not None and isinstance(run, FlatRun) and run.turns < run.count:
            # Credit is for turns, of which some have several events: each is a loan of its own.
            left, left_bytes = run.count, nbytes
            for packet, items in zip(self._framed(port, run), run.events, strict=True):
                share = left_bytes * items // left
                self._hold(account, packet, 1, items, share, now)
                left, left_bytes = left - items, left_bytes - share
            return
        if self._connection.text or self.frame is not None:
            packets = b"".join(self._framed(port, run))
        else:
            packets = run.chunk(port.told_as)
        self._hold(account, packets, run.turns, run.count, nbytes, now)

    def _framed(self, port: Port, run: AnyRun) -> list[bytes]:
        """Return the packets of a run, in the form in which the peer wants them."""
        packets = run.packets(port.told_as)
        if self._connection.text:
            return [self._wrapped(encode(decode(packet), text=True)) for packet in packets]
        return list(map(self._wrapped, packets))

    def put_batch(
        self, port: Port, account: Account, batch: Batch, nbytes: int, now: float
    ) -> None:
        """Send each publication of a run as a turn of its own. For `Port`."""
        special = bool(port.caveats or self._connection.text or self.frame)
        framed = batch.framed
        if framed is None:
            framed = batch.framed = {}
        key = None if special else port.told_as
        packets = None if key is None else framed.get(key)
        if packets is None:
            told = list(self._told(port, batch))
            if len(told) < batch.count:
                # Copies left out are discarded here; the last of them takes the bytes along.
                left_out = batch.count - len(told)
                size = sum(map(len, told))
                spare = nbytes if not told else max(0, nbytes - size)
                self.outlet.turn_away(account, left_out, spare, Outcome.DROPPED)
                if told:
                    packets = b"".join(told)
                    self._hold(account, packets, len(told), len(told), nbytes - spare, now)
                return
            packets = b"".join(told)
            if key is not None:
                framed[key] = packets
        self._hold(account, packets, batch.count, batch.count, nbytes, now)

    def failed(self, account: Account, items: int, nbytes: int, why: Exception) -> None:
        """End the connection after an internal error while framing events. For `Port`.

        The error must not surface in the turn of the account that caused the event.
        """
        self.outlet.turn_away(account, items, nbytes, Outcome.DROPPED)
        account.ledger.faults.note(self.outlet, "framing its events", why)
        self._cut(f"internal error: {why!r}")

    def unsayable(
        self, account: Account, items: int, nbytes: int, why: LocalProtocolError, *, state: bool
    ) -> None:
        """Drop an event that cannot be expressed to the peer; end the connection if it is `state`.

        For `Port`.
        """
        self.outlet.turn_away(account, items, nbytes, Outcome.DROPPED)
        if state:
            self._cut(f"an assertion cannot be expressed to it: {why}")
        else:
            self._complain(f"a message was dropped: {why}")

    def _told(self, port: Port, batch: Batch) -> Iterator[bytes]:
        for publication in batch.events():
            try:
                shown = captured(port.told_as[1], publication)
                event = self.writer.message(port.target, shown, port.caveats)
            except LocalProtocolError as exc:
                self._complain(f"a message was dropped: {exc}")
                continue
            if event is not None:
                yield self._packet([event])

    def _packet(self, events: list[TurnEvent | bytes]) -> bytes:
        if self._connection.text:
            turn = Turn(tuple([event for event in events if isinstance(event, TurnEvent)]))
            return self._wrapped(encode(turn, text=True))
        raw = [event for event in events if isinstance(event, bytes)]
        return self._wrapped(b"".join((b"\xb5", *raw, b"\x84")))

    def _wrapped(self, packet: bytes) -> bytes:
        return packet if self.frame is None else self.frame(packet)

    def _hold(
        self, account: Account, packets: bytes, turns: int, items: int, nbytes: int, now: float
    ) -> None:
        more = len(packets) - nbytes
        if more > 0:
            # The framing is charged, too; its size was unknown when the commit charged the account.
            account.borrow(0, more)
            nbytes += more
        try:
            if self.credited is None:
                self.outlet.hold(account, packets, items, nbytes, now)
            else:
                self.credited.put(account, packets, turns, items, nbytes, now)
        except Exception:
            if more > 0:
                account.repay(0, more, Outcome.REJECTED)
            raise
