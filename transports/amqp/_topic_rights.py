"""One client's rights to MQTT's topics, at `amq.topic`; for other exchanges its tenant suffices.

Rights to publish are looked at for each message. Rights to read are looked at when something is
bound: a queue is nobody's in particular, so that who binds one must be allowed to read all that
comes by the binding. Nothing but a client may publish to amq.topic where rights differ: an exchange
or a queue that leads there would publish with nobody's rights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dataspace.exchanges import AMQ_TOPIC, topic_of
from ._replies import AmqpError, Code, Method

if TYPE_CHECKING:
    from ...access.acl import Authority, Rights
    from ...dataspace.exchanges import VirtualHost
    from .._server import Counters

_PUBLISH: Method = (60, 40)
_QUEUE_DECLARE: Method = (50, 10)


class TopicRights:
    """The rights of one client.

    Args:
        host: Its virtual host.
        user: Its user, for the texts of refusals.
        rights: Its rights; None: everything is allowed.
        authority: Decides what clients may do.
        counters: Counts the publications that are refused.
    """

    __slots__ = ("_authority", "_counters", "_host", "_rights", "_user")

    def __init__(
        self,
        host: VirtualHost,
        user: str,
        rights: Rights | None,
        authority: Authority,
        counters: Counters,
    ) -> None:
        self._host = host
        self._user = user
        self._rights = rights
        self._authority = authority
        self._counters = counters

    def check_publish(self, key: str) -> None:
        """Check that the client may publish with a routing key.

        Raises:
            AmqpError: If not.
        """
        rights = self._rights
        if rights is not None:
            topic = topic_of(key)
            if topic is not None and not rights.may_write(topic):
                self._counters.rejected += 1
                raise self._refused(key, _PUBLISH)

    def check_binding(self, key: str, method: Method) -> None:
        """Check that the client may read all that comes by a binding key.

        Raises:
            AmqpError: If not.
        """
        rights = self._rights
        if rights is not None:
            text = self._host.topics.filter_of(key)
            if text is not None and not rights.may_read_all(text):
                rights.denied.subscribe += 1
                raise self._refused(key, method)

    def check_dead_letters(self, key: object) -> None:
        """Check that dead letters may be published, with a routing key of their own; None: theirs.

        Raises:
            AmqpError: If not.
        """
        if isinstance(key, str) and topic_of(key) is not None:
            self.check_publish(key)
        else:
            self.check_way("a dead-letter exchange without a routing key", _QUEUE_DECLARE)

    def check_way(self, what: str, method: Method) -> None:
        """Check that anything may lead to amq.topic, whoever publishes to it and on any topic.

        Raises:
            AmqpError: If not everybody may publish everything.
        """
        if self._authority.restricts_writing:
            raise AmqpError(
                Code.ACCESS_REFUSED,
                f"{what} must not lead to exchange '{AMQ_TOPIC}' where there are rules about who "
                "may publish to which topic: publish to it directly",
                method,
            )

    def _refused(self, key: str, method: Method) -> AmqpError:
        return AmqpError(
            Code.ACCESS_REFUSED,
            f"access to topic '{key}' in exchange '{AMQ_TOPIC}' in vhost '{self._host.name}' "
            f"refused for user '{self._user}'",
            method,
        )
