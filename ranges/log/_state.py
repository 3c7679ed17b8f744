"""The stored state of a subscription for a restart, without its messages and its read position."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from ..wire import AfterGrace, Start

if TYPE_CHECKING:
    from ._subscription import RangeSubscription


def state_of(subscription: RangeSubscription) -> bytes:
    """Return the state for a restart."""
    options = subscription.options
    return json.dumps(
        {
            "incarnation": subscription.incarnation.hex(),
            "generation": subscription.generation,
            "pin": subscription.pin,
            "filters": subscription.filters,
            "grace": options.grace,
            "after_grace": options.after_grace,
        }
    ).encode()


def take_up(subscription: RangeSubscription, state: bytes) -> None:
    """Restore a subscription from the result of `state_of`.

    Raises:
        ValueError: It is invalid.
    """
    try:
        found = json.loads(state)
        incarnation = bytes.fromhex(found["incarnation"])
        generation = int(found["generation"])
        pin = found["pin"]
        subscription.pin = None if pin is None else (Start(pin[0]), int(pin[1]))
        subscription.filters = tuple(map(str, found["filters"]))
        subscription.options = attrs.evolve(
            subscription.options,
            grace=float(found["grace"]),
            after_grace=AfterGrace(found["after_grace"]),
        )
    except (KeyError, TypeError, IndexError) as exc:
        name = subscription.subscription
        msg = f"the stored state of subscription {name} is not one: {exc!r}"
        raise ValueError(msg) from exc
    subscription.incarnation = incarnation
    subscription.generation = generation
