"""Alice takes photos, a worker shrinks them, the album is a slow consumer: which of them waits?"""

import attrs
import trio

from clearfunds.accounts import Account, Ledger, Limit
from clearfunds.dataspace import Dataspace, Mailbox, match


@attrs.frozen
class Photo:
    name: str
    size: str


async def publish(account: Account, dataspace: Dataspace) -> None:
    for n in range(18):
        await account.ensure_clear_funds()  # waits while it owes for more than 5 photos
        with account.turn() as turn:  # a transaction: all or nothing
            turn.publish(dataspace, Photo(f"{n}.jpg", "large"))


async def shrink(mailbox: Mailbox, dataspace: Dataspace) -> None:
    async for loan in mailbox:  # photos that one account owes for
        with loan as photos, loan.turn() as turn:  # its results are charged to that account, too
            for photo in photos:
                turn.publish(dataspace, attrs.evolve(photo, size="small"))


async def main() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    alice = ledger.open("alice", limit=Limit(items=5))
    shrinker, album = Mailbox(ledger, "shrinker"), Mailbox(ledger, "album")
    with alice.turn() as turn:
        dataspace.observe(turn, match(Photo, size="large"), shrinker)
        dataspace.observe(turn, match(Photo, size="small"), album)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, alice, dataspace)
        nursery.start_soon(shrink, shrinker, dataspace)
        for _ in range(3):
            with await album.receive() as photos:  # repaid at the end of the block
                await trio.sleep(0.1)
                for row in ledger.matrix():
                    print(f"{row.account} owes for {row.items} photos that {row.holder} holds")
            print(f"{photos[0].name} to {photos[-1].name} are in the album")
        shrinker.close()
    for holder, seconds in alice.statistics().blame.items():
        print(f"alice waited {seconds:.1f} s for {holder}")


if __name__ == "__main__":
    trio.run(main)
