"""`clearfunds audit`: whether the books of relays balance, each and between each two."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import urljoin

import attrs
import trio
from cyclopts import Parameter
from rich.console import Console

from clearfunds.dataspace.hops import Comparison, HopBooks, LandingBooks, compare

from ._errors import CommandFailedError, UsageError
from ._page import PageStatusError, Visitor, fetch_json, pages_url
from ._printable import printable
from ._running import run_async
from ._tables import table
from ._visitor_options import VisitorOptions

_NOT_FOUND: Final = 404


@attrs.frozen
class Books:
    """The books of one relay, as its pages have them."""

    name: str
    """The relay's name; its URL, if it is in no cluster."""
    accounts: int
    """The number of its accounts; 0 in the second look."""
    debt_items: int
    """What all of them owe, likewise."""
    balanced: bool
    """Whether its own books balance."""
    hops: Mapping[str, HopBooks]
    """What it owes for at other relays, by relay."""
    landings: Mapping[str, LandingBooks]
    """What it has of other relays, likewise."""


def audit(
    *urls: Annotated[
        str, Parameter(help="URL of a relay's pages, http://HOST:PORT; several: of a cluster.")
    ],
    url: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, help="URL, as an option. Repeatable."),
    ] = (),
    cluster: Annotated[
        bool,
        Parameter(
            negative=(),
            help="The URL is the page of a whole cluster (clearfunds cluster up, relay --workers): "
            "audit all of its relays.",
        ),
    ] = False,
    visitor: VisitorOptions = VisitorOptions(),  # noqa: B008  (frozen)
) -> int:
    """Check that the books of a relay balance; of several, also what they owe for at each other.

    Each relay adds up the debt of its accounts and the messages that are really held. Between two
    relays, whatever one has of the other and has not finished has to be owed for there; the rest of
    what is owed for is under way. Prints a table; the exit status is 1 if something does not
    balance.
    """
    pages = [pages_url(each) for each in (*urls, *url)]
    if not pages:
        raise UsageError("give the URL of a relay's pages, http://HOST:PORT")
    if cluster and len(pages) > 1:
        raise UsageError("--cluster takes one URL: the page that shows all relays")
    visitors = {each: visitor.visitor(each) for each in pages}
    return run_async(partial(_audit, visitors, cluster=cluster))


async def _audit(visitors: Mapping[str, Visitor], *, cluster: bool) -> int:
    if cluster:
        ((url, visitor),) = visitors.items()
        visitors = dict.fromkeys(await _relays_of(url, visitor), visitor)
    # What landed at one relay is compared with what was owed for at the others before.
    first = await _look(visitors, whole=True)
    second = await _look(visitors, whole=False)
    found = _compared(first, second)
    _print(first, found)
    faults = [f"the books of {each.name} do not balance" for each in first if not each.balanced]
    for (owes, has), comparison in found.items():
        if comparison is not None:
            faults += (f"{owes} and {has}: {fault}" for fault in comparison.faults)
    if faults:
        raise CommandFailedError(printable("; ".join(faults)))
    print("\nAll books balance.")
    return 0


async def _relays_of(url: str, visitor: Visitor) -> list[str]:
    """Return the URLs of the pages of a cluster's relays.

    Raises:
        CommandFailedError: It is no page of a cluster, or a relay does not answer there.
    """
    try:
        view = await fetch_json(urljoin(f"{url}/", "cluster.json"), visitor=visitor)
    except PageStatusError as error:
        if error.status != _NOT_FOUND:
            raise
        msg = f"{url} is the page of one relay, not of a cluster: leave --cluster out"
        raise CommandFailedError(msg) from error
    found: list[str] = []
    for relay in view["relays"]:
        if not relay["http"]:
            msg = f"relay {printable(str(relay['name']))} has no pages: it cannot be audited"
            raise CommandFailedError(msg)
        found.append(urljoin(f"{url}/", relay["http"]).rstrip("/"))
    return found


async def _look(visitors: Mapping[str, Visitor], *, whole: bool) -> list[Books]:
    found: dict[str, Books] = {}

    async def ask(url: str) -> None:
        found[url] = await _books(url, visitors[url], whole=whole)

    async with trio.open_nursery() as nursery:
        for url in visitors:
            nursery.start_soon(ask, url)
    return [found[url] for url in visitors]


async def _books(url: str, visitor: Visitor, *, whole: bool) -> Books:
    page: Any
    try:
        page = await fetch_json(f"{url}/hops.json", visitor=visitor)
    except PageStatusError as error:
        if error.status != _NOT_FOUND:
            raise
        page = {"relay": url, "relays": {}}  # It is in no cluster.
    ledger: Any = {"accounts": (), "totals": {"debt": {"items": 0}}, "audit": {"balanced": True}}
    if whole:
        ledger = await fetch_json(f"{url}/ledger.json", visitor=visitor)
    try:
        rows = page["relays"].items()
        return Books(
            page["relay"],
            len(ledger["accounts"]),
            ledger["totals"]["debt"]["items"],
            ledger["audit"]["balanced"],
            {name: _hop(row["hop"]) for name, row in rows},
            {name: _landing(row["landing"]) for name, row in rows},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        msg = f"{url} has no books of a relay of this version: use that relay's own clearfunds"
        raise CommandFailedError(msg) from error


def _hop(row: Mapping[str, Any]) -> HopBooks:
    return HopBooks(row["epoch"], row["next"], dict(row["out"]), row["given_up_items"])


def _landing(row: Mapping[str, Any]) -> LandingBooks:
    return LandingBooks(row["epoch"], row["next"], dict(row["unsettled"]))


def _compared(
    first: Sequence[Books], second: Sequence[Books]
) -> dict[tuple[str, str], Comparison | None]:
    """Compare what each relay owes for with what is at the others."""
    found: dict[tuple[str, str], Comparison | None] = {}
    for owes in first:
        for has in second:
            hop, landing = owes.hops.get(has.name), has.landings.get(owes.name)
            if hop is not None and landing is not None:
                found[owes.name, has.name] = compare(hop, landing)
    return found


def _print(books: Sequence[Books], found: Mapping[tuple[str, str], Comparison | None]) -> None:
    console = Console(highlight=False)
    relays = table("", ("relay", 0), ("accounts", -9), ("items owed", -12), ("books", 0))
    for each in books:
        relays.add_row(
            printable(each.name),
            f"{each.accounts:,}",
            f"{each.debt_items:,}",
            "balance" if each.balanced else "DO NOT BALANCE",
        )
    console.print(relays)
    if not found:
        return
    between = table(
        "",
        *(("owed by", 0), ("for items at", 0), ("items", -9), ("there", -9), ("under way", -10)),
        ("books", 0),
    )
    for (owes, has), comparison in found.items():
        names = (printable(owes), printable(has))
        if comparison is None:
            between.add_row(*names, "", "", "", "they have just met again")
            continue
        between.add_row(
            *names,
            f"{comparison.owed_items:,}",
            f"{comparison.there_items:,}",
            f"{comparison.under_way_items:,}",
            "DO NOT AGREE" if comparison.faults else "agree",
        )
    console.print()
    console.print(between)
