"""Why a slow consumer is slow: its program, its network, or its acknowledgements.

Theory of operation. A connection's counters (Linux's `tcp_info`) tell how long the peer's receive
window has held up the sender, how much was sent again, and what the kernel still has to send. Two
readings a few seconds apart give shares of that time. They are taken only of holders that a reader
waits for, four times a second, by `watch_patience`; nothing is counted anywhere else.

1. The window was shut for most of the time, and the peer's kernel had acknowledged everything sent:
   it has no room, because its program does not read, or reads too slowly. A stopped process, a
   deadlock and a full disk behind it look alike.
2. Bytes were sent again: the network loses them. If nothing comes back at all, it cannot be told
   from a machine that is gone.
3. Nothing was lost, the window was open or full of bytes on their way, and the kernel never ran out
   of bytes to send: the network carries no more, with the window that the peer has.
4. The peer's kernel has everything, nothing from the peer is unread here, and messages are not
   acknowledged, or some always are: its program does not acknowledge, or too slowly. Whether it
   reads cannot be told then.

In all other cases, and where the system has no such counters, the cause is unknown: a guess would
send somebody to the wrong machine.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Hashable, Sequence
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import attrs

if TYPE_CHECKING:
    from collections.abc import Container

    from .._account import Account
    from .._holder import Holder
    from .._ledger import Ledger

WINDOW_SECONDS: Final = 10.0
"""Duration that a cause is found from: the latest seconds, so that a new cause shows."""

OBSERVED_SECONDS: Final = 0.4
"""Least duration; below it nothing is said."""

NO_ANSWER_SECONDS: Final = 3.0
"""Silence of the peer's TCP that counts as no answer. Linux has then sent four times, after 0.2,
0.6, 1.4 and 3 s (RFC 6298, with its least timeout of 0.2 s)."""

WAIT_SECONDS: Final = 0.05
"""A reader that has waited for less stands at its limit for a moment, as any does under load."""

FRESH_SECONDS: Final = 0.2
"""Age from which the last reading is too old for a report, which then takes another."""

STILL_SECONDS: Final = 1.0
"""A program that has taken nothing for so long does not read."""

SURE_SECONDS: Final = 1.5
"""Least duration for a share of what is lost, and for a pace: six intervals of the watch."""

MOST: Final = 0.5
"""Share of the time, or of the readings, from which something is the cause."""

NEARLY_ALL: Final = 0.9
"""Share of the time for which the kernel had bytes to send, if the network is too slow; and of the
readings in which only acknowledgements were missing, if they come too slowly."""

LITTLE: Final = 0.2
"""Share of the time up to which a shut window is no part of the cause."""

LOSS: Final = 0.01
"""Share of bytes sent again from which the network loses. At 1 % and 40 ms TCP carries 450 kB/s
(Mathis and others, The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm, 1997)."""

RETRANSMISSIONS_MIN: Final = 3
"""One or two are no share of anything: probes of a tail are among them (RFC 8985)."""

ROUND_TRIPS: Final = 10
"""An acknowledgement that is on its way has come after so many."""

OPENING_BYTES: Final = 16 << 10
"""A receiver opens its window by a segment, or by half of its buffer (RFC 1122, 4.2.3.3): the
segments of loopback are four times as large as this."""

HOLDERS_MAX: Final = 64
"""Holders observed at once, those without progress for longest first."""

LOANS_SEEN: Final = 100
"""Loans of a holder that are searched for one that a reader waits for."""

MISSED_MAX: Final = 3
"""Checks in a row that find no reader waiting, after which its readings are dropped."""

NAME_CHARACTERS: Final = 80
"""Of a name in a sentence; a client identifier may have a thousand."""


class CauseKind(enum.StrEnum):
    """The causes that can be told from each other."""

    DOES_NOT_READ = "does_not_read"
    READS_SLOWLY = "reads_slowly"
    LOSS = "loss"
    NO_ANSWER = "no_answer"
    SLOW_NETWORK = "slow_network"
    DOES_NOT_ACKNOWLEDGE = "does_not_acknowledge"
    ACKNOWLEDGES_SLOWLY = "acknowledges_slowly"


@attrs.frozen(slots=True)
class TcpCounters:
    """One reading of a connection's counters, since it was opened."""

    busy_seconds: float
    """Time in which there were bytes to send, or unacknowledged."""
    shut_seconds: float
    """Part of it in which the peer's receive window held up the sender."""
    sent_bytes: int
    """Bytes sent, with those sent again."""
    resent_bytes: int
    """Bytes sent again, but for those that had arrived before, by what the peer reports."""
    retransmissions: int
    acked_bytes: int
    """Bytes that the peer's kernel has acknowledged."""
    unsent_bytes: int
    """Bytes that the kernel has not sent, now."""
    segment_bytes: int
    """Most bytes of a segment, now."""
    in_flight: int
    """Segments that the peer's kernel has not acknowledged, now."""
    round_trip_seconds: float
    unread_bytes: int = 0
    """Bytes that have come from the peer, and were not read here: acknowledgements, maybe."""


