"""The share of a core that each recurring walk over the ledger may take: it pauses accordingly.

Thousands of queues with thousands of messages take a second to look through, and are then looked at
less often.
"""

from typing import Final

PATIENCE_SHARE: Final = 0.2
"""Checks for slow consumers and rings: what they find holds up publishers."""

SLOW_WAITS_SHARE: Final = 0.02
"""The log's slow waits; and notices to throttled clients."""

TOP_SHARE: Final = 0.02
"""`clearfunds top`."""

LIVE_SHARE: Final = 0.015
"""The live page, for all browsers together: with Prometheus beside it less than 3 %."""

METRICS_SHARE: Final = 0.005
"""`/metrics`, however many scrapes there are."""

HISTORY_SHARE: Final = 0.005
"""The history of the last minutes: each of its two walks."""
