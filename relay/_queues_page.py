"""`/queues.json`: the queues of a relay's virtual hosts, for `clearfunds queues` and the live page.

    {"queues": [{"host": "/", "name": "jobs", "ready": 3, ...}]}

A row costs time in proportion to the queue's messages in RAM, at most some thousands.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

import trio

from ..pages import Handler, Request, Response
from ..pages._json import compact

if TYPE_CHECKING:
    from ..dataspace.exchanges import DeclaredQueue, HostQueue
    from ..transports.amqp import AmqpServer

SHOWN: Final = 5
"""Accounts that owe for messages of a queue, at most: those that owe most."""


def queues_page(amqp: AmqpServer) -> Handler:
    """Return the page of the virtual hosts of a relay's AMQP side."""

    async def page(request: Request) -> Response:
        del request
        return Response(_pieces(amqp), content_type="application/json")

    return page


async def _pieces(amqp: AmqpServer) -> AsyncGenerator[bytes]:
    yield b'{"queues":['
    is_first = True
    for host in list(amqp.hosts.values()):
        for declared in list(host.queues.values()):
            if declared.queue.deleted:
                continue
            row = compact(_row(host.name, declared))
            yield f"{'' if is_first else ','}{row}".encode()
            is_first = False
            await trio.lowlevel.checkpoint()
    yield b"]}"


def _row(host: str, declared: DeclaredQueue) -> dict[str, Any]:
    queue = declared.queue
    found = queue.statistics()
    used, prefetch = prefetch_of(queue)
    return {
        "host": host,
        "name": declared.name,
        "holder": queue.name,
        "type": declared.kind,
        "durable": declared.durable,
        "exclusive": declared.exclusive_to is not None,
        "auto_delete": declared.auto_delete,
        "ready": found.ready,
        "ready_bytes": found.ready_bytes,
        "unacked": found.unacked,
        "unacked_bytes": found.unacked_bytes,
        "at_rest": found.disk_items,
        "at_rest_bytes": found.disk_bytes,
        "in_ram": found.backing.ready_in_ram + found.backing.pending_in_ram,
        "consumers": found.consumers,
        "consumers_full": found.consumers_full,
        "prefetch": prefetch,
        "prefetch_used": used,
        "published_per_second": found.ingress,
        "delivered_per_second": found.egress,
        "acked_per_second": found.ack_egress,
        "trouble": found.trouble,
        "owed_by": _owed_by(queue),
    }


def prefetch_of(queue: HostQueue) -> tuple[int, int | None]:
    """Return how many messages its consumers have, and may have; None: any number."""
    used = sum(consumer.outstanding for consumer in queue.consumers)
    most: int | None = 0
    for consumer in queue.consumers:
        shared = consumer.channel.window
        windows = [consumer.window.items, 0 if shared is None else shared.items]
        limits = [each for each in windows if each]
        most = None if most is None or not limits else most + min(limits)
    return used, most


def _owed_by(queue: HostQueue) -> list[dict[str, Any]]:
    owed: dict[str, list[int]] = {}
    for loan in queue.loans():
        each = owed.setdefault(loan.account.name, [0, 0])
        each[0] += loan.items
        each[1] += loan.bytes
    most = sorted(owed.items(), key=lambda each: -each[1][1])[:SHOWN]
    return [{"account": name, "items": items, "bytes": size} for name, (items, size) in most]
