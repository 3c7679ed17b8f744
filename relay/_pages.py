"""The pages of a relay: their address, access to them, and their contents."""

from __future__ import annotations

import ipaddress
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import attrs
import trio

from ..accounts import Limit
from ..sockets import trouble_with_listening
from ..transports._input import INPUT_ACCOUNT
from ..transports._listener import ListenError, ListenURLError
from ..transports._one_error import one_error
from ._clustering import page_of_hops

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.registry import Collector

    from ..accounts import Account
    from ..pages import Access, Handler, Pages
    from ._relay import Relay
    from ._settings import RelaySettings

logger = logging.getLogger("clearfunds.relay")

_WRITE: Final = "write host:port (port 0: any free), or https://host:port for TLS"


@attrs.frozen
class PagesAddress:
    """Where pages are served: `HOST:PORT`, `http://HOST:PORT` or `https://HOST:PORT`."""

    host: str
    port: int
    secure: bool = False
    """Whether by TLS."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address; an IPv6 host stands in brackets.

        Raises:
            ListenURLError: It is not one.
        """
        scheme, found, rest = text.partition("://")
        if not found:
            return cls(*parse_address(text))
        if scheme not in ("http", "https"):
            raise ListenURLError(f"cannot serve pages on {text!r}: {_WRITE}")
        return cls(*parse_address(rest.removesuffix("/")), scheme == "https")


def parse_address(address: str) -> tuple[str, int]:
    """Parse `host:port`; an IPv6 host stands in brackets.

    Raises:
        ListenURLError: If it is not that.
    """
    try:
        parts = urlsplit(f"//{address}")
        if parts.hostname is not None and parts.port is not None and not parts.path:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise ListenURLError(f"cannot serve pages on {address!r}: {_WRITE}")


def check_pages(settings: RelaySettings) -> None:
    """Check that pages can be served with these settings, before anything is open.

    Raises:
        ListenURLError: They cannot.
    """
    if settings.http is None:
        return
    where = PagesAddress.parse(settings.http)
    if settings.http_token is None and settings.http_password is None and not settings.http_open:
        refuse_to_be_open(where, "give --http-token FILE or --http-password FILE")
    if where.secure and settings.tls is None:
        msg = (
            f"cannot serve pages on {settings.http!r}: https needs a certificate: "
            "give --tls-certificate and --tls-key"
        )
        raise ListenURLError(msg)


def refuse_to_be_open(where: PagesAddress, remedy: str) -> None:
    """Refuse an address that other machines reach, for pages that everybody may read.

    Args:
        where: The address.
        remedy: What to do, unless everybody may.

    Raises:
        ListenURLError: Other machines reach it.
    """
    if not _is_loopback(where.host):
        msg = (
            f"the pages on {where.host} would be open to everybody who reaches it: {remedy}, or "
            "use 127.0.0.1, or say that it is meant so (--http-open)"
        )
        raise ListenURLError(msg)


async def serve_relays_pages(
    relay: Relay, address: str, *, task_status: trio.TaskStatus[list[str]]
) -> None:
    """Serve a relay's pages until cancelled; see `serve_pages`.

    Raises:
        ListenError: The address cannot be listened on.
    """
    # Imported here: the pages need h11, which only the [relay] extra brings.
    from ..pages import HttpLimits, serve_pages
    from ._actions import Actions

    settings, where = relay.settings, PagesAddress.parse(address)
    access = access_of(settings, where)
    relay.pages = _pages(relay)
    try:
        with one_error():
            async with trio.open_nursery() as nursery:
                await serve_pages(
                    relay.pages,
                    where.host,
                    where.port,
                    limits=HttpLimits(connections=settings.max_http_connections),
                    access=access,
                    actions=None if relay.adjusting is None else Actions(relay, nursery),
                    tls=settings.tls if where.secure else None,
                    task_status=task_status,
                )
    except OSError as exc:
        msg = f"cannot serve pages on {address}: {trouble_with_listening(exc)}"
        raise ListenError(msg) from exc


def access_of(settings: RelaySettings, where: PagesAddress) -> Access:
    """Return the rules of access to the pages; log a warning if they leave names in the open."""
    from ..pages import Access

    access = Access(
        tokens=settings.http_token,
        passwords=settings.http_password,
        hosts=(where.host, *settings.http_host),
    )
    _warn(where, access)
    return access


def _warn(where: PagesAddress, access: Access) -> None:
    """Warn of everything that anybody between the pages and their readers can see.

    Pages that ask for no login are as open as the operator has said (`--http-open`).
    """
    if _is_loopback(where.host) or not access.asks or where.secure:
        return
    why = "tokens and passwords cross the network in clear: serve them with TLS (--http https:)"
    logger.warning(
        "the pages are on %s, which is not this machine's own, and %s",
        where.host,
        why,
        extra={"event": "open_pages", "host": where.host, "reason": why},
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _pages(relay: Relay) -> Pages:
    from ..access.acl._collector import DeniedCollector
    from ..pages import Pages, PersistenceCollector, RelayCollector, UnsentCollector
    from ._admission_collector import AdmissionCollector
    from ._client_facts import facts_of
    from ._over_limit_collector import OverLimitCollector

    limits: dict[str, Limit | Account | Callable[[], Limit]] = {
        "connection": lambda: relay.settings.limit,
        "server": relay.mqtt.account,
        INPUT_ACCOUNT: Limit(items=None, bytes=relay.settings.input_limit),
    }
    if relay.mqtt.persistent_sessions is not None:
        at_rest = relay.mqtt.persistent_sessions.at_rest
        limits[at_rest.name] = at_rest
    store = getattr(relay.persistence, "store", None)
    return Pages(
        relay.ledger,
        limits=limits,
        collectors=[
            RelayCollector(relay.counts),
            UnsentCollector(relay.socks),
            *_sink_collectors(relay),
            AdmissionCollector(
                relay.admission,
                lambda: relay.mqtt.log_ins.delayed,
                lambda: sum(pace.paused for pace in relay.paces),
                lambda: 0 if relay.loop_alarm is None else relay.loop_alarm.level,
            ),
            OverLimitCollector(relay.mqtt.over_limits.totals),
            DeniedCollector(relay.authority.denied),
            *relay.collectors,
        ],
        persistence=PersistenceCollector(
            relay.mqtt.persistent_sessions,
            store,
            relay.mqtt.groups,
            getattr(relay.persistence, "log", None),
            relay.queues,
        ),
        more=_more(relay),
        clients=partial(facts_of, relay),
    )


def _more(relay: Relay) -> dict[str, Handler]:
    """Return the pages that only some relays have."""
    found: dict[str, Handler] = {}
    if relay.cluster is not None:
        found["/hops.json"] = page_of_hops(relay.cluster)
    if relay.amqp is not None:
        # Imported here: a relay without this page need not import it.
        from ._queues_page import queues_page

        found["/queues.json"] = queues_page(relay.amqp)
    return found


def _sink_collectors(relay: Relay) -> list[Collector]:
    # Imported here: a relay without this page need not import it.
    from ..ranges.server._sink_collector import SinkCollector

    return [] if relay.readers is None else [SinkCollector(relay.readers.writing.sinks)]
