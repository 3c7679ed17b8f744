"""Options of `clearfunds pub` and `clearfunds sub` that need MQTT 5."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import attrs
from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number

from clearfunds.transports.mqtt import MAX_PACKET_ID, Properties

from ._errors import UsageError
from ._types import Count

Version = Literal["3.1.1", "5"]

LONGEST: Final = 0xFFFF_FFFF
"""Seconds: the longest interval of MQTT 5; for a session it means for ever."""


def _pair(_: object, tokens: Sequence[Token]) -> Any:
    return tuple(_split(token.value) for token in tokens)


def _split(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        msg = f'"{text}" is not NAME=VALUE.'
        raise ValueError(msg)
    return name, value


def given(options: attrs.AttrsInstance) -> list[str]:
    """Return the names of the options that differ from their defaults."""
    return [
        f"--{field.name.replace('_', '-')}"
        for field in attrs.fields(type(options))
        if getattr(options, field.name) != field.default
    ]


def version_of(wanted: Version | None, needs_5: Sequence[str]) -> Version:
    """Return the version to use: the wanted one, or 3.1.1 if no option needs 5.

    Every server speaks 3.1.1.

    Raises:
        UsageError: 3.1.1 is wanted, and an option needs 5.
    """
    if wanted == "3.1.1" and needs_5:
        msg = f"{needs_5[0]} needs MQTT 5: remove --mqtt 3.1.1 or {needs_5[0]}"
        raise UsageError(msg)
    return wanted or ("5" if needs_5 else "3.1.1")


@Parameter(name="*", group=Group("MQTT 5", sort_key=4))
@attrs.frozen
class MessageProperties:
    """Properties of a message; each of them needs MQTT 5."""

    content_type: Annotated[
        str | None, Parameter(help="Content Type of the payload, such as text/plain.")
    ] = None
    response_topic: Annotated[str | None, Parameter(help="Response Topic for the reply.")] = None
    correlation_data: Annotated[
        str | None, Parameter(help="Correlation Data for the reply, as UTF-8.")
    ] = None
    message_expiry: Annotated[
        Count | None,
        Parameter(
            validator=Number(gte=1, lte=LONGEST),
            help="Message Expiry Interval, in seconds; after that the message is not delivered.",
        ),
    ] = None
    user_property: Annotated[
        tuple[tuple[str, str], ...],
        Parameter(
            converter=_pair,
            n_tokens=1,
            negative=(),
            help="User Property, NAME=VALUE. Repeatable.",
        ),
    ] = ()

    def properties(self) -> Properties:
        """Return them in a packet's form."""
        data = self.correlation_data
        return Properties(
            content_type=self.content_type,
            response_topic=self.response_topic,
            correlation_data=None if data is None else data.encode(),
            message_expiry=self.message_expiry,
            user=self.user_property,
        )


@Parameter(name="*", group=Group("MQTT 5", sort_key=4))
@attrs.frozen
class SubscriptionOptions:
    """Options of a subscription; each of them needs MQTT 5."""

    no_local: Annotated[
        bool,
        Parameter(
            negative=(), help="No Local: exclude messages that this client itself publishes."
        ),
    ] = False
    retain_as_published: Annotated[
        bool,
        Parameter(
            negative=(), help="Retain As Published: keep the retain flag as it was published."
        ),
    ] = False
    retained: Annotated[
        Literal["always", "new", "never"],
        Parameter(
            help="Retain Handling: send retained messages at every subscription, at a new one "
            "only, or never."
        ),
    ] = "always"
    receive_maximum: Annotated[
        Count | None,
        Parameter(
            validator=Number(gte=1, lte=MAX_PACKET_ID),
            help="Receive Maximum: unacknowledged QoS 1 and 2 messages that the relay may send.",
        ),
    ] = None
    session_expiry: Annotated[
        Count | None,
        Parameter(
            validator=Number(gte=1, lte=LONGEST),
            help="Session Expiry Interval, in seconds; with --persistent [default: as long as the "
            "relay keeps sessions].",
        ),
    ] = None
