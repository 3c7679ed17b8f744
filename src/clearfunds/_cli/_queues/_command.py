"""The commands of `clearfunds queues`."""

import json
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import urljoin

from cyclopts import App, Parameter
from rich.console import Console
from rich.text import Text

from .._client_tls import ClientTls
from .._errors import CommandFailedError, UsageError
from .._page import DEFAULT_URL, URL_VARIABLE, PageStatusError, Visitor, fetch_json, pages_url
from .._printable import printable
from .._running import run_async
from .._tables import table
from .._types import Count
from .._visitor_options import VisitorOptions
from ._client import Place, open_client

_NOT_FOUND: Final = 404

Url = Annotated[
    str | None,
    Parameter(
        name="--url",
        env_var=URL_VARIABLE,
        show_default=False,
        help=f"URL of the relay's pages, http://HOST:PORT [default: {DEFAULT_URL}].",
    ),
]
Name = Annotated[str, Parameter(help="Name of the queue.")]
Host = Annotated[str | None, Parameter(help="Virtual host; without it, all.", show_default=False)]
AsJson = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON, not a table.")]
Uri = Annotated[
    str,
    Parameter(
        name=["--url", "--amqp"],
        env_var="CLEARFUNDS_AMQP",
        help="URL of the broker, amqp://USER:PASSWORD@HOST:PORT/VHOST; amqps:// with TLS. A "
        "password is safer in the environment.",
    ),
]
_LOCAL: Final = "amqp://127.0.0.1:5672"

queues = App(
    name="queues",
    help="Inspect the AMQP queues of a relay, purge them, move messages.",
)


@queues.command(name="list")
def list_(
    url: Url = None,
    *,
    host: Host = None,
    as_json: AsJson = False,
    visitor: VisitorOptions = VisitorOptions(),  # noqa: B008  (frozen)
) -> int:
    """List the queues: depth, consumers, rates, and the publisher that owes most.

    "in RAM" are messages in memory. "at rest" are messages that are stored, which no publisher owes
    for. "busy" are consumers whose prefetch is used up: if all are, more consumers would help.
    """
    rows = _rows(url, visitor)
    found = [row for row in rows if host is None or row["host"] == host]
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    if not found:
        print("There are no queues.")
        return 0
    listed = table(
        "",
        *(("queue", 0), ("ready", -9), ("unacked", -8), ("in RAM", -7), ("at rest", -9)),
        *(("consumers", -9), ("busy", -5), ("in/s", -7), ("acked/s", -8), ("owed by", 0)),
    )
    for row in sorted(found, key=lambda row: (row["host"], row["name"])):
        owed = row["owed_by"]
        listed.add_row(
            Text(_name(row)),
            f"{row['ready']:,}",
            f"{row['unacked']:,}",
            f"{row['in_ram']:,}",
            f"{row['at_rest']:,}",
            f"{row['consumers']:,}",
            f"{row['consumers_full']:,}",
            f"{row['published_per_second']:,.0f}",
            f"{row['acked_per_second']:,.0f}",
            Text(printable(owed[0]["account"]) if owed else ""),
        )
    Console(soft_wrap=True).print(listed)
    return 0


