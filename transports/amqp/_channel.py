"""One open channel: what its client asks of it, and what it is told.

Rules of this file:
1. A method either takes effect and is answered, or raises `AmqpError` and has changed nothing but
   what its text says. The session closes the channel then, or the connection.
2. Confirms are noted here, and sent when the session flushes (`say_confirms`): after a read, and
   after the store has reported what is durable.
3. What a client acknowledges has to have been sent to it: otherwise one that reads nothing could
   have anything kept for it.

Source: AMQP 0-9-1, the classes exchange, queue and basic; rabbit_channel.erl of RabbitMQ 3.10.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pamqp.commands import Basic, Confirm, Tx
from pamqp.commands import Channel as ChannelClass

from ...dataspace.exchanges import AMQ_TOPIC, HostError, Message, MessageRun
from ...dataspace.queues import (
    Confirms,
    Delivery,
    PrefetchWindow,
    QueueDeletedError,
    QueueInUseError,
    UnknownTagError,
)
from ._channel_definitions import ChannelDefinitions, fault_of
from ._consuming import ChannelConsumer, ConsumerWindow, OutletChannel
from ._direct_replies import ADDRESSES, DIRECT, ReplyConsumer
from ._field_tables import MalformedError
from ._frames import (
    BASIC,
    ack_frame,
    content_frames,
    get_ok_frame,
    method_frame,
    nack_frame,
    named_frame,
    return_frame,
)
from ._properties import PLAIN, Facts, with_reply_to
from ._replies import NO_METHOD, AmqpError, Code, Method

if TYPE_CHECKING:
    from pamqp import base

    from ...dataspace.exchanges import HostQueue
    from ._connection import Ack, ConnectionInput, Publish
    from ._session import AmqpSession

TAG_PREFIX: Final = "amq.ctag-"
"""The beginning of consumer tags that the server makes; as RabbitMQ."""

TAG_BYTES: Final = 16
"""Random bytes in such a tag, as RabbitMQ."""

MAX_RUN: Final = 128
"""Most publications that are handled in one step: a millisecond's worth."""

_CONSUME_OK: Final = (60, 21)
_CANCEL: Final = (60, 30)
_CANCEL_OK: Final = (60, 31)
_PUBLISH: Final = (60, 40)
_ACK: Final = (60, 80)


class NotYet(Exception):  # noqa: N818 (it is no error)
    """A method cannot be answered before something has happened; it has had no effect.

    Attributes:
        ready: Whether that has happened.
    """

    def __init__(self, ready: Callable[[], bool]) -> None:
        super().__init__()
        self.ready = ready


def _unknown_tag(tag: int, method: Method) -> AmqpError:
    return AmqpError(Code.PRECONDITION_FAILED, f"unknown delivery tag {tag}", method)


