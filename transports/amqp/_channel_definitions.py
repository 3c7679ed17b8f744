"""What is declared, bound and deleted on a channel: the classes exchange and queue.

Source: AMQP 0-9-1, those classes; rabbit_channel.erl of RabbitMQ 3.10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from pamqp.commands import Exchange, Queue

from ...dataspace.exchanges import AMQ_TOPIC, HostError
from ._direct_replies import ADDRESSES
from ._frames import declare_ok_frame, method_frame
from ._replies import AmqpError, Code, Method

if TYPE_CHECKING:
    from pamqp import base

    from ...dataspace.exchanges import DeclaredQueue
    from ._session import AmqpSession
    from ._topic_rights import TopicRights


class ChannelDefinitions:
    """The part of a channel that defines things; see `ServerChannel`.

    Attributes:
        number: Its number on the connection.
        session: The connection.
    """

    __slots__ = ("_queue", "number", "session")

    def __init__(self, session: AmqpSession, number: int) -> None:
        self.session = session
        self.number = number
        # The queue that was declared last: "" stands for it.
        self._queue = ""

    @property
    def _topics(self) -> TopicRights:
        topics = self.session.topics
        assert topics is not None
        return topics

    def _answer(self, method: base.Frame, *, nowait: bool = False, durable: bool = False) -> None:
        """Send an answer, unless the client wants none; when all definitions are `durable`."""
        if nowait:
            return
        frame = method_frame(self.number, method)
        if durable:
            self.session.send_when_durable(frame)
        else:
            self.session.sender.send(frame)

    def _find(self, name: str, method: Method) -> DeclaredQueue:
        host, session = self.session.host, self.session
        return host.find_queue(self._named(name, method), session)

    def _named(self, name: str, method: Method) -> str:
        """Return a queue's name; "" is the one that was declared last on this channel."""
        if name:
            return name
        if not self._queue:
            raise AmqpError(Code.NOT_FOUND, "no previously declared queue", method)
        return self._queue

    def _declare_exchange(self, said: Exchange.Declare) -> None:
        session = self.session
        if said.passive:
            session.host.check_exchange(said.exchange)
        else:
            arguments = said.arguments or {}
            if arguments.get("alternate-exchange") == AMQ_TOPIC:
                self._topics.check_way("an alternate exchange", (40, 10))
            session.host.declare_exchange(
                said.exchange, said.exchange_type, durable=said.durable,
                auto_delete=said.auto_delete, internal=said.internal, arguments=arguments,
            )  # fmt: skip
        self._answer(Exchange.DeclareOk(), nowait=said.nowait, durable=said.durable)

    def _delete_exchange(self, said: Exchange.Delete) -> None:
        self.session.host.delete_exchange(said.exchange, if_unused=said.if_unused)
        self._answer(Exchange.DeleteOk(), nowait=said.nowait, durable=True)

    def _bind_exchange(self, said: Exchange.Bind) -> None:
        session = self.session
        if said.source == AMQ_TOPIC:
            self._topics.check_binding(said.routing_key, (40, 30))
        if said.destination == AMQ_TOPIC:
            self._topics.check_way("a binding", (40, 30))
        session.host.bind_exchange(
            said.destination, said.source, said.routing_key, said.arguments or {}
        )
        self._answer(Exchange.BindOk(), nowait=said.nowait, durable=True)

    def _unbind_exchange(self, said: Exchange.Unbind) -> None:
        self.session.host.unbind_exchange(
            said.destination, said.source, said.routing_key, said.arguments or {}
        )
        self._answer(Exchange.UnbindOk(), nowait=said.nowait, durable=True)

    def _declare_queue(self, said: Queue.Declare) -> None:
        session = self.session
        if said.passive and said.queue.startswith(ADDRESSES):
            self._look_for_replies(said)
            return
        if said.passive:
            declared = session.host.find_queue(self._named(said.queue, (50, 10)), session)
        else:
            arguments = said.arguments or {}
            if arguments.get("x-dead-letter-exchange") == AMQ_TOPIC:
                self._topics.check_dead_letters(arguments.get("x-dead-letter-routing-key"))
            declared = session.host.declare_queue(
                said.queue, durable=said.durable,
                exclusive_to=session if said.exclusive else None,
                auto_delete=said.auto_delete, arguments=arguments, by=session,
            )  # fmt: skip
        self._queue = declared.name
        if not said.nowait:
            queue = declared.queue
            frame = declare_ok_frame(self.number, declared.name, len(queue), len(queue.consumers))
            if declared.durable and not said.passive:
                session.send_when_durable(frame)
            else:
                session.sender.send(frame)

    def _look_for_replies(self, said: Queue.Declare) -> None:
        """Say whether the consumer of direct replies is still there that has this address."""
        session = self.session
        consumer = session.server.replies.get(said.queue)
        if consumer is None or consumer.host is not session.host:
            what = session.host.what("queue", said.queue)
            raise AmqpError(Code.NOT_FOUND, f"no {what}", (50, 10))
        if not said.nowait:
            session.sender.send(declare_ok_frame(self.number, said.queue, 0, 1))

    def _bind_queue(self, said: Queue.Bind) -> None:
        session = self.session
        name, key = self._named(said.queue, (50, 20)), said.routing_key
        if not (said.queue or key):
            key = name
        if said.exchange == AMQ_TOPIC:
            self._topics.check_binding(key, (50, 20))
        session.host.bind_queue(name, said.exchange, key, said.arguments or {}, session)
        self._answer(Queue.BindOk(), nowait=said.nowait, durable=True)

    def _unbind_queue(self, said: Queue.Unbind) -> None:
        session = self.session
        name, key = self._named(said.queue, (50, 50)), said.routing_key
        if not (said.queue or key):
            key = name
        session.host.unbind_queue(name, said.exchange, key, said.arguments or {}, session)
        self._answer(Queue.UnbindOk(), durable=True)

    def _purge_queue(self, said: Queue.Purge) -> None:
        session = self.session
        count = session.host.purge_queue(self._named(said.queue, (50, 30)), session)
        self._answer(Queue.PurgeOk(count), nowait=said.nowait)

    def _delete_queue(self, said: Queue.Delete) -> None:
        session = self.session
        count = session.host.delete_queue(
            self._named(said.queue, (50, 40)),
            if_unused=said.if_unused, if_empty=said.if_empty, by=session,
        )  # fmt: skip
        self._answer(Queue.DeleteOk(count), nowait=said.nowait, durable=True)

    definers: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        Exchange.Declare: _declare_exchange,
        Exchange.Delete: _delete_exchange,
        Exchange.Bind: _bind_exchange,
        Exchange.Unbind: _unbind_exchange,
        Queue.Declare: _declare_queue,
        Queue.Bind: _bind_queue,
        Queue.Unbind: _unbind_queue,
        Queue.Purge: _purge_queue,
        Queue.Delete: _delete_queue,
    }
    """The methods that it handles."""


def fault_of(exc: HostError, method: Method) -> AmqpError:
    """Return what a client is told about a request that its virtual host refuses."""
    return AmqpError(Code(exc.reason.value), exc.text, method)
