"""`/trace.json?account=PATTERN`: everything that the next events of some accounts cause.

    /trace.json?account=PATTERN&wait=SECONDS&events=N&holder=PATTERN&loans=N

- `account`: a name, or a shell pattern (`*` is any text, `?` any character). Accounts that open
  while the page waits count, too, but at least one must match from the beginning.
- `wait`: most seconds to wait (10; up to 60).
- `events`: how many packets, or runs of packets that arrived together, to follow (1; up to 20).
- `holder`: only loans to these holders.
- `loans`: how many loans of each event to show, outstanding ones first, then the slowest (100; up
  to 1000).

The answer begins at once, continues as the traces end, and is one JSON object in all:

    {
      "account": "mqtt:1883/-/pub",  the request's parameter
      "armed": 1,                    the number of matching accounts at the beginning
      "traces": [TRACE, ...],        see `_trace_json.py`; incomplete ones come last
      "waits": [                     those of the accounts whose readers wait now
        {"account": "...", "at": "...", "seconds": 2.5, "debt_items": 10, "debt_bytes": 1000,
         "on": [{"holder": "...", "kind": "outlet", "items": 9, "bytes": 900,
                 "idle_seconds": 2.5}], "on_more": 0}],
      "waits_more": 0                the number of others
    }

The answer has fewer traces than requested if the time ends before enough events have arrived.
Following ends when the answer has ended or the peer has gone.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final, Self

import attrs

from ..access._patterns import of_peer
from ..accounts import Tracer
from ..accounts._loop import checkpoint, now
from ..accounts.trace._tracer import anybody
from ..transports._trace_label import label_of
from ._cooperative import Pace
from ._json import compact as _encode
from ._messages import Request, Response
from ._survey import clipped
from ._trace_json import trace_row
from ._trace_waits import waiting

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from ..accounts import Ledger, Trace

CONTENT_TYPE: Final = "application/json"

WAIT_SECONDS: Final = 10.0
WAIT_SECONDS_MAX: Final = 60.0

EVENTS_MAX: Final = 20

LOANS: Final = 100
LOANS_MAX: Final = 1000
# Half a megabyte of JSON.

TRACERS_MAX: Final = 4
# A traced account pays some microseconds for each loan; others pay nothing.

NEAR_MAX: Final = 5
NAMES_COMPARED_MAX: Final = 500
# For suggestions of similar names: each comparison takes some ten microseconds.


@attrs.frozen
class TraceQuery:
    """The parameters of a request."""

    account: str
    """The name or pattern of accounts, as in the request."""
    matches: Callable[[str], bool]
    """Whether an account's name matches."""
    wait: float = WAIT_SECONDS
    """Most seconds to wait."""
    events: int = 1
    """The number of events to follow."""
    loans: int = LOANS
    """The number of loans to show of each."""
    holders: Callable[[str], bool] = anybody
    """Selects the holders of loans."""

    @classmethod
    def parse(cls, query: Mapping[str, tuple[str, ...]]) -> Self:
        """Parse a query string's fields.

        Raises:
            ValueError: A field is invalid; the message is a sentence about it.
        """
        account = _one(query, "account")
        if not account:
            msg = (
                "Name the accounts to follow: account=NAME, or a pattern (`*` is any "
                "text), as in /trace.json?account=mqtt:1883/-/pub."
            )
            raise ValueError(msg)
        holder = _one(query, "holder")
        wait = _one(query, "wait", f"{WAIT_SECONDS:g}")
        if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?", wait) or not (
            0 < float(wait) <= WAIT_SECONDS_MAX
        ):
            msg = f"wait is the most seconds to wait: a number up to {WAIT_SECONDS_MAX:g}."
            raise ValueError(msg)
        return cls(
            account,
            _names(account),
            float(wait),
            _count(query, "events", 1, EVENTS_MAX),
            _count(query, "loans", LOANS, LOANS_MAX),
            anybody if holder == "" else _names(holder),
        )