@attrs.frozen(slots=True)
class Symptoms:
    """One reading of a holder that sends to a consumer."""

    tcp: TcpCounters | None
    """Its connection's counters; None: the system has none."""
    unsent: bool = False
    """Whether there are bytes that the kernel has not taken."""
    outstanding: int = 0
    """Messages sent that the consumer has to acknowledge."""
    position: Hashable = None
    """Changes with each acknowledgement."""

    @property
    def awaits_acknowledgement(self) -> bool:
        """Whether the peer's kernel has everything, and only acknowledgements are missing."""
        tcp = self.tcp
        if tcp is None or not self.outstanding:
            return False
        return not (self.unsent or tcp.unsent_bytes or tcp.in_flight or tcp.unread_bytes)


@attrs.frozen(slots=True)
class Reading:
    """Symptoms at a time."""

    at: float
    symptoms: Symptoms
    quiet_since: float | None = None
    """Since when only acknowledgements are missing, and none has come; None: it is not so."""

    def next(self, at: float, symptoms: Symptoms) -> Reading:
        """Return the reading after this one."""
        if not symptoms.awaits_acknowledgement:
            return Reading(at, symptoms)
        if self.quiet_since is None or symptoms.position != self.symptoms.position:
            return Reading(at, symptoms, at)
        return Reading(at, symptoms, self.quiet_since)


@attrs.frozen(slots=True)
class Cause:
    """Why a slow consumer is slow."""

    kind: CauseKind
    clause: str
    """After its name: `'s program does not read (window shut 98 % of 7 s)`."""

    def about(self, name: str) -> str:
        """Return the sentence about a holder, without a full stop.

        `archive's program does not read (window shut 98 % of 7 s)`, for `mqtt:1883/-/archive`.
        """
        return short_name(name) + self.clause


def short_name(name: str) -> str:
    """Return the part of a name that tells it from others, cut if it is long."""
    short = name.rpartition("/")[2] or name
    if len(short) > NAME_CHARACTERS:
        return f"{short[: NAME_CHARACTERS - 1]}\u2026"
    return short


def judge(readings: Sequence[Reading]) -> Cause | None:
    """Return the cause that readings of one connection show, the oldest first; None: it is unclear.

    Each rule of this file's docstring needs its evidence throughout, and none against it.
    """
    tcps = [each.symptoms.tcp for each in readings if each.symptoms.tcp is not None]
    seconds = readings[-1].at - readings[0].at if readings else 0.0
    if len(tcps) < max(2, len(readings)) or seconds < OBSERVED_SECONDS:
        return None
    shut = min(1.0, (tcps[-1].shut_seconds - tcps[0].shut_seconds) / seconds)
    # Bytes that are on their way may fill a window, too: of a long or a dead network.
    arrived = sum([not tcp.in_flight for tcp in tcps]) > MOST * len(tcps)
    if shut >= MOST and arrived:
        return _of_program([each.at for each in readings], tcps, shut)
    if readings[-1].quiet_since is not None and not _lost(tcps):
        return _of_acknowledgements(readings, tcps[-1])
    if arrived and shut > LITTLE:
        return None
    return _of_network(tcps, seconds)


