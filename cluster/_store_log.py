"""The store of a relay as a log in JetStream (`--store nats`).

Theory of operation. The relay's store writes into a directory as ever (`clearfunds.store`), but
that is a copy, which ends with the process. Changes are durable when they are in a stream of
JetStream, on a quorum of its servers. The stream has three subjects:

- `….log`: entries, each a piece of a group of changes. A group counts when its last piece is there.
  Each entry is published with the sequence of the one before (`Nats-Expected-Last-Subject-
  Sequence`): so a process that opens the log, by an entry of its own, ends whatever another process
  still writes there. That process learns it with its next entry, and ends.
- `….snapshot.ID`: the copy's database in pieces, as it was at some place in the log.
- `….manifest`: the last one names the snapshot to begin with, and its place in the log. A process
  that opens the log writes it again, which ends the snapshots of others in the same way: else an
  entry that it has yet to read could be purged.

When the entries since the last snapshot are as large as that, the next one is made, and the entries
before it are purged: as Redis rewrites its append-only file (`auto-aof-rewrite-percentage 100`,
`auto-aof-rewrite-min-size 64mb`). A stream that is full gets its limit lifted for that time: only a
snapshot makes room.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import struct
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import attrs
import trio

from ..store import (
    Replay,
    Store,
    StoreError,
    StoreFormatError,
    StoreSettings,
    StoreTakenError,
    encode_changes,
)
from ..transports import TransportError
from ..transports._one_error import one_error
from ..transports.nats import (
    ConsumerConfig,
    Delivered,
    JetStream,
    JetStreamError,
    NotFoundError,
    OrderedMessages,
    StreamConfig,
    StreamFullError,
    WrongSequenceError,
)
from ._lease import Lease
from ._patiently import RETRY_SECONDS, patiently

logger = logging.getLogger("clearfunds.cluster")

SUBJECT: Final = "clearfunds-store"

GROUP_BYTES: Final = 4 << 20
"""About the most that is put into the log at once."""
PIECE_BYTES: Final = 512 << 10
"""Of an entry, and of a snapshot: half of NATS's default `max_payload`."""
COPY_BYTES: Final = 64 << 20
"""Bytes that are in the log and not in the copy yet, from which on the log takes no more: they are
in memory."""
SNAPSHOT_BYTES: Final = 64 << 20
"""Bytes of entries from which on a snapshot may be made (`auto-aof-rewrite-min-size`)."""
SNAPSHOT_RETRY_SECONDS: Final = 10.0
PIECES: Final = 16
"""Pieces that a reader buffers."""
LOOK_SECONDS: Final = 0.02

HEAD: Final = struct.Struct("<BQQ")
# What the entry is; the life that it is of; its number in that life.

BEGIN: Final = 0
PIECE: Final = 1
LAST: Final = 2


@attrs.frozen
class StoreLogSettings:
    """Where the log of a relay's store is."""

    cluster: str
    """The name of the cluster."""
    relay: str
    """The name of the relay."""
    replicas: int = 1
    """On how many servers the stream lies: 1, 3 or 5."""
    max_bytes: int | None = None
    """The stream's limit; None: none. A full stream refuses, and publishers wait."""

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return f"clearfunds-{self.cluster}-store-{self.relay}"

    def subject(self, *tokens: str) -> str:
        """Return a subject of the stream."""
        return ".".join((SUBJECT, self.cluster, self.relay, *tokens))


_MANIFEST: Final[dict[str, type]] = {
    "ident": str,
    "digest": str,
    "pieces": int,
    "nbytes": int,
    "position": int,
    "first": int,
}


@attrs.frozen
class Manifest:
    """A snapshot."""

    ident: str
    """The last token of its subject."""
    pieces: int
    """Their number."""
    nbytes: int
    """Their size."""
    digest: str
    """Their SHA-256, in hex."""
    position: int
    """The sequence of the last entry of the log that is in it."""
    first: int
    """The sequence of its first piece."""

    @classmethod
    def read(cls, data: bytes) -> Manifest:
        """Return the manifest in some bytes.

        Raises:
            StoreFormatError: It is none.
        """
        try:
            found = json.loads(data)
            if any(type(found[name]) is not kind for name, kind in _MANIFEST.items()):
                raise TypeError("a part has another type")
            return cls(**{name: found[name] for name in _MANIFEST})
        except (ValueError, TypeError, LookupError, RecursionError) as exc:
            msg = f"the manifest of the store is no manifest: {exc!r}"
            raise StoreFormatError(msg) from exc

    def write(self) -> bytes:
        """Return it as bytes."""
        return json.dumps(attrs.asdict(self)).encode()


