"""The option for over-limit policies of some clients on some topics."""

from collections.abc import Sequence
from typing import Annotated, get_args

from cyclopts import Parameter, Token

from clearfunds.transports import OverLimitWord, PublicationPolicy

from ._topic_rule import rules_of, split_rule

FORM = "CLIENT FILTER=POLICY"


def _policy(text: str) -> PublicationPolicy:
    client, topic_filter, word = split_rule(text)
    words = get_args(OverLimitWord)
    if word not in words:
        msg = (
            f'"{text}" is not {FORM}, with a pattern for clients, a topic filter and one of '
            f'{", ".join(words)} ("sensor-* raw/#=shed").'
        )
        raise ValueError(msg)
    return PublicationPolicy(client, topic_filter, word)


def _policies(_: object, tokens: Sequence[Token]) -> tuple[PublicationPolicy, ...]:
    return rules_of(tokens, FORM, _policy)


PublicationPolicies = Annotated[
    tuple[PublicationPolicy, ...],
    Parameter(converter=_policies, n_tokens=1, negative=(), json_list=False),
]
"""Over-limit policies, each `CLIENT FILTER=POLICY`; may be given several times."""
