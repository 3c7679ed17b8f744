"""What tests of relays with credit flow share."""

from __future__ import annotations

from functools import partial
from typing import Any

from experiments.credit_flow import (
    Credit,
    CreditScheme,
    CreditSettings,
    serve_on_credit,
)
from tests.transports.peers import RunningRelay


def on_credit(**hops: Credit) -> partial[Any]:
    """Return what serves a relay with this credit, for `running`."""
    return partial(serve_on_credit, CreditSettings(**hops))


def scheme(relay: RunningRelay) -> CreditScheme:
    """Return the scheme of a relay that runs with credit flow."""
    make_outlet = relay.relay.mqtt.make_outlet
    assert isinstance(make_outlet, partial)
    (found,) = make_outlet.args
    assert isinstance(found, CreditScheme)
    return found
