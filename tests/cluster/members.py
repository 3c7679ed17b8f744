"""Members of a cluster in one process, each with books and a dataspace, and no listeners."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from clearfunds.accounts import Account, Ledger, Limit, LoanedItem
from clearfunds.cluster import Cluster, ClusterSettings
from clearfunds.dataspace import Dataspace, Mailbox, Publication, TopicFilter
from clearfunds.dataspace.hops import via

LIMIT = Limit(items=100, bytes=None)


class Member:
    """One relay of a cluster, without listeners."""

    def __init__(self, servers: str, name: str) -> None:
        self.name = name
        self.ledger = Ledger()
        self.dataspace = Dataspace(self.ledger)
        self.cluster = Cluster(
            ClusterSettings(servers, name, patience=5.0), self.dataspace, self.open_account
        )

    def open_account(self, relay: str, origin: str, above: tuple[str, ...]) -> Account:
        return self.ledger.open(via(relay, origin), limit=LIMIT)

    @asynccontextmanager
    async def subscribed(self, name: str, topics: str) -> AsyncGenerator[Mailbox[Publication]]:
        """Subscribe, and wait until the other relays know."""
        account = self.ledger.open(name, limit=LIMIT)
        with self.dataspace.subscribed(account, TopicFilter(topics), name=name) as box:
            await trio.sleep(0.3)
            yield box

    def publish(self, name: str, *publications: Publication) -> None:
        """Publish in one turn."""
        with self.ledger.open(name, limit=LIMIT) as account, account.turn() as turn:
            for publication in publications:
                turn.publish(self.dataspace, publication)

    def owed(self, account: str) -> dict[str, int]:
        """Return what an account owes, in items by holder."""
        return {each.holder: each.items for each in self.ledger.matrix() if each.account == account}

    def is_quiet(self) -> bool:
        """Whether nobody owes anything."""
        return not any(each.debt_items for each in self.ledger.accounts.values())


@asynccontextmanager
async def members(servers: str, *names: str) -> AsyncGenerator[list[Member]]:
    """Run members that know each other for the length of a block; audit their books."""
    found = [Member(servers, name) for name in names]
    async with joined(*found):
        await until(lambda: all(len(each.cluster.peers) == len(names) - 1 for each in found))
        await until(
            lambda: all(p.hop.is_known for each in found for p in each.cluster.peers.values())
        )
        yield found
        for each in found:
            each.ledger.audit()


@asynccontextmanager
async def joined(*found: Member) -> AsyncGenerator[None]:
    """Have members join, one after the other."""
    if not found:
        yield
        return
    async with found[0].cluster.joined(), joined(*found[1:]):
        yield


async def until(holds: object, seconds: float = 20) -> None:
    """Wait until something is so."""
    assert callable(holds)
    with trio.fail_after(seconds):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.01)


async def take(box: Mailbox[Publication], count: int) -> list[Publication]:
    """Take and settle so many publications."""
    found: list[Publication] = []
    with trio.fail_after(20):
        while len(found) < count:
            loan: LoanedItem[list[Publication]] = await box.receive()
            with loan as events:
                found += events
    return found
