"""Options for the flow control scheme, and the credit of credit flow."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import attrs
from cyclopts import Group, Parameter, Token

from clearfunds.accounts import Credit

from ._relay_options import DEFAULTS


def _credit(_: object, tokens: Sequence[Token]) -> Credit:
    text = tokens[0].value
    match = re.fullmatch(r"([0-9][0-9_]*),([0-9][0-9_]*)", text)
    if match is None:
        msg = (
            f'"{text}" is not INITIAL,MORE_AFTER: the credit at the start, and the number of '
            'handled messages that grants as much credit again ("400,200").'
        )
        raise ValueError(msg)
    return Credit(int(match[1]), int(match[2]))


def _shown(credit: Credit) -> str:
    return f"{credit.initial},{credit.more_after}"


CreditOption = Annotated[
    Credit, Parameter(converter=_credit, n_tokens=1, accepts_keys=False, show_default=_shown)
]
"""`INITIAL,MORE_AFTER`."""


@Parameter(name="*", group=Group("Flow", sort_key=2))
@attrs.frozen
class Flow:
    """The flow control scheme, and its credit."""

    flow: Annotated[
        Literal["debt", "credit"],
        Parameter(
            help="Flow control scheme. debt: a publisher waits while its outstanding work is above "
            "a limit; credit: it waits for credit from each destination, as in RabbitMQ, and "
            "the limits of connections and of the server do not apply."
        ),
    ] = DEFAULTS.flow
    credit_reader_outlet: Annotated[
        CreditOption,
        Parameter(
            help="Credit from one connection to another, with --flow credit, as "
            "INITIAL,MORE_AFTER: messages in flight at first, and how many must leave before "
            "as many more may follow; 0,0: unlimited."
        ),
    ] = DEFAULTS.credit_reader_outlet
    credit_reader_queue: Annotated[
        CreditOption,
        Parameter(
            help="Credit from one connection to the queue of one persistent session, in the same "
            "form."
        ),
    ] = DEFAULTS.credit_reader_queue
    credit_queue_store: Annotated[
        CreditOption, Parameter(help="Credit from one queue to the store, in the same form.")
    ] = DEFAULTS.credit_queue_store
