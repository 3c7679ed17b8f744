"""Answers of relays, as the page of a cluster gets them."""

from __future__ import annotations

from typing import Any

from clearfunds._cli._cluster._view import Answer

NEWSROOM = "mqtt:1883/-/newsroom"
ARCHIVE = "mqtt:1884/-/archive"


def holder(name: str, kind: str = "remote") -> dict[str, Any]:
    return {
        "name": name, "kind": kind, "here_items": 200, "here_bytes": 800, "idle_seconds": 4.0,
        "left_seconds": 16.0, "why": None,
    }  # fmt: skip


def wait(
    *waiting: str, seconds: float = 4.0, on: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    return {
        "at": waiting[0], "waiting": list(waiting), "count": len(waiting), "seconds": seconds,
        "reason": "debt", "debt_items": 201, "debt_bytes": 804, "limit_items": 200,
        "limit_bytes": None, "on": list(on), "on_more": 0,
    }  # fmt: skip


def answer(name: str, *waits: dict[str, Any], more: int = 0) -> Answer:
    ledger = {
        "totals": {"debt_items": 201, "debt_bytes": 804, "waiting": len(waits)},
        "alarms": [],
        "waits": list(waits),
        "more": {"waits": more},
    }
    metrics = 'clearfunds_connections{transport="mqtt"} 2.0\n'
    return Answer(name, f"mqtt+tcp://{name}:1883", f"http://{name}:80", ledger, metrics)
