"""A journal of an overload, small and without chance: two who publish, of whom one waits.

For a minute `ticker` publishes 200 events a second of 1,000 bytes to a map, which takes each within
a millisecond, and to an archive, which is slow for the middle twenty seconds: it then takes 100 a
second, and holds what piles up. `station` publishes 20 a second to the map alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clearfunds.pipeline._arrow import arrow
from clearfunds.pipeline.journal import TABLES

if TYPE_CHECKING:
    from pathlib import Path

BEGAN_NS: Final = 1_795_269_730 * 10**9
"""2026-11-21 14:02:10 UTC."""

SECOND: Final = 10**9
LENGTH: Final = 60
TICKER: Final = "mqtt:1883/-/ticker"
STATION: Final = "mqtt:1883/-/station"
ARCHIVE: Final = "mqtt:1883/-/archive"
MAP: Final = "mqtt:1883/-/map"
SIZE: Final = 1_000
LIMIT: Final = 1_000


def rows() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every table."""
    settlements: list[dict[str, Any]] = []

    def settle(account: str, holder: str, opened: int, settled: int) -> None:
        settlements.append(
            {
                "opened_ns": BEGAN_NS + opened,
                "settled_ns": BEGAN_NS + settled,
                "account": account,
                "parent": "server",
                "holder": holder,
                "kind": "outlet",
                "outcome": "delivered",
                "items": 1,
                "bytes": SIZE,
                "weight": 1.0,
            }
        )

    done = 0
    for number in range(LENGTH * 200):
        at = number * SECOND // 200
        settle(TICKER, MAP, at, at + SECOND // 1000)
        slow = 20 * SECOND <= at < 40 * SECOND or done > at + SECOND // 100
        done = max(done + (SECOND // (100 if slow else 1000)), at + SECOND // 1000)
        if done > 45 * SECOND:  # it has caught up, at a stroke
            done = at + SECOND // 1000
        settle(TICKER, ARCHIVE, at, done)
    for number in range(LENGTH * 20):
        at = number * SECOND // 20
        settle(STATION, MAP, at, at + SECOND // 2000)
    publications = [
        {
            "at_ns": BEGAN_NS + second * SECOND,
            "account": account,
            "parent": "server",
            "topic": topic,
            "items": pace,
            "bytes": pace * SIZE,
            "copies": pace * copies,
            "copied_bytes": pace * copies * SIZE,
            "weight": 1.0,
        }
        for second in range(LENGTH)
        for account, topic, pace, copies in (
            (TICKER, "press/ticker", 200, 2),
            (STATION, "weather/<b>7</b>", 20, 1),
        )
    ]
    accounts = [
        {
            "at_ns": BEGAN_NS + second * SECOND,
            "account": account,
            "parent": None if account == "server" else "server",
            "state": "clear",
            **dict.fromkeys(("debt_items", "debt_bytes", "peak_items", "peak_bytes"), 0),
            "limit_items": None if account == "server" else LIMIT,
            "limit_bytes": None if account == "server" else LIMIT * SIZE,
            "at_rest": "disk" if account == "mqtt/sleeper" else None,
        }
        for second in (10, 50)
        for account in ("server", TICKER, STATION, ARCHIVE, MAP, "mqtt/sleeper")
    ]
    stalls = [
        {
            "began_ns": BEGAN_NS + second * SECOND,
            "ended_ns": BEGAN_NS + second * SECOND + SECOND // 2,
            "account": TICKER,
            "at_account": TICKER,
            "culprit": ARCHIVE,
            "reason": "account",
        }
        for second in range(30, 44)
    ]
    # What is at rest is owed for long, and is nobody's delay.
    sleeper = {**settlements[0], "account": "mqtt/sleeper", "holder": "mqtt/sleeper"}
    sleeper |= {"opened_ns": BEGAN_NS - 3600 * SECOND, "bytes": 10**9}
    settlements.append(sleeper)
    return {
        "settlements": settlements,
        "publications": publications,
        "accounts": accounts,
        "stalls": stalls,
        "open_loans": [],
        "limits": [],
    }


def write(folder: Path) -> None:
    """Write them as the relay does: a folder an hour, files that are complete."""
    pa, pq = arrow(), arrow("pyarrow.parquet")
    for name, found in rows().items():
        if not found:
            continue
        schema = TABLES[name].schema
        moment = schema.names[0]
        of = {"settled": "settled_ns", "at": "at_ns", "ended": "ended_ns"}[moment]
        table = pa.Table.from_pylist(
            [{**row, moment: row[of] // 1000} for row in found], schema=schema
        )
        into = folder / name / "date=2026-11-21" / "hour=14"
        into.mkdir(parents=True)
        pq.write_table(table, into / "part-1.parquet", compression="zstd")
