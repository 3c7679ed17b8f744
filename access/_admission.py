"""Limits on connections, in all and of one address, user or tenant."""

from __future__ import annotations

import enum
from collections import Counter

from ._addresses import address_of
from ._connect_rate import ConnectRate
from ._shares import GREED, fits
from ._strangers import StrangersLog


class Refusal(enum.Enum):
    """The reason why a peer was not let in; the names are those of the metric's label."""

    ALL = "connections"
    ADDRESS = "address"
    RATE = "rate"
    USER = "user"
    TENANT = "tenant"
    PASSWORD = "password"
    GUESSES = "guesses"
    CHECKS = "checks"
    OTHER = "other"


class Places:
    """Connections of each address, user or tenant, and its share of the limit.

    Args:
        most: Most connections of one; None: `GREED` times the free ones.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._taken: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of those with any connection."""
        return len(self._taken)

    def of(self, who: str) -> int:
        """Return the connections of one."""
        return self._taken[who]

    def take(self, who: str) -> None:
        """Count one more."""
        self._taken[who] += 1

    def leave(self, who: str) -> None:
        """Count one less."""
        self._taken[who] -= 1
        if self._taken[who] <= 0:
            del self._taken[who]

    def fault(self, who: str, taken: int, limit: int, most: int | None = None) -> str | None:
        """Return why one may have no more; None: there may be one more.

        Args:
            who: The owner of the next one.
            taken: Connections of all, without this one.
            limit: Most connections in all.
            most: Most connections of this owner; None: as for all.
        """
        mine = self._taken[who]
        most = self.most if most is None else most
        if most is not None:
            return None if mine < most else f"{who} has {mine} connections, which is its limit"
        if fits(mine, taken, limit):
            return None
        return (
            f"{who} has {mine} connections, and only {limit - taken} of {limit} are free: it may "
            f"have {GREED} times as many as are free"
        )


class Admission:
    """Connection limits of all listeners and protocols that share it.

    Args:
        limit: Connections at a time.
        per_address: Of one address; None: a share of the free ones (`Places`).
        per_user: Of one verified user; likewise.
        rate: Connections a second that one address may open; None: any number.

    Attributes:
        limit: See above.
        addresses: Connections of each address.
        users: Connections of each user.
        tenants: Connections of each tenant.
        rate: See above.
        strangers: The log of peers that are not let in yet.
        refused: Refused connections, by reason.
        delayed: Connections that have waited for their address's rate.
    """

    def __init__(
        self,
        limit: int,
        *,
        per_address: int | None = None,
        per_user: int | None = None,
        rate: ConnectRate | None = None,
    ) -> None:
        self.limit = limit
        self.addresses = Places(per_address)
        self.users = Places(per_user)
        self.tenants = Places()
        self.rate = ConnectRate(None, 0.0) if rate is None else rate
        self.strangers = StrangersLog()
        self.refused: Counter[Refusal] = Counter()
        self.delayed = 0
        self._taken = 0

    def adjust(
        self, limit: int, *, per_address: int | None, per_user: int | None, rate: float | None
    ) -> None:
        """Set other limits, for the connections that come from now on; as the constructor's."""
        self.limit = limit
        self.addresses.most = per_address
        self.users.most = per_user
        self.rate.rate = rate

    def __len__(self) -> int:
        """Return the number of connections."""
        return self._taken

    def come(self, peer: str) -> str | None:
        """Count one more connection, until `leave`; or return why there may not be one.

        `peer` is the address as `Link.peer` has it, here and below.
        """
        if self._taken >= self.limit:
            self.refused[Refusal.ALL] += 1
            return f"{self._taken} connections are open, which is the limit (max_connections)"
        address = address_of(peer)
        if address is not None:
            why = self.addresses.fault(address, self._taken, self.limit)
            if why is not None:
                self.refused[Refusal.ADDRESS] += 1
                return f"{why} (connections_per_address)"
            self.addresses.take(address)
        self._taken += 1
        return None

    def leave(self, peer: str) -> None:
        """Count one connection less."""
        self._taken -= 1
        address = address_of(peer)
        if address is not None:
            self.addresses.leave(address)

    def turn(self, peer: str, now: float) -> float | None:
        """Return how long a connection waits for its turn; None: it is refused."""
        wait = self.rate.wait(address_of(peer), now)
        if wait is None:
            self.refused[Refusal.RATE] += 1
        elif wait:
            self.delayed += 1
        return wait

    def let_in(self, user: str | None, tenant: str | None, most: int | None) -> str | None:
        """Count a connection as a user's and a tenant's, until `let_go`; or return why not.

        Args:
            user: The verified user; None: there is none.
            tenant: The tenant, if there is one.
            most: Most connections of the tenant; None: a share of the free ones.
        """
        others = self._taken - 1  # itself is counted among all already
        if user is not None:
            why = self.users.fault(user, others, self.limit)
            if why is not None:
                self.refused[Refusal.USER] += 1
                return f"user {why} (connections_per_user)"
        if tenant is not None:
            why = self.tenants.fault(tenant, others, self.limit, most)
            if why is not None:
                self.refused[Refusal.TENANT] += 1
                return f"tenant {why} (connections)"
            self.tenants.take(tenant)
        if user is not None:
            self.users.take(user)
        return None

    def let_go(self, user: str | None, tenant: str | None) -> None:
        """Count a connection as theirs no longer."""
        if user is not None:
            self.users.leave(user)
        if tenant is not None:
            self.tenants.leave(tenant)
