"""The live page at `/`: who waits on whom, debts, holders, and what has happened.

Limits on its cost for the relay:
1. Nothing is sampled unless a browser watches. There is no task for it: a browser that finds no
   fresh sample takes one, and all others get the same one (`Sampler`). Only the history of totals
   and of the largest is kept always (`History`).
2. Samples are at least a second apart, and take no more than `LIVE_SHARE` of a core, however many
   accounts there are; each is taken in stretches of a millisecond (`Pace`).
3. Each answer about one name, and each to a search, says when the browser may ask again
   (`again_seconds`): so that those of all browsers together take no more than `LIVE_SHARE`, too.
4. No browser has a queue. It asks for the next sample when it has taken the last one, and a slow
   one gets fewer. The server drops a browser that takes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from ..accounts._loop import Lock, now, sleep_until
from ..accounts.watch._core_shares import LIVE_SHARE
from ._about import about, is_certain
from ._cooperative import Pace
from ._events import CONTENT_TYPE, EventStream, event, retry
from ._files import FOLDER, HEADERS, SHARED_FILES, read_files
from ._history import History, point_of
from ._json import compact as _encode
from ._messages import Handler, Request, Response
from ._survey import ACCOUNTS_MAX, Most, survey
from ._top_json import TopQuery

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from ..accounts import Ledger
    from ._about import Clients

SAMPLE_SECONDS: Final = 1.0
SAMPLE_SECONDS_MAX: Final = 10.0

BROWSERS_MAX: Final = 16
# Of 128 connections (`HttpLimits`): however many tabs are left open, Prometheus gets in.

RETRY_MILLISECONDS: Final = 2000

SCRIPTS: Final = ("tools", "history", "drawer", "actions", "page")
"""The scripts of the page, in the order in which they need each other."""

_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **SHARED_FILES,
    **{f"/live/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in SCRIPTS},
}


@attrs.frozen
class Sample:
    """One reading of the books, sent to all browsers."""

    number: int
    """Counts up from 1."""
    event: bytes
    """The bytes to send."""


class Sampler:
    """Takes samples on request, as rarely as the rules of this file say.

    Attributes:
        taken: The number of samples so far.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = Lock()
        self._latest: Sample | None = None
        self._due = 0.0
        self.taken = 0

    async def next(self, after: int) -> Sample:
        """Return a fresh sample later than `after`; wait until it is due, and take it.

        On cancellation nothing has changed: another browser that waits takes it instead.
        """
        fresh = self._fresh(after)
        if fresh is not None:
            return fresh
        async with self._lock:
            # Another browser may have taken one meanwhile.
            fresh = self._fresh(after)
            if fresh is not None:
                return fresh
            await sleep_until(self._due)
            return await self._take()

    def _fresh(self, after: int) -> Sample | None:
        latest = self._latest
        if latest is not None and latest.number > after and now() < self._due:
            return latest
        return None

    async def _take(self) -> Sample:
        pace = Pace()
        began = now()
        seen = await survey(self._ledger, pace)
        point = await point_of(self._ledger, pace)
        busy = pace.busy_seconds
        every = min(SAMPLE_SECONDS_MAX, max(SAMPLE_SECONDS, busy / LIVE_SHARE))
        page: dict[str, Any] = {
            **seen,
            "point": point,
            "every_seconds": round(every, 2),
            "busy_ms": round(busy * 1e3, 2),
        }
        await pace.pause()
        data = event("sample", _encode(page))
        self.taken += 1
        self._due = began + every
        self._latest = Sample(self.taken, data)
        return self._latest


class LivePage:
    """The page, its events, its search, and its drawer, which has everything about one name.

    Args:
        ledger: The books.
        beside: Paths of further pages of this server, of which it shows some.
        clients: Knows the clients, if the program has any.
        can_change: Whether its forms can change anything: the server has actions and a token.

    Attributes:
        history: The last hour, for new browsers, while `History.watch` runs.
        sampler: The source of its events.
        watching: The number of browsers that watch.
    """

    def __init__(
        self,
        ledger: Ledger,
        beside: Iterable[str] = (),
        clients: Clients | None = None,
        *,
        can_change: bool = False,
    ) -> None:
        self._ledger = ledger
        self._clients = clients
        self._can_change = can_change
        ledger.timelines.keep()
        self._beside = sorted(beside)
        self.history = History(ledger)
        self.sampler = Sampler(ledger)
        self.watching = 0
        self._files = read_files(FOLDER, _FILES)

    def handlers(self) -> dict[str, Handler]:
        """The handlers, by path."""
        pages: dict[str, Handler] = dict.fromkeys(self._files, self.file)
        return {
            **pages,
            "/live/events": self.events,
            "/live/about": self.about,
            "/live/find": self.find,
        }

    async def file(self, request: Request) -> Response:
        """Serve the page itself, which is the same for everybody."""
        return self._files[request.path]

    async def events(self, request: Request) -> Response:
        """Serve the last hour, and then each sample."""
        if self.watching >= BROWSERS_MAX:
            return Response.sentence(
                503, f"{BROWSERS_MAX} browsers watch already; close one.", ("Retry-After", "5")
            )
        return Response(
            EventStream(self._events(), self),
            content_type=CONTENT_TYPE,
            # Otherwise nginx would buffer events until it has enough of them.
            headers=(*HEADERS, ("X-Accel-Buffering", "no")),
            endless=True,
        )

    async def about(self, request: Request) -> Response:
        """Serve everything about one name: its account, what it holds, who it is, its timeline."""
        names = request.query.get("name", ())
        if len(names) != 1:
            return Response.sentence(400, "Name one, as in ?name=mqtt:1883/-/pub.")
        # No 404 if there is none: browsers report that as an error of the page.
        pace = Pace()
        found = await about(self._ledger, names[0], pace, self._clients)
        can_change = self._can_change and is_certain(self._ledger, names[0])
        return self._answer({**found, "can_change": can_change}, pace)

    async def find(self, request: Request) -> Response:
        """Serve the accounts and holders with a part of a name, as samples have those of all."""
        names = request.query.get("name", ())
        query = TopQuery.parse({"top": (str(ACCOUNTS_MAX),), "by": ("waiting",), "name": names})
        if query is None or query.names is None:
            return Response.sentence(400, "Name a part of a name, as in ?name=pub.")
        pace = Pace()
        most = Most(accounts=query.top, holders=query.top, by=query.by, names=query.names)
        return self._answer({**await survey(self._ledger, pace, most)}, pace)

    def _answer(self, found: dict[str, Any], pace: Pace) -> Response:
        again = max(SAMPLE_SECONDS, pace.busy_seconds / LIVE_SHARE * max(1, self.watching))
        body = _encode({**found, "again_seconds": round(again, 2)}).encode()
        return Response(body, content_type="application/json", headers=HEADERS)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        yield retry(RETRY_MILLISECONDS) + event("history", _encode(self.history.brief()))
        if self._beside:
            yield event("beside", _encode(self._beside))
        seen = 0
        while True:
            sample = await self.sampler.next(seen)
            seen = sample.number
            yield sample.event
