"""Shelves whose store is replicated in JetStream."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir
from typing import Final

import attrs
import trio

from ..persistence import Shelves, open_shelves
from ..persistence._sending import Sending
from ..store import StoreSettings
from ..transports import TransportError
from ..transports._one_error import one_error
from ..transports.nats import JetStream, StreamFullError, open_nats
from ._cluster import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    PING_SECONDS,
    ClusterSettings,
    open_state,
)
from ._errors import ClusterError
from ._lease import Lease, holding
from ._patiently import patiently
from ._stand_in import ask_back
from ._store_log import SNAPSHOT_BYTES, StoreLog, StoreLogSettings

COPIES: Final = 4
"""The stream may have so many times what is live: as much again in entries from before the last
snapshot, the next one, and what is written meanwhile."""

_LOCK: Final = "lock"


@contextmanager
def _temporary(settings: ClusterSettings) -> Generator[Path]:
    """Have a temporary directory for the length of a block; it is locked as long as it is used."""
    with TemporaryDirectory(prefix=_prefix(settings)) as name:
        folder = Path(name)
        with (folder / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder


def _sweep(settings: ClusterSettings) -> None:
    """Delete what processes of this name have left that were killed."""
    for folder in Path(gettempdir()).glob(f"{_prefix(settings)}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                rmtree(folder)


def _prefix(settings: ClusterSettings) -> str:
    return f"clearfunds-store.{settings.cluster}.{settings.name}."


@asynccontextmanager
async def open_replicated_shelves(
    settings: ClusterSettings,
    flusher: Sending,
    store: StoreSettings | None = None,
    *,
    live_bytes: int | None = None,
    replicas: int | None = None,
    stands_in: bool = False,
) -> AsyncGenerator[Shelves]:
    """Have shelves for the length of a block, whose messages lie in JetStream.

    Queues of `clearfunds.dataspace.queues` use them like those of a directory
    (`clearfunds.persistence.open_shelves`): what is durable is on a quorum of JetStream's servers,
    and whoever opens the shelves of that name next, on whatever machine, has it.

    A queue whose messages are there on another machine, after this one has died::

        settings = ClusterSettings("nats://127.0.0.1:4222", "worker")
        async with open_flusher() as flusher, open_replicated_shelves(settings, flusher) as shelves:
            shelf = shelves.shelf("resize")
            queue = Queue(ledger, "resize", account=disk, shelf=shelf)
            shelf.recover(queue)

    Args:
        settings: Where the cluster is, and the name, which no other process has.
        flusher: Flushes the outlets of confirms that waited for durability.
        store: Settings of the copy in a temporary directory.
        live_bytes: The most that is stored at a time; None: no limit. The stream may have
            `COPIES` times as much.
        replicas: On how many servers the stream lies: 1, 3 or 5; None: as the cluster's state.
        stands_in: Whether another relay is meant by the name, which may ask for it.

    Cancellation: as for `open_shelves`.

    Raises:
        ClusterError: NATS cannot be reached, has no JetStream, or cannot have the stream; or
            another relay of the cluster has the name.
        StoreError: What is there cannot be read, or the disk refuses; later, if another process
            takes the name over.
    """
    how = attrs.evolve(store or StoreSettings(), logged=True)
    log_settings = StoreLogSettings(
        settings.cluster,
        settings.name,
        settings.replicas if replicas is None else replicas,
        None if live_bytes is None else COPIES * (live_bytes + SNAPSHOT_BYTES),
    )
    connect = partial(
        open_nats,
        settings.servers,
        connect_timeout=CONNECT_SECONDS,
        ping_interval=PING_SECONDS,
        name=f"clearfunds {settings.name}, store",
    )
    is_open = False
    with _temporary(settings) as folder, one_error(), one_error():
        try:
            async with connect() as nats:
                js = JetStream(nats, timeout=ANSWER_SECONDS)
                state = await patiently(partial(open_state, js, settings))
                lease = Lease(state, settings.name, returns=True)
                ask = partial(ask_back, nats, settings.cluster, settings.name)
                await patiently(partial(lease.take, None if stands_in else ask))
                async with holding(lease):
                    await trio.to_thread.run_sync(_sweep, settings)
                    log = StoreLog(js, log_settings, lease)
                    directory = await log.open(folder, how)
                    async with open_shelves(directory, how, flusher, log=log) as shelves:
                        is_open = True
                        yield shelves
        except TransportError as exc:
            if is_open or isinstance(exc, ClusterError):
                raise
            msg = f"the store cannot be opened at {settings.shown}: {exc}"
            if isinstance(exc, StreamFullError) and log_settings.max_bytes is not None:
                msg += (
                    f"; its stream may become {log_settings.max_bytes} bytes large: give its "
                    "servers more room (max_file), or a smaller --disk-limit"
                )
            raise ClusterError(msg) from exc