@queues.command
def show(
    *words: Annotated[
        str,
        Parameter(name="NAME", help="Name of the queue. The URL may stand before it."),
    ],
    url: Url = None,
    host: Annotated[str, Parameter(help="Virtual host.")] = "/",
    as_json: AsJson = False,
    visitor: VisitorOptions = VisitorOptions(),  # noqa: B008  (frozen)
) -> int:
    """Show everything about one queue."""
    if not 1 <= len(words) <= 2 or (url is not None and len(words) == 2):
        raise UsageError("give the name of one queue: clearfunds queues show --url URL NAME")
    *before, name = words
    rows = _rows(before[0] if before else url, visitor)
    found = [row for row in rows if (row["host"], row["name"]) == (host, name)]
    if not found:
        msg = (
            f"there is no queue {printable(name)} in virtual host {printable(host)}: "
            "`clearfunds queues list` has those that are there"
        )
        raise CommandFailedError(msg)
    (row,) = found
    if as_json:
        print(json.dumps(row, indent=2))
        return 0
    flags = [flag for flag in ("durable", "exclusive", "auto_delete") if row[flag]]
    most = "any number" if row["prefetch"] is None else f"{row['prefetch']:,}"
    lines = {
        "queue": _name(row),
        "type": ", ".join([row["type"], *flags]),
        "ready": f"{row['ready']:,} messages, {row['ready_bytes']:,} bytes",
        "unacked": f"{row['unacked']:,} messages, {row['unacked_bytes']:,} bytes",
        "in RAM": f"{row['in_ram']:,} messages",
        "at rest": f"{row['at_rest']:,} messages, {row['at_rest_bytes']:,} bytes",
        "consumers": f"{row['consumers']:,}, of which {row['consumers_full']:,} are busy",
        "prefetch": f"{row['prefetch_used']:,} of {most}",
        "per second": f"{row['published_per_second']:,.0f} published, "
        f"{row['delivered_per_second']:,.0f} delivered, {row['acked_per_second']:,.0f} acked",
    }
    if row["trouble"]:
        lines["trouble"] = printable(row["trouble"])
    for owed in row["owed_by"]:
        lines.setdefault("owed by", "")
        lines["owed by"] += (
            f"{printable(owed['account'])} for {owed['items']:,} messages, "
            f"{owed['bytes']:,} bytes\n{'':11}"
        )
    for label, text in lines.items():
        print(f"{label:10} {text.rstrip()}")
    return 0


@queues.command
def purge(
    name: Name,
    /,
    *,
    amqp: Uri = _LOCAL,
    tls: ClientTls = ClientTls(),  # noqa: B008  (frozen)
) -> int:
    """Delete the ready messages of a queue, and print how many they were.

    Messages that consumers have and have not acknowledged stay.
    """
    print(run_async(partial(_purge, Place.parse(amqp), name, tls)))
    return 0


@queues.command
def move(
    name: Name,
    to: Annotated[str, Parameter(help="Name of the queue that they go to.")],
    /,
    *,
    most: Annotated[
        Count | None,
        Parameter(
            name="--count", show_default=False, help="Messages to move at most [default: all]."
        ),
    ] = None,
    amqp: Uri = _LOCAL,
    tls: ClientTls = ClientTls(),  # noqa: B008  (frozen)
) -> int:
    """Move the ready messages of a queue to another one, in order; print how many they were.

    Each is acknowledged when the other queue has it: if the command is interrupted, none is lost,
    and one may be in both. It moves as many as are there when it begins.
    """
    if name == to:
        raise UsageError("the two queues have to be different ones")
    print(run_async(partial(_move, Place.parse(amqp), name, to, most, tls)))
    return 0


def _name(row: dict[str, Any]) -> str:
    name = printable(row["name"])
    return name if row["host"] == "/" else f"{printable(row['host'])}/{name}"


def _rows(text: str | None, visitor: VisitorOptions) -> list[dict[str, Any]]:
    """Fetch what a relay says of its queues."""
    url = pages_url(text or DEFAULT_URL)
    return run_async(partial(_fetch, url, visitor.visitor(url)))


async def _fetch(url: str, visitor: Visitor) -> list[dict[str, Any]]:
    try:
        page = await fetch_json(urljoin(f"{url}/", "queues.json"), visitor=visitor)
    except PageStatusError as error:
        if error.status != _NOT_FOUND:
            raise
        msg = f"{url} serves no AMQP: start the relay with --listen amqp+tcp://HOST:PORT"
        raise CommandFailedError(msg) from error
    try:
        rows: list[dict[str, Any]] = page["queues"]
    except (KeyError, TypeError) as error:
        raise CommandFailedError(f"{url} has no queues of a relay of this version") from error
    return rows


async def _purge(place: Place, name: str, tls: ClientTls) -> int:
    async with open_client(place, tls.context() if place.is_secure else None) as client:
        return await client.purge(name)


async def _move(place: Place, name: str, to: str, most: int | None, tls: ClientTls) -> int:
    async with open_client(place, tls.context() if place.is_secure else None) as client:
        await client.check(to)
        left = await client.check(name)
        if most is not None:
            left = min(left, most)
        await client.confirm()
        moved = 0
        while moved < left:
            got = await client.get(name)
            if got is None:
                break
            await client.publish(to, got)
            await client.ack(got.tag)
            moved += 1
        return moved
