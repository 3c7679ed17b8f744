"""What crosses between two relays: parcels one way, receipts the other.

Values only; a transport encodes them. All of them may be lost, repeated and reordered: a parcel has
a number, and a receipt says everything that is known.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from ...accounts import Trace

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Numbers, as (first, last) each, ascending."""

Identity: TypeAlias = tuple[int, int]
"""A parcel that may be sent again by a later life of its hop: the epoch, and its number there; or,
of what an outbox has stored, the number of the outbox, negative, and the event's number in it."""


Path: TypeAlias = tuple[tuple[str, str], ...]
"""Accounts, as (relay, name there), the reader of each of which waits for the peer of the next."""


@attrs.frozen
class Parcel:
    """Events of one account in a row.

    Attributes:
        number: Its number; those of one hop have no gaps, from 1 on.
        origin: The name of the account that owes for it.
        above: The names of the accounts above that, the root first.
        events: The events.
        items, nbytes: How many they are, and their bytes.
        asks: Whether publishers of them wait for a confirm: see `Receipt.taken`.
        of: The parcel as which an earlier life of the hop has sent the same events, or the event of
            an outbox that it is; None: it is neither.
        steps: The number of steps, from cause to effect, for which a trace follows it; 0: none
            does.
    """

    number: int
    origin: str
    above: tuple[str, ...]
    events: tuple[Any, ...]
    items: int
    nbytes: int
    asks: bool = False
    of: Identity | None = None
    steps: int = 0


@attrs.frozen
class Shipment:
    """What a relay sends.

    Attributes:
        epoch: The life of the hop: a greater number than that of any earlier one.
        number: The number of the shipment; from 1 on in each epoch.
        life: The life of the landing that these parcels are for; 0: it is not known yet.
        floor: All parcels below it have ended here; none of them comes any more.
        first: The first parcel that may still come: those below have been received or given up.
        parcels: In the order of their numbers.
        waiting: The accounts with parcels there that a reader waits for here; None: as before.
        carried: So many parcels, the first ones, may have been sent by an earlier life of the hop.
        erased: Events of this outbox with a lower number, and those of other ones, come no more;
            None: it does not say.
    """

    epoch: int
    number: int
    life: int
    floor: int
    first: int
    parcels: tuple[Parcel, ...] = ()
    waiting: frozenset[str] | None = None
    carried: int = 0
    erased: Identity | None = None


@attrs.frozen
class Held:
    """Where parcels are at the other relay.

    Attributes:
        first, last: Their numbers.
        holder: The name of the holder that has made no progress for the longest time, of those that
            have some of them.
        owner: The name of its peer's own account, if it has one.
    """

    first: int
    last: int
    holder: str
    owner: str | None = None


@attrs.frozen
class Receipt:
    """What a relay answers. A later one says more than an earlier one.

    Attributes:
        epoch: The hop's, as in its shipments.
        life: The life of the landing: a greater number than that of any earlier one. A relay that
            has restarted has another one, and has lost what had come.
        number: The number of the receipt; from 1 on in each epoch.
        received: All parcels below it have come, or come no more.
        settled: Those below it that are settled: all from the floor on, or the last ones.
        held: Where others are; None: this receipt does not say.
        taken: Those that ask, are not settled, and for which all holders there have taken
            responsibility (rule 7 of accounting): all, or the last ones.
        seen: The number of the latest shipment that has come. Shipments come in the order in which
            they were sent, so what an earlier one had and has not been received is lost.
        waits: The owners in `held` whose readers wait for other relays, and the paths on which they
            wait: see `WaitPaths`.
        traces: What has become here of parcels that a trace follows, by number, so far.
    """

    epoch: int
    life: int
    number: int
    received: int
    settled: Ranges = ()
    held: tuple[Held, ...] | None = None
    taken: Ranges = ()
    seen: int = 0
    waits: tuple[tuple[str, tuple[Path, ...]], ...] = ()
    traces: tuple[tuple[int, Trace], ...] = ()


def ranges_of(numbers: list[int]) -> Ranges:
    """Return ascending numbers as ranges."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)
