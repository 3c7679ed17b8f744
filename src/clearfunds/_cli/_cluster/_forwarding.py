"""Pages of a worker, served under the worker's name on the page of all: `/NAME/ledger.json`.

1. A worker's own pages are on this machine only, and want a token that this process alone has.
   A visitor of the page of all may see them.
2. An answer is passed on as it comes, so that those without an end work, too; the worker limits
   their number and cost.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self
from urllib.parse import quote, urlencode, urlsplit

import attrs
import h11
import trio

from clearfunds.pages import Handler, Request, Response
from clearfunds.pages._messages import CHANGING

from ._relays import Member

_ANSWER_SECONDS: Final = 10.0
# For the head of an answer.

_OWN: Final = frozenset(
    {
        *("connection", "transfer-encoding", "content-length", "content-type"),
        *("date", "server", "cache-control", "x-content-type-options"),
    }
)
# Header fields that each server sets itself.

_ENDLESS: Final = "text/event-stream"


class ForwardingHandlers(Mapping[str, Handler]):
    """The handlers of the page of all, and those below the names of relays.

    Args:
        own: The handlers of the page itself, by path.
        relays: The relays.
    """

    def __init__(self, own: Mapping[str, Handler], relays: Sequence[Member]) -> None:
        self._own = own
        self._relays = {relay.name: relay for relay in relays}

    def __getitem__(self, path: str) -> Handler:
        found = self._own.get(path)
        if found is not None:
            return found
        name, slash, rest = path.removeprefix("/").partition("/")
        relay = self._relays[name]

        async def handle(request: Request) -> Response:
            if not slash:  # The page's own links are relative to its folder.
                return Response.sentence(308, f"See /{name}/.", ("Location", f"/{name}/"))
            return await forward(relay, rest, request)

        return handle

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


async def forward(relay: Member, path: str, request: Request) -> Response:
    """Return a relay's answer to a request for another path; cancellation ends it there."""
    if not relay.addresses.is_ready:
        return Response.sentence(503, f"{relay.name} is starting.", ("Retry-After", "1"))
    parts = urlsplit(relay.addresses.http)
    assert parts.hostname is not None
    assert parts.port is not None
    query = urlencode(request.query, doseq=True)
    target = f"/{quote(path)}{'?' if query else ''}{query}"
    headers = [("Host", parts.netloc), ("Authorization", relay.visitor.authorization or "")]
    if request.method in CHANGING:
        headers.append(("Content-Length", str(len(request.body))))
    # HEAD is asked for as GET: the server leaves the body out.
    method = request.method if request.method in CHANGING else "GET"
    head = h11.Request(method=method, target=target, headers=[*headers, ("Connection", "close")])
    why = f"no answer within {_ANSWER_SECONDS:g} s"
    with trio.move_on_after(_ANSWER_SECONDS):
        try:
            stream = await trio.open_tcp_stream(parts.hostname, parts.port)
            return await _answer(stream, head, request.body)
        except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            why = str(error)
    return Response.sentence(502, f"{relay.name} does not answer: {why}.")


async def _answer(stream: trio.SocketStream, head: h11.Request, body: bytes) -> Response:
    answer = _Answer(stream)
    try:
        await stream.send_all(answer.connection.send(head) or b"")
        if body:
            await stream.send_all(answer.connection.send(h11.Data(data=body)) or b"")
        await stream.send_all(answer.connection.send(h11.EndOfMessage()) or b"")
        event = await answer.next_event()
        if not isinstance(event, h11.Response):
            raise h11.RemoteProtocolError("the answer breaks off")
    except BaseException:
        await answer.aclose()
        raise
    fields = [(name.decode(), value.decode("latin-1")) for name, value in event.headers]
    kind = dict(fields).get("content-type", "")
    return Response(
        answer,
        event.status_code,
        kind,
        tuple((name, value) for name, value in fields if name not in _OWN),
        endless=kind.startswith(_ENDLESS),
    )


@attrs.define(eq=False)
class _Answer:
    """An answer as it comes: an iterator over the pieces of its body."""

    _stream: trio.SocketStream
    connection: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.CLIENT))

    async def next_event(self) -> object:
        """Return what comes next, after answers that are only on the way to one.

        Raises:
            h11.RemoteProtocolError: The answer breaks off.
            trio.BrokenResourceError: So does the connection.
        """
        while True:
            event = self.connection.next_event()
            if event is h11.NEED_DATA:
                self.connection.receive_data(bytes(await self._stream.receive_some()))
            elif not isinstance(event, h11.InformationalResponse):
                return event

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            event = await self.next_event()
        except h11.RemoteProtocolError as error:  # The reader has to see that it is incomplete.
            raise trio.BrokenResourceError from error
        if isinstance(event, h11.Data):
            return bytes(event.data)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the connection to the relay; idempotent."""
        self._stream.socket.close()
