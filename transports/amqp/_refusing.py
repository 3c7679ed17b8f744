"""Publications of a publisher above its limit that are refused or shed, instead of not being read.

The filter of such a policy (`--publication-policy`) is matched against the routing key, as a topic:
`orders.eu` is `orders/eu`, whatever the exchange. What is refused is nacked, where the channel has
confirms; where it has none, nothing can be said, and the publication is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...accounts import OverLimitPolicy
from ...dataspace.exchanges import topic_of

if TYPE_CHECKING:
    from ..mqtt.server._over_limit import Excess
    from ._channel import ServerChannel
    from ._connection import Publish


def passes(excess: Excess, said: Publish) -> bool:
    """Whether a publication need not wait for funds: without any, it is refused or shed."""
    return _policy_for(excess, said) is not OverLimitPolicy.WAIT


def _policy_for(excess: Excess, said: Publish) -> OverLimitPolicy:
    topic = topic_of(said.routing_key) or said.routing_key
    # As it would stand in MQTT, with two bytes of length in front.
    return excess.rules.of(b"\0\0" + topic.encode(errors="replace"))


def publish_or_refuse(excess: Excess, channel: ServerChannel, said: Publish) -> None:
    """Publish if there are funds; otherwise refuse it, or drop it.

    Raises:
        AmqpError: As `ServerChannel.publish`.
    """
    account = channel.session.account
    assert account is not None
    if account.is_open_wide() or account.funds_are_clear():
        excess.handed = True
        channel.publish(said)
        return
    policy = _policy_for(excess, said)
    if policy is OverLimitPolicy.REFUSE and channel.confirms is not None:
        channel.refuse(excess.refuse(account))
    else:
        excess.shed(account, policy)
        channel.shed()
