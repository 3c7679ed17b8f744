"""A TCP chat, on asyncio or on Trio: a client that stops reading stops nobody.

    python examples/chat.py                  # asyncio; --loop trio for Trio
    nc localhost 4000                        # in other terminals: a name, and then lines

The line `/debt` tells all whose lines are under way, and who does not read them. Needs the extra
`streams` (`pip install 'clearfunds[streams]'`).
"""

from __future__ import annotations

import argparse
from functools import partial

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from clearfunds.accounts import Account, Limit
from clearfunds.dataspace import GivenUpError, Publication
from clearfunds.streams import Feed, Hub

LINE_BYTES = 4096
#: Every line that somebody has not got yet is owed for by its author, who is not read above this.
LIMIT = Limit(items=1000)


def debts(hub: Hub) -> bytes:
    """Return a line for each author who owes, and for each client that is behind."""
    lines = [
        f"{name} owes for {account.debt_items} lines\n"
        for name, account in sorted(hub.ledger.accounts.items())
        if account.debt_items and account not in hub.ledger.at_rest
    ]
    for each in hub.ledger.lagging:
        lines.append(f"{each.name} is behind by {sum(loan.items for loan in each.loans())} lines\n")
    return "".join(lines).encode() or b"nobody owes anything\n"


def payload_of(event: Publication) -> bytes:
    """Return a line as it goes to the clients."""
    return event.payload


async def read(hub: Hub, account: Account, lines: BufferedByteReceiveStream) -> None:
    """Publish each line that the client writes, for as long as its author owes little."""
    while True:
        await account.ensure_clear_funds()
        line = await lines.receive_until(b"\n", LINE_BYTES)
        text = b"%s: %s\n" % (account.name.encode(), line.strip())
        if line.strip() == b"/debt":
            text = debts(hub)
        await hub.publish(account, Publication("room", text))


async def serve(hub: Hub, stream: SocketStream) -> None:
    """Serve one client until it leaves, or is too slow for its profile."""
    lines = BufferedByteReceiveStream(stream)
    try:
        async with stream:
            await stream.send(b"Your name? ")
            name = (await lines.receive_until(b"\n", LINE_BYTES)).strip().decode(errors="replace")
            with hub.open(name or "nobody", limit=LIMIT) as account:
                feed: Feed[Publication] = hub.subscribe(account, "room")
                with feed:
                    async with anyio.create_task_group() as group:
                        group.start_soon(feed.send_to, stream, payload_of)
                        await read(hub, account, lines)
    except* (anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.BrokenResourceError):
        pass  # it has left, or writes no lines
    except* GivenUpError as errors:
        print(*errors.exceptions, flush=True)


async def main(port: int) -> None:
    """Serve until interrupted."""
    async with Hub() as hub, await anyio.create_tcp_listener(
        local_host="127.0.0.1", local_port=port
    ) as listener:  # fmt: skip
        address = listener.extra(anyio.abc.SocketAttribute.local_port)
        print(f"chat on 127.0.0.1 port {address}", flush=True)
        await listener.serve(partial(serve, hub))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A TCP chat.")
    parser.add_argument("--port", type=int, default=4000)
    parser.add_argument("--loop", choices=("asyncio", "trio"), default="asyncio")
    options = parser.parse_args()
    try:
        anyio.run(main, options.port, backend=options.loop)
    except* KeyboardInterrupt:
        print("stopped")
