"""Runs a relay whose readers wait for credit, in place of limits on their debt."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio
from prometheus_client.registry import Collector

from clearfunds.relay import Companion, Parts, RelayAddresses, RelayReport, serve_relay
from clearfunds.relay._companion import nothing
from clearfunds.transports import ListenError
from clearfunds.transports.mqtt.server._server import MqttServer

from ._collector import CreditCollector
from ._recorder import hearing
from ._scheme import CreditScheme
from ._session import CreditMqttSession
from ._stations import CreditGroup, CreditInflight, CreditOutlet, CreditQueue, CreditSubscription

if TYPE_CHECKING:
    from prometheus_client import Metric

    from clearfunds.accounts import Account, Ledger
    from clearfunds.relay import Adjusting, RelaySettings
    from clearfunds.transports._server import Server

    from ._settings import CreditSettings

_TENANTS_LIMITS: Final = ("items", "bytes", "user_items", "user_bytes", "latency")


async def serve_on_credit(
    credit: CreditSettings,
    settings: RelaySettings,
    *,
    task_status: trio.TaskStatus[RelayAddresses] = trio.TASK_STATUS_IGNORED,
    stop: trio.Event | None = None,
    companion: Companion | None = None,
    adjusting: Adjusting | None = None,
) -> RelayReport:
    """Run a relay with credit flow, as `serve_relay` runs one with debt.

    Debt is counted, and nobody waits for it: the limits of connections and of the server do not
    apply.

    Args:
        credit: The amounts of credit at each hop.
        settings: The settings of the relay.
        task_status: As of `serve_relay`.
        stop: The same.
        companion: The same.
        adjusting: Not used: limits, which it changes, have no effect.

    Cancellation: as of `serve_relay`.

    Raises:
        ListenError: For limits that would have no effect, and as `serve_relay`.
        ListenURLError: As `serve_relay`.
        StoreError: As `serve_relay`.
    """
    _check(settings)
    relay = _CreditRelay(credit, companion or nothing)
    return await serve_relay(
        attrs.evolve(
            settings,
            limit_items=None,
            limit_bytes=None,
            server_limit_items=None,
            server_limit_bytes=None,
        ),
        task_status=task_status,
        stop=stop,
        companion=relay.companion,
        make_parts=relay.make_parts,
    )


def _check(settings: RelaySettings) -> None:
    """Raise ListenError for limits that would have no effect."""
    given = ["--account-limit"] if settings.account_limit else []
    if settings.limit_latency is not None:
        given.append("--limit-latency")
    for tenant in settings.tenant:
        if any(getattr(tenant, name) is not None for name in _TENANTS_LIMITS):
            given.append(f"those of tenant {tenant.name}")
    if given:
        msg = (
            f"limits have no effect with credit flow, but some are given: {', '.join(given)}; "
            "remove them"
        )
        raise ListenError(msg)


class _CreditRelay:
    """The scheme of one relay: made with the relay's parts, told of repayments while it runs."""

    def __init__(self, credit: CreditSettings, companion: Companion) -> None:
        self._credit = credit
        self._companion = companion
        self._scheme: CreditScheme | None = None

    def make_parts(self, server: Account) -> Parts:
        """Make the relay's parts; see `Relay`."""
        self._scheme = scheme = CreditScheme(server.ledger, self._credit)
        return Parts(
            queue=partial(CreditQueue, scheme),
            subscription=partial(CreditSubscription, scheme),
            on_side=partial(use_credit, scheme),
        )

    @asynccontextmanager
    async def companion(self, ledger: Ledger) -> AsyncGenerator[Collector]:
        """Run beside the relay; see `Companion`."""
        assert self._scheme is not None
        async with self._companion(ledger) as theirs:
            with hearing(self._scheme):
                own = CreditCollector(self._scheme)
                yield own if theirs is None else _Both(theirs, own)


class _Both(Collector):
    """The metrics of two collectors."""

    def __init__(self, first: Collector, second: Collector) -> None:
        self._collectors = (first, second)

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values; for the registry."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Read the figures of both once, and yield all metrics."""
        for collector in self._collectors:
            yield from collector.collect()


def use_credit(scheme: CreditScheme, side: Server[Any, Any]) -> None:
    """Make the connections of `side` use `scheme`; before anybody connects."""
    side.make_outlet = partial(CreditOutlet, scheme)
    if isinstance(side, MqttServer):
        side.make_session = partial(CreditMqttSession, scheme)
        side.make_inflight = partial(CreditInflight, scheme)
        side.groups.make = partial(CreditGroup, scheme)
