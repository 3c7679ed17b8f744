"""Options that are rules for some clients on some topics: CLIENT FILTER=RULE."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from cyclopts import CoercionError, Token

from clearfunds.dataspace import PatternError

T = TypeVar("T")


def split_rule(text: str) -> tuple[str, str, str]:
    """Return client, topic filter and the rest of a rule; all are "" if it has another form."""
    # A filter may have = in it, and spaces; the client before it has no space.
    client, _, rest = text.strip().partition(" ")
    topic_filter, equals, done = rest.rpartition("=")
    topic_filter = topic_filter.strip()
    if not (client and topic_filter and equals):
        return "", "", ""
    return client, topic_filter, done.strip()


def rules_of(tokens: Sequence[Token], form: str, parse: Callable[[str], T]) -> tuple[T, ...]:
    """Return the rules that an option has been given.

    Raises:
        CoercionError: If one of them is malformed; `parse` raises ValueError then.
    """
    found: list[T] = []
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
            found.append(parse(text))
        except PatternError as error:
            msg = f'"{text}" has no topic filter: {error}.'
            raise CoercionError(msg=msg, token=token) from error
        except ValueError as error:
            # Only here is it known which of several it was.
            raise CoercionError(msg=str(error), token=token) from error
    if client:
        raise CoercionError(msg=f'"{client}" is not {form}.', token=tokens[-1])
    return tuple(found)
