"""The option for over-limit policies of some clients on some topics."""

from collections.abc import Sequence
from typing import Annotated, Final, get_args

from cyclopts import Parameter, Token

from clearfunds.access._topic_rules import EVERY_TOPIC
from clearfunds.transports import OverLimitWord, PublicationPolicy

from ._rule_tables import a_text, is_table, one_of, read_table
from ._topic_rule import rules_of, split_rule

FORM = "CLIENT FILTER=POLICY"


_WORDS: Final = get_args(OverLimitWord)


def _policy(text: str) -> PublicationPolicy:
    if is_table(text):
        readers = {"client": a_text, "filter": a_text, "policy": one_of(_WORDS)}
        found = read_table("a publication policy", text, readers, ["policy"])
        client, topic_filter = found.get("client", "*"), found.get("filter", EVERY_TOPIC)
        return PublicationPolicy(client, topic_filter, found["policy"])
    client, topic_filter, word = split_rule(text)
    if word not in _WORDS:
        msg = (
            f'"{text}" is not {FORM}, with a pattern for clients, a topic filter and one of '
            f'{", ".join(_WORDS)} ("sensor-* raw/#=shed").'
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
