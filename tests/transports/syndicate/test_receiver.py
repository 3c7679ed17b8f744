"""What a packet has changed, to be undone if it fails; in time in proportion to its size."""

from __future__ import annotations

from typing import Any

import pytest

from clearfunds.transports.syndicate._receiver import _Changes  # pyright: ignore[reportPrivateUsage]


class Handle:
    """A handle that counts how often handles are compared."""

    compared = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        Handle.compared += 1
        return isinstance(other, Handle) and self.number == other.number


def retractor(_: Any) -> None:
    """Take back an assertion that is none."""


@pytest.mark.parametrize("backwards", [False, True])
def test_a_packet_that_asserts_and_retracts_very_much_is_not_compared_with_itself(
    backwards: bool,
) -> None:
    count = 3_000
    live: dict[Any, Any] = {}
    changes = _Changes(live)
    for n in range(count):
        changes.assert_(Handle(n), retractor)  # type: ignore[arg-type]
    Handle.compared = 0
    numbers = range(count)
    for n in reversed(numbers) if backwards else numbers:
        assert changes.retract(Handle(n)) is retractor  # type: ignore[arg-type]
    assert Handle.compared <= 20 * count
    assert live == {}
    changes.undo()
    assert live == {}


def test_what_a_failed_packet_changed_is_as_it_was() -> None:
    def one(_: Any) -> None: ...
    def two(_: Any) -> None: ...
    def three(_: Any) -> None: ...

    live: dict[int, Any] = {1: one, 2: two}
    changes = _Changes(live)
    assert changes.retract(1) is one
    assert changes.retract(1) is None
    changes.assert_(1, three)
    changes.assert_(3, three)
    assert changes.retract(3) is three
    assert live == {1: three, 2: two}
    changes.undo()
    assert live == {1: one, 2: two}
