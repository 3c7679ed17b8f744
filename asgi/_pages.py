"""The pages about a hub's books, as an ASGI application to mount."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Final

import anyio

from ..pages import Request, Response
from ..pages._pages import Pages
from ..streams._beside import beside
from ._event_stream import until_it_leaves

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from prometheus_client.registry import Collector

    from ..streams import Hub
    from ._types import App, Receive, Scope, Send

logger = logging.getLogger("clearfunds.asgi")

METHODS: Final = ("GET", "HEAD")


def debt_pages(
    hub: Hub,
    *,
    allow: Callable[[Scope], bool | Awaitable[bool]] | None = None,
    collectors: Iterable[Collector] = (),
) -> App:
    """Return the pages about the books of `hub`: `app.mount("/debt", debt_pages(hub))`.

    Below the path: the live page, `metrics` for Prometheus (and `metrics/detailed`), `ledger.json`,
    `history.json` and `trace.json`, as the relay has them. Make it before the hub runs.

    **They name users and topics.** A mounted application is not reached by the dependencies of
    FastAPI: give `allow`, or mount them where only operators get.

    Args:
        hub: The hub.
        allow: Says whether the client of a request, by its ASGI scope, may look; plain or
            asynchronous. None: everybody may.
        collectors: Further collectors for `metrics`.

    Raises:
        RuntimeError: If the hub runs already.
    """
    pages = Pages(hub.ledger, collectors=collectors, whose="The program")
    pages.set_ready()
    for doing, job in pages.jobs().items():
        hub.run_beside(doing, job)
    handlers = pages.handlers()

    async def answer(scope: Scope, path: str) -> Response:
        if scope["method"] not in METHODS:
            sentence = "Pages can only be looked at, with GET or HEAD."
            return Response.sentence(405, sentence, ("Allow", ", ".join(METHODS)))
        if allow is not None:
            may = allow(scope)
            if not (await may if inspect.isawaitable(may) else may):
                return Response.sentence(403, "These pages are for others; ask their operator.")
        if not path:
            # The page's links are relative to its folder.
            place = scope.get("root_path", "").rpartition("/")[2]
            return Response.sentence(307, "They are below this.", ("Location", f"{place}/"))
        handler = handlers.get(path)
        if handler is None:
            known = ", ".join(each.lstrip("/") or "./" for each in handlers)
            return Response.sentence(404, f"There is no such page; there are: {known}.")
        query: bytes = scope.get("query_string", b"")
        try:
            request = Request.parse(scope["method"], "/?" + query.decode("ascii"))
        except ValueError as error:
            return Response.sentence(400, f"The request's query cannot be read: {error}.")
        try:
            return await handler(Request(request.method, path, request.query))
        except Exception:
            logger.exception("the page %s failed", path)
            return Response.sentence(500, "This page could not be made; the log says why.")

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            msg = f"these pages are for HTTP, not {scope['type']}"
            raise RuntimeError(msg)
        await _send(await answer(scope, _path_of(scope)), scope, receive, send)

    return serve


def _path_of(scope: Scope) -> str:
    """Return the path below the place where this is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    # ASGI has the whole path; older frameworks took off what they had matched.
    return path[len(root) :] if root and f"{path}/".startswith(f"{root}/") else path


async def _send(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    headers = [
        ("Content-Type", response.content_type),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        *response.headers,
    ]
    body = response.body
    if isinstance(body, bytes):
        headers.append(("Content-Length", str(len(body))))
    start = {
        "type": "http.response.start",
        "status": response.status,
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }

    async def piece(data: bytes, *, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": more})

    if isinstance(body, bytes):
        await send(start)
        await piece(b"" if scope["method"] == "HEAD" else body, more=False)
        return
    try:
        async with beside(lambda: until_it_leaves(receive)):
            with anyio.CancelScope() as sending:
                if response.on_sending is not None:
                    response.on_sending(sending.cancel)
                await send(start)
                if scope["method"] != "HEAD":
                    async for data in body:
                        await piece(data)
                await piece(b"", more=False)
    finally:
        # Otherwise the garbage collector would close a generator that was left half-way.
        aclose = getattr(body, "aclose", None)
        if aclose is not None:
            with anyio.CancelScope(shield=True):
                await aclose()
