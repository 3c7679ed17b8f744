"""The web page of the whole cluster, with its data for programs and for Prometheus."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import trio

from clearfunds.pages import Access, Action, Handler, HttpLimits, Request, Response, serve_http
from clearfunds.pages._exposition import CONTENT_TYPE
from clearfunds.pages._files import FOLDER, HEADERS, SHARED_FILES, read_files
from clearfunds.pages._json import compact
from clearfunds.relay._pages import PagesAddress
from clearfunds.sockets import ServerTls, trouble_with_listening

from .._errors import CommandFailedError
from ._exposition import merge
from ._look import Looks

_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/cluster.css": ("cluster.css", "text/css; charset=utf-8"),
    "/cluster.js": ("cluster.js", "text/javascript; charset=utf-8"),
}


class ClusterPages:
    """The pages of a cluster, as handlers for `serve_http`.

    - `/`: a live page for people: the relays, and who waits for whom.
    - `/cluster.json`: the same for programs.
    - `/metrics`: the metrics of all relays, each with the label `relay`.

    Args:
        looks: Looks at the relays.
        more: Returns metrics that are about the relays and not from them.
    """

    def __init__(self, looks: Looks, more: Callable[[], str] = str) -> None:
        self._looks = looks
        self._more = more
        own = Path(__file__).with_name("page")
        self._files = {**read_files(own, _FILES), **read_files(FOLDER, SHARED_FILES)}

    def handlers(self) -> dict[str, Handler]:
        """Return the pages by path."""
        files: dict[str, Handler] = dict.fromkeys(self._files, self.file)
        return {**files, "/cluster.json": self.cluster_json, "/metrics": self.metrics}

    async def file(self, request: Request) -> Response:
        """Serve a file, which is the same for everybody."""
        return self._files[request.path]

    async def cluster_json(self, request: Request) -> Response:
        """Serve the relays, and who waits for whom."""
        look = await self._looks.latest()
        text = f"{compact(look.page())}\n"
        return Response(text.encode(), content_type="application/json", headers=HEADERS)

    async def metrics(self, request: Request) -> Response:
        """Serve the metrics of all relays."""
        look = await self._looks.latest()
        text = merge(look.expositions()) + self._more()
        return Response(text.encode(), content_type=CONTENT_TYPE)


async def serve_cluster_pages(
    nursery: trio.Nursery,
    handlers: Mapping[str, Handler],
    address: PagesAddress,
    access: Access,
    *,
    actions: Action | None = None,
    limits: HttpLimits | None = None,
    tls: ServerTls | None = None,
) -> str:
    """Serve pages in a nursery; return their URL. The arguments are those of `serve_http`.

    Raises:
        CommandFailedError: The address cannot be listened on.
    """
    try:
        listeners = await trio.open_tcp_listeners(address.port, host=address.host)
    except OSError as error:
        why = trouble_with_listening(error)
        msg = f"cannot serve the page on {address.host}:{address.port}: {why}"
        raise CommandFailedError(msg) from error
    serve = partial(
        serve_http,
        handlers,
        listeners=listeners,
        access=access,
        actions=actions,
        limits=limits,
        tls=tls,
    )
    urls: list[str] = await nursery.start(serve)
    return urls[0]