def _of_program(times: list[float], tcps: list[TcpCounters], shut: float) -> Cause | None:
    seconds = times[-1] - times[0]
    first, last = tcps[0], tcps[-1]
    lately = tcps[max(0, bisect_right(times, times[-1] - STILL_SECONDS) - 1)]
    middle = tcps[bisect_right(times, times[-1] - seconds / 2) - 1]
    if not _reads(lately, last):
        kind, what = CauseKind.DOES_NOT_READ, "does not read"
    elif seconds >= SURE_SECONDS and _reads(first, middle) and _reads(middle, last):
        kind, what = CauseKind.READS_SLOWLY, "reads too slowly"
    else:
        return None  # it has read, and it may have stopped
    return Cause(kind, f"'s program {what} (window shut {_percent(shut)} of {_span(seconds)})")


def _reads(old: TcpCounters, new: TcpCounters) -> bool:
    """Whether a program has read between two readings: a probe may fill the rest of a window."""
    return new.acked_bytes - old.acked_bytes >= min(new.segment_bytes, OPENING_BYTES)


def _lost(tcps: list[TcpCounters]) -> float:
    """Return the share of bytes that were sent again; 0 if it is small, or no share of anything."""
    old, new = tcps[0], tcps[-1]
    if new.retransmissions - old.retransmissions < RETRANSMISSIONS_MIN:
        return 0.0
    share = (new.resent_bytes - old.resent_bytes) / max(1, new.sent_bytes - old.sent_bytes)
    return share if share >= LOSS else 0.0


def _of_network(tcps: list[TcpCounters], seconds: float) -> Cause | None:
    old, new = tcps[0], tcps[-1]
    busy = (new.busy_seconds - old.busy_seconds) / seconds
    acked = new.acked_bytes - old.acked_bytes
    times = new.retransmissions - old.retransmissions
    if busy < MOST:
        return None
    if acked <= 0:
        if seconds < NO_ANSWER_SECONDS or times < RETRANSMISSIONS_MIN:
            return None
        return Cause(
            CauseKind.NO_ANSWER,
            f"'s network or machine does not answer (nothing for {_span(seconds)}, "
            f"{times} retransmissions)",
        )
    if seconds < SURE_SECONDS:
        return None
    lost = _lost(tcps)
    if lost:
        return Cause(CauseKind.LOSS, f"'s network loses {_percent(lost)}")
    if busy >= NEARLY_ALL and all(tcp.unsent_bytes for tcp in tcps):
        rate = acked / seconds / 1024
        trip = 1e3 * new.round_trip_seconds
        return Cause(
            CauseKind.SLOW_NETWORK,
            f"'s network is slow ({rate:,.0f} KiB/s, round trip {trip:,.0f} ms)",
        )
    return None


def _of_acknowledgements(readings: Sequence[Reading], tcp: TcpCounters) -> Cause | None:
    first, last = readings[0], readings[-1]
    assert last.quiet_since is not None
    quiet = last.at - last.quiet_since
    seconds = last.at - first.at
    if quiet >= max(ROUND_TRIPS * tcp.round_trip_seconds, min(seconds, STILL_SECONDS)):
        return Cause(
            CauseKind.DOES_NOT_ACKNOWLEDGE,
            f" does not acknowledge ({last.symptoms.outstanding:,} outstanding, none for "
            f"{_span(quiet)})",
        )
    # With an acknowledgement on its way, TCP's would be on its way, too, most of the time; and one
    # that has just come says nothing against it.
    waiting = sum([each.quiet_since is not None for each in readings])
    least = min([each.symptoms.outstanding for each in readings])
    changed = quiet < seconds and least > 0
    if changed and seconds >= SURE_SECONDS and waiting >= NEARLY_ALL * len(readings):
        return Cause(
            CauseKind.ACKNOWLEDGES_SLOWLY,
            f" acknowledges too slowly (never fewer than {least:,} outstanding in "
            f"{_span(seconds)})",
        )
    return None


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 2 else f"{seconds:.0f} s"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.02 else f"{100 * share:.0f} %"


