"""Changes of state: what stands, and what observers have been shown of it.

A turn makes them with a way back, at its commit (`_dataspace.py`). A transport that knows
beforehand that nothing can go wrong makes them at once (`StateChanges`), and delivers what
observers have to be told in a turn of its own, before anything else happens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ._bag import Bag, Entry, identity
from ._index import Endpoint
from ._pattern import captured

if TYPE_CHECKING:
    from ._dataspace import Assertion


@attrs.frozen(slots=True, eq=False)
class Sight:
    """What the observers at one endpoint see of a value."""

    endpoint: Endpoint
    shown: Any
    key: Hashable
    """The identity of `shown`: other values may look the same."""


def sights(value: Any, key: Hashable, endpoints: Iterable[Endpoint]) -> tuple[Sight, ...]:
    """Return what the observers at these endpoints see of a value, whose identity is `key`."""
    found: list[Sight] = []
    for endpoint in endpoints:
        shown = captured(endpoint.captures, value)
        found.append(Sight(endpoint, shown, key if endpoint.captures is None else identity(shown)))
    return tuple(found)


def show(endpoint: Endpoint, key: Hashable, shown: Any, count: int) -> None:
    """Note how many assertions show the observers at an endpoint this."""
    if count:
        endpoint.shown[key] = shown, count
    else:
        del endpoint.shown[key]


class StateChanges:
    """The assertions of a dataspace."""

    __slots__ = ("bag",)

    def __init__(self) -> None:
        self.bag = Bag()

    def put_in(self, assertion: Assertion, entry: Entry | None = None) -> Entry:
        """Count an assertion, and let its owner's quota pay; see `Bag.add`."""
        entry = self.bag.add(assertion.key, assertion.value, entry)
        assertion.standing = True
        assertion.owner.standing().add(1, assertion.nbytes)
        return entry

    def take_out(self, assertion: Assertion) -> Entry:
        """Count an assertion no more; see `Bag.remove`."""
        entry = self.bag.remove(assertion.key, assertion.value)
        assertion.standing = False
        assertion.owner.standing().release(1, assertion.nbytes)
        return entry

    def appear(self, assertion: Assertion, seen: Sequence[Sight]) -> list[tuple[int, Any]]:
        """Let an assertion stand from now on.

        `seen` is for all endpoints that its value concerns. Returns the places in it whose
        observers have to be told, with what appears to them.
        """
        told: list[tuple[int, Any]] = []
        if self.put_in(assertion).count == 1:
            for at, sight in enumerate(seen):
                shown, before = sight.endpoint.shown.get(sight.key, (sight.shown, 0))
                sight.endpoint.shown[sight.key] = shown, before + 1
                if not before:
                    told.append((at, shown))
        return told

    def disappear(self, assertion: Assertion, seen: Sequence[Sight]) -> list[tuple[int, Any]]:
        """Let an assertion that stands do so no longer; as `appear`."""
        told: list[tuple[int, Any]] = []
        if not self.take_out(assertion).count:
            for at, sight in enumerate(seen):
                shown, before = sight.endpoint.shown[sight.key]
                show(sight.endpoint, sight.key, shown, before - 1)
                if before == 1:
                    told.append((at, shown))
        return told
