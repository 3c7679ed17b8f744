"""The initial credit of each hop of a relay, and the messages handled before more is granted."""

from __future__ import annotations

from typing import Final

import attrs

from ._credit_flow import DEFAULT_CREDIT, Credit

STORE_CREDIT_TODAY: Final = Credit(4000, 800)
"""RabbitMQ's msg_store_credit_disc_bound today; {2000, 500} in 3.5.5."""


@attrs.frozen(slots=True, kw_only=True)
class CreditSettings:
    """The hops of a relay, each with its {initial, more_after}. {0, 0} turns one off."""

    reader_outlet: Credit = DEFAULT_CREDIT
    """From a publisher to each outlet of a message, for a socket or for acknowledgements. As
    RabbitMQ's credit_flow_default_credit; {200, 50} is that of 3.5.5."""
    reader_queue: Credit = DEFAULT_CREDIT
    """From a publisher to each queue of a persistent session. As the same setting of RabbitMQ's."""
    queue_store: Credit = STORE_CREDIT_TODAY
    """From each queue to the store. As RabbitMQ's msg_store_credit_disc_bound."""
