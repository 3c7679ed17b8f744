"""Alice publishes photos faster than the album takes them: backpressure, with a name on it.

A server also starts `clearfunds.watch_patience(ledger)` in its nursery, which handles slow
consumers. Accounts, dataspaces and mailboxes belong to one Trio thread; from another thread, use
`trio.from_thread.run_sync`.
"""

import trio

from clearfunds import Account, Dataspace, Ledger, Limit, Mailbox, Publication, TopicFilter


async def publish(account: Account, dataspace: Dataspace) -> None:
    for n in range(18):
        await account.ensure_clear_funds()  # waits while alice owes more than 5 photos
        with account.turn() as turn:  # publishes everything in the block, or nothing
            turn.publish(dataspace, Publication(f"photos/{n}", b"..."))


async def main() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    alice = ledger.open("alice", limit=Limit(items=5))
    photos = TopicFilter("photos/#")
    with Mailbox(ledger, "album") as album, dataspace.observed(alice, photos, album):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, alice, dataspace)
            for _ in range(3):
                with await album.receive() as batch:  # repaid at the end of the block
                    print(f"alice owes {alice.debt_items} items: {batch[0].topic}, ...")
                    await trio.sleep(0.1)
    print(f"album blocked alice for {alice.statistics().blame['album']:.1f} s")


trio.run(main)
