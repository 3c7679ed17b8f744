"""What the tests of streams share: they run under Trio and under asyncio."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clearfunds.accounts import Ledger, Limit
from clearfunds.streams import Hub
from tests.loops import (
    LoopClock,
    loop_of_the_test,
    pytest_collection_modifyitems,
    pytest_generate_tests,
    pytest_pyfunc_call,
)

__all__ = [
    "loop_of_the_test",
    "pytest_collection_modifyitems",
    "pytest_generate_tests",
    "pytest_pyfunc_call",
]


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Return a hub whose publishers wait soon; its books have to balance at the end."""
    hub = Hub(limit=Limit(items=10, low_items=0), ledger=Ledger(clock=LoopClock()))
    yield hub
    hub.ledger.audit()
    names = [name for name, each in hub.ledger.accounts.items() if each.debt_items]
    assert not names, "something is still owed"
