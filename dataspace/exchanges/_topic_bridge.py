"""The way between `amq.topic` and the dataspace: MQTT's topics are its routing keys.

    topic   sensors/kitchen/#    press/a.b/+
    key     sensors.kitchen.#    press.a/b.*

Theory of operation. A message that goes through `amq.topic` reaches the queues behind it directly,
as it is, with its properties. Beside that it is published in the dataspace, if anybody there wants
it. The other way round, one recipient observes the topics that the keys of `amq.topic`'s bindings
match. It turns each publication into a message, routes it through `amq.topic`, and passes it to the
queues: in the same commit, on the same account (rule 2). A publication that has come from this very
exchange comes back by that way, too, and is passed over: the queues have it.

A key may have `#` anywhere. A topic filter cannot say that, so one is observed that covers it, and
only topics that match the key count (`Subscription.allows`).

Source: RabbitMQ's MQTT plug-in (rabbit_mqtt_util.erl, `mqtt2amqp`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs

from ...accounts import Account, Outcome, QuotaExceededError, Recipient, Turn, hold_all
from .._dataspace import Dataspace, Observation
from .._events import Batch, Publication
from .._topics import TopicFilter
from ._declared_queue import HostQueue
from ._errors import precondition_failed
from ._limits import MAX_NAME_BYTES
from ._message import Message
from ._properties import Properties
from ._topic_patterns import pattern_matches

logger = logging.getLogger("clearfunds.dataspace.exchanges")

AMQ_TOPIC: Final = "amq.topic"
"""The exchange whose routing keys are MQTT's topics."""

HIGHEST_QOS: Final = 2

_SWAPPED: Final = str.maketrans("./*+", "/.+*")
"""Between a key and a topic, in both directions."""


@attrs.define(slots=True, eq=False)
class _Observed:
    """A key that bindings have."""

    bindings: int = 0
    observation: Observation | None = None
    """None: no topic can match the key."""


def topic_of(key: str) -> str | None:
    """Return the topic of a routing key; None if it is the name of no topic.

    Topics that begin with `$` are the server's own.
    """
    topic = key.translate(_SWAPPED)
    if not topic or topic.startswith("$") or "#" in topic or "+" in topic or "\0" in topic:
        return None
    try:
        topic.encode()
    except UnicodeEncodeError:
        return None  # the bytes of a key need not be text
    return topic


def key_of(topic: str) -> str:
    """Return the routing key of a topic."""
    return topic.translate(_SWAPPED)


def filter_of(key: str) -> str | None:
    """Return the narrowest topic filter that covers a binding key; None if no topic matches it.

    The two match the same topics, unless the key has a `#` before its last word.
    """
    words = key.split(".")
    levels: list[str] = []
    for word in words:
        if word == "#":
            levels.append("#")
            break
        level = word.translate(_SWAPPED)
        if word != "*" and ("+" in level or "#" in level or "\0" in level):
            return None
        levels.append(level)
    text = "/".join(levels)
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text or None


