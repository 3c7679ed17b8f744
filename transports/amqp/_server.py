"""The AMQP side of a relay: the shared state of its connections, its virtual hosts, its confirms.

A virtual host is a tenant's, and has the tenant's name. To a client "/" is the host of its own
tenant; the host that is called so is that of clients without a tenant, and of the default tenant.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from ...access._account_tree import AccountTree
from ...access._admission import Admission
from ...access._guesses import Guesses
from ...accounts import Account, Recipient
from ...accounts._cooperative import with_pauses
from ...accounts._ticker import following
from ...dataspace import Dataspace
from ...dataspace.exchanges import HostLimits, Keeper, QueueMaker, VirtualHost
from .._flusher import Flusher
from .._link import Link
from .._scheduler import SLICE_SECONDS
from .._server import TICK_SECONDS, Server
from .._settings import ServerSettings
from ..mqtt.server._log_ins import LogIns
from ..mqtt.server._place import Place, take_place
from ._blocked import BlockedNotices
from ._channel import ServerChannel
from ._direct_replies import ReplyConsumer
from ._negotiation import UnknownHostError
from ._properties import BasicProperties
from ._session import AmqpSession

if TYPE_CHECKING:
    from ...access._tenants import Peer
    from ...access.acl import Rights
    from ...dataspace.queues import Delivery
    from ...dataspace.queues._serving import ServingQueue
    from ..mqtt.server._over_limit import Excess, OverLimits

ROOT: Final = "/"
"""The virtual host of clients without a tenant; clients' libraries ask for it by default."""

TICK_LEAST_SECONDS: Final = 0.01
"""Queues are ticked no more often. RabbitMQ's timers are in milliseconds, and later under load."""

TICK_SHARE: Final = 0.05
"""The share of the time that ticking may take: with 10,000 queues one round takes 10 ms."""

HOST_ACCOUNT: Final = "amqp "
"""Before the name of a virtual host: its account, which pays for bindings to amq.topic."""

CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": False,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
"""What clients may use beyond AMQP 0-9-1, by RabbitMQ's names."""

CONFIRMING: Final = "confirming its publications"
SETTLING: Final = "settling acknowledgements"