@attrs.define(slots=True, eq=False)
class _Observed:
    """A holder that readers wait for."""

    readings: deque[Reading]
    missed: int = 0

    def add(self, at: float, symptoms: Symptoms) -> None:
        last = self.readings[-1]
        if _began_anew(last.symptoms.tcp, symptoms.tcp):
            # Another connection.
            self.readings.clear()
            last = Reading(at, Symptoms(None))
        self.readings.append(last.next(at, symptoms))
        while len(self.readings) > 2 and self.readings[1].at <= at - WINDOW_SECONDS:
            self.readings.popleft()


def _began_anew(old: TcpCounters | None, new: TcpCounters | None) -> bool:
    if old is None or new is None:
        return old is not new
    return new.sent_bytes < old.sent_bytes or new.busy_seconds < old.busy_seconds


class Causes:
    """The readings of holders that readers wait for, and what they show."""

    __slots__ = ("_observed",)

    def __init__(self) -> None:
        self._observed: WeakKeyDictionary[Holder, _Observed] = WeakKeyDictionary()

    def __len__(self) -> int:
        """Return the number of holders observed."""
        return len(self._observed)

    def of(self, holder: Holder) -> Cause | None:
        """Return why a holder that readers wait for is slow; None: unknown, or nobody waits."""
        observed = self._observed.get(holder)
        if observed is None:
            return None
        now = holder.ledger.clock()
        if now - observed.readings[-1].at >= FRESH_SECONDS:
            symptoms = holder.symptoms()
            if symptoms is None:
                return None
            observed.add(now, symptoms)
        return judge(observed.readings)

    def sentence(self, holder: Holder) -> str | None:
        """Return the same as a sentence with the holder's name; None: there is nothing to say."""
        cause = self.of(holder)
        return None if cause is None else cause.about(holder.name)

    def known(self) -> list[tuple[Holder, Cause]]:
        """Return the holders that readers wait for whose cause is known."""
        causes = [(holder, self.of(holder)) for holder in list(self._observed)]
        return [(holder, cause) for holder, cause in causes if cause is not None]

    def named(self, name: str) -> str | None:
        """Return the sentence about a holder of this name; None: there is nothing to say."""
        found = [holder for holder in list(self._observed) if holder.name == name]
        return next(filter(None, map(self.sentence, found)), None)

    def look_in_steps(self, ledger: Ledger) -> Generator[None, None, None]:
        """Take a reading of each holder that a reader waits for; pause between holders."""
        found: list[Holder] = []
        before = ledger.clock() - WAIT_SECONDS
        at = {
            each.at
            for each in ledger.waiters
            if each.at is not None and each.since <= before and each.waits_on_holders
        }
        for holder in list(ledger.holders) if at else ():
            yield
            if _is_waited_for(holder, at):
                found.append(holder)
        kept = nsmallest(HOLDERS_MAX, found, attrgetter("progressed_at"))
        self._drop_others(kept)
        for holder in kept:
            now = ledger.clock()
            try:
                symptoms = holder.symptoms()
            except Exception as exc:  # noqa: BLE001 (whatever it is)
                ledger.faults.note(holder, "looking why it is slow", exc)
                symptoms = None
            if symptoms is None:
                self._observed.pop(holder, None)
                continue
            observed = self._observed.get(holder)
            if observed is None:
                first = Reading(now, Symptoms(None)).next(now, symptoms)
                self._observed[holder] = _Observed(deque([first]))
            else:
                observed.missed = 0
                observed.add(now, symptoms)

    def _drop_others(self, kept: list[Holder]) -> None:
        if not self._observed:
            return
        still = set(kept)
        for holder, observed in list(self._observed.items()):
            if holder in still:
                continue
            observed.missed += 1
            if observed.missed > MISSED_MAX:
                del self._observed[holder]


def _is_waited_for(holder: Holder, at: Container[Account]) -> bool:
    return any(
        account in at
        for loan in islice(holder.waited_for(), LOANS_SEEN)
        for account in loan.account.chain
    )
