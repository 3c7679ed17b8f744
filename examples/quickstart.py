"""Alice publishes photos faster than the album takes them. Who waits, and for whom?

That nobody waits for ever on a mailbox that takes nothing holds only where it is watched:
`nursery.start_soon(clearfunds.accounts.watch_patience, ledger)`, which is left out here.
Accounts, dataspaces and mailboxes belong to one Trio thread; from another one use
`trio.from_thread.run_sync`.
"""

import attrs
import trio

from clearfunds.accounts import Account, Ledger, Limit
from clearfunds.dataspace import Dataspace, Mailbox


@attrs.frozen
class Photo:
    name: str


async def publish(account: Account, dataspace: Dataspace) -> None:
    for n in range(18):
        await account.ensure_clear_funds()  # waits while it owes for more than 5 photos
        with account.turn() as turn:  # all of it happens, or nothing
            turn.publish(dataspace, Photo(f"{n}.jpg"))


async def main() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    alice = ledger.open("alice", limit=Limit(items=5))
    with Mailbox(ledger, "album") as album, dataspace.observed(alice, Photo, album):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, alice, dataspace)
            for _ in range(3):
                with await album.receive() as photos:  # owed for until the end of the block
                    print(f"alice owes for {alice.debt_items}: {photos[0].name}, ...")
                    await trio.sleep(0.1)
    print(f"alice waited {alice.statistics().blame['album']:.1f} s for the album")


trio.run(main)
