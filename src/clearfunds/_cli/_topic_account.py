"""The option for accounts of topics within one connection."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter, Token

from clearfunds.transports import TopicAccount

from ._rule_tables import a_text, is_table, read_table
from ._topic_rule import rules_of

FORM = "CLIENT FILTER"


def _rule(text: str) -> TopicAccount:
    if is_table(text):
        readers = {"client": a_text, "filter": a_text}
        found = read_table("a topic account", text, readers, ["filter"])
        return TopicAccount(found.get("client", "*"), found["filter"])
    client, _, topic_filter = text.strip().partition(" ")
    topic_filter = topic_filter.strip()
    if not (client and topic_filter):
        msg = (
            f'"{text}" is not {FORM}, with a pattern for clients and a topic filter '
            '("bridge-* jobs/#").'
        )
        raise ValueError(msg)
    return TopicAccount(client, topic_filter)


def _rules(_: object, tokens: Sequence[Token]) -> tuple[TopicAccount, ...]:
    return rules_of(tokens, FORM, _rule)


TopicAccounts = Annotated[
    tuple[TopicAccount, ...],
    Parameter(converter=_rules, n_tokens=1, negative=(), json_list=False),
]
"""Topic accounts, each `CLIENT FILTER`; may be given several times."""
