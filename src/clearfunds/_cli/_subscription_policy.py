"""The option for slow-consumer policies of some clients on some topics."""

from collections.abc import Sequence
from typing import Annotated, get_args

from cyclopts import CoercionError, Parameter, Token

from clearfunds.dataspace import PatternError
from clearfunds.transports import ProfileWord, StuckWord, SubscriptionPolicy

FORM = "CLIENT FILTER=POLICY[,SECONDS]"


def _policy(text: str) -> SubscriptionPolicy:
    # A filter may have = in it, and spaces; the client before it has no space.
    client, _, rest = text.strip().partition(" ")
    topic_filter, equals, done = rest.rpartition("=")
    topic_filter = topic_filter.strip()
    word, comma, seconds = done.partition(",")
    word, seconds = word.strip().replace("-", "_"), seconds.strip()
    words = (*get_args(StuckWord), *get_args(ProfileWord))
    if not (client and topic_filter and equals) or word not in words:
        msg = (
            f'"{text}" is not {FORM}, with a pattern for clients, a topic filter and one of '
            f'{", ".join(words)} ("dashboard-* sensors/#=conflate,2").'
        )
        raise ValueError(msg)
    try:
        patience = float(seconds) if comma else None
        return SubscriptionPolicy(client, topic_filter, word, patience)
    except PatternError as error:
        msg = f'"{text}" has no topic filter: {error}.'
        raise ValueError(msg) from error
    except ValueError as error:
        msg = f'"{text}": "{seconds}" is not a number of seconds, at least 0.'
        raise ValueError(msg) from error


def _policies(_: object, tokens: Sequence[Token]) -> tuple[SubscriptionPolicy, ...]:
    found: list[SubscriptionPolicy] = []
    client = ""
    for token in tokens:
        if token.implicit_value == []:  # An empty list in a file.
            continue
        # In the environment the two halves of a rule are two words.
        text = f"{client} {token.value}".strip()
        if not client and " " not in text and "=" not in text and token.source != "cli":
            client = text
            continue
        client = ""
        try:
            found.append(_policy(text))
        except ValueError as error:
            # Only here is it known which of several it was.
            raise CoercionError(msg=str(error), token=token) from error
    if client:
        raise CoercionError(msg=f'"{client}" is not {FORM}.', token=tokens[-1])
    return tuple(found)


SubscriptionPolicies = Annotated[
    tuple[SubscriptionPolicy, ...],
    Parameter(converter=_policies, n_tokens=1, negative=(), json_list=False),
]
"""Slow-consumer policies, each `CLIENT FILTER=POLICY[,SECONDS]`; may be given several times."""
