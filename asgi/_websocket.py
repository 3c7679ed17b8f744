"""One WebSocket: events of a feed go out, messages come in, each behind clear funds."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..accounts import Account
from ..dataspace import GivenUpError
from ..streams._beside import beside
from ._encoding import same_text_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..streams import Feed
    from ._types import Receive, Scope, Send

logger = logging.getLogger("clearfunds.asgi")

TRY_AGAIN_LATER: Final = 1013
"""Close code: the server ends the connection because of its load [IANA, WebSocket Close Codes]."""

CLOSE_SECONDS: Final = 1.0
"""For a client that took nothing to take the close frame."""


def missed_message(count: int) -> str:
    """Return the message that tells a client how many events it has missed."""
    return f'{{"missed": {count}}}'


def _message(data: str | bytes) -> dict[str, Any]:
    return {"type": "websocket.send", "text" if isinstance(data, str) else "bytes": data}


async def serve_websocket(
    scope: Scope,
    receive: Receive,
    send: Send,
    feed: Feed[Any],
    *,
    account: Account | None = None,
    on_message: Callable[[str | bytes], Awaitable[object]] | None = None,
    encode: Callable[[Any], str | bytes] = same_text_of,
    missed: Callable[[int], str | bytes] | None = missed_message,
    accept: bool = True,
) -> None:
    """Serve one WebSocket until its client leaves, or its feed ends.

    ::

        @app.websocket("/ws")
        async def ws(socket: WebSocket) -> None:
            feed = hub.subscribe("alice", "news/#")
            await serve_websocket(socket.scope, socket.receive, socket.send, feed)

    Each event counts against its publisher until the server has taken it, which waits for the
    client. A client that is too slow is handled by its feed's policy; when that disconnects it, the
    close code is 1013 (try again later).

    Args:
        scope: ASGI's.
        receive: ASGI's.
        send: ASGI's.
        feed: What the client gets; not entered.
        account: The account of what the client sends: it is not read while this owes too much.
        on_message: Called with each message of the client, one after the other, as a rule to
            publish it on the account; what it raises ends the connection. None: they are ignored.
        encode: Makes a text or binary message of an event: by default a payload as it is, a text as
            it is, all else as JSON.
        missed: Makes the message that tells the client how many events it has missed, before the
            next one; None: it is not told.
        accept: Whether to accept the connection; False: that has been done.

    Cancellation: the event in hand ends as `cancelled`; nothing stays owed.

    Raises:
        Exception: What `on_message` and `encode` raise. A client that has left, or was too slow,
            is no error: the log says it.
    """
    del scope
    if accept:
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
    left = False

    async def read() -> None:
        nonlocal left
        while True:
            if account is not None:
                await account.ensure_clear_funds()
            message = await receive()
            if message["type"] == "websocket.disconnect":
                left = True
                return
            if on_message is not None:
                text = message.get("text")
                await on_message(message["bytes"] if text is None else text)

    code = 1000
    try:
        async with beside(read):
            with feed:
                async for event in feed:
                    data = encode(event)
                    try:
                        if feed.missed and missed is not None:
                            await send(_message(missed(feed.missed)))
                        await send(_message(data))
                    except Exception as error:
                        # OSError by ASGI, WebSocketDisconnect by Starlette; `receive` says the
                        # same in a moment.
                        raise _LeftError(repr(error)) from error
    except GivenUpError as error:
        logger.warning("%s", error)
        code = TRY_AGAIN_LATER
    except _LeftError as error:
        logger.debug("%s has gone: %s", feed.name, error)
        return
    if not left:
        with anyio.move_on_after(CLOSE_SECONDS), suppress(Exception):
            await send({"type": "websocket.close", "code": code})


class _LeftError(Exception):
    """The server could not send: its client is gone."""