class ServerChannel(ChannelDefinitions):
    """One open channel of a connection.

    Args:
        session: The connection.
        number: Its number there.

    Attributes:
        number: See above.
        session: See above.
        confirms: The confirms of its publications; None: it has not asked for any.
        deliveries: The deliveries to acknowledge, by tag.
        closed: Whether it is closed.
        gone: Whether its client has left, and only its publications are still to be handled.
    """

    __slots__ = (
        "_consumers", "_cut_off", "_prefetch", "_replies", "_sent_in", "_sent_upto", "closed",
        "confirms", "deliveries", "gone",
    )  # fmt: skip

    def __init__(self, session: AmqpSession, number: int) -> None:
        super().__init__(session, number)
        self.confirms: Confirms | None = None
        self.deliveries = OutletChannel(f"{session.name} channel {number}", session.outlet)
        self.closed = self.gone = False
        self._cut_off = False
        self._consumers: dict[str, ChannelConsumer] = {}
        self._replies: ReplyConsumer | None = None
        # Per consumer, for those that begin from now on; 0: as many as are allowed.
        self._prefetch = 0
        # No tag above this had been sent when the session read what it handles now.
        self._sent_upto = 0
        self._sent_in = -1

    def __repr__(self) -> str:
        return f"<ServerChannel {self.number}: {len(self._consumers)} consumers>"

    @property
    def unacked(self) -> int:
        """The number of deliveries to acknowledge."""
        return len(self.deliveries)

    @property
    def consumers(self) -> int:
        """The number of its consumers."""
        return len(self._consumers)

    def consumes(self) -> Iterator[str]:
        """Yield the names of the queues that it consumes from."""
        for made in self._consumers.values():
            yield DIRECT if made.consumer is None else made.consumer.queue.name

    # -- publishing --------------------------------------------------------------------------------

    def publish(self, said: Publish) -> None:
        """Publish a message, in a turn of the connection's account."""
        session = self.session
        if said.immediate:
            raise AmqpError(Code.NOT_IMPLEMENTED, "immediate=true", _PUBLISH)
        try:
            facts = session.facts.of(said.properties)
        except MalformedError as exc:
            raise AmqpError(Code.SYNTAX_ERROR, str(exc), _PUBLISH) from None
        properties = said.properties
        if facts is not PLAIN:
            properties = self._checked(facts, properties)
        message = Message(
            said.exchange, said.routing_key, properties, said.body,
            facts.persistent, facts.expiration, None, facts.priority,
        )  # fmt: skip
        nbytes = message.nbytes
        host, account = session.host, session.account
        assert account is not None
        if not said.exchange and said.routing_key.startswith(ADDRESSES):
            if not self._reply(message, nbytes) and said.mandatory:
                self._return(message)
            return
        if said.exchange == AMQ_TOPIC:
            self._topics.check_publish(said.routing_key)
        session.server.counters.received += 1
        confirms = self.confirms
        touched = session.server.touched
        queues = host.find_queues(said.exchange, message)
        if queues:
            run = self._run(said, message, queues)
            session.pausing.queue = queues[0]
            if run is not None:
                session.server.counters.received += run.count - 1
                host.publish_run(account, queues, run, touched)
                if confirms is not None:
                    confirms.run_taken(run.count)
                return
        try:
            if confirms is None:
                routed = host.publish_at_once(
                    account, said.exchange, message, nbytes, None, touched
                )
                if routed is None:
                    with account.turn(nbytes=nbytes) as turn:
                        routed = host.publish(turn, said.exchange, message)
            else:
                with confirms.begin() as confirm:
                    routed = host.publish_at_once(
                        account, said.exchange, message, nbytes, confirm, touched
                    )
                    if routed is None:
                        with account.turn(nbytes=nbytes, confirm=confirm) as turn:
                            routed = host.publish(turn, said.exchange, message)
        except HostError as exc:
            raise fault_of(exc, _PUBLISH) from None
        if said.mandatory and not routed:
            self._return(message)

    def _run(self, said: Publish, message: Message, queues: list[HostQueue]) -> MessageRun | None:
        """Return a publication and those like it that come next; None: each needs its own turn.

        They are as many as funds are there for: once the account is over its limit, one publication
        more may be handled (rule 9).
        """
        account, incoming = self.session.account, self.session.next_in_line
        assert account is not None
        if not account.has_plain_turns or (
            self.confirms is not None
            and any(queue.answers_late(message.persistent) for queue in queues)
        ):
            return None
        bodies = [said.body]
        if incoming is not None:
            copies = len(queues)
            items, nbytes = account.room()
            most = min(items // copies, MAX_RUN - 1)
            bodies += incoming.following(said, most, nbytes // copies - len(said.body))
        return MessageRun(message, bodies)

    def _reply(self, message: Message, nbytes: int) -> bool:
        """Publish a direct reply; whether its consumer is there."""
        session, confirms = self.session, self.confirms
        session.server.counters.received += 1
        consumer = session.server.replies.get(message.routing_key)
        if consumer is not None and consumer.host is not session.host:
            consumer = None
        account = session.account
        assert account is not None
        with (
            nullcontext() if confirms is None else confirms.begin() as confirm,
            account.turn(nbytes=nbytes, confirm=confirm) as turn,
        ):
            if consumer is not None:
                turn.send(consumer, message, nbytes=nbytes)
        return consumer is not None

    def refuse(self, reason: str) -> None:
        """Refuse a publication on a channel with confirms: nack it."""
        assert self.confirms is not None
        with self.confirms.begin() as confirm:
            confirm.expect()
            confirm.refused(reason)

    def shed(self) -> None:
        """Drop a publication: its confirm says nothing of that."""
        if self.confirms is not None:
            with self.confirms.begin():
                pass

    def _checked(self, facts: Facts, properties: bytes) -> bytes:
        """Check properties that the server heeds; return those to hand on."""
        session = self.session
        if facts.fault is not None:
            raise AmqpError(Code.PRECONDITION_FAILED, facts.fault, _PUBLISH)
        if facts.user_id is not None and facts.user_id != session.negotiation.user:
            raise AmqpError(
                Code.PRECONDITION_FAILED,
                f"user_id property set to '{facts.user_id}' but authenticated user was "
                f"'{session.negotiation.user}'",
                _PUBLISH,
            )
        if facts.reply_to is not None:
            if self._replies is None:
                text = "fast reply consumer does not exist"
                raise AmqpError(Code.PRECONDITION_FAILED, text, _PUBLISH)
            return with_reply_to(properties, self._replies.address)
        return properties

    def _return(self, message: Message) -> None:
        """Send back a mandatory message that reaches nobody."""
        session = self.session
        frame = return_frame(self.number, Code.NO_ROUTE, message.exchange, message.routing_key)
        content = content_frames(
            self.number, message.properties, message.body, session.negotiation.frame_size
        )
        session.sender.send(b"".join((frame, *content)))

    def say_confirms(self) -> None:
        """Send the confirms that are due."""
        confirms = self.confirms
        if confirms is None or self.closed:
            return
        send, number = self.session.sender.send, self.number
        for answer in confirms.flush():
            frame = nack_frame if answer.refused else ack_frame
            send(frame(number, answer.number, answer.multiple))

    # -- acknowledging -----------------------------------------------------------------------------

    def ack(self, said: Ack, incoming: ConnectionInput) -> None:
        """Acknowledge deliveries; single ones, and those that come next, are settled together."""
        if said.multiple:
            if not self.gone:
                self._ack_up_to(said.tag)
            return
        tags = [said.tag, *incoming.following_acks(self.number)]
        if self.gone:
            return
        acked = self.session.server.acked
        take = self.deliveries.take
        upto = self._sent()
        for tag in tags:
            delivery = take(tag) if tag <= upto else None
            if delivery is None:
                raise _unknown_tag(tag, _ACK)
            acked.append(delivery)

    def _ack_up_to(self, last: int) -> None:
        tag = self._settled(last, True, _ACK)
        if tag is not None:
            self.session.server.settle_acked()
            self.deliveries.ack(tag, multiple=True)

    def _nack(self, said: Basic.Nack) -> None:
        tag = self._settled(said.delivery_tag or 0, said.multiple, (60, 120))
        if tag is not None:
            self.deliveries.nack(tag, multiple=said.multiple, requeue=said.requeue)

    def _reject(self, said: Basic.Reject) -> None:
        tag = self._settled(said.delivery_tag or 0, False, (60, 90))
        if tag is not None:
            self.deliveries.reject(tag, requeue=said.requeue)

    def _settled(self, tag: int, multiple: bool, method: Method) -> int | None:
        """Return the tag to settle, which is outstanding and was sent; None: there is nothing."""
        unacked = self.deliveries.unacked
        upto = self._sent()
        if not tag and multiple:
            if upto >= self.deliveries.last_tag:
                return 0
            return max((each for each in unacked if each <= upto), default=None)
        if tag not in unacked or tag > upto:
            raise _unknown_tag(tag, method)
        return tag

    def _sent(self) -> int:
        """Return the last tag that had been sent when the session read what it handles now."""
        session = self.session
        if self._sent_in != session.reads:
            self._sent_in = session.reads
            self._sent_upto = self._find_sent()
        return self._sent_upto

    def _find_sent(self) -> int:
        """Return the last tag that has been sent, or is being sent."""
        outlet = self.session.outlet
        last = self.deliveries.last_tag
        if not outlet.unsent:
            return last
        unsent = {id(loan) for loan in outlet.unbegun()}
        tags = (tag for tag, each in self.deliveries.unacked.items() if id(each.loan) in unsent)
        return min(tags, default=last + 1) - 1

    def _recover(self, said: Basic.Recover | Basic.RecoverAsync) -> None:
        if not said.requeue:
            raise AmqpError(Code.NOT_IMPLEMENTED, "requeue=false", (60, said.index & 0xFFFF))
        self.deliveries.recover()
        if isinstance(said, Basic.Recover):
            self._answer(Basic.RecoverOk())

    # -- consuming ---------------------------------------------------------------------------------

    def _qos(self, said: Basic.Qos) -> None:
        if said.prefetch_size:
            raise AmqpError(
                Code.NOT_IMPLEMENTED, f"prefetch_size!=0 ({said.prefetch_size})", (60, 10)
            )
        count = said.prefetch_count
        if said.global_:
            self._share_window(count)
        else:
            self._prefetch = count
        self._answer(Basic.QosOk())

    def _share_window(self, count: int) -> None:
        """Limit what all consumers on the channel have together."""
        window = self.deliveries.window
        if window is None:
            if not count:
                return
            window = PrefetchWindow(count)
            for delivery in self.deliveries.unacked.values():
                if delivery.consumer is not None:
                    window.take(delivery.message.size)
            self.deliveries.window = window
        window.resize(count)

    def _consume(self, said: Basic.Consume) -> None:
        session = self.session
        tag = said.consumer_tag
        method = (60, 20)
        if tag in self._consumers:
            raise AmqpError(Code.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", method)
        if said.arguments and said.arguments.get("x-priority"):
            raise AmqpError(
                Code.PRECONDITION_FAILED,
                "consumers have no priorities here: leave out the argument 'x-priority'",
                method,
            )
        self._check_consumers(method)
        if not tag:
            random = base64.urlsafe_b64encode(secrets.token_bytes(TAG_BYTES)).rstrip(b"=")
            tag = TAG_PREFIX + random.decode()
        made = ChannelConsumer(
            tag, self.number, session.outlet, session.room, session.negotiation.frame_size
        )
        if said.queue == DIRECT:
            self._consume_replies(said, made, method)
            return
        declared = self._find(said.queue, method)
        most = session.server.settings.max_unacked
        window = ConsumerWindow(min(self._prefetch or most, most), session.room)
        deliver = made.deliver_for_good if said.no_ack else made.deliver
        answer = b"" if said.nowait else named_frame(self.number, _CONSUME_OK, tag)

        def begin(delivery: Delivery) -> None:
            # The first deliveries come at once; the answer comes before them.
            nonlocal answer
            if answer:
                session.sender.send(answer)
                answer = b""
            deliver(delivery)

        self._consumers[tag] = made
        try:
            consumer = made.consumer = declared.queue.consume(
                begin,
                window=window,
                channel=self.deliveries,
                no_ack=said.no_ack,
                exclusive=said.exclusive,
                on_cancelled=partial(self._consumer_ended, tag),
            )
        except QueueInUseError:
            self._consumers.pop(tag, None)
            what = session.host.what("queue", declared.name)
            raise AmqpError(Code.ACCESS_REFUSED, f"{what} in exclusive use", method) from None
        except QueueDeletedError as exc:
            self._consumers.pop(tag, None)
            raise AmqpError(Code.PRECONDITION_FAILED, str(exc), method) from None
        consumer.callback = deliver
        if said.no_ack:
            consumer.take_run = made.take_run
        if answer:
            session.sender.send(answer)

    def _consume_replies(self, said: Basic.Consume, made: ChannelConsumer, method: Method) -> None:
        """Consume direct replies."""
        if self._replies is not None:
            raise AmqpError(Code.PRECONDITION_FAILED, "reply consumer already set", method)
        if not said.no_ack:
            text = "reply consumer cannot acknowledge"
            raise AmqpError(Code.PRECONDITION_FAILED, text, method)
        session = self.session
        self._consumers[made.tag] = made
        replies = self._replies = ReplyConsumer(session.host, self, made)
        session.server.replies[replies.address] = replies
        if not said.nowait:
            session.sender.send(named_frame(self.number, _CONSUME_OK, made.tag))

    def _end_replies(self) -> None:
        replies, self._replies = self._replies, None
        if replies is not None:
            del self.session.server.replies[replies.address]

    def _check_consumers(self, method: Method) -> None:
        """Check that the connection may have one more consumer."""
        session = self.session
        most = session.server.settings.max_subscriptions
        if sum([channel.consumers for channel in session.channels.values()]) >= most:
            text = f"reached maximum ({most}) of consumers per connection (max_subscriptions)"
            raise AmqpError(Code.NOT_ALLOWED, text, method)

    def _consumer_ended(self, tag: str, why: str) -> None:
        """Tell the client that a consumer gets nothing more: its queue has ended it."""
        if self._consumers.pop(tag, None) is None or self.closed:
            return
        if self.deliveries.closed:
            # It has acknowledged nothing while publishers waited for that (rule 11).
            if not self._cut_off:
                self._cut_off = True
                text = f"delivery acknowledgement on channel {self.number} timed out: {why}"
                self.session.close_channel(
                    self, AmqpError(Code.PRECONDITION_FAILED, text, NO_METHOD)
                )
        elif self.session.negotiation.wants_cancel:
            self.session.sender.send_later(named_frame(self.number, _CANCEL, tag, b"\1"))

    def _cancel(self, said: Basic.Cancel) -> None:
        tag = said.consumer_tag or ""
        made = self._consumers.pop(tag, None)
        # Before its queue goes, perhaps: a consumer is not told twice.
        if not said.nowait:
            self.session.sender.send(named_frame(self.number, _CANCEL_OK, tag))
        if made is not None and made.consumer is not None:
            made.consumer.cancel()
        elif made is not None:
            self._end_replies()

    def _get(self, said: Basic.Get) -> None:
        session = self.session
        method = (60, 70)
        declared = self._find(said.queue, method)
        if not said.no_ack and len(self.deliveries) >= session.server.settings.max_unacked:
            text = f"{len(self.deliveries)} deliveries on the channel are not acknowledged"
            raise AmqpError(Code.PRECONDITION_FAILED, text, method)
        queue = declared.queue
        try:
            delivery = queue.get(self.deliveries, no_ack=said.no_ack)
        except QueueDeletedError as exc:
            raise AmqpError(Code.PRECONDITION_FAILED, str(exc), method) from None
        if delivery is None:
            if queue.waiting:
                raise NotYet(lambda: queue.deleted or not queue.waiting)
            session.sender.send(method_frame(self.number, Basic.GetEmpty()))
            return
        self._send_got(delivery, len(queue), no_ack=said.no_ack)

    def _send_got(self, delivery: Delivery, left: int, *, no_ack: bool) -> None:
        session = self.session
        message: Message = delivery.event
        delivery.event = None
        frame = get_ok_frame(
            self.number, delivery.tag, delivery.redelivered, message.exchange,
            message.routing_key, left,
        )  # fmt: skip
        content = content_frames(
            self.number, message.properties, message.body, session.negotiation.frame_size
        )
        if no_ack:
            session.sender.send(b"".join((frame, *content)))
        else:
            delivery.loan.item = [frame, *content]
            session.outlet.forward(delivery.loan)

    # -- the channel itself ------------------------------------------------------------------------

    def handle(self, method: base.Frame) -> None:
        """Handle any method but basic.publish, basic.ack and channel.close.

        Raises:
            AmqpError: The channel, or the connection, has to be closed.
            NotYet: It has to be handled again later.
        """
        if self.gone and method.index >> 16 == BASIC:
            return
        try:
            self._handlers[type(method)](self, method)
        except HostError as exc:
            raise fault_of(exc, (method.index >> 16, method.index & 0xFFFF)) from None
        except UnknownTagError as exc:
            raise AmqpError(
                Code.PRECONDITION_FAILED, str(exc), (method.index >> 16, method.index & 0xFFFF)
            ) from None

    def _flow(self, said: ChannelClass.Flow) -> None:
        if not said.active:
            raise AmqpError(Code.NOT_IMPLEMENTED, "active=false", (20, 20))
        self._answer(ChannelClass.FlowOk(True))

    def _select_confirms(self, said: Confirm.Select) -> None:
        if self.confirms is None:
            self.confirms = Confirms(partial(self.session.server.confirms_due, self))
        self._answer(Confirm.SelectOk(), nowait=said.nowait)

    def _refuse_transaction(self, said: base.Frame) -> None:
        raise AmqpError(
            Code.NOT_IMPLEMENTED,
            f"{said.name}: there are no transactions here; use confirms (confirm.select)",
            (said.index >> 16, said.index & 0xFFFF),
        )

    def _nothing(self, said: base.Frame) -> None:
        """Take an answer that the server need not have."""

    def consumes_no_more(self) -> None:
        """Put back what the client has, which can acknowledge nothing more."""
        self.gone = True
        self._end_replies()
        self._consumers.clear()
        self.deliveries.close(failed=True)

    def close(self, *, failed: bool) -> None:
        """End its consumers, and put back what is not acknowledged. Idempotent.

        `failed`: this counts towards the delivery limits.
        """
        if self.closed:
            return
        self.closed = True
        if self.confirms is not None:
            self.confirms.close()
        self._end_replies()
        self._consumers.clear()
        self.deliveries.close(failed=failed)

    _handlers: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        **ChannelDefinitions.definers,
        Basic.Nack: _nack,
        Basic.Reject: _reject,
        Basic.Recover: _recover,
        Basic.RecoverAsync: _recover,
        Basic.Qos: _qos,
        Basic.Consume: _consume,
        Basic.Cancel: _cancel,
        Basic.CancelOk: _nothing,
        Basic.Get: _get,
        ChannelClass.Flow: _flow,
        ChannelClass.FlowOk: _nothing,
        Confirm.Select: _select_confirms,
        Tx.Select: _refuse_transaction,
        Tx.Commit: _refuse_transaction,
        Tx.Rollback: _refuse_transaction,
    }
