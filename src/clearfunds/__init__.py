"""Debt-accounting flow control for pub/sub servers in Trio.

Every event is a `LoanedItem`, charged to the `Account` that caused it until every subscriber has
it. A reader awaits `account.ensure_clear_funds()` before it reads its socket, so that an account
which owes too much is not read: backpressure, with a name on it.

Begin with a `Ledger`, which has the accounts. `ledger.open("alice", limit=Limit(items=5))` is an
`Account`; `with account.turn() as turn:` publishes to a `Dataspace`, all or nothing; a `Mailbox` is
the simplest subscriber. Start `watch_patience(ledger)` in your nursery, so that slow consumers are
handled. `examples/quickstart.py` shows all of that in 20 lines, docs/library.md has the details.

Everything needed to write a server is here; the rest is in `clearfunds.accounts`, `.dataspace`,
`.transports` (with `.transports.mqtt`), `.relay`, `.pages`, `.store`, `.testing`, and in
`.ranges.client`, which needs no Trio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .accounts import Account as Account
    from .accounts import AccountError as AccountError
    from .accounts import FixedLimit as FixedLimit
    from .accounts import Holder as Holder
    from .accounts import LatencyLimit as LatencyLimit
    from .accounts import Ledger as Ledger
    from .accounts import Limit as Limit
    from .accounts import LoanedItem as LoanedItem
    from .accounts import LoanQueue as LoanQueue
    from .accounts import Outcome as Outcome
    from .accounts import Profile as Profile
    from .accounts import RateLimit as RateLimit
    from .accounts import StuckPolicy as StuckPolicy
    from .accounts import Turn as Turn
    from .accounts import watch_limits as watch_limits
    from .accounts import watch_patience as watch_patience
    from .dataspace import ANY as ANY
    from .dataspace import Dataspace as Dataspace
    from .dataspace import DataspaceError as DataspaceError
    from .dataspace import Mailbox as Mailbox
    from .dataspace import Publication as Publication
    from .dataspace import TopicFilter as TopicFilter
    from .dataspace import capture as capture
    from .dataspace import match as match
    from .relay import RelaySettings as RelaySettings
    from .relay import serve_relay as serve_relay
    from .transports import Outlet as Outlet
    from .transports import TransportError as TransportError

__all__ = [
    "ANY",
    "Account",
    "AccountError",
    "Dataspace",
    "DataspaceError",
    "FixedLimit",
    "Holder",
    "LatencyLimit",
    "Ledger",
    "Limit",
    "LoanQueue",
    "LoanedItem",
    "Mailbox",
    "Outcome",
    "Outlet",
    "Profile",
    "Publication",
    "RateLimit",
    "RelaySettings",
    "StuckPolicy",
    "TopicFilter",
    "TransportError",
    "Turn",
    "capture",
    "match",
    "serve_relay",
    "watch_limits",
    "watch_patience",
]

_HOMES = ("accounts", "dataspace", "transports", "relay")


def __getattr__(name: str) -> object:
    # On first use: the clients for Spark's workers import this package and have no Trio.
    if name in __all__:
        for home in _HOMES:
            module = import_module(f".{home}", __name__)
            if hasattr(module, name):
                found: object = getattr(module, name)
                globals()[name] = found
                return found
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
