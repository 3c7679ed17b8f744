"""A relay's lease: it is in the cluster as long as it renews it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from ..transports import TransportError
from ..transports._one_error import one_error
from ..transports.nats import KeyValue, WrongSequenceError
from ._errors import NameTakenError

logger = logging.getLogger("clearfunds.cluster")

SECONDS: Final = 3.0
"""The time for which a lease lasts. A relay that dies is noticed when it has expired, to which the
server adds a second at most."""
RENEWALS: Final = 4
"""Renewals in that time: the answers to two of them may get lost."""
GRACE_SECONDS: Final = 1.0
"""A relay that has not been able to renew its lease for so long after it has expired serves its own
clients only, until it has joined again."""
MARKER_SECONDS: Final = 60.0
"""For so long the bucket tells those who have not been connected that a lease has ended."""
EXPIRY_SECONDS: Final = 2 * SECONDS + 1
"""A lease that is not renewed is gone by then."""
RETRY_SECONDS: Final = 0.25
PREFIX: Final = "relay."


class Lease:
    """The lease of one relay.

    Args:
        bucket: The cluster's bucket.
        name: The relay's name.
        clock: A monotonic clock, in seconds.
        returns: Whether the next relay of that name has what this one has stored.

    Attributes:
        life: The relay's life in the cluster: a number that only grows; 0 before the first.
        renewed_at: When the lease was renewed last.
    """

    def __init__(
        self,
        bucket: KeyValue,
        name: str,
        clock: Callable[[], float] = trio.current_time,
        *,
        returns: bool = False,
    ) -> None:
        self.name = name
        self.returns = returns
        self.life = 0
        self.renewed_at = -math.inf
        self._bucket = bucket
        self._clock = clock
        self._holding = trio.CancelScope()
        # That of its key, while it is held.
        self._revision: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether the others know that this relay is there, as far as it can tell."""
        return self._revision is not None and self._clock() - self.renewed_at < SECONDS

    async def take(self, ask: Callable[[], object] | None = None) -> None:
        """Take the lease; the relay is not one of the cluster until `keep` says so.

        Args:
            ask: Asks a relay that stands in for this one to give the name back, while this waits
                for it, or for the lease to expire; None: it does not wait.

        Raises:
            NameTakenError: Another relay has this name.
            TransportError: As `KeyValue.create`.
        """
        deadline = self._clock() + EXPIRY_SECONDS
        while True:
            began = self._clock()
            try:
                life = await self._bucket.create(self._key, self._value(0), ttl=SECONDS)
                break
            except WrongSequenceError:
                # The last life of this relay, whose lease has not expired yet; or another relay.
                if ask is None or self._clock() > deadline:
                    msg = (
                        f"another relay of the cluster has the name {self.name!r}; give this one "
                        "another --name"
                    )
                    raise NameTakenError(msg) from None
            ask()
            await trio.sleep(RETRY_SECONDS)
        self.renewed_at = began
        self.life = self._revision = life
        self._holding = trio.CancelScope()

    async def hold(self) -> None:
        """Renew the lease, without being one of the cluster, until it is lost or handed over."""
        with self._holding:
            await self._keep(self._value(0))

    def hand_over(self, bucket: KeyValue) -> None:
        """End `hold`, in favour of `keep`, which uses another client."""
        self._holding.cancel()
        self._bucket = bucket

    async def keep(self) -> None:
        """Renew the lease until it is lost, or cannot be held any more for want of an answer."""
        await self._keep(self._value(self.life))

    async def _keep(self, value: bytes) -> None:
        every = SECONDS / RENEWALS
        while self._revision is not None:
            began = self._clock()
            if began - self.renewed_at > SECONDS + GRACE_SECONDS:
                return
            with trio.move_on_after(every):
                await self._renew(value, self._revision, began)
            await trio.sleep(max(0.0, every - (self._clock() - began)))

    async def _renew(self, value: bytes, revision: int, began: float) -> None:
        try:
            try:
                self._revision = await self._bucket.update(self._key, value, revision, ttl=SECONDS)
            except WrongSequenceError:
                # Perhaps only the answer to a renewal was lost.
                found = await self._bucket.get(self._key, direct=False)
                mine = (value, self._value(0), self._value(self.life))
                if found is None or (found.value not in mine and found.revision != self.life):
                    self._revision = None
                else:
                    self._revision = found.revision
                return
        except TransportError as exc:
            logger.debug("the lease of %s is not renewed: %s", self.name, exc)
        else:
            self.renewed_at = began

    async def release(self) -> None:
        """Give the lease up, if it is held, so that the others need not wait until it expires."""
        is_held, revision = self.is_held, self._revision
        self._revision = None
        if not is_held:
            return  # it has expired
        with trio.move_on_after(1, shield=True):
            try:
                await self._bucket.delete(self._key, revision=revision, ttl=MARKER_SECONDS)
            except TransportError as exc:
                logger.debug("the lease of %s expires by itself: %s", self.name, exc)

    @property
    def _key(self) -> str:
        return PREFIX + self.name

    def _value(self, life: int) -> bytes:
        return json.dumps({"life": life, "returns": self.returns}).encode()


@asynccontextmanager
async def holding(lease: Lease) -> AsyncGenerator[None]:
    """Hold a lease that has been taken, for the length of a block or until it is handed over.

    Then it is released, unless it has been meanwhile.
    """
    try:
        with one_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lease.hold)
                yield
                nursery.cancel_scope.cancel()
    finally:
        await lease.release()


def read_lease(value: bytes) -> tuple[int, bool]:
    """Return the life that a lease is of, and whether the relay returns with what it has stored.

    A life of 0 is about to begin.

    Raises:
        ValueError: It is no lease.
    """
    try:
        found = json.loads(value)
        life, returns = found["life"], found["returns"]
    except (TypeError, LookupError, RecursionError) as exc:
        msg = f"no lease: {exc!r}"
        raise ValueError(msg) from exc
    if type(life) is not int or life < 0 or type(returns) is not bool:
        msg = f"no lease: {value!r}"
        raise ValueError(msg)
    return life, returns
