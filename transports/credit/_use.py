"""Makes the sides of a relay use sessions and holders whose readers wait for credit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..mqtt.server._server import MqttServer
from ._session import CreditMqttSession
from ._stations import CreditGroup, CreditInflight, CreditOutlet

if TYPE_CHECKING:
    from .._server import Server
    from ._scheme import CreditScheme


def use_credit(scheme: CreditScheme, side: Server[Any, Any]) -> None:
    """Make the connections of `side` use `scheme`; before anybody connects."""
    side.make_outlet = partial(CreditOutlet, scheme)
    if isinstance(side, MqttServer):
        side.make_session = partial(CreditMqttSession, scheme)
        side.make_inflight = partial(CreditInflight, scheme)
        side.groups.make = partial(CreditGroup, scheme)
