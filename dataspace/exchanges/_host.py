"""A virtual host: exchanges, queues and bindings of AMQP 0-9-1, and the way of a message through.

A message is routed in the turn of its publisher, when it is published: from exchange to exchange
along their bindings, each exchange once. Each queue that it reaches gets it once, however many
bindings match. The deliveries are made at the turn's commit, and charged to its account (rule 2).

Source: AMQP 0-9-1, section 3.1; rabbit_exchange.erl (route) and rabbit_basic.erl (header_routes) of
RabbitMQ 3.10.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Final, cast

import attrs

from ...accounts import Account, Confirm, Recipient, Turn, commit_run, under_confirm
from ...accounts._books import borrow_run
from ...accounts._cooperative import run_to_end
from .._dataspace import Dataspace
from ..queues import DeadLetter, Keeper
from ._arguments import QueueArguments
from ._dead_lettering import dead_letter
from ._declared_queue import DeclaredQueue, HostQueue, QueueMaker
from ._definitions import Definitions
from ._errors import access_refused, not_found, precondition_failed
from ._exchange import Binding, Exchange, Headers, Kind
from ._limits import HostLimits
from ._message import Message, MessageRun
from ._properties import PlainProperties, Properties
from ._tables import Table, type_name
from ._topic_bridge import AMQ_TOPIC, TopicBridge
from ._topology import DEFAULT_EXCHANGE

TICKED_A_STEP: Final = 64
"""Queues that are ticked before other tasks may run: a millisecond's worth."""


@attrs.frozen(slots=True)
class HostStatistics:
    """Statistics of a virtual host."""

    name: str
    """Its name."""
    exchanges: int
    """Exchanges, those that are always there included."""
    queues: int
    """Queues."""
    bindings: int
    """Bindings, those of the default exchange not counted."""
    definition_bytes: int
    """Their memory, about."""
    published: int
    """Messages that were ever published."""
    routed: int
    """Copies of them that queues got."""
    unrouted: int
    """Those of `published` that reached nobody."""


