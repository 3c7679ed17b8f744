"""Routes to other servers: the relay connects to them for clients that ask for it.

`<q <resolve-path <route [address ...] step ...>>>` in the bindspace is answered there by
`<a <resolve-path route> <ok <resolved-path address #:control #:reference>>>`, or with
`<error reason>`, for as long as it is asserted. The relay connects to the first address that it
can reach, `<tcp host port>` or `<ws url>`, and resolves the steps, sturdyrefs, one after the other,
from the other server's oid 0 on. What clients assert at the reference, send to it and observe there
passes between the two connections.

Rules:

1. A route is a connection like those that are accepted: it has an account, with limits, which is
   charged for what comes from the other server; what goes there stays with the account that has
   caused it, held by the route's outlet, until the kernel has taken it.
2. A route ends with its question; its connection, if it breaks, is made again after a pause.

Source: syndicate-protocols, gatekeeper.prs and transportAddress.prs; syndicate-server, client.rs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...accounts import QuotaExceededError
from .._connecting import NoConnectionError, SocketStream, open_stream
from .._errors import RemoteProtocolError
from .._link import Link
from ..websocket import WebSocketClient, WebSocketURL, open_websocket
from ._bindings import Shares, TooManyError
from ._entities import Entity, Inert
from ._preserves import Embedded, Record, Symbol, Value, is_tuple
from ._session import SyndicateSession
from ._sturdy import parse_sturdyref
from ._values import Decoded, Encoded, WireValue, wire_value

if TYPE_CHECKING:
    from ...accounts import Turn
    from ...dataspace import Assertion, Dataspace
    from ._entities import Retractor, Source
    from ._server import SyndicateServer

LISTENER: Final = "route"
"""In place of a listener's name in those of accounts and in logs: `route/-/host:port#1`."""

LIMITS: Final = "--max-routes", "--routes-per-connection"

PAUSES: Final = 1.0, 30.0
"""Seconds before a lost connection is made again: at first, and at most; each is twice the last."""

MAX_TRANSPORTS: Final = 10
MAX_STEPS: Final = 10
"""Most addresses, and steps, of one route."""

_GIVEN = {"ok": True, "accepted": True, "error": False, "rejected": False}


