"""The relay's pages, as handlers for `serve_http`."""

from __future__ import annotations

import math
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final, Self

import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import InfoMetricFamily
from prometheus_client.registry import Collector

from ..accounts._loop import Lock, checkpoint, now
from . import _exposition, _ledger_json
from ._access import Access
from ._cooperative import Pace
from ._debts import SteppedDebts
from ._detailed import DetailedQuery, write_detailed
from ._history import write_history
from ._ledger_json import write_ledger
from ._live import LivePage
from ._loop_lag import LoopLag
from ._messages import Action, Handler, Request, Response
from ._process import ProcessFigures
from ._server import HttpLimits, serve_http
from ._top_json import TopQuery, write_top
from ._trace_page import TracePage
from ._walked import WalkedCollector

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping

    from prometheus_client import Metric

    from ..accounts import Ledger
    from ..accounts.watch._collector import LimitsByLevel
    from ..sockets import ServerTls
    from ._about import Clients
    from ._persistence_collector import PersistenceCollector

LONG_PAGES_MAX: Final = 4
# Concurrent pages with a row for each account. Each takes the loop for a millisecond at a time, so
# together they stay below 5 ms; and each keeps its rows in memory.

TAKEN_SECONDS: Final = 1.0
# A long page of which nothing is taken for this time is broken off when another page needs its
# place: 64 KiB a second are half a megabit.


