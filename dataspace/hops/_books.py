"""The books of the two ends of a hop, and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class HopBooks:
    """What is owed for at one end."""

    epoch: int
    """The life of the hop."""
    next: int
    """The number of the next parcel."""
    out: Mapping[int, int]
    """Items of the parcels that were sent and have not ended, by number."""
    given_up_items: int = 0
    """Items that were written off at this end, and may still be at the other one."""


@attrs.frozen
class LandingBooks:
    """What is at the other end."""

    epoch: int
    """The life of the hop that it knows."""
    next: int
    """The number of the next parcel."""
    unsettled: Mapping[int, int]
    """Items of the parcels that have come and are not settled, by number."""


@attrs.frozen
class Comparison:
    """The books of a hop beside those of its landing, which were read after them."""

    owed_items: int
    """Items that are owed for."""
    there_items: int
    """Items of these that are at the other end, and not settled."""
    faults: tuple[str, ...]
    """What does not agree, in sentences."""

    @property
    def under_way_items(self) -> int:
        """Items on their way there, or whose end is on its way back."""
        return self.owed_items - self.there_items


def compare(hop: HopBooks, landing: LandingBooks) -> Comparison | None:
    """Compare what is owed for at one end with what is at the other one (rule 7 of accounting).

    What has come and is not settled has to be owed for. The landing's books have to be read after
    the hop's: what was sent in between has a later number.

    Returns:
        the comparison; None: the two are of different lives, which say nothing of each other.
    """
    if hop.epoch != landing.epoch:
        return None
    there = 0
    faults: list[str] = []
    for number, items in landing.unsettled.items():
        if number >= hop.next:
            continue
        owed = hop.out.get(number)
        if owed is not None:
            there += items
        if owed is None and not hop.given_up_items:
            faults.append(f"parcel {number}: {items} items are there, and nobody owes for them")
        elif owed is not None and owed != items:
            faults.append(f"parcel {number}: {items} items are there, and {owed} are owed for")
    return Comparison(sum(hop.out.values()), there, tuple(faults))