class AmqpServer(Server[ServerSettings, AmqpSession]):
    """The shared state of one relay's AMQP connections.

    Attributes:
        hosts: The virtual hosts, by name; made by `open_hosts`.
        log_ins: Checks passwords; set it before the first connection, where protocols share them.
        over_limits: The policies for publishers above their limits; None: they wait. Likewise.
        wall: The wall clock, by which tokens and messages expire; likewise.
        blocked: Tells connections that they are not read, and why.
        properties: What clients are told of the server.
        replies: The consumers of direct replies, by their addresses.
        acked: Deliveries that were acknowledged one by one, and are not settled (`settle_acked`).
        touched: Queues with new messages that they have not seen to (`make_ready`).
    """

    logger = logging.getLogger("clearfunds.transports.amqp")

    def __init__(
        self,
        dataspace: Dataspace,
        flusher: Flusher,
        account: Account,
        settings: ServerSettings,
        admission: Admission | None = None,
        tree: AccountTree | None = None,
        *,
        version: str = "",
    ) -> None:
        super().__init__(dataspace, flusher, account, settings, admission, tree)
        self.hosts: dict[str, VirtualHost] = {}
        self.log_ins = LogIns(
            Guesses(settings.wrong_password_delay), self.ledger.clock, self.admission.refused
        )
        self.over_limits: OverLimits | None = None
        self.wall: Callable[[], float] = time.time
        self.blocked = BlockedNotices(self)
        self.properties: dict[str, Any] = {
            "product": "clearfunds",
            "version": version,
            "platform": "Python",
            "capabilities": dict(CAPABILITIES),
        }
        # The channels with confirms to send, and how many connections are being handled.
        self._due: dict[ServerChannel, None] = {}
        self._something = trio.Event()
        self._handling = 0
        self.replies: dict[str, ReplyConsumer] = {}
        self.acked: list[Delivery] = []
        self.touched: dict[Recipient, None] = {}

    def handle(self, link: Link, listener: str) -> Coroutine[Any, Any, None]:
        """Serve one accepted connection until it ends. Raises only `trio.Cancelled`."""
        return self.serve(link, lambda: AmqpSession(self, link, listener))

    # -- virtual hosts -----------------------------------------------------------------------------

    def open_hosts(
        self,
        make_queues: Callable[[str], QueueMaker],
        *,
        keeper: Keeper | None = None,
        replicated: bool = False,
        values: Mapping[str, bytes] | None = None,
    ) -> None:
        """Make the virtual hosts, with the definitions that are stored. Before anybody connects.

        Args:
            make_queues: Returns what makes the queues of one host, by its name.
            keeper: The store; None: definitions end with the process.
            replicated: Whether the store is replicated.
            values: All that is stored by key.
        """
        settings = self.settings
        limits = HostLimits(
            queues=settings.max_queues,
            exchanges=settings.max_exchanges,
            bindings=settings.max_bindings,
            definition_bytes=settings.max_definition_bytes,
        )
        tenants = self.tree.rules.tenants.values()
        for name in (ROOT, *(each.name for each in tenants if not each.default)):
            account = self.ledger.open(HOST_ACCOUNT + name, parent=self.account)
            host = VirtualHost(
                name,
                dataspace=self.dataspace,
                account=account,
                maker=make_queues(name),
                keeper=keeper,
                replicated=replicated,
                properties=BasicProperties(),
                limits=limits,
                may_read=self._topics_of(name),
                may_publish=self._topics_of(name),
                wall=self.wall,
            )
            self.hosts[name] = host
            if values:
                host.recover(values)

    def _topics_of(self, name: str) -> Callable[[str], bool] | None:
        """Return a test for the topics that a host's clients may have; None: all of them."""
        if self.authority.default != "tenant":
            return None
        return partial(self.tree.rules.is_topic_of, None if name == ROOT else name)

    def host_of(self, name: str, peer: Peer) -> VirtualHost | None:
        """Return the virtual host that a client asks for; None: it may not use that.

        A client may use the host of its own tenant, by the tenant's name or as "/".

        Raises:
            UnknownHostError: If there is none of that name.
        """
        tenant = self.tree.of(peer).tenant
        own = self.hosts[ROOT if tenant is None or tenant.default else tenant.name]
        if name == ROOT or (tenant is not None and name == tenant.name):
            return own
        if name not in self.tree.rules.tenants:
            raise UnknownHostError(name)
        return None

    def close_hosts(self) -> None:
        """End the queues in this process, when all connections have ended. Idempotent."""
        for host in self.hosts.values():
            host.close()
            host.account.close()
        self.hosts.clear()

    # -- for sessions ------------------------------------------------------------------------------

    def take_place(self, peer: Peer, *, proved: bool) -> Place | str | None:
        """Count a client that is let in; see `mqtt.server._place.take_place`."""
        return take_place(self, peer, proved=proved)

    def rights_of(self, peer: Peer, client: str) -> Rights | None:
        """Return a client's rights to publish and read; None: everything."""
        authority = self.authority
        return authority.of(peer, client) if authority.restricts_reading else None

    def excess_of(self, account: Account, *names: str) -> Excess | None:
        """Return what is to be done for a publisher above its limits; None: it waits."""
        return None if self.over_limits is None else self.over_limits.of(account, *names)

    # -- confirms ----------------------------------------------------------------------------------

    @contextmanager
    def handling(self) -> Generator[None]:
        """Handle a connection's input; all confirms that are due go out at the end."""
        self._handling += 1
        try:
            yield
        finally:
            self._handling -= 1
            self.settle()
            if self._due:
                self.say_confirms()

    def settle(self) -> None:
        """See to everything that is put off until the end of a read."""
        if self.acked:
            self.settle_acked()
        if self.touched:
            self.make_ready()

    def settle_acked(self) -> None:
        """Settle the deliveries that were acknowledged one by one."""
        acked = self.acked[:]
        self.acked.clear()
        call = self.ledger.faults.call
        if len(acked) == 1:
            call(acked[0].queue, SETTLING, acked[0].queue.acked, acked[0])
            return
        queues: dict[ServingQueue, list[Delivery]] = {}
        for delivery in acked:
            queues.setdefault(delivery.queue, []).append(delivery)
        for queue, deliveries in queues.items():
            call(queue, SETTLING, queue.all_acked, deliveries)

    def make_ready(self) -> None:
        """Let queues serve what was published: it goes to their consumers now."""
        while self.touched:
            queue, _ = self.touched.popitem()
            try:
                queue.ready()
            except Exception as exc:  # noqa: BLE001 (whatever it is)
                self.ledger.faults.note(queue, "seeing to what was published", exc)

    def confirms_due(self, channel: ServerChannel) -> None:
        """Note that a channel has confirms to send."""
        self._due[channel] = None
        if not self._handling:
            self._something.set()

    def say_confirms(self) -> None:
        """Hand over all confirms that are due, to be sent with the next flush."""
        while self._due:
            due, self._due = self._due, {}
            for channel in due:
                self.ledger.faults.call(channel.session, CONFIRMING, channel.say_confirms)

    async def _confirm(self) -> None:
        """Send confirms that come between reads: from the disk, or when another protocol acks."""
        while True:
            await self._something.wait()
            self._something = trio.Event()
            with self.flusher.corked():
                self.say_confirms()
            self.flusher.flush_now()

    # -- time --------------------------------------------------------------------------------------

    async def keep_time(self) -> None:
        """Hold every connection to its deadline, tick queues, send confirms, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().keep_time)
            nursery.start_soon(self.ledger.faults.keep_going, "ticking queues", self._tick_queues)
            nursery.start_soon(self.ledger.faults.keep_going, "confirming", self._confirm)
            nursery.start_soon(
                self.ledger.faults.keep_going, "telling who is blocked", self.blocked.run
            )

    async def _tick_queues(self) -> None:
        """Let queues do what is due by time when it is due: a delay is often made of a TTL.

        What begins to be due within less than `TICK_SECONDS`, while nothing else is, may be as late
        as that.
        """
        clock = self.ledger.clock
        while True:
            now = clock()
            due, took = await with_pauses(self._queue_ticks(now), SLICE_SECONDS)
            pause = max(due - clock(), TICK_LEAST_SECONDS, took / TICK_SHARE)
            common = following(trio.current_time(), TICK_SECONDS)
            await trio.sleep_until(min(trio.current_time() + pause, common))

    def _queue_ticks(self, now: float) -> Generator[None, None, float]:
        """Tick all queues, some at a time; return when the next thing is due."""
        due = math.inf
        for host in list(self.hosts.values()):
            steps = host.tick_in_steps(now)
            goes_on = True
            while goes_on:
                try:
                    with self.flusher.corked():
                        next(steps)
                except StopIteration as end:
                    due = min(due, end.value)
                    goes_on = False
                self.flusher.flush_now()
                yield
        return due
