"""`/hops.json`: what a relay owes for at others, and has of others, parcel by parcel.

`clearfunds audit --cluster` compares these pages of all relays. A page has as many rows as there
are parcels under way: at most 10,000 to and from each other relay, and what these hold up.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import trio

from ..pages import Handler, Request, Response
from ..pages._json import compact
from ._cluster import Cluster


def hops_page(cluster: Cluster) -> Handler:
    """Return the page of a relay's place in its cluster."""

    async def page(request: Request) -> Response:
        del request
        return Response(_pieces(cluster), content_type="application/json")

    return page


async def _pieces(cluster: Cluster) -> AsyncGenerator[bytes]:
    lease = cluster.lease
    head = {"relay": cluster.settings.name, "life": 0 if lease is None else lease.life}
    yield f'{compact(head)[:-1]},"relays":{{'.encode()
    peers = {**cluster.away, **cluster.peers}
    for number, (name, peer) in enumerate(peers.items()):
        # Both at one instant.
        there, here = peer.hop.books(), peer.landing.books()
        row: dict[str, Any] = {
            "away": peer.hop.is_away,
            "hop": {
                "epoch": there.epoch,
                "next": there.next,
                "given_up_items": there.given_up_items,
                "out": list(there.out.items()),
            },
            "landing": {
                "epoch": here.epoch,
                "next": here.next,
                "unsettled": list(here.unsettled.items()),
            },
        }
        yield f"{',' if number else ''}{compact(name)}:{compact(row)}".encode()
        await trio.lowlevel.checkpoint()
    yield b"}}"