def _one(query: Mapping[str, tuple[str, ...]], name: str, default: str = "") -> str:
    values = query.get(name, ())
    if len(values) > 1:
        msg = f"{name} is given {len(values)} times; give it once."
        raise ValueError(msg)
    return next(iter(values), default)


def _count(query: Mapping[str, tuple[str, ...]], name: str, default: int, most: int) -> int:
    text = _one(query, name, str(default))
    if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= most:
        msg = f"{name} is a whole number from 1 to {most}."
        raise ValueError(msg)
    return int(text)


def _names(text: str) -> Callable[[str], bool]:
    """Return a test for a name, or for all names of a pattern."""
    patterns = of_peer([text])
    # Peers choose their names: one may look like a pattern.
    return lambda name: name == text or patterns.matches(name)


class TracePage:
    """Follows events on request.

    Attributes:
        tracing: The number of present requests.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.tracing = 0

    async def trace(self, request: Request) -> Response:
        """Serve `/trace.json`."""
        try:
            query = TraceQuery.parse(request.query)
        except ValueError as error:
            return Response.sentence(400, str(error))
        if self.tracing >= TRACERS_MAX:
            return Response.sentence(
                503, f"{TRACERS_MAX} traces are under way already; try again.", ("Retry-After", "5")
            )
        tracing = _Tracing(self, self._ledger, query)
        try:
            armed = await tracing.arm()
        except BaseException:
            tracing.close()
            raise
        if not armed:
            tracing.close()
            return Response.sentence(404, await self._nobody(query.account))
        return Response(tracing, content_type=CONTENT_TYPE, endless=True)

    async def _nobody(self, account: str) -> str:
        """Return a sentence that no such account exists, with similar names."""
        names = list(self._ledger.accounts)
        sentence = f"No account is called {clipped(account)!r}, or matches that."
        pace = Pace()
        near: list[tuple[float, str]] = []
        for name in names[:NAMES_COMPARED_MAX]:
            await pace.breathe()
            shown = clipped(name)
            likeness = difflib.SequenceMatcher(None, clipped(account), shown).ratio()
            if account in name:
                likeness += 1
            near.append((-likeness, shown))
        near.sort()
        if not near:
            return sentence
        found = ", ".join(name for _, name in near[:NEAR_MAX])
        return f"{sentence} The most like it, of {len(names)}: {found}."


class _Tracing:
    """The pieces of one answer; closing it disarms the tracer."""

    def __init__(self, page: TracePage, ledger: Ledger, query: TraceQuery) -> None:
        self._page: TracePage | None = page
        self._ledger = ledger
        self._query = query
        self._tracer = Tracer(
            ledger,
            query.matches,
            events=query.events,
            holders=query.holders,
            label=label_of,
            shown=query.loans,
        )
        self._pieces = self._write()
        page.tracing += 1

    async def arm(self) -> int:
        """Return the number of accounts it is armed for, after walking through all in steps."""
        pace = Pace()
        for _ in self._tracer.arming():
            await pace.breathe()
        return self._tracer.armed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._pieces)

    def close(self) -> None:
        """End the following."""
        self._tracer.close()
        if self._page is not None:
            self._page.tracing -= 1
            self._page = None

    async def aclose(self) -> None:
        self.close()
        await self._pieces.aclose()

    async def _write(self) -> AsyncGenerator[bytes, None]:
        query = self._query
        tracer = self._tracer
        until = now() + query.wait
        armed = tracer.armed
        yield f'{{"account":{_encode(query.account)},"armed":{armed},"traces":['.encode()
        count = 0
        while count < query.events:
            ended = await tracer.next_until(until)
            if ended is None:
                break
            yield _piece(count, ended)
            count += 1
        for trace in tracer.rest():
            await checkpoint()
            yield _piece(count, trace)
            count += 1
        waits, more = await waiting(self._ledger, query.matches, Pace())
        yield f'],"waits":{_encode(waits)},"waits_more":{more}}}\n'.encode()


def _piece(number: int, trace: Trace) -> bytes:
    return f"{',' if number else ''}\n{_encode(trace_row(trace))}".encode("ascii")
