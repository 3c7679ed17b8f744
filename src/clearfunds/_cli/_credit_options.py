"""What those who publish wait for; and how much credit there is, if that is it."""

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
            f'"{text}" is not INITIAL,MORE_AFTER: messages that may be sent at first, and after '
            'how many that were handled there may be as many more ("400,200").'
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
    """What those who publish wait for."""

    flow: Annotated[
        Literal["debt", "credit"],
        Parameter(
            help="What those who publish wait for: that what they have caused is dealt with, up to "
            "a limit; or, as in RabbitMQ, credit from each that they send to. With credit the "
            "limits of connections and of the server do not count."
        ),
    ] = DEFAULTS.flow
    credit_reader_outlet: Annotated[
        CreditOption,
        Parameter(
            help="INITIAL,MORE_AFTER, with --flow credit: messages of one connection on their way "
            "to one other, and after how many that have left there may be as many more; 0,0: any "
            "number."
        ),
    ] = DEFAULTS.credit_reader_outlet
    credit_reader_queue: Annotated[
        CreditOption,
        Parameter(help="The same, on their way into the queue of one kept session."),
    ] = DEFAULTS.credit_reader_queue
    credit_queue_store: Annotated[
        CreditOption, Parameter(help="The same, of one queue on their way to the store.")
    ] = DEFAULTS.credit_queue_store
