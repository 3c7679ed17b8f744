"""What is kept, for Prometheus: a store that does not answer, many queues. More is in `relay/`."""

from __future__ import annotations

import attrs
import pytest
import trio

import clearfunds.pages._persistence_collector as module
from clearfunds.pages import PersistenceCollector
from clearfunds.store import StoreStatistics


class SlowStore:
    """Says how it is only when it is let."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.trouble: str | None = "the disk is full"

    def statistics(self) -> StoreStatistics:
        trio.from_thread.run(trio.sleep, self.seconds)
        fields = {each.name: 1 for each in attrs.fields(StoreStatistics)}
        return StoreStatistics(**{**fields, "trouble": self.trouble})  # type: ignore[arg-type]


async def test_a_store_that_does_not_answer_holds_up_no_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = SlowStore()
    collector = PersistenceCollector(None, store)  # type: ignore[arg-type]  # It has all that is asked for.

    def trouble() -> list[float]:
        return [
            sample.value
            for family in collector.collect()
            for sample in family.samples
            if sample.name == "clearfunds_store_trouble"
        ]

    assert trouble() == []
    await collector.look()
    assert trouble() == [1]
    store.trouble, store.seconds = None, 10.0
    monkeypatch.setattr(module, "STORE_SECONDS", 0.05)
    with trio.fail_after(5):
        await collector.look()
    assert trouble() == [1]
    store.seconds = 0.0
    monkeypatch.setattr(module, "STORE_SECONDS", 5)
    await collector.look()
    assert trouble() == [0]
