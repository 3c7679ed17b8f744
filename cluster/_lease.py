"""A relay's lease: it is in the cluster as long as it renews it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final

import trio

from ..transports import TransportError
from ..transports.nats import KeyValue, WrongSequenceError
from ._errors import ClusterError

logger = logging.getLogger("clearfunds.cluster")

SECONDS: Final = 3.0
"""The time for which a lease lasts. A relay that dies is noticed when it has expired, to which the
server adds a second at most."""
RENEWALS: Final = 4
"""Renewals in that time: three of them may get lost."""
RETRY_SECONDS: Final = 0.25
PREFIX: Final = "relay."


class Lease:
    """Holds the lease of one relay.

    Args:
        bucket: The cluster's bucket.
        name: The relay's name.
        on_begin: Called with each life of the relay in the cluster: a number that only grows.
        clock: A monotonic clock, in seconds.

    Attributes:
        life: The relay's life now; 0 before the first.
        renewed_at: When the lease was renewed last.
        lost: How often it was lost.
    """

    def __init__(
        self,
        bucket: KeyValue,
        name: str,
        on_begin: Callable[[int], object],
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self.name = name
        self.life = 0
        self.renewed_at = -SECONDS
        self.lost = 0
        self._bucket = bucket
        self._on_begin = on_begin
        self._clock = clock
        self._anew = False

    @property
    def is_held(self) -> bool:
        """Whether the others know that this relay is there, as far as it can tell."""
        return self._clock() - self.renewed_at < SECONDS

    async def hold(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the lease until cancelled; begin another life whenever it was lost.

        Cancellation: call `release` afterwards.

        Raises:
            ClusterError: Another relay has this name.
            TransportError: At the first time, as `KeyValue.create`.
        """
        revision = await self._take(patient=False)
        task_status.started()
        while True:
            renewed = None if self._anew else await self._renew(revision)
            if renewed is not None:
                revision = renewed
                await trio.sleep(SECONDS / RENEWALS)
                continue
            self.lost += 1
            logger.warning(
                "the cluster has done without relay %s for a while; it joins again",
                self.name,
                extra={"event": "rejoin", "relay": self.name},
            )
            if self._anew:
                self._anew = False
                await self.release()
            revision = await self._take(patient=True)

    def begin_anew(self) -> None:
        """Have this relay leave the cluster, and join it with another life."""
        self._anew = True

    async def _take(self, *, patient: bool) -> int:
        """Take the lease, and begin a life; return the revision of its key."""
        deadline = self._clock() + 2 * SECONDS + 1
        key = PREFIX + self.name
        while True:
            try:
                life = await self._bucket.create(key, _value(0), ttl=SECONDS)
                break
            except WrongSequenceError:
                # The last life of this relay, whose lease has not expired yet; or another relay.
                if not patient and self._clock() > deadline:
                    msg = (
                        f"another relay of the cluster has the name {self.name!r}; give this one "
                        "another --name"
                    )
                    raise ClusterError(msg) from None
            except TransportError:
                if not patient:
                    raise
            await trio.sleep(RETRY_SECONDS)
        self.renewed_at = self._clock()
        self.life = life
        self._on_begin(life)
        return life

    async def _renew(self, revision: int) -> int | None:
        """Renew the lease and return the new revision, or None if it was lost."""
        key, value = PREFIX + self.name, _value(self.life)
        while True:
            before = self._clock()
            try:
                revision = await self._bucket.update(key, value, revision, ttl=SECONDS)
            except WrongSequenceError:
                try:
                    found = await self._bucket.get(key, direct=False)
                except TransportError:
                    continue
                if found is None or (found.value != value and found.revision != self.life):
                    return None
                revision = found.revision  # the answer to a renewal was lost
            except TransportError:
                await trio.sleep(RETRY_SECONDS)
            else:
                self.renewed_at = before
                return revision

    async def release(self) -> None:
        """Give the lease up, so that the others need not wait until it expires."""
        with trio.move_on_after(1, shield=True):
            try:
                await self._bucket.delete(PREFIX + self.name)
            except TransportError as exc:
                logger.debug("the lease of %s expires by itself: %s", self.name, exc)


def _value(life: int) -> bytes:
    return json.dumps({"life": life}).encode()


def read_lease(value: bytes) -> int:
    """Return the life that a lease is of; 0: it is about to begin.

    Raises:
        ValueError: It is no lease.
    """
    try:
        return int(json.loads(value)["life"])
    except (TypeError, KeyError, RecursionError) as exc:
        msg = f"no lease: {exc!r}"
        raise ValueError(msg) from exc
