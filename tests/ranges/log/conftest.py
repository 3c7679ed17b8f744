"""What the tests of subscriptions share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs
import pytest

from clearfunds.accounts import Account, Ledger
from clearfunds.dataspace import Batch, Dataspace, Publication
from clearfunds.ranges.wire import OpenBlock
from clearfunds.testing import Clock


@attrs.frozen
class Kept:
    """One message as a reader gets it."""

    number: int
    account: str
    key: bytes
    value: bytes
    time: int


def rows(blocks: Iterable[bytes]) -> Iterator[Kept]:
    """Take blocks apart, row by row."""
    for block in blocks:
        columns = OpenBlock(block)
        key_at = value_at = 0
        for place, code in enumerate(columns.codes):
            key_end = key_at + columns.key_lengths[place]
            value_end = value_at + columns.value_lengths[place]
            yield Kept(
                columns.first + place,
                columns.names[code].decode(),
                bytes(columns.keys[key_at:key_end]),
                bytes(columns.values[value_at:value_end]),
                columns.times[place],
            )
            key_at, value_at = key_end, value_end


def publish(dataspace: Dataspace, account: Account, *publications: Publication) -> None:
    """Publish, in a turn each."""
    for publication in publications:
        with account.turn(publication) as turn:
            turn.publish(dataspace, publication)


def publish_run(dataspace: Dataspace, account: Account, publications: list[Publication]) -> None:
    """Publish a run on topics that concern the same holders, as a connection does."""
    raw = b"\0" * sum(each.nbytes + 4 for each in publications)
    batch = Batch(raw, len(publications), lambda _: publications)
    run = dataspace.route_of(publications[0].topic).run
    assert run is not None
    dataspace.route_run(account, batch, run.holders)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """A ledger on a clock that tests turn; it has to balance when the test is over."""
    ledger = Ledger(clock=Clock(1_000.0))
    yield ledger
    ledger.audit()


@pytest.fixture
def clock(ledger: Ledger) -> Clock:
    """The ledger's clock."""
    assert isinstance(ledger.clock, Clock)
    return ledger.clock


@pytest.fixture
def dataspace(ledger: Ledger) -> Dataspace:
    """An empty dataspace."""
    return Dataspace(ledger)


@pytest.fixture
def server(ledger: Ledger) -> Account:
    """The account above all others in RAM."""
    return ledger.open("server")


@pytest.fixture
def publisher(ledger: Ledger, server: Account) -> Account:
    """A publisher's account."""
    return ledger.open("publisher", parent=server)