class VirtualHost(Definitions):
    """Exchanges, queues and bindings with names of their own, for the clients of one tenant.

    Args:
        name: Its name, "/" by custom.
        dataspace: The dataspace whose topics are those of `amq.topic`.
        account: Pays for observations in the dataspace (rule 16); its owner opens and closes it.
        maker: Makes the queues; by default they are in RAM, or with the `keeper`.
        keeper: The store of definitions; None: they end with the process.
        replicated: Whether the store is replicated, so that there may be quorum queues.
        properties: Reads and writes the properties of messages: part of the protocol.
        limits: Limits on definitions.
        topic_prefix: The beginning of the topics that are this host's, with a `/` at its end; ""
            for all. The routing keys of `amq.topic` do not have it.
        may_read: Says which topics of the dataspace its queues may get; None: all of them.
        may_publish: Says which topics its clients may publish to; None: all of them.
        wall: The wall clock.

    Attributes:
        dataspace: See above.
        properties: See above.
        published: Messages that were ever published.
        routed: Copies of them that queues got.
        unrouted: Those of `published` that reached nobody.
        topics: The way between `amq.topic` and the dataspace.
    """

    def __init__(
        self,
        name: str,
        *,
        dataspace: Dataspace,
        account: Account,
        maker: QueueMaker | None = None,
        keeper: Keeper | None = None,
        replicated: bool = False,
        properties: Properties | None = None,
        limits: HostLimits | None = None,
        topic_prefix: str = "",
        may_read: Callable[[str], bool] | None = None,
        may_publish: Callable[[str], bool] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            name, account=account, maker=maker, keeper=keeper, replicated=replicated,
            limits=HostLimits() if limits is None else limits,
        )  # fmt: skip
        self.dataspace = dataspace
        self.properties: Properties = PlainProperties() if properties is None else properties
        self.published = 0
        self.routed = 0
        self.unrouted = 0
        self._wall = wall
        self._copies = account.ledger.fanout_copies
        self._amq_topic = self.exchanges[AMQ_TOPIC]
        self.topics = TopicBridge(
            dataspace, account, self.properties, self.queues_of_topic,
            prefix=topic_prefix, may_read=may_read, may_publish=may_publish, wall=wall,
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"<VirtualHost {self.name}: {len(self.exchanges)} exchanges, {len(self.queues)} "
            f"queues, {self.bindings} bindings>"
        )

    # -- publishing --------------------------------------------------------------------------------

    def publish(self, turn: Turn, exchange: str, message: Message) -> bool:
        """Publish a message at the commit of `turn`; return whether anybody will get it.

        The turn's account pays for each copy, 1 item and `message.nbytes`. A message with headers
        `CC` or `BCC` goes by these routing keys, too; `BCC` is taken out of it.

        Raises:
            HostError: NOT_FOUND; ACCESS_REFUSED for an internal exchange; PRECONDITION_FAILED if
                `CC` or `BCC` is no array, or too long.
        """
        if b"CC" in message.properties or message.headers is not None:
            message = self._with_copies(message)
        if exchange == DEFAULT_EXCHANGE:
            if message.more_keys:
                return self._send(turn, self._named(message), message, others=False)
            declared = self.queues.get(message.routing_key)
            return self._send(turn, () if declared is None else (declared,), message, others=False)
        source = self.exchanges.get(exchange)
        if source is None:
            raise not_found(self.what("exchange", exchange))
        if source.internal:
            what = self.what("exchange", exchange)
            raise access_refused(f"cannot publish to internal {what}")
        return self._publish(turn, source, message)

    def publish_at_once(
        self,
        account: Account,
        exchange: str,
        message: Message,
        nbytes: int,
        confirm: Confirm | None,
        touched: dict[Recipient, None],
    ) -> bool | None:
        """Do a whole root turn in one step, if a message goes to queues alone, by one exchange.

        It keeps the same books as `publish` in a turn of `account`, except for `Holder.ready`,
        which the caller calls for all that were touched: once for all messages of a read
        (`commit_run`).

        Args:
            account: Pays for it.
            exchange: The exchange that it is published to.
            message: The message.
            nbytes: Its size: `message.nbytes`.
            confirm: See `Account.turn`.
            touched: Gets the queues that have it now.

        Returns:
            Whether anybody has it; None: nothing was done, it has to be published in a turn.
        """
        queues = self.find_queues(exchange, message)
        if queues is None:
            return None
        under_confirm(account.ledger, confirm, commit_run, account, queues, message, 1, nbytes)
        for queue in queues:
            touched[queue] = None
        self._count(len(queues), False, 1)
        return bool(queues)

    def find_queues(self, exchange: str, message: Message) -> list[HostQueue] | None:
        """Return the queues that get a message; None: it may reach others, or there is an error."""
        if b"CC" in message.properties or message.headers is not None:
            return None
        if exchange == DEFAULT_EXCHANGE:
            declared = self.queues.get(message.routing_key)
            return [] if declared is None else [declared.queue]
        source = self.exchanges.get(exchange)
        if source is None or source.internal or not source.is_plain or source is self._amq_topic:
            return None
        headers = partial(self.properties.headers, message)
        found = cast("Iterable[DeclaredQueue]", source.match(message.routing_key, headers))
        return [each.queue for each in found]

    def publish_run(
        self,
        account: Account,
        queues: list[HostQueue],
        run: MessageRun,
        touched: dict[Recipient, None],
    ) -> None:
        """Do the root turn of a run in one step; as `publish_at_once`, for queues found before.

        None of them may answer the confirms of such messages later (`RunQueue.answers_late`), and
        nobody may look at single turns of the account (`Account.has_plain_turns`).
        """
        copies = len(queues)
        borrow_run(account, run.count, run.nbytes, copies)
        now = account.ledger.clock()
        for queue in queues:
            if queue.hold_run(account, run, now):
                touched[queue] = None
        self._copies.add_copies(copies, run.count)
        self.published += run.count
        self.routed += run.count * copies

    def _publish(self, turn: Turn, source: Exchange, message: Message) -> bool:
        if source.is_plain and not message.more_keys and source is not self._amq_topic:
            is_read = source.kind is Kind.HEADERS
            headers: Headers = partial(self.properties.headers, message) if is_read else dict
            found = cast("Iterable[DeclaredQueue]", source.match(message.routing_key, headers))
            return self._send(turn, found, message, others=False)
        found, to_topics = self._route(source, message)
        others = to_topics and self.topics.publish(turn, message)
        return self._send(turn, found, message, others=others)

    def _named(self, message: Message) -> list[DeclaredQueue]:
        """Return the queues that its routing keys name."""
        keys = dict.fromkeys((message.routing_key, *message.more_keys))
        return [self.queues[key] for key in keys if key in self.queues]

    def _with_copies(self, message: Message) -> Message:
        """Return a message with the routing keys of its headers, and without `BCC`."""
        headers = self.properties.headers(message)
        if "CC" not in headers and "BCC" not in headers:
            return message
        more_keys = (*_keys_of(headers, "CC"), *_keys_of(headers, "BCC"))
        most = self.limits.copies
        if len(more_keys) > most:
            raise precondition_failed(
                f"invalid message: {len(more_keys)} routing keys in CC and BCC; at most {most}"
            )
        if "BCC" in headers:
            rest = {name: value for name, value in headers.items() if name != "BCC"}
            message = self.properties.with_headers(message, rest)
        return attrs.evolve(message, more_keys=more_keys)

    def _route(self, source: Exchange, message: Message) -> tuple[dict[DeclaredQueue, None], bool]:
        """Return the queues that a message reaches, and whether `amq.topic` is on its way."""
        headers = partial(self.properties.headers, message)
        keys = tuple(dict.fromkeys((message.routing_key, *message.more_keys)))
        queues: dict[DeclaredQueue, None] = {}
        seen: set[Exchange] = {source}
        line = [source]
        while line:
            exchange = line.pop()
            is_empty = True
            for key in keys:
                for destination in exchange.match(key, headers):
                    is_empty = False
                    if isinstance(destination, Exchange):
                        if destination not in seen:
                            seen.add(destination)
                            line.append(destination)
                    else:
                        queues[destination] = None
            if is_empty and exchange.alternate is not None:
                if exchange.alternate == DEFAULT_EXCHANGE:
                    queues.update(dict.fromkeys(self._named(message)))
                    continue
                alternate = self.exchanges.get(exchange.alternate)
                if alternate is not None and alternate not in seen:
                    seen.add(alternate)
                    line.append(alternate)
        return queues, self._amq_topic in seen

    def _send(
        self, turn: Turn, found: Iterable[DeclaredQueue], message: Message, *, others: bool
    ) -> bool:
        """Send a message to queues at the commit; return whether it reaches them, or `others`."""
        queues = [declared.queue for declared in found]
        turn.act(partial(self._deliver, queues, message, message.nbytes, others))
        return others or bool(queues)

    def _deliver(
        self, queues: list[HostQueue], message: Message, nbytes: int, others: bool, turn: Turn
    ) -> None:
        for queue in queues:
            turn.deliver(queue, message, 1, nbytes)
        copies = len(queues)
        self._count(copies, others, 1)
        turn.on_undo(partial(self._count, copies, others, -1))

    def _count(self, copies: int, others: bool, change: int) -> None:
        self._copies.add_copies(copies, change)
        self.published += change
        self.routed += change * copies
        if not (copies or others):
            self.unrouted += change

    def queues_of_topic(self, message: Message) -> list[HostQueue]:
        """Return the queues that get a publication of the dataspace. For `TopicBridge`."""
        found, _ = self._route(self._amq_topic, message)
        return [declared.queue for declared in found]

    def _publish_dead(
        self, queue: str, arguments: QueueArguments, turn: Turn, letter: DeadLetter
    ) -> None:
        """Publish a dead letter; one whose exchange is not there is dropped, as in RabbitMQ."""
        message = letter.event
        name = arguments.dead_letter_exchange
        assert name is not None
        source = self.exchanges.get(name)
        if not isinstance(message, Message) or (source is None and name != DEFAULT_EXCHANGE):
            return
        dead = dead_letter(
            self.properties, letter, message, queue, name, arguments.dead_letter_key, self._wall()
        )
        if source is None:
            self._send(turn, self._named(dead), dead, others=False)
        else:
            self._publish(turn, source, dead)

    def needs_headers(self, exchange: str) -> bool:
        """Whether routing by an exchange looks at headers: its own, or those of one behind it.

        A protocol that parses headers anyway may do so before `publish`, and give them along.
        """
        start = self.exchanges.get(exchange)
        line = [] if start is None else [start]
        seen = set(line)
        while line:
            source = line.pop()
            if source.kind is Kind.HEADERS:
                return True
            following = [b.destination for b in source.bindings.values()] if source.onward else []
            alternate = self.exchanges.get(source.alternate or "")
            for each in (*following, alternate):
                if isinstance(each, Exchange) and each not in seen:
                    seen.add(each)
                    line.append(each)
        return False

    # -- the dataspace -----------------------------------------------------------------------------

    def _binding_added(self, binding: Binding) -> None:
        if binding.source is self._amq_topic:
            self.topics.bound(binding.key)

    def _binding_removed(self, binding: Binding) -> None:
        if binding.source is self._amq_topic:
            self.topics.unbound(binding.key)

    # -- time --------------------------------------------------------------------------------------

    def tick_in_steps(self, now: float) -> Generator[None, None, float]:
        """Do what is due in all queues, some at a time; return when to call again at the latest.

        Both times are on the ledger's clock; `math.inf`: nothing is due by time.
        """
        faults = self.account.ledger.faults
        due = math.inf
        for number, declared in enumerate(list(self.queues.values()), 1):
            queue = declared.queue
            faults.call(queue, "doing what is due", queue.tick, now)
            due = min(due, math.inf if queue.deleted else queue.deadline())
            if not number % TICKED_A_STEP:
                yield
        return due

    def tick(self, now: float) -> float:
        """Do `tick_in_steps` in one step."""
        return run_to_end(self.tick_in_steps(now))

    def close(self) -> None:
        """End the host in this process, and leave what is stored: the process ends. Idempotent.

        Consumers are told. Its account may be closed then.
        """
        self.topics.close()
        self.close_queues()

    def statistics(self) -> HostStatistics:
        """Return statistics of the host."""
        return HostStatistics(
            name=self.name,
            exchanges=len(self.exchanges),
            queues=len(self.queues),
            bindings=self.bindings,
            definition_bytes=self.definition_bytes,
            published=self.published,
            routed=self.routed,
            unrouted=self.unrouted,
        )


def _keys_of(headers: Table, name: str) -> list[str]:
    """Return the routing keys of a header.

    Raises:
        HostError: If it is no array.
    """
    if name not in headers:
        return []
    keys = headers[name]
    if not isinstance(keys, list):
        raise precondition_failed(
            f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(keys)}}}'
        )
    return [each for each in cast("list[object]", keys) if isinstance(each, str)]
