"""A relay for your own protocol, built from the public API alone.

    python examples/tcp_relay.py 127.0.0.1 7000 --http 9100

A frame is a length (4 bytes, big-endian) and that many bytes: `S` and a topic filter to subscribe,
or `P`, the topic, a zero byte and the payload to publish. A publication arrives, as the same frame,
at every connection with a matching filter, the publisher's own included.

A publisher that is faster than its subscribers is not read while its debt is above its limit
(backpressure). A subscriber that takes nothing for 20 seconds while publishers wait for it is
disconnected, or handled by another `--policy`. With `--http`, http://127.0.0.1:9100/ shows who
waits on whom (this needs the extra `relay`). Ctrl-C ends it; every connection's account is printed
when it closes.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import AsyncGenerator

import trio

from clearfunds.accounts import Account, Ledger, Limit, StuckPolicy, watch_patience
from clearfunds.dataspace import Dataspace, Observation, Publication, TopicFilter
from clearfunds.transports import Flusher, Link, ListenURL, Outlet, open_flusher, open_listeners

LENGTH = struct.Struct(">I")
MAX_FRAME = 1 << 20
LIMIT = Limit(items=1_000, bytes=4 << 20)


class Relay:
    """The state that all connections share."""

    def __init__(self, flusher: Flusher, policy: StuckPolicy) -> None:
        self.flusher = flusher
        self.policy = policy
        self.ledger = Ledger()
        self.dataspace = Dataspace(self.ledger)

    async def handle(self, link: Link) -> None:
        """Serve one connection: all that it causes is charged to its account."""
        # Named by address and port: the protocol has no better name. A new connection is a new
        # account.
        account = self.ledger.open(f"tcp/{link.peer}", limit=LIMIT)
        outlet = Outlet(
            self.ledger, self.flusher, link.sock, account.name, frame=frame, on_broken=link.cut,
            policy=self.policy, key=topic_of,
        )  # fmt: skip
        outlet.owner = account  # the account whose reader stands still if this peer takes nothing
        observations: dict[str, Observation] = {}
        why = "it left"
        try:
            with link.scope:
                async for body in frames(link):
                    self.obey(body, account, outlet, observations)
                    # Wait for clear funds before reading the next frame: all of flow control.
                    await account.ensure_clear_funds()
            why = link.why or why
        except (OSError, ValueError) as exc:
            why = str(exc)
        finally:
            with account.turn() as turn:
                for observation in observations.values():
                    self.dataspace.unobserve(turn, observation)
            outlet.close()
            print(f"{account} closed: {why}", flush=True)
            account.close()
            link.close()

    def obey(
        self, body: bytes, account: Account, outlet: Outlet, observations: dict[str, Observation]
    ) -> None:
        """Obey one frame in a turn: all or nothing, charged to this account."""
        with account.turn(body) as turn:
            if body[:1] == b"S":
                wanted = TopicFilter(body[1:].decode())
                if wanted.text not in observations:
                    observations[wanted.text] = self.dataspace.observe(turn, wanted, outlet)
            elif body[:1] == b"P":
                topic, _, payload = body[1:].partition(b"\0")
                turn.publish(self.dataspace, Publication(topic.decode(), payload))
            else:
                raise ValueError(f"a frame begins with S or P, not {body[:1]!r}")


async def frames(link: Link) -> AsyncGenerator[bytes]:
    """Yield the incoming frames; ValueError for one that is too large."""
    buffer = bytearray()
    while data := await link.receive():
        buffer += data
        while len(buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(buffer)
            if not 1 <= size <= MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes; at most {MAX_FRAME} are allowed")
            if len(buffer) < LENGTH.size + size:
                break
            body = bytes(buffer[LENGTH.size : LENGTH.size + size])
            del buffer[: LENGTH.size + size]
            yield body


def frame(event: Publication) -> bytes:
    """Encode one publication."""
    body = b"P%b\0%b" % (event.topic.encode(), event.payload)
    return LENGTH.pack(len(body)) + body


def topic_of(encoded: bytes) -> bytes:
    """Return the topic of an encoded publication."""
    return encoded[LENGTH.size + 1 : encoded.index(b"\0", LENGTH.size + 1)]


async def show(ledger: Ledger, port: int, nursery: trio.Nursery) -> None:
    """Serve the pages: the live one, /metrics for Prometheus, /ledger.json."""
    from clearfunds.pages import Pages, serve_pages

    pages = Pages(ledger, limits={"connection": LIMIT})
    (url, *_) = await nursery.start(serve_pages, pages, "127.0.0.1", port)
    pages.set_ready()
    print(f"who waits on whom: {url}/", flush=True)


async def main(host: str, port: int, http: int | None, policy: StuckPolicy) -> None:
    """Serve until cancelled."""
    (listener,) = await open_listeners(ListenURL("relay", "tcp", host, port))
    with listener:
        async with open_flusher() as flusher, trio.open_nursery() as nursery:
            relay = Relay(flusher, policy)
            nursery.start_soon(watch_patience, relay.ledger)  # no silent stalls
            if http is not None:
                await show(relay.ledger, http, nursery)
            print(f"listening on {listener.url}", flush=True)
            await listener.serve(relay.handle)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("host")
    parser.add_argument("port", type=int, help="0: any")
    parser.add_argument("--http", type=int, metavar="PORT", help="serve the pages there")
    parser.add_argument("--policy", type=StuckPolicy, choices=StuckPolicy, default="disconnect")
    options = parser.parse_args()
    try:
        trio.run(main, options.host, options.port, options.http, options.policy)
    except* KeyboardInterrupt:
        print("stopped")
