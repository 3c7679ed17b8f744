"""Retained publications of the whole cluster, in a bucket of their own.

Theory of operation. Each relay keeps all of them in its `RetainedStore`, where its new subscribers
find them. A change there is written to the bucket; a change of the bucket is made there. Who writes
last wins. A change is applied only if it is newer than what this relay knows of the topic, and not
while a change of its own waits to be written, which is newer still.

A value that has been cleared leaves a marker for a day. So a relay that was away for less does not
bring it back from its store.
"""

from __future__ import annotations

import hashlib
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import trio

from ..accounts import QuotaExceededError
from ..dataspace import Publication
from ..transports import LocalProtocolError, TransportError
from ..transports.mqtt.server._persistent_retained import decode_retained, encode_retained
from ..transports.nats import WrongSequenceError, open_bucket
from ._following import follow
from ._patiently import RETRY_SECONDS, patiently
from ._wake import Wake

if TYPE_CHECKING:
    from ..accounts import Ledger
    from ..dataspace import RetainedStore
    from ..transports.nats import Entry, KeyValue
    from ._companion import Place

logger = logging.getLogger("clearfunds.cluster")

MARKER_SECONDS: Final = 86_400.0
KEY_BYTES: Final = 16
"""Bytes of a topic's digest, which is its key: topics may be longer than keys."""


class Retained:
    """Shares a relay's retained publications with the other relays.

    Args:
        retained: The relay's; from now on it tells of its changes.
        ledger: Its accounts' quotas cover them (rule 16).
    """

    def __init__(self, retained: RetainedStore, ledger: Ledger) -> None:
        self._retained = retained
        self._ledger = ledger
        # What has changed here and is not written: the last value of each topic, and its owner.
        self._unwritten: dict[str, tuple[Publication | None, str]] = {}
        # The newest revision that is known of each topic.
        self._revisions: dict[str, int] = {}
        # Topics by key, of those with a revision.
        self._topics: dict[str, str] = {}
        # Topics that are here when it begins to look, by key.
        self._mine: dict[str, str] = {}
        # Keys that this look has found, until it has found all.
        self._there: set[str] | None = None
        self._wake = Wake()
        self._is_applying = False
        self._store = retained.on_change
        retained.on_change = self._changed

    def __len__(self) -> int:
        """Return the number of changes that are not written yet."""
        return len(self._unwritten)

    def _changed(self, topic: str, publication: Publication | None, owner: str) -> None:
        if self._store is not None:
            self._store(topic, publication, owner)
        if not self._is_applying:
            self._unwritten[topic] = publication, owner
            self._wake.set()

    async def run(
        self, place: Place, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See `Companion.run`: it has started when all that there are are known here."""
        name = f"clearfunds-{place.cluster}-retained"
        replicas = place.replicas
        bucket = await patiently(
            partial(open_bucket, place.js, name, marker_ttl=MARKER_SECONDS, replicas=replicas)
        )
        async with trio.open_nursery() as nursery:
            watch = partial(
                follow,
                bucket,
                "retained messages of other relays cannot be read",
                begin=self._begin_look,
                note=self._note,
                whole=self._all_noted,
            )
            await nursery.start(watch)
            nursery.start_soon(self._write, bucket)
            task_status.started()

    # -- what the others have changed -------------------------------------------------------------

    def _begin_look(self) -> None:
        self._there = set()
        self._mine = {key_of(each.topic): each.topic for each in self._retained.matching("#")}

    async def _note(self, entry: Entry) -> None:
        if self._there is not None:
            self._there.add(entry.key)
        self._apply(entry)

    async def _all_noted(self) -> None:
        self._add_missing(self._there or set())
        self._mine.clear()
        self._there = None

    def _add_missing(self, there: set[str]) -> None:
        """Have written what this relay has, and the bucket does not know of."""
        for key, topic in self._mine.items():
            publication = self._retained.get(topic)
            if key not in there and topic not in self._unwritten and publication is not None:
                self._unwritten[topic] = publication, self._retained.owner_of(topic) or ""
        self._wake.set()

    def _apply(self, entry: Entry) -> None:
        try:
            self._apply_to(entry)
        except ValueError as exc:
            logger.error(
                "the retained message %s of the cluster cannot be read: %s", entry.key, exc
            )

    def _apply_to(self, entry: Entry) -> None:
        publication: Publication | None = None
        owner = ""
        if entry.is_there:
            publication, owner = read_value(entry.value)
            topic = publication.topic
            self._topics[entry.key] = topic
        else:
            known = self._topics.pop(entry.key, None)
            if known is None:
                known = self._mine.get(entry.key)
                if known is None:
                    return
            topic = known
        if entry.revision <= self._revisions.get(topic, 0):
            return
        if publication is None:
            self._revisions.pop(topic, None)
        else:
            self._revisions[topic] = entry.revision
        if topic in self._unwritten or self._retained.get(topic) == publication:
            return
        self._is_applying = True
        try:
            cleared = Publication(topic, b"", retain=True)
            self._retained.set(publication or cleared, self._ledger.standing_of(owner))
        except QuotaExceededError as exc:
            logger.warning("a retained message of another relay is not kept here: %s", exc)
        finally:
            self._is_applying = False

    # -- what this relay has changed --------------------------------------------------------------

    async def _write(self, bucket: KeyValue) -> NoReturn:
        unwritten = self._unwritten
        while True:
            await self._wake.wait()
            while unwritten:
                topic = next(iter(unwritten))
                publication, owner = unwritten[topic]
                try:
                    await self._write_one(bucket, topic, publication, owner)
                except WrongSequenceError:
                    pass  # another relay has set another value since
                except LocalProtocolError as exc:
                    logger.warning("a retained message is known to this relay only: %s", exc)
                except TransportError as exc:
                    logger.warning("a retained message is not stored in the cluster: %s", exc)
                    await trio.sleep(RETRY_SECONDS)
                    continue
                if unwritten[topic] == (publication, owner):  # else it has changed again
                    del unwritten[topic]

    async def _write_one(
        self, bucket: KeyValue, topic: str, publication: Publication | None, owner: str
    ) -> None:
        key = key_of(topic)
        if publication is None:
            revision = self._revisions.get(topic)
            await bucket.delete(key, revision=revision, purge=True, ttl=MARKER_SECONDS)
            return
        ttl: float | None = None
        if publication.expires is not None:
            ttl = max(1.0, math.ceil(publication.expires - self._retained.wall()))
        found = await bucket.put(key, value_of(publication, owner), ttl=ttl)
        self._topics[key] = topic
        self._revisions[topic] = max(found, self._revisions.get(topic, 0))


def key_of(topic: str) -> str:
    """Return the key of a topic."""
    return hashlib.blake2b(topic.encode(), digest_size=KEY_BYTES).hexdigest()


def value_of(publication: Publication, owner: str) -> bytes:
    """Return a retained publication as a value of the bucket."""
    topic = publication.topic.encode()
    return b"".join((len(topic).to_bytes(2, "big"), topic, encode_retained(publication, owner)))


def read_value(value: bytes) -> tuple[Publication, str]:
    """Return the retained publication of a value, and its owner's name.

    Raises:
        ValueError: It is none.
    """
    end = 2 + int.from_bytes(value[:2], "big")
    return decode_retained(value[2:end].decode(), value[end:])