@attrs.frozen
class Address:
    """A server's address."""

    host: str
    port: int
    value: Value
    """As it is written in the route."""
    url: WebSocketURL | None = None
    """What it is reached by, if packets are sent in WebSocket messages."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def connect(self, max_message_size: int) -> tuple[SocketStream, WebSocketClient | bool]:
        """Connect; return the stream, and the WebSocket on it, or False.

        Raises:
            NoConnectionError: It cannot be reached.
        """
        if self.url is None:
            return await open_stream(self.host, self.port), False
        return await open_websocket(self.url, max_message_size)


@attrs.frozen
class Path:
    """A route that has been understood."""

    value: Value
    addresses: tuple[Address, ...]
    steps: tuple[Value, ...]


def path_of(value: Value) -> Path:
    """Parse `<route [address ...] step ...>`.

    Raises:
        RemoteProtocolError: It is none that the relay can follow.
    """
    if not (isinstance(value, Record) and value.key == Symbol("route") and value.fields):
        raise RemoteProtocolError("a route is <route [address ...] step ...>")
    transports, *steps = value.fields
    if not is_tuple(transports) or not transports:
        raise RemoteProtocolError("a route begins with a sequence of addresses")
    if len(transports) > MAX_TRANSPORTS or len(steps) > MAX_STEPS:
        msg = f"a route has {MAX_TRANSPORTS} addresses and {MAX_STEPS} steps at most"
        raise RemoteProtocolError(msg)
    for step in steps:
        parse_sturdyref(step)
    return Path(value, tuple(map(_address, transports)), tuple(steps))


def _address(value: Value) -> Address:
    if isinstance(value, Record) and value.key == Symbol("tcp") and len(value.fields) == 2:
        host, port = value.fields
        if isinstance(host, str) and host and type(port) is int and 0 < port < 1 << 16:
            return Address(host, port, value)
    if isinstance(value, Record) and value.key == Symbol("ws") and len(value.fields) == 1:
        (url,) = value.fields
        if isinstance(url, str):
            try:
                parsed = WebSocketURL.parse(url)
            except ValueError as exc:
                raise RemoteProtocolError(f"an address cannot be used: {exc}") from None
            return Address(parsed.host, parsed.port, value, parsed)
    raise RemoteProtocolError("an address is <tcp host port> or <ws url>")


class Landing(Entity):
    """The recipient of the answer to a `<resolve ...>` of the relay's own.

    Several answers, in several dialects, may stand at a time: the first counts.
    """

    __slots__ = ("_answers", "_changed")

    def __init__(self, changed: Callable[[Turn, Entity | str | None], None]) -> None:
        super().__init__()
        self._changed = changed
        self._answers: dict[object, Entity | str] = {}

    def assert_(self, turn: Turn, value: WireValue, source: Source) -> Retractor | None:
        outcome = _outcome(value)
        if outcome is None:
            return None
        key = object()
        self._answers[key] = outcome
        if len(self._answers) == 1:
            self._changed(turn, outcome)
        return partial(self._retract, key)

    def _retract(self, key: object, turn: Turn) -> None:
        first = next(iter(self._answers), None)
        if self._answers.pop(key, None) is not None and key is first:
            self._changed(turn, next(iter(self._answers.values()), None))

    def message(self, turn: Turn, value: WireValue, source: Source) -> None:
        """Ignore it."""


def _outcome(value: WireValue) -> Entity | str | None:
    """Return the reference or the refusal in an answer; None: it is no answer."""
    if not isinstance(value, (Encoded, Decoded)):
        return None
    answer = value.value()
    if not isinstance(answer, Record) or not isinstance(answer.key, Symbol):
        return None
    given = _GIVEN.get(answer.key.name)
    if given is None or len(answer.fields) != 1:
        return None
    (field,) = answer.fields
    if not given:
        return f"the other server refuses: {str(field)[:200]}"
    return field.embeddedValue if isinstance(field, Embedded) else "the answer has no reference"


class Control(Entity):
    """Takes `<force-disconnect>`: the connection of a route ends, and is made again."""

    __slots__ = ("_session",)

    def __init__(self, session: SyndicateSession) -> None:
        super().__init__()
        self._session = session

    def assert_(self, turn: Turn, value: WireValue, source: Source) -> None:
        """Ignore it."""

    def message(self, turn: Turn, value: WireValue, source: Source) -> None:
        if isinstance(value, Encoded) and value.value() == Record(Symbol("force-disconnect"), ()):
            source.afterwards(partial(self._session.cut, "a client wants a new connection"))


class Routes:
    """The routes of one relay.

    Args:
        server: the Syndicate side of the relay.
        space: where the answers are asserted.
    """

    def __init__(self, server: SyndicateServer, space: Dataspace) -> None:
        self.server = server
        self.space = space
        self._shares = Shares("routes")
        self._numbers = count(1)
        self._open: set[Route] = set()

    def __len__(self) -> int:
        return len(self._shares)

    def stop(self) -> None:
        """Make no connection any more; those that are open end with the others of the relay."""
        for route in self._open:
            route.stop()

    def begin(self, value: Value, source: Source) -> Callable[[], None]:
        """Follow a route; return what ends that."""
        answer = RouteAnswer(self.space, value, source)
        settings = self.server.settings
        try:
            path = path_of(value)
            if self.server.nursery is None:
                raise RemoteProtocolError("this server follows no routes")
            each = settings.routes_per_connection
            self._shares.take(source, settings.max_routes, each, LIMITS)
        except (RemoteProtocolError, TooManyError) as exc:
            source.complain(f"a route was not followed: {exc}")
            answer.give(str(exc))
            return answer.end
        route = Route(self.server, path, answer, next(self._numbers))
        self._open.add(route)
        follow = self.space.ledger.faults.keep_going
        self.server.nursery.start_soon(
            follow, "following a route", route.run, name=f"route {route.number}"
        )

        def end() -> None:
            self._shares.give_back(source)
            self._open.discard(route)
            route.end()
            answer.end()

        return end


class RouteAnswer:
    """The answer to a question for a route, on the account of its asker."""

    def __init__(self, space: Dataspace, route: Value, source: Source) -> None:
        self._space = space
        self._question = Record(Symbol("resolve-path"), (route,))
        self._source = source
        self._assertion: Assertion | None = None
        self._over = False

    def give(self, outcome: Value | str | None) -> None:
        """Answer, in place of the last answer; None: nothing is known now."""
        if self._over:
            return
        made: Assertion | None = None
        try:
            with self._source.account.turn() as turn:
                if self._assertion is not None:
                    self._space.retract(turn, self._assertion)
                if outcome is not None:
                    label = "error" if isinstance(outcome, str) else "ok"
                    result = Record(Symbol(label), (outcome,))
                    shown = wire_value(Record(Symbol("a"), (self._question, result)))
                    made = self._space.assert_(turn, shown)
            self._assertion = made
        except QuotaExceededError as exc:
            self._source.complain(f"a route was not answered: {exc}")

    def end(self) -> None:
        """Take the answer back, and give no more."""
        self.give(None)
        self._over = True


class Route:
    """One route, with its connection while it has one.

    Attributes:
        number: tells it from others to the same address.
    """

    def __init__(
        self, server: SyndicateServer, path: Path, answer: RouteAnswer, number: int
    ) -> None:
        self._server = server
        self._path = path
        self._answer = answer
        self.number = number
        self._over = False
        self._scope = trio.CancelScope()
        self._session: SyndicateSession | None = None

    def end(self) -> None:
        """Close the connection, and make no other."""
        self.stop()
        if self._session is not None:
            self._session.cut("nobody asks for its route any more")

    def stop(self) -> None:
        """Make no other connection."""
        self._over = True
        self._scope.cancel()

    async def run(self) -> None:
        """Connect, as often as needed, until the route or the relay ends."""
        first, most = PAUSES
        pause = first
        while not self._over:
            found: tuple[Address, Link, WebSocketClient | bool] | None = None
            with trio.CancelScope() as self._scope:
                found = await self._connected()
            if found is not None:
                pause = first
                await self._serve(*found)
            if self._over:
                return
            with trio.CancelScope() as self._scope:
                await trio.sleep(pause)
            pause = min(2 * pause, most)

    async def _connected(self) -> tuple[Address, Link, WebSocketClient | bool] | None:
        """Connect to the first address that accepts; None if none does, which is answered."""
        wrong: list[str] = []
        for address in self._path.addresses:
            try:
                with trio.fail_after(self._server.settings.connect_timeout):
                    size = self._server.settings.max_packet_size
                    stream, websocket = await address.connect(size)
            except (NoConnectionError, trio.TooSlowError) as exc:
                wrong.append(f"{address}: {exc or 'it does not answer'}")
            else:
                return address, Link(stream.socket, f"{address}#{self.number}"), websocket
        why = f"no address of the route can be reached: {'; '.join(wrong)}"
        self._complain(why)
        self._answer.give(why)
        return None

    async def _serve(self, address: Address, link: Link, websocket: WebSocketClient | bool) -> None:
        if self._over:
            link.close()
            return
        try:
            session = SyndicateSession(
                self._server, link, LISTENER, entry=Inert(), websocket=websocket
            )
            self._session = session
            extra = {"event": "route", "account": session.name}
            self._server.logger.info("%s connected", session.name, extra=extra)
            self._resolve(session, address, session.far(0), 0)
            await session.run()
        finally:
            link.close()
            self._session = None
            if not self._over:
                self._answer.give("the connection to the other server has ended")

    def _resolve(self, session: SyndicateSession, address: Address, at: Entity, index: int) -> None:
        """Take a step of the path, from the reference that the one before has given."""
        steps = self._path.steps
        if index == len(steps):
            control = Control(session)
            refs = Embedded(control), Embedded(at)
            self._answer.give(Record(Symbol("resolved-path"), (address.value, *refs)))
            return

        def changed(turn: Turn, outcome: Entity | str | None) -> None:
            turn.afterwards(partial(self._stepped, session, address, outcome, index))

        landing = Landing(changed)
        question = Record(Symbol("resolve"), (steps[index], Embedded(landing)))
        with session.account.turn() as turn:
            at.assert_(turn, wire_value(question), session.source)
        self._server.flusher.flush_now()

    def _stepped(
        self,
        session: SyndicateSession,
        address: Address,
        outcome: Entity | str | None,
        index: int,
    ) -> None:
        if self._session is not session:
            return
        if isinstance(outcome, Entity):
            self._resolve(session, address, outcome, index + 1)
            return
        if outcome is not None:
            self._complain(f"{session.name}: {outcome}")
        self._answer.give(outcome)

    def _complain(self, why: str) -> None:
        self._server.logger.warning("%s", why, extra={"event": "no_route", "reason": why})