class TopicBridge(Recipient):
    """Passes publications on between the dataspace and `amq.topic` of one virtual host.

    Args:
        dataspace: The dataspace.
        account: Pays for the observations.
        properties: Converts messages and publications.
        queues_of: Returns the queues that a message reaches through `amq.topic`.
        prefix: The beginning of the host's topics.
        may_read: Says which topics its queues may get.
        may_publish: Says which topics its clients may publish to.
        wall: The wall clock.

    Attributes:
        received: The number of publications of the dataspace that reached queues.
        sent: The number of messages that were published in the dataspace.
    """

    __slots__ = (
        "_account", "_dataspace", "_may_publish", "_may_read", "_observed", "_own", "_prefix",
        "_properties", "_queues_of", "_touched", "_wall", "received", "sent",
    )  # fmt: skip

    def __init__(
        self,
        dataspace: Dataspace,
        account: Account,
        properties: Properties,
        queues_of: Callable[[Message], list[HostQueue]],
        *,
        prefix: str,
        may_read: Callable[[str], bool] | None,
        may_publish: Callable[[str], bool] | None,
        wall: Callable[[], float],
    ) -> None:
        self._dataspace = dataspace
        self._account = account
        self._properties = properties
        self._queues_of = queues_of
        self._prefix = prefix
        self._may_read = may_read
        self._may_publish = may_publish
        self._wall = wall
        self._observed: dict[str, _Observed] = {}
        # Publications that are being made of messages, by their `id`.
        self._own: dict[int, Publication] = {}
        self._touched: dict[HostQueue, None] = {}
        self.received = 0
        self.sent = 0

    def __repr__(self) -> str:
        return f"<TopicBridge: {len(self._observed)} keys bound>"

    def topic_of(self, key: str) -> str | None:
        """Return the topic that a message with a routing key is published to.

        None if it is the name of no topic, or of one that nobody here may publish to.
        """
        topic = topic_of(key)
        if topic is None:
            return None
        topic = self._prefix + topic
        return topic if self._may_publish is None or self._may_publish(topic) else None

    def filter_of(self, key: str) -> str | None:
        """Return the topic filter that is observed for a binding key; None: none."""
        text = filter_of(key)
        return None if text is None else self._prefix + text

    # -- from the dataspace ------------------------------------------------------------------------

    def bound(self, key: str) -> None:
        """Note a binding of `amq.topic` with a key.

        Raises:
            HostError: PRECONDITION_FAILED if the quota of the host's account is used up.
        """
        observed = self._observed.get(key)
        if observed is None:
            observed = _Observed()
            text = self.filter_of(key)
            if text is not None:
                try:
                    observed.observation = self._observe(key, text)
                except QuotaExceededError as exc:
                    msg = f"cannot bind to exchange '{AMQ_TOPIC}' with key '{key}': {exc}"
                    raise precondition_failed(msg) from exc
            self._observed[key] = observed
        observed.bindings += 1

    def _observe(self, key: str, text: str) -> Observation:
        whole = None if text.removeprefix(self._prefix) == key_of(key) else key
        with self._account.turn() as turn:
            return self._dataspace.observe(
                turn, TopicFilter(text), self,
                acked=self, granted=HIGHEST_QOS, consumer=self, replay=False,
                allows=partial(self._allows, whole),
            )  # fmt: skip

    def unbound(self, key: str) -> None:
        """Note that a binding of `amq.topic` with a key has gone."""
        observed = self._observed[key]
        observed.bindings -= 1
        if not observed.bindings:
            del self._observed[key]
            if observed.observation is not None:
                with self._account.turn() as turn:
                    self._dataspace.unobserve(turn, observed.observation)

    def close(self) -> None:
        """End all observations. Idempotent."""
        for key, observed in list(self._observed.items()):
            observed.bindings = 1
            self.unbound(key)

    def _allows(self, pattern: str | None, topic: str) -> bool:
        """Whether queues may get a topic, which has to match the whole of a key.

        It has to have a routing key, too: that is short.
        """
        if not topic.startswith(self._prefix) or topic == self._prefix:
            return False  # `a/#` matches `a`
        key = key_of(topic[len(self._prefix) :])
        return (
            len(key.encode()) <= MAX_NAME_BYTES
            and (pattern is None or pattern_matches(pattern, key))
            and (self._may_read is None or self._may_read(topic))
        )

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Recipient.hold`: pass publications on to queues, and keep none."""
        if type(item) is Batch:
            for publication in item.events():
                self._pass_on(account, publication)
        elif id(item) not in self._own:
            self._pass_on(account, item)
        # Children before parent (rule 3).
        account.repay(items, nbytes, Outcome.DELIVERED)

    def _pass_on(self, account: Account, publication: Publication) -> None:
        try:
            expiration: float | None = None
            if publication.expires is not None:
                expiration = max(0.0, publication.expires - self._wall())
            message = self._properties.from_publication(
                publication, AMQ_TOPIC, key_of(publication.topic[len(self._prefix) :]), expiration
            )
            queues = self._queues_of(message)
            if not queues:
                return
            size = message.nbytes
            account.borrow(len(queues), size * len(queues))
            self._touched.update(dict.fromkeys(queues))
            self.received += 1
            hold_all(account, queues, message, 1, size)
        except Exception:  # in the middle of a commit, which cannot fail any more
            logger.exception("a publication on %s does not reach all queues", publication.topic)

    def ready(self) -> None:
        """See `Recipient.ready`."""
        touched, self._touched = self._touched, {}
        for queue in touched:
            queue.ready()

    # -- to the dataspace --------------------------------------------------------------------------

    def publish(self, turn: Turn, message: Message) -> bool:
        """Publish a message in the dataspace at the commit of `turn`, if anybody wants it there.

        Returns whether somebody does. Persistent messages have QoS 1, others QoS 0; nothing is
        retained.
        """
        qos = int(message.persistent)
        wanted = False
        for key in dict.fromkeys((message.routing_key, *message.more_keys)):
            topic = self.topic_of(key)
            if topic is None:
                continue
            route = self._dataspace.route_of(topic)
            holders = (*route.acked.holders, *route.unacked.holders) if qos else route.plain.holders
            if not route.looked_into and all(holder is self for holder in holders):
                continue
            wanted = True
            expires = None if message.expiration is None else self._wall() + message.expiration
            publication = self._properties.to_publication(message, topic, qos, expires)
            turn.act(partial(self._begin, publication))
            turn.publish(self._dataspace, publication)
        return wanted

    def _begin(self, publication: Publication, turn: Turn) -> None:
        self._own[id(publication)] = publication
        self.sent += 1
        turn.on_undo(partial(self._undo, publication))
        turn.afterwards(partial(self._own.pop, id(publication), None))

    def _undo(self, publication: Publication) -> None:
        self._own.pop(id(publication), None)
        self.sent -= 1
