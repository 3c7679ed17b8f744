"""What the kernel has taken for peers and not sent yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily

from ..accounts._loop import now
from ..transports._tcp_counters import read_unsent
from ._cooperative import Pace
from ._debts import due_after
from ._walked import WalkedCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

    from ..sockets._layer import Connected


class UnsentCollector(WalkedCollector):
    """Serves their sum by protocol, as `clearfunds_kernel_unsent_bytes{transport="mqtt"}`.

    A loan is settled as delivered when the kernel has taken its last byte. So these bytes are
    counted as delivered, and yet they have not left the machine. A walk over all connections asks
    for them, not again too soon after a long one.

    Args:
        socks: Returns the sockets of all connections, by protocol.
    """

    def __init__(self, socks: Callable[[], Mapping[str, list[Connected]]]) -> None:
        self._socks = socks
        self._sums: dict[str, int] = {}
        self._due = 0.0

    async def look(self) -> None:
        """Ask the kernel about each connection, in steps."""
        began = now()
        if self._sums and began < self._due:
            return
        pace = Pace()
        sums: dict[str, int] = {}
        for transport, socks in self._socks().items():
            sums[transport] = 0
            for sock in socks:
                await pace.breathe()
                sums[transport] += read_unsent(sock)
        self._sums = sums
        self._due = due_after(began, pace.busy_seconds)

    def describe(self) -> Iterator[Metric]:
        """Yield the metric without values; for the registry."""
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        """Yield what the latest walk found."""
        family = self._family()
        for transport, nbytes in self._sums.items():
            family.add_metric([transport], nbytes)
        yield family

    @staticmethod
    def _family() -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "clearfunds_kernel_unsent_bytes",
            "Bytes that count as delivered, and that the kernel has not sent yet: the peer or the "
            "network has no room for them (Linux, TCP).",
            labels=["transport"],
        )
