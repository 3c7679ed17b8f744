"""Changes of a relay's settings while it runs.

Rules of this file:
1. A change is checked as a whole before any of it is in force; if it is refused, nothing changes.
2. What an operator sets by hand stands before what is configured, and stays when the configuration
   is read again, until the relay ends.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import attrs

from ..access._account_limits import AccountLimit
from ..access._account_tree import TENANT_PREFIX
from ..access._patterns import exactly
from ..access._publication_policies import PublicationPolicy
from ..access._subscription_policies import SubscriptionPolicy
from ..access._tenants import same_members
from ..accounts.limits._latency_limit import LatencyControl
from ..transports import TransportError
from ..transports._units import is_reloadable
from ._relay import SERVER_ACCOUNT, check_relay
from ._settings import RelaySettings

if TYPE_CHECKING:
    from ..accounts import Account
    from ._relay import Relay

BY_HAND_MAX: Final = 10_000
"""Settings by hand that are remembered; as many as connections."""

AMOUNT_MAX: Final = (1 << 63) - 1
"""Of a limit: metrics and shares are floating-point numbers, which an integer can exceed."""

LogLevel = Literal["debug", "info", "warning", "error"]


class AdjustError(Exception):
    """A change that is refused; the message says why, and what is possible."""


class UnknownNameError(AdjustError):
    """There is no account of that name."""


class Kept(enum.Enum):
    """The type of `KEPT`."""

    KEPT = enum.auto()


KEPT: Final = Kept.KEPT
"""Stands for an amount that stays as it is."""


@attrs.frozen
class Adjusted:
    """The result of a new configuration, by the names of its settings."""

    changed: tuple[str, ...]
    """In force from now on."""
    unchanged: tuple[str, ...]
    """Different, too, but in force only after the next start."""


class Adjusting:
    """Changes the settings of one relay while it runs; `serve_relay` gives it the relay.

    Args:
        settings: The settings with which the relay starts.

    Attributes:
        relay: The relay; None while it does not run.
        started: See `settings` above.
    """

    def __init__(self, settings: RelaySettings) -> None:
        self.relay: Relay | None = None
        self.started = settings
        self._configured = settings
        self._limits: dict[str, AccountLimit] = {}
        self._server: dict[str, Any] = {}
        self._tenants: dict[str, dict[str, Any]] = {}
        self._publication_policies: dict[tuple[str, str], PublicationPolicy] = {}
        self._subscription_policies: dict[tuple[str, str], SubscriptionPolicy] = {}
        self._is_together = False

    def __repr__(self) -> str:
        return f"<Adjusting: {self._by_hand} settings by hand>"

    @property
    def _by_hand(self) -> int:
        by_name = len(self._limits) + len(self._tenants) + bool(self._server)
        return by_name + len(self._publication_policies) + len(self._subscription_policies)

    @property
    def settings(self) -> RelaySettings:
        """The settings in force: those configured, and before them what was set by hand."""
        return self._with_hand(self._configured)

    def _with_hand(self, configured: RelaySettings) -> RelaySettings:
        if not self._by_hand:
            return configured
        tenants = (attrs.evolve(t, **self._tenants.get(t.name, {})) for t in configured.tenant)
        return attrs.evolve(
            configured,
            account_limit=(*self._limits.values(), *configured.account_limit),
            tenant=tuple(tenants),
            publication_policy=(
                *self._publication_policies.values(),
                *configured.publication_policy,
            ),
            subscription_policy=(
                *self._subscription_policies.values(),
                *configured.subscription_policy,
            ),
            **self._server,
        )

    def carried_over(self, settings: RelaySettings) -> RelaySettings:
        """Return settings with which the relay begins anew: what is reloadable as it is now."""
        return attrs.evolve(settings, **_reloadable(self.settings))

    # -- the configuration ----------------------------------------------------------------------

    def reload(self, configured: RelaySettings) -> Adjusted:
        """Take another configuration; what is not reloadable in it stays as it is.

        Raises:
            AdjustError: The relay cannot be run with it; nothing has changed.
        """
        before = self._configured
        new = _reloadable(configured)
        unchanged = [
            field.name
            for field in attrs.fields(RelaySettings)
            if field.name not in new
            and getattr(configured, field.name) != getattr(before, field.name)
        ]
        if not same_members(before.tenant, configured.tenant):
            del new["tenant"]
            unchanged.append("tenant")
        changed = [name for name, value in new.items() if value != getattr(before, name)]
        self._apply(attrs.evolve(before, **new))
        return Adjusted(tuple(changed), tuple(unchanged))

    def _apply(self, configured: RelaySettings) -> None:
        try:
            settings = self._with_hand(configured)
            check_relay(settings)
        except (ValueError, TransportError) as error:
            raise AdjustError(str(error)) from error
        self._configured = configured
        if self.relay is not None:
            self.relay.adjust(settings)

    # -- by hand --------------------------------------------------------------------------------

    @contextmanager
    def together(self) -> Generator[None]:
        """Put several changes by hand into force as one: if one of them is refused, so are all.

        Raises:
            AdjustError: As the one that is refused, or as the relay refuses all of them.
        """
        if self._is_together:  # The outer one puts them into force.
            yield
            return
        all_by_hand: list[dict[Any, Any]] = [
            self._limits,
            self._server,
            self._tenants,
            self._publication_policies,
            self._subscription_policies,
        ]
        before = [dict(each) for each in all_by_hand]
        self._is_together = True
        try:
            yield
            self._apply(self._configured)
        except BaseException:
            for by_hand, old in zip(all_by_hand, before, strict=True):
                by_hand.clear()
                by_hand.update(old)
            self._apply(self._configured)
            raise
        finally:
            self._is_together = False

    def set_limit(
        self, name: str, *, items: int | Kept | None = KEPT, nbytes: int | Kept | None = KEPT
    ) -> None:
        """Set the high-water mark of an account.

        Args:
            name: The account of a connection, as `mqtt:1883/press/ticker`; of a tenant, as
                `tenant/press`; or `server`, of all connections together.
            items: Outstanding events; None: no limit; `KEPT`: as it is.
            nbytes: Their bytes; likewise. Of a limit that adapts, what it is at most is kept.

        Raises:
            AdjustError: There is no such account, or no such limit.
        """
        for unit, amount in (("items", items), ("bytes", nbytes)):
            if isinstance(amount, int) and amount < 1:
                msg = f"a limit must be at least 1, or none for no limit; not {amount} {unit}"
                raise AdjustError(msg)
            if isinstance(amount, int) and amount > AMOUNT_MAX:
                msg = f"a limit must be at most {AMOUNT_MAX} {unit}; none is no limit"
                raise AdjustError(msg)
        if name == SERVER_ACCOUNT:
            limit = {"server_limit_items": items, "server_limit_bytes": nbytes}
            self._set(self._server, _given(limit))
        elif name.startswith(TENANT_PREFIX):
            self._set_tenant(name, _given({"items": items, "bytes": nbytes}))
        else:
            account = self._account_of_connection(name)
            # Not where a moving limit happens to be: that would be its limit from now on.
            control = account.control
            now = control.policy.ceiling if isinstance(control, LatencyControl) else account.limit
            fixed = AccountLimit(
                exactly(name),
                now.items if isinstance(items, Kept) else items,
                now.bytes if isinstance(nbytes, Kept) else nbytes,
            )
            self._set(self._limits, {name: fixed})

    def set_weight(self, name: str, weight: float) -> None:
        """Set the weight of a tenant's account, as `tenant/press`, beside other tenants'.

        Raises:
            AdjustError: There is no such tenant, or the weight is not above 0.
        """
        if not 0 < weight < math.inf:
            msg = f"a weight must be above 0, not {weight:g}"
            raise AdjustError(msg)
        if not name.startswith(TENANT_PREFIX):
            msg = f"{name} is not a tenant's account ({TENANT_PREFIX}NAME): only these have weights"
            raise AdjustError(msg)
        self._set_tenant(name, {"weight": weight})

    def set_policy(self, policy: PublicationPolicy | SubscriptionPolicy) -> None:
        """Put a policy before all others; one for the same clients and topics is replaced.

        Raises:
            AdjustError: It does not fit the relay.
        """
        key = policy.client, policy.filter
        if isinstance(policy, PublicationPolicy):
            self._set(self._publication_policies, {key: policy})
        else:
            self._set(self._subscription_policies, {key: policy})

    def set_log_level(self, level: LogLevel) -> None:
        """Set the least level of the relay's log, until the relay ends or it is configured anew."""
        logging.getLogger("clearfunds").setLevel(level.upper())

    @property
    def log_level(self) -> LogLevel:
        """The least level of the relay's log."""
        number = logging.getLogger("clearfunds").getEffectiveLevel()
        return cast("LogLevel", logging.getLevelName(number).lower())

    def _set_tenant(self, name: str, amounts: dict[str, Any]) -> None:
        tenant = name.removeprefix(TENANT_PREFIX)
        known = dict.fromkeys(each.name for each in self._configured.tenant)
        if tenant not in known:
            tenants = ", ".join(TENANT_PREFIX + each for each in known) or "none"
            hint = (
                "; the limits of its users are set for all of them, by user_items and user_bytes "
                "of the tenant"
                if tenant.partition("/")[0] in known
                else ""
            )
            msg = f"there is no tenant with the account {name}{hint}; tenants: {tenants}"
            raise UnknownNameError(msg)
        self._set(self._tenants, {tenant: {**self._tenants.get(tenant, {}), **amounts}})

    def _account_of_connection(self, name: str) -> Account:
        for side in [] if self.relay is None else self.relay.adjustable_sides:
            for session in side.open:
                account: Account | None = session.account
                if session.name == name and account is not None:
                    return account
        msg = (
            f"no client with the account {name} is connected; accounts with a limit of their "
            f"own are those of connections, {TENANT_PREFIX}NAME and {SERVER_ACCOUNT}"
        )
        raise UnknownNameError(msg)

    def _set(self, by_hand: dict[Any, Any], new: dict[Any, Any]) -> None:
        """Set something by hand; see `together`."""
        if self._by_hand >= BY_HAND_MAX and not new.keys() <= by_hand.keys():
            msg = (
                f"{BY_HAND_MAX} settings have been made by hand, which is the limit: write them "
                "into the file of --config, and restart the relay"
            )
            raise AdjustError(msg)
        with self.together():
            by_hand.update(new)


def _given(amounts: dict[str, int | Kept | None]) -> dict[str, int | None]:
    return {name: each for name, each in amounts.items() if not isinstance(each, Kept)}


def _reloadable(settings: RelaySettings) -> dict[str, Any]:
    return {
        field.name: getattr(settings, field.name)
        for field in attrs.fields(RelaySettings)
        if is_reloadable(field)
    }
