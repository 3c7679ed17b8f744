"""The options that only a relay with credit flow has: the credit of each hop.

As in `clearfunds.relay._settings`, a field's docstring is its help text.
"""

from typing import Final

import attrs

from ._credit_flow import DEFAULT_CREDIT, Credit

STORE_CREDIT_TODAY: Final = Credit(4000, 800)
"""RabbitMQ's msg_store_credit_disc_bound today; {2000, 500} in 3.5.5."""


@attrs.frozen(slots=True, kw_only=True)
class CreditSettings:
    """The credit of the hops of a relay."""

    # As RabbitMQ's credit_flow_default_credit; {200, 50} is that of 3.5.5.
    reader_outlet: Credit = DEFAULT_CREDIT
    """Credit from one connection to another: messages in flight at first, and how many must be
    handled before as many more may follow; 0,0: unlimited."""
    # The same setting of RabbitMQ's.
    reader_queue: Credit = DEFAULT_CREDIT
    """Credit from one connection to the queue of one persistent session, in the same form."""
    # As RabbitMQ's msg_store_credit_disc_bound.
    queue_store: Credit = STORE_CREDIT_TODAY
    """Credit from one queue to the store, in the same form."""
