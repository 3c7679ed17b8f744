"""What publishers hear."""

from __future__ import annotations


class Told:
    """A publisher that wants to hear that its message is safe."""

    def __init__(self) -> None:
        self.expected = self.was_taken = 0

    def expect(self) -> None:
        self.expected += 1

    def taken(self) -> None:
        self.was_taken += 1

    def refused(self, reason: str) -> None:
        raise AssertionError(reason)