class StoreLog:
    """The log of one store; see `persistence.Log`.

    Args:
        js: JetStream, by a client that outlives the log.
        settings: Where it is.
        lease: The lease of the relay's name, which is held; None: this is no relay's.

    Attributes:
        settings, lease: As above.
        entries: Number of entries written.
        snapshots: Number of snapshots written.
        nbytes: Bytes of entries since the last snapshot.
        trouble: A sentence while JetStream takes nothing, else None.
        life: The sequence of the entry with which it was opened; 0: it was not.
        manifest: The last snapshot; None: there is none.
    """

    def __init__(
        self, js: JetStream, settings: StoreLogSettings, lease: Lease | None = None
    ) -> None:
        self.settings = settings
        self.lease = lease
        self.entries = self.snapshots = self.nbytes = 0
        self.trouble: str | None = None
        self._js = js
        self._log = settings.subject("log")
        self.life = 0
        self._number = 0
        self._last = 0
        self.manifest: Manifest | None = None
        self._manifest_sequence = 0
        self._writing = trio.Lock()
        self._more = trio.Event()
        self._large = trio.Event()
        self._is_full = self._is_lifted = False

    def __repr__(self) -> str:
        return f"<StoreLog {self.settings.stream}>"

    # -- opening ----------------------------------------------------------------------------------

    async def open(self, folder: Path, settings: StoreSettings) -> Path:
        """Take the log over, and make a directory of what it has.

        Args:
            folder: A folder, where it makes the directory.
            settings: The store's settings.

        Returns:
            the directory, for `Store.open`.

        Cancellation: the log is as it was, except that who wrote to it before may not any more.

        Raises:
            TransportError: JetStream cannot be reached, or refuses.
            StoreError: The log cannot be read, or the disk refuses.
        """
        await patiently(self._make_stream)
        try:
            await self._take()
        except StreamFullError:
            async with self._lifted():
                await self._take()
        directory = await patiently(partial(self._restore, folder, settings))
        await patiently(self._sweep)
        return directory

    async def _take(self) -> None:
        """End what others write."""
        await patiently(self._begin)
        await patiently(self._claim)

    def _config(self, *, limited: bool = True) -> StreamConfig:
        settings = self.settings
        most = settings.max_bytes if limited else None
        return StreamConfig(
            name=settings.stream,
            subjects=(
                self._log,
                settings.subject("manifest"),
                settings.subject("snapshot", "*"),
            ),
            replicas=settings.replicas,
            max_bytes=-1 if most is None else most,
            discard="new",
            description=f"Store of relay {settings.relay} of cluster {settings.cluster}",
        )  # fmt: skip

    async def _make_stream(self) -> None:
        config = self._config()
        try:
            found = (await self._js.stream_info(config.name)).config
        except NotFoundError:
            await self._js.create_stream(config)
            return
        if set(found.subjects or ()) != set(config.subjects or ()):
            msg = (
                f"stream {config.name} of JetStream is not the store of relay {self.settings.relay}"
            )
            raise StoreFormatError(msg)
        # To create it again would take its `max_bytes` a second time from what its servers have.
        if (found.replicas, found.max_bytes) != (config.replicas, config.max_bytes):
            await self._js.update_stream(config)

    @asynccontextmanager
    async def _lifted(self) -> AsyncGenerator[None]:
        """Let the stream have more than its limit for the length of a block, but no entries.

        Cancellation: it may stay so until the log is opened next.
        """
        self._is_lifted = True
        try:
            await self._js.update_stream(self._config(limited=False))
            try:
                yield
            finally:
                await self._js.update_stream(self._config())
        finally:
            self._is_lifted = False

    async def _message(self, subject: str) -> tuple[int, bytes]:
        """Return the sequence and the payload of a subject's last message; 0: there is none."""
        found = await self._js.get_message(self.settings.stream, last_for=subject, direct=False)
        return (0, b"") if found is None else (found.sequence, found.payload)

    async def _begin(self) -> None:
        """Write the entry that ends what others write."""
        mine = secrets.token_hex(8)
        while True:
            last, _ = await self._message(self._log)
            try:
                ack = await self._js.publish(
                    self._log,
                    HEAD.pack(BEGIN, 0, 0) + mine.encode(),
                    message_id=mine,
                    expect_last_for_subject=last,
                )
            except WrongSequenceError:
                continue  # It still writes.
            self.life = self._last = ack.sequence
            return

    async def _claim(self) -> None:
        """Write the manifest again, so that no other process writes one."""
        subject = self.settings.subject("manifest")
        while True:
            last, data = await self._message(subject)
            try:
                ack = await self._js.publish(
                    subject,
                    data,
                    message_id=secrets.token_hex(8),
                    expect_last_for_subject=last,
                )
            except WrongSequenceError:
                continue
            self.manifest = Manifest.read(data) if data else None
            self._manifest_sequence = ack.sequence
            return

    async def _sweep(self) -> None:
        """Delete what earlier lives have left of snapshots that they did not finish."""
        stream = self.settings.stream
        body = {"subjects_filter": self.settings.subject("snapshot", "*")}
        found = await self._js.call(f"STREAM.INFO.{stream}", body)
        state = cast("dict[str, Any]", found.get("state") or {})
        for subject in cast("dict[str, int]", state.get("subjects") or {}):
            ident = subject.rpartition(".")[2]
            life = ident.partition("-")[0]
            # One of a later life is not this one's to judge.
            is_old = life.isdecimal() and int(life) < self.life
            if is_old and (self.manifest is None or ident != self.manifest.ident):
                await self._js.purge_stream(stream, subject=subject)

    async def _restore(self, folder: Path, settings: StoreSettings) -> Path:
        """Make a directory of what the log has, and return it; a new one at each try."""
        directory = folder / f"copy-{secrets.token_hex(4)}"
        manifest = self.manifest
        snapshot = None
        if manifest is not None:
            snapshot = directory.with_suffix(".snapshot")
            await self._fetch(manifest, snapshot)
        with await trio.to_thread.run_sync(
            partial(Replay, directory, settings, snapshot)
        ) as replay:
            self.nbytes = await self._replay(replay, 0 if manifest is None else manifest.position)
            await trio.to_thread.run_sync(replay.write)
        return directory

    async def _fetch(self, manifest: Manifest, path: Path) -> None:
        """Write the pieces of a snapshot to a file."""
        subject = self.settings.subject("snapshot", manifest.ident)
        digest = hashlib.sha256()
        left = manifest.pieces
        with path.open("wb") as file:
            config = ConsumerConfig(filters=(subject,))
            async with OrderedMessages(
                self._js, self.settings.stream, config, most=PIECES
            ) as pieces:
                while left:
                    if pieces.pending != left:
                        there = manifest.pieces - left + pieces.pending
                        stream = self.settings.stream
                        msg = f"{stream} has {there} of {manifest.pieces} pieces of a snapshot"
                        raise StoreFormatError(msg)
                    piece = await pieces.next()
                    if piece is None:
                        continue
                    digest.update(piece.payload)
                    await trio.to_thread.run_sync(file.write, piece.payload)
                    left -= 1
        if digest.hexdigest() != manifest.digest:
            msg = f"{self.settings.stream} has a snapshot that is not what was written"
            raise StoreFormatError(msg)

    async def _replay(self, replay: Replay, position: int) -> int:
        """Put the entries after a position into a directory; return their size.

        Raises:
            StoreFormatError: They are no entries, or one is missing.
        """
        config = ConsumerConfig(filters=(self._log,))
        if position:
            config = attrs.evolve(config, deliver="by_start_sequence", start_sequence=position)
        total = life = number = 0
        pieces: list[bytes] = []
        async with OrderedMessages(self._js, self.settings.stream, config, most=PIECES) as entries:
            while True:
                entry = await entries.receive()
                kind, of, count, data = _entry(entry)
                if position:
                    # This one is in the snapshot; that it is there says that what follows is, too.
                    if entry.sequence != position:
                        raise self._lacks(position)
                    position, life, number = 0, of, count
                elif kind == BEGIN:
                    # What the life before has not finished does not count.
                    pieces.clear()
                    life, number = entry.sequence, 0
                    if life >= self.life:
                        return total
                elif (of, count) != (life, number + 1):
                    raise self._lacks(entry.sequence)
                else:
                    number = count
                    pieces.append(data)
                    if kind == LAST:
                        group = b"".join(pieces)
                        pieces.clear()
                        total += len(group)
                        add = partial(replay.add, group, b"%d" % entry.sequence)
                        await trio.to_thread.run_sync(add)

    def _lacks(self, sequence: int) -> StoreFormatError:
        stream = self.settings.stream
        return StoreFormatError(f"{stream} lacks an entry of the store's log, near {sequence}")

    # -- writing ----------------------------------------------------------------------------------

    async def run(self, store: Store, trouble: Callable[[str | None], object]) -> NoReturn:
        """Take the changes of a store until cancelled, and make snapshots; see `Log.run`.

        Raises:
            StoreTakenError: Another process has taken the log over.
        """
        home = threading.get_ident()
        token = trio.lowlevel.current_trio_token()

        def more() -> None:
            if threading.get_ident() == home:
                self._more.set()
            else:
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(lambda: self._more.set())

        store.on_commit = more
        with one_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._make_snapshots, store)
                await self._take_all(store, trouble)
        raise AssertionError

    async def _take_all(self, store: Store, trouble: Callable[[str | None], object]) -> NoReturn:
        while True:
            self._more = trio.Event()
            while group := store.unlogged(GROUP_BYTES):
                while store.behind() > COPY_BYTES:  # noqa: ASYNC110
                    await trio.sleep(LOOK_SECONDS)
                data = encode_changes(group)
                await self._append(data, trouble)
                store.logged(group, b"%d" % self._last)
                self._count(len(data))
            await self._more.wait()

    async def _append(self, data: bytes, trouble: Callable[[str | None], object]) -> None:
        """Write the entries of a group."""
        async with self._writing:
            await self._append_pieces(data, trouble)

    async def check(self) -> None:
        """See `Log.check`: writes an entry that changes nothing."""
        if not self._writing.locked():  # else what is written now finds it out
            await self._append(b"", lambda _: None)

    async def _append_pieces(self, data: bytes, trouble: Callable[[str | None], object]) -> None:
        for at in range(0, len(data) or 1, PIECE_BYTES):
            kind = LAST if at + PIECE_BYTES >= len(data) else PIECE
            self._number += 1
            head = HEAD.pack(kind, self.life, self._number)
            await self._write(head + data[at : at + PIECE_BYTES], trouble)
            self.entries += 1

    async def _write(self, entry: bytes, trouble: Callable[[str | None], object]) -> None:
        """Write an entry; try until JetStream takes it."""
        ident = f"{self.life}-{self._number}"
        while True:
            while self._is_lifted:  # noqa: ASYNC110
                await trio.sleep(LOOK_SECONDS)
            try:
                ack = await self._js.publish(
                    self._log, entry, message_id=ident, expect_last_for_subject=self._last
                )
                self._last = ack.sequence
                break
            except WrongSequenceError:
                try:
                    last, found = await self._message(self._log)
                except TransportError as exc:
                    sentence = f"the store's log cannot be read: {exc}"
                else:
                    if found[: HEAD.size] == entry[: HEAD.size]:
                        # Only the answer to an earlier try was lost.
                        self._last = last
                        break
                    if last > self._last:
                        raise self._taken() from None
                    if last == self._last:
                        # An earlier try is under way.
                        await trio.sleep(LOOK_SECONDS)
                        continue
                    sentence = (
                        f"stream {self.settings.stream} lacks entries that its servers have "
                        "confirmed; if it stays so, restart the relay to go on with what is there"
                    )
            except StreamFullError as exc:
                sentence = (
                    f"stream {self.settings.stream} of JetStream takes no more "
                    f"({exc.description}): give its servers more room, or a larger --disk-limit"
                )
                self._is_full = True
                self._large.set()
            except TransportError as exc:
                sentence = f"JetStream does not take what is to be stored: {exc}"
            self.trouble = sentence
            trouble(sentence)
            await trio.sleep(RETRY_SECONDS)
        self._is_full = False
        if self.trouble is not None:
            self.trouble = None
            trouble(None)

    def _taken(self) -> StoreTakenError:
        relay = self.settings.relay
        return StoreTakenError(
            f"another relay has taken over the store of {relay}: this one was taken for dead, or "
            "has the same --name; what it has confirmed is there"
        )

    # -- snapshots --------------------------------------------------------------------------------

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        before = 0 if self.manifest is None else self.manifest.nbytes
        if self.nbytes > max(SNAPSHOT_BYTES, before):
            self._large.set()

    async def _make_snapshots(self, store: Store) -> NoReturn:
        while True:
            await self._large.wait()
            self._large = trio.Event()
            try:
                async with self._lifted() if self._is_full else nullcontext():
                    await self.make_snapshot(store)
            except StoreTakenError:
                raise
            except (TransportError, StoreError, OSError) as exc:
                logger.warning(
                    "the log of the store of relay %s cannot be shortened yet: %s",
                    self.settings.relay,
                    exc,
                    extra={"event": "no_snapshot", "relay": self.settings.relay},
                )
                self._large.set()
                await trio.sleep(SNAPSHOT_RETRY_SECONDS)

    async def make_snapshot(self, store: Store) -> None:
        """Write what the copy has, and purge the entries that are in it.

        Cancellation: what has been written of it goes when the next one is written.

        Raises:
            TransportError: JetStream does not take it.
            StoreError: The disk refuses; `StoreTakenError`: another process has taken the log over.
        """
        counted = self.nbytes
        path = store.directory.with_suffix(".next")
        ident = f"{self.life}-{secrets.token_hex(4)}"
        try:
            found: bytes | None = await trio.to_thread.run_sync(store.snapshot, path)
            position = int(found or b"0")
            if position > (0 if self.manifest is None else self.manifest.position):
                try:
                    manifest = await self._upload(ident, path, position)
                    await self._enter(manifest)
                except (TransportError, OSError):
                    await self._discard(ident)
                    raise
                self.nbytes -= counted
                self.snapshots += 1
        finally:
            path.unlink(missing_ok=True)
        if self.manifest is not None:
            await self._purge(self.manifest)

    async def _enter(self, manifest: Manifest) -> None:
        """Write the manifest of a snapshot; try until it is known whether JetStream has it.

        Raises:
            StoreTakenError: Another process has taken the log over.
            JetStreamError: JetStream refuses it.
        """
        subject, data = self.settings.subject("manifest"), manifest.write()
        while True:
            try:
                try:
                    ack = await self._js.publish(
                        subject,
                        data,
                        message_id=manifest.ident,
                        expect_last_for_subject=self._manifest_sequence,
                    )
                    sequence = ack.sequence
                except WrongSequenceError:
                    sequence, found = await self._message(subject)
                    if found != data:
                        raise self._taken() from None
            except JetStreamError:
                raise
            except TransportError as exc:
                logger.debug("the manifest of %r may not be there: %s", self, exc)
                await trio.sleep(RETRY_SECONDS)
            else:
                self.manifest, self._manifest_sequence = manifest, sequence
                return

    async def _discard(self, ident: str) -> None:
        """Delete the pieces of a snapshot that is not finished: they would fill the stream."""
        subject = self.settings.subject("snapshot", ident)
        with suppress(TransportError):
            await self._js.purge_stream(self.settings.stream, subject=subject)

    async def _upload(self, ident: str, path: Path, position: int) -> Manifest:
        subject = self.settings.subject("snapshot", ident)
        digest = hashlib.sha256()
        pieces = nbytes = first = 0
        with path.open("rb") as file:
            while data := await trio.to_thread.run_sync(file.read, PIECE_BYTES):
                digest.update(data)
                ack = await self._js.publish(subject, data, message_id=f"{ident}-{pieces}")
                first = first or ack.sequence
                pieces += 1
                nbytes += len(data)
        return Manifest(ident, pieces, nbytes, digest.hexdigest(), position, first)

    async def _purge(self, manifest: Manifest) -> None:
        """Delete what is in a snapshot, and what is left of earlier ones."""
        for subject, before in (
            # The last entry stays: its sequence is what the next one expects.
            (self._log, manifest.position),
            (self.settings.subject("snapshot", "*"), manifest.first),
            (self.settings.subject("manifest"), self._manifest_sequence),
        ):
            await self._js.purge_stream(self.settings.stream, subject=subject, before=before)


def _entry(found: Delivered) -> tuple[int, int, int, bytes]:
    """Return what an entry is, its life, its number there, and its piece of a group.

    Raises:
        StoreFormatError: It is no entry.
    """
    data = found.payload
    if len(data) < HEAD.size or data[0] not in (BEGIN, PIECE, LAST):
        msg = f"message {found.sequence} of {found.stream} is no entry of a store's log"
        raise StoreFormatError(msg)
    kind, life, number = HEAD.unpack_from(data)
    return kind, life, number, data[HEAD.size :]
