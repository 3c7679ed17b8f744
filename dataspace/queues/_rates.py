"""Rates at which messages come and go: moving averages with a half-life of five seconds."""

from __future__ import annotations

HALF_LIFE = 5.0
"""Seconds, as in RabbitMQ's rabbit_variable_queue.erl."""

MIN_INTERVAL = 0.05
"""Seconds; events within less are taken together, or a burst of two would be a rate."""


class Rates:
    """Moving averages of what happens to a queue's messages, each in messages a second.

    The code that handles messages counts them (`arrived += 1`); `update` makes rates of the counts.
    Pure: the time is given.

    Attributes:
        arrived: Messages published since the last update.
        left: Ready messages delivered or dropped.
        pended: Messages delivered that have to be acknowledged.
        settled: Messages acknowledged, or requeued.
        ingress: The rate of `arrived`.
        egress: The rate of `left`.
        ack_ingress: The rate of `pended`.
        ack_egress: The rate of `settled`.
    """

    __slots__ = (
        "ack_egress", "ack_ingress", "arrived", "at", "egress", "ingress", "left", "pended",
        "settled",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.at = now
        self.arrived = self.left = self.pended = self.settled = 0
        self.ingress = self.egress = self.ack_ingress = self.ack_egress = 0.0

    def __repr__(self) -> str:
        return (
            f"<Rates: in {self.ingress:.1f}/s, out {self.egress:.1f}/s, "
            f"to be acked {self.ack_ingress:.1f}/s, acked {self.ack_egress:.1f}/s>"
        )

    def update(self, now: float) -> None:
        """Take the counts since the last update into the averages.

        `now` is in seconds of a clock that never goes back. Cheap when nothing is due yet.
        """
        seconds = now - self.at
        if seconds < MIN_INTERVAL:
            return
        self.at = now
        old = 0.5 ** (seconds / HALF_LIFE)
        new = (1.0 - old) / seconds
        self.ingress = self.ingress * old + self.arrived * new
        self.egress = self.egress * old + self.left * new
        self.ack_ingress = self.ack_ingress * old + self.pended * new
        self.ack_egress = self.ack_egress * old + self.settled * new
        self.arrived = self.left = self.pended = self.settled = 0
