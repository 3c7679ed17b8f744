"""`clearfunds ctl`: changes of a running relay, by the actions of its pages."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from clearfunds.access._publication_policies import OverLimitWord
from clearfunds.access._subscription_policies import ProfileWord, StuckWord

from ._errors import UsageError
from ._logging import LogLevel
from ._page import DEFAULT_URL, URL_VARIABLE, pages_url, send_json
from ._printable import printable
from ._running import run_async
from ._types import NO_LIMIT, NewCount, NewSize, OptionalSeconds
from ._visitor_options import VisitorOptions

Url = Annotated[
    str,
    Parameter(
        env_var=URL_VARIABLE,
        help="URL of the relay's pages, http://HOST:PORT; it was started with --http-token.",
    ),
]
Name = Annotated[
    str,
    Parameter(help="The account, as `clearfunds top` and the live page show it."),
]

ctl = App(name="ctl", help="Change a running relay: limits, policies, clients, the log level.")


@ctl.command
def disconnect(
    name: Annotated[
        str, Parameter(help="The client: its account, or the end of that if only one has it.")
    ],
    /,
    *,
    url: Url = DEFAULT_URL,
    visitor: VisitorOptions = VisitorOptions(),  # noqa: B008  (frozen)
) -> int:
    """Disconnect a client. It may connect again: change the passwords or the ACL to prevent that.

    A client with MQTT 5 is told "administrative action", one with AMQP "connection forced".
    """
    return _do(url, visitor, "POST", f"/clients/{quote(name, safe='')}/disconnect", {})


@ctl.command
def limit(
    name: Name,
    /,
    *,
    items: Annotated[
        NewCount, Parameter(help="Outstanding events; none: no limit.", show_default=False)
    ] = None,
    bytes_: Annotated[
        NewSize,
        Parameter(name="--bytes", help="Outstanding bytes; none: no limit.", show_default=False),
    ] = None,
    url: Url = DEFAULT_URL,
    visitor: VisitorOptions = VisitorOptions(),  # noqa: B008  (frozen)
) -> int:
    """Set the limit (high-water mark) of a client, of `tenant/NAME`, or of `server`: all together.

    It holds until the relay restarts, also for the client's next connections.
    """
    given = {"limit_items": items, "limit_bytes": bytes_}
    amounts = {
        key: None if value == NO_LIMIT else value
        for key, value in given.items()
        if value is not None
    }
    if not amounts:
        raise UsageError("give --items, --bytes, or both")
    return _change(url, visitor, name, amounts)


@ctl.command
def weight(
    name: Annotated[str, Parameter(help="The account of the tenant: tenant/NAME.")],
    weight: Annotated[float, Parameter(help="Its weight beside other tenants, such as 2.")],
    /,
    *,
    url: Url = DEFAULT_URL,
    visitor: VisitorOptions = VisitorOptions(),  # noqa: B008  (frozen)
) -> int:
    """Set the weight of a tenant: its share where tenants compete for the server's limit."""
    return _change(url, visitor, name, {"weight": weight})


@ctl.command
def policy(
    name: Name,
    policy: Annotated[
        StuckWord | ProfileWord, Parameter(help="The policy, as for --subscription-policy.")
    ],
    /,
    *,
    patience: Annotated[
        OptionalSeconds,
        Parameter(help="Slow-consumer timeout; without it, the relay's.", show_default=False),
    ] = None,
    url: Url = DEFAULT_URL,
    visitor: VisitorOptions = VisitorOptions(),  # noqa: B008  (frozen)
) -> int:
    """Set what happens to messages to a client that is a slow consumer."""
    fields: dict[str, Any] = {"policy": policy}
    return _change(
        url, visitor, name, fields if patience is None else {**fields, "patience": patience}
    )


@ctl.command
def over_limit(
    name: Name,
    policy: Annotated[OverLimitWord, Parameter(help="The policy, as for --publication-policy.")],
    /,
    *,
    url: Url = DEFAULT_URL,
    visitor: VisitorOptions = VisitorOptions(),  # noqa: B008  (frozen)
) -> int:
    """Set what happens to publications of a client above its limit."""
    return _change(url, visitor, name, {"over_limit": policy})


@ctl.command
def log_level(
    level: Annotated[LogLevel, Parameter(help="The least level that is logged.")],
    /,
    *,
    seconds: Annotated[
        OptionalSeconds,
        Parameter(help="For so long, a day at most; without it, for good.", show_default=False),
    ] = None,
    url: Url = DEFAULT_URL,
    visitor: VisitorOptions = VisitorOptions(),  # noqa: B008  (frozen)
) -> int:
    """Set the level of the relay's log."""
    return _do(url, visitor, "POST", "/log-level", {"level": level, "seconds": seconds})


def _change(url: str, visitor: VisitorOptions, name: str, fields: Mapping[str, Any]) -> int:
    return _do(url, visitor, "PATCH", f"/accounts/{quote(name, safe='')}", fields)


def _do(
    url: str, visitor: VisitorOptions, method: str, path: str, fields: Mapping[str, Any]
) -> int:
    base = pages_url(url)
    send = partial(send_json, f"{base}{path}", method, fields, visitor.visitor(base))
    done = run_async(send)
    for line in _lines(done):
        print(printable(line))
    return 1 if done.get("failed") else 0


def _lines(done: Mapping[str, Any], of: str = "") -> list[str]:
    """Return what has been done, a line each; from several workers with the worker's name."""
    if "done" in done:
        lines = [line for name, each in done["done"].items() for line in _lines(each, f"{name}: ")]
        failed = done.get("failed", {}).items()
        return [*lines, *(f"{name}: not done: {why}" for name, why in failed)]
    return [f"{of}{key.replace('_', ' ')}: {_word(value)}" for key, value in done.items()]


def _word(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
