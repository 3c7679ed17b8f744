"""One client's QoS 0 publications, forwarded as runs: as they came, without decoding (`_runs`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....accounts import commit_run
from ....accounts.limits._limit import UNLIMITED
from ....dataspace import Batch
from ..._direct_send import commit_and_send
from ..._link import LITTLE_BYTES
from ..._scheduler import SLICE_SECONDS
from ..codec._connection import State
from ..codec._frames import PUBLISH
from ._mqtt5 import MQTT5
from ._permissions import Writable
from ._reframe import as_mqtt311
from ._runs import (
    STRETCH_BYTES,
    Single,
    clears_retained,
    find_run,
    is_disconnect,
    publications,
    topic_key,
)

if TYPE_CHECKING:
    from ....accounts import Account
    from ....dataspace._routes import Route
    from ..._scheduler import Work
    from ..codec._connection import Connection
    from ._client import Client
    from ._over_limit import Excess
    from ._replays import Replays
    from ._runs import Run

NO_TOPIC = b"\0\0"
"""The topic of a packet that has an alias for it (MQTT 5), as it stands there."""

RUNS_A_LOOK = 64
"""Copies of runs that are handed over, and runs, and sixteens of what is in them, before the clock
is looked at: each is some microseconds."""


class Forwarder:
    """Forwards what one client publishes, as far as its payers have room.

    Args:
        client: The client.
        connection: Its protocol state, with its input.
        work: Its CPU time.
        replays: The retained publications still to be sent to it, before anything else.

    Attributes:
        billing: Tells who pays for a publication.
        excess: What is done with publications that its payers have no room for; None: they wait.
        read_all: Whether `forward_runs` has left no whole packet, only the beginning of one.
        short: The payer that has no room for the next publication, if there is one.
        single: The last read, if it was nothing but publications alike on the topic of the read
            before: the next may be just like it.
    """

    __slots__ = (
        "_account", "_connection", "_most", "_properties", "_replays", "_server", "_topic", "_work",
        "_writable", "billing", "excess", "read_all", "short", "single",
    )  # fmt: skip

    def __init__(
        self, client: Client, connection: Connection, work: Work, replays: Replays
    ) -> None:
        server, rights = client.server, client.rights
        self._server = server
        self._account = client.account
        self._connection = connection
        self._work = work
        self._replays = replays
        self._properties = client.mqtt5 is not None
        # The routes of what it may publish; None: everything.
        self._writable: Writable | None = None
        if rights is not None and server.authority.restricts_writing:
            self._writable = Writable(rights, server)
        # How much is looked at for one run; 0: all that there is.
        self._most = 0
        self._topic = ""
        self.billing = client.billing
        self.excess = client.excess
        self.read_all = False
        self.short: Account | None = None
        self.single: Single | None = None

    def payer_at(self, buffer: bytes, position: int) -> Account:
        """Return who pays for the packet at `position`, as far as that can be told."""
        billing = self.billing
        key = self._key_at(buffer, position) if billing.by_topic else None
        return billing.own if key is None else billing.of_key(key)

    def _key_at(self, buffer: bytes, position: int) -> bytes | None:
        """Return the topic of the publication at `position`, as far as that can be told."""
        if position >= len(buffer) or buffer[position] & 0xF0 != PUBLISH:
            return None
        key = topic_key(buffer, position)
        if key == NO_TOPIC and self._properties:
            key = self._connection.aliased_key(position)
        return key

    def route_of(self, key: bytes) -> Route | None:
        """Return the route of a topic as it stands in a packet; None: it may not publish there."""
        writable, server = self._writable, self._server
        if writable is None:
            return server.dataspace.routes.by_key.get(key) or server.resolve(key)
        return writable.known.get(key) or writable.resolve(key)

    def begin(self) -> None:
        """Begin to handle input: nobody is known to have no room."""
        self.short = None
        if self.excess is not None:
            self.excess.begin()

    def stops(self, account: Account) -> bool:
        """Whether the next packet waits until `account` has funds: then that is `short`.

        It does not if it is refused or shed in its turn (`excess`). An alarm stops publications,
        and what comes after them; not what frees memory.
        """
        connection = self._connection
        buffer, position = connection.buffer, connection.position
        if connection.state is not State.CONNECTED or is_disconnect(buffer, position):
            return False
        if account.debt_is_clear() and (
            buffer[position] & 0xF0 != PUBLISH
            or clears_retained(
                buffer, position, connection.max_packet_size, properties=self._properties
            )
        ):
            return False
        excess = self.excess
        if excess is not None and excess.passes(
            account, buffer[position], self._key_at(buffer, position)
        ):
            return excess.handed
        self.short = account
        return True

    def forward_runs(self) -> bool | None:
        """Forward the runs that the input begins with.

        Returns:
            None if it begins with none: nothing has been done. Otherwise whether it ended for want
            of funds (see `short`), or because the time of this step is over.
        """
        server, connection, work = self._server, self._connection, self._work
        writable = self._writable
        billing = self.billing
        payer_of = billing.of_key if billing.by_topic else None
        unseen = RUNS_A_LOOK
        done: bool | None = None
        self.read_all = False
        while True:
            buffer = connection.buffer
            position = connection.position
            if position >= len(buffer) or buffer[position] != PUBLISH:
                return done
            if unseen <= 0:
                if work.is_over():
                    return True
                unseen = RUNS_A_LOOK
            account = self._account if payer_of is None else self.payer_at(buffer, position)
            is_long = len(buffer) - position > STRETCH_BYTES
            began = work.clock() if is_long else 0.0
            run = find_run(
                buffer,
                position,
                server.dataspace.routes.by_key if writable is None else writable.known,
                server.resolve if writable is None else writable.resolve,
                account.room(),
                connection.max_packet_size,
                payer_of,
                properties=self._properties,
                most=self._most,
            )
            if is_long:
                took = work.clock() - began
                slow = took > SLICE_SECONDS / (4 if self._most else 1)
                self._most = STRETCH_BYTES if slow else 0
            if run is None:
                return done
            if run.count:
                self._forward(account, run)
            done = False
            unseen -= 1 + len(run.destinations.holders) + (run.count >> 4)
            if run.cut:
                excess, position = self.excess, connection.position
                key = None if excess is None else self._key_at(buffer, position)
                if excess is None or not excess.passes(account, PUBLISH, key):
                    self.short = account
                    return True
                if excess.handed:
                    return True
                shed = self._shed_run(excess)
                if not shed:
                    return False
                unseen -= shed >> 4
            elif run.last and connection.position == run.end:
                self.read_all = True
                return False

    def _forward(self, account: Account, run: Run) -> None:
        """Hand a run of publications to whom it concerns, as it is."""
        server = self._server
        connection = self._connection
        buffer = connection.buffer
        end = run.end
        whole = run.last and end == len(buffer) and not connection.position
        if whole and run.alike and end < LITTLE_BYTES:
            self._note_single(buffer[: end // run.count], run.topic)
        # A slice of everything is the buffer itself: no copy.
        frames = buffer[connection.position : end]
        if self._properties:
            batch = Batch(as_mqtt311(frames), run.count, publications, run.topic, run.alike)
            batch.framed = {MQTT5: frames}
        else:
            batch = Batch(frames, run.count, publications, run.topic, run.alike)
        # What nothing follows need not wait to be sent with it.
        commit = commit_and_send if run.last else commit_run
        server.dataspace.route_run(account, batch, run.destinations.holders, commit)
        server.counters.received += run.count
        connection.position = end
        if self.excess is not None:
            self.excess.handed = True

    def _shed_run(self, excess: Excess) -> int:
        """Drop a run of publications like the next one, which is due.

        Returns:
            Their number; 0: the next one is too large for a run, and is left to `Connection`.
        """
        connection, due = self._connection, excess.take()
        alike = excess.rules.only is not None  # otherwise one at a time
        writable = self._writable
        run = find_run(
            connection.buffer,
            connection.position,
            self._server.dataspace.routes.by_key if writable is None else writable.known,
            self._server.resolve if writable is None else writable.resolve,
            (UNLIMITED, UNLIMITED) if alike else (0, 0),
            connection.max_packet_size,
            self.billing.of_key if self.billing.by_topic else None,
            properties=self._properties,
            most=self._most,
        )
        if run is None or due is None:
            return 0
        excess.shed(*due, run.count)
        self._server.counters.received += run.count
        connection.position = run.end
        return run.count

    def _note_single(self, packet: bytes, topic: str) -> None:
        """Remember the packet that a read has been, if the one before was on the same topic."""
        if topic is not self._topic:
            self._topic = topic
            self.single = None
        elif not self.billing.by_topic:
            self.single = Single.of(packet, topic, properties=self._properties)

    def forward_single(self, data: bytes) -> bool | None:
        """Forward a read of publications just like those of the one before; see `PlainPackets`.

        The same as `forward_runs` would do, at half of the cost: it is most of what those cost who
        have few messages in flight.
        """
        single = self.single
        if single is None:
            return None
        size = len(data)
        server = self._server
        dataspace = server.dataspace
        account = self._account
        route = dataspace.routes.by_key.get(single.key)
        if route is None or route.run is None or not account.is_open_wide():
            return None
        holders = route.run.holders
        count = 1
        if size != single.size:
            count = single.times(data)
            items, nbytes = account.room()
            price = len(holders) + 1  # as in `find_run`
            if not 0 < count <= 1 + items // price or size - single.size > nbytes // price:
                return None
        elif not data.startswith(single.header):
            return None
        topic = single.topic
        if not single.plain:
            batch = Batch(data, count, publications, topic, True)
        else:
            header, rest = single.plain, data[len(single.header) :]
            raw = header + rest if count == 1 else as_mqtt311(data)
            batch = Batch(raw, count, publications, topic, True)
            batch.framed = {MQTT5: data}
        dataspace.route_run(account, batch, holders, commit_and_send)
        counters = server.counters
        counters.received += count
        counters.received_bytes += size
        flusher = server.flusher
        if flusher.dirty and not flusher.passing:
            flusher.flush_now()
        return account.is_open_wide()
