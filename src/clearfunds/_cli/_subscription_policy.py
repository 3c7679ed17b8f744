"""The option for slow-consumer policies of some clients on some topics."""

from collections.abc import Sequence
from typing import Annotated, Final, get_args

from cyclopts import Parameter, Token

from clearfunds.access._topic_rules import EVERY_TOPIC
from clearfunds.dataspace import PatternError
from clearfunds.transports import ProfileWord, StuckWord, SubscriptionPolicy

from ._rule_tables import a_text, is_table, number_or_none, one_of, read_table
from ._topic_rule import rules_of, split_rule

FORM = "CLIENT FILTER=POLICY[,SECONDS]"


_WORDS: Final = (*get_args(StuckWord), *get_args(ProfileWord))


def _policy(text: str) -> SubscriptionPolicy:
    if is_table(text):
        return _of_table(text)
    client, topic_filter, done = split_rule(text)
    word, comma, seconds = done.partition(",")
    word, seconds = word.strip().replace("-", "_"), seconds.strip()
    if word not in _WORDS:
        msg = (
            f'"{text}" is not {FORM}, with a pattern for clients, a topic filter and one of '
            f'{", ".join(_WORDS)} ("dashboard-* sensors/#=conflate,2").'
        )
        raise ValueError(msg)
    try:
        patience = float(seconds) if comma else None
        return SubscriptionPolicy(client, topic_filter, word, patience)
    except PatternError:
        raise
    except ValueError as error:
        msg = f'"{text}": "{seconds}" is not a number of seconds, at least 0.'
        raise ValueError(msg) from error


def _of_table(text: str) -> SubscriptionPolicy:
    readers = {
        "client": a_text,
        "filter": a_text,
        "policy": one_of(_WORDS),
        "patience": number_or_none,
    }
    found = read_table("a subscription policy", text, readers, ["policy"])
    client, topic_filter = found.pop("client", "*"), found.pop("filter", EVERY_TOPIC)
    return SubscriptionPolicy(client, topic_filter, **found)


def _policies(_: object, tokens: Sequence[Token]) -> tuple[SubscriptionPolicy, ...]:
    return rules_of(tokens, FORM, _policy)


SubscriptionPolicies = Annotated[
    tuple[SubscriptionPolicy, ...],
    Parameter(converter=_policies, n_tokens=1, negative=(), json_list=False),
]
"""Slow-consumer policies, each `CLIENT FILTER=POLICY[,SECONDS]`; may be given several times."""