class Pages:
    """The relay's pages: metrics, the ledger, and health.

    - `/`: a live page for people: who waits on whom, debts, holders (see `LivePage`).
    - `/metrics`: totals for Prometheus; the number of series does not depend on accounts.
    - `/metrics/detailed?family=account,holder,matrix,blame,queue,group,tenant`, with
      `&account=PATTERN`, `&holder=PATTERN`, `&limit=N`: a series for each account, each holder,
      each pair of holder and debtor, each pair of waiter and blocker, each queue, member of a
      group and tenant.
    - `/ledger.json`: accounts, holders, who holds whose debt, and whether the books balance.
    - `/ledger.json?top=N&by=debt|waited|held|waiting&name=PART`: who waits on whom, the first N
      accounts and holders, of all or of those with that name, and the number of others; of bounded
      size and cost (see `Survey`).
    - `/history.json`: an hour of totals, of the top accounts and holders, and of the holders that
      readers waited on (see `History`).
    - `/trace.json?account=PATTERN&wait=SECONDS&events=N&holder=PATTERN&loans=N`: everything that
      the next events of some accounts cause, loan by loan, to the outcomes (see `_trace_page.py`).
    - `/healthz`: 200 while the loop turns.
    - `/readyz`: 200 while the relay takes connections, else 503.

    Patterns are those of shells: `*` is any text, `?` any character. No page holds the loop for
    more than a few milliseconds at a time.

    Args:
        ledger: The books to show.
        limits: The limits on debt, by level, shown beside it: see `DebtCollector`.
        collectors: Further collectors for `/metrics`, such as a `RelayCollector`.
        persistence: The collector for persistent sessions and the store, if there are any.
        whose: The program that they are about, in a sentence.
        more: Further pages, by path.
        clients: Knows the clients, for the drawer of the live page.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        limits: LimitsByLevel | None = None,
        collectors: Iterable[Collector] = (),
        persistence: PersistenceCollector | None = None,
        whose: str = "The relay",
        more: Mapping[str, Handler] | None = None,
        clients: Clients | None = None,
    ) -> None:
        self._ledger = ledger
        self._more = more or {}
        self._whose = whose
        # A registry refuses two collectors that would serve the same name.
        registry = CollectorRegistry()
        self._loop_lag = LoopLag()
        self._collectors: list[Collector] = [
            SteppedDebts(ledger, limits),
            *collectors,
            *(() if persistence is None else (persistence,)),
            self._loop_lag,
            BuildInfo(),
            ProcessFigures(),
        ]
        for collector in self._collectors:
            registry.register(collector)
        self._one_scrape = Lock()
        self._long_pages: set[_LongPage] = set()
        self._state = "starting"
        self._live = LivePage(ledger, self._more, clients)
        self._trace = TracePage(ledger)

    async def watch(self) -> None:
        """Do the jobs of the pages until cancelled; for their server, under Trio."""
        async with trio.open_nursery() as nursery:
            for doing, job in self.jobs().items():
                nursery.start_soon(self._ledger.faults.keep_going, doing, job)

    def jobs(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """Return what has to run while the pages are served, each until it is cancelled."""
        return {
            "measuring the loop's lag": self._loop_lag.watch,
            "keeping the history": self._live.history.watch,
        }

    def set_ready(self) -> None:
        """Note that the relay takes connections from now on."""
        self._state = "ready"

    def set_stopping(self) -> None:
        """Note that the relay takes no more connections."""
        self._state = "stopping"

    def handlers(self) -> dict[str, Handler]:
        """The pages by path, for `serve_http`."""
        return {
            **self._live.handlers(),
            **self._more,
            "/metrics": self.metrics,
            "/metrics/detailed": self.detailed,
            "/ledger.json": self.ledger_json,
            "/history.json": self.history_json,
            "/trace.json": self._trace.trace,
            "/healthz": self.healthz,
            "/readyz": self.readyz,
        }

    async def metrics(self, request: Request) -> Response:
        """Serve the totals; cancellation leaves nothing behind."""
        text: list[bytes] = []
        # One scrape after the other: many at once would all run in the same turn of the loop,
        # without any other task in between.
        async with self._one_scrape:
            for collector in self._collectors:
                if isinstance(collector, WalkedCollector):
                    await collector.look()
            for collector in self._collectors:
                await checkpoint()
                families = list(collector.collect())  # All read at one instant.
                await checkpoint()
                text.append(generate_latest(_Collected(families)))
        return Response(b"".join(text), content_type=_exposition.CONTENT_TYPE)

    async def detailed(self, request: Request) -> Response:
        """Serve the selected families, a series for each account or holder."""
        try:
            query = DetailedQuery.parse(request.query)
        except ValueError as error:
            return Response.sentence(400, str(error))
        return self._long(write_detailed(self._ledger, query, Pace()), _exposition.CONTENT_TYPE)

    async def ledger_json(self, request: Request) -> Response:
        """Serve the whole ledger, or the top of it."""
        try:
            query = TopQuery.parse(request.query)
        except ValueError as error:
            return Response.sentence(400, str(error))
        if query is not None:
            pieces = write_top(self._ledger, Pace(), query)
            return self._long(pieces, _ledger_json.CONTENT_TYPE)
        pieces = write_ledger(self._ledger, Pace())
        return self._long(pieces, _ledger_json.CONTENT_TYPE)

    async def history_json(self, request: Request) -> Response:
        """Serve the last hour."""
        pieces = write_history(self._live.history, Pace())
        return self._long(pieces, _ledger_json.CONTENT_TYPE)

    async def healthz(self, request: Request) -> Response:
        """Say that the loop turns: it has just run this."""
        return Response.sentence(200, f"{self._whose} is alive.")

    async def readyz(self, request: Request) -> Response:
        """Say whether the relay takes connections."""
        status = 200 if self._state == "ready" else 503
        return Response.sentence(status, f"{self._whose} is {self._state}.")

    def _long(self, pieces: AsyncGenerator[bytes, None], content_type: str) -> Response:
        if len(self._long_pages) >= LONG_PAGES_MAX and not self._break_one_off():
            return Response.sentence(
                503,
                f"{LONG_PAGES_MAX} pages of this kind are under way already; try again.",
                ("Retry-After", "1"),
            )
        page = _LongPage(pieces, self._long_pages)
        return Response(page, content_type=content_type, on_sending=page.sent_by)

    def _break_one_off(self) -> bool:
        """Make room for a long page by breaking off a stalled one; return whether there is room."""
        slowest = min(self._long_pages, key=lambda page: page.given_at)
        if now() - slowest.given_at < TAKEN_SECONDS:
            return False
        self._long_pages.discard(slowest)
        slowest.break_off()
        return True


async def serve_pages(
    pages: Pages,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    limits: HttpLimits | None = None,
    access: Access | None = None,
    actions: Action | None = None,
    tls: ServerTls | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `pages` until cancelled; `await nursery.start(serve_pages, ...)` gives their addresses.

    Run it in the loop that uses the ledger's accounts. `/readyz` says 503 until
    `Pages.set_ready` has been called. Arguments, errors and cancellation are those of `serve_http`;
    without `access` no token is required, and browsers have to use an address, `localhost` or
    `host`.
    """
    access = Access(hosts=(host,)) if access is None else access
    listeners = await trio.open_tcp_listeners(port, host=host)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pages.watch)
            serve = partial(
                serve_http,
                pages.handlers(),
                listeners=listeners,
                limits=limits,
                access=access,
                actions=actions,
                tls=tls,
            )
            urls: list[str] = await nursery.start(serve)
            task_status.started(urls)
    finally:
        # `serve_http` closes them, too, if it has started.
        for listener in listeners:
            listener.socket.close()


class _LongPage:
    """The pieces of a page, which counts in `among` until it is closed.

    The generator cannot count it: its `finally` does not run if it is closed before its first
    piece, as for HEAD.

    Attributes:
        break_off: Ends the sending.
        given_at: When a piece was given out that has not been taken yet; inf: there is none.
    """

    def __init__(self, pieces: AsyncGenerator[bytes, None], among: set[_LongPage]) -> None:
        self._pieces = pieces
        self._among = among
        among.add(self)
        self.break_off: Callable[[], object] = bool  # does nothing until it is sent
        self.given_at = math.inf

    def sent_by(self, break_off: Callable[[], object]) -> None:
        """Note how the sending can be ended; see `Response.on_sending`."""
        self.break_off = break_off

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self.given_at = math.inf
        piece = await anext(self._pieces)
        self.given_at = now()
        return piece

    async def aclose(self) -> None:
        self._among.discard(self)
        await self._pieces.aclose()


class _Collected(Collector):
    """Metrics that have been collected already, to be written."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


class BuildInfo(Collector):
    """The version of the program."""

    def __init__(self) -> None:
        try:
            number = version("clearfunds")
        except PackageNotFoundError:
            number = "unknown"
        self._labels = {"version": number}

    def describe(self) -> Iterator[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("clearfunds_build", "Which version this is.", self._labels)
