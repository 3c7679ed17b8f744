"""A process that writes to a store until it is killed; `test_kill.py` starts it.

Commit number n puts message n and finishes message n - 50, so what there has to be follows from
how many commits there were. Each time something has become durable, it says how many those are.
"""

from __future__ import annotations

import random
import sys
import threading

from clearfunds.store import Store, StoreSettings

WINDOW = 50
SETTINGS = StoreSettings(fsync_interval=0.002)


def body_of(number: int) -> bytes:
    """Return the body of a message: it differs in size, and is like no other."""
    return b"%d," % number * (number % 97 + 1)


def main(directory: str) -> None:
    """Write for ever."""
    store = Store.open(directory, SETTINGS)
    if "q" not in store.queues:
        changes = store.begin()
        changes.declare("q")
        changes.declare("kept")
        store.commit(changes)
        store.flush()
    queue, kept = store.queues["q"], store.queues["kept"]
    # Each commit has one ticket, and there are no others.
    first_ticket, first = store.durable, queue.next_seq

    def say(ticket: int) -> None:
        sys.stdout.write(f"{first + ticket - first_ticket}\n")
        sys.stdout.flush()

    store.on_durable = say
    writer = threading.Thread(target=store.run)
    writer.start()
    pause = random.Random()
    number = queue.next_seq
    while True:
        changes = store.begin()
        changes.put(queue.id, number, b"%d" % number, body_of(number))
        if number % 10 == 0:
            changes.put(kept.id, number, b"", changes.share(body_of(number) * 9))
        changes.done(queue.id, number - WINDOW)
        changes.set("number", b"%d" % number)
        number += 1
        store.commit(changes)
        if store.ahead() > 100_000 or pause.random() < 0.001:
            threading.Event().wait(0.001)


if __name__ == "__main__":
    main(sys.argv[1])
