"""Where this relay and RabbitMQ 3.10 differ, and the reason: the table of docs/rabbitmq.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs


@attrs.frozen
class Difference:
    """A case in which the two differ. The case itself asserts both."""

    rabbitmq: str
    """The behaviour of RabbitMQ 3.10."""
    clearfunds: str
    """The behaviour of the relay."""
    why: str


def _in_silence(code: str) -> Difference:
    return Difference(
        "closes the socket without a word",
        f"`connection.close` with {code}",
        "the client hears why",
    )


def _codes(rabbitmq: str, clearfunds: str) -> Difference:
    return Difference(rabbitmq, clearfunds, "the code that the specification has for it")


def _passed_over(rabbitmq: str) -> Difference:
    return Difference(rabbitmq, "passes over it", "it is an answer, and changes nothing")


DIFFERENCES: Final[Mapping[str, Difference]] = {
    "channels.close_ok_that_nobody_asked_for": _passed_over("503 COMMAND_INVALID"),
    "channels.flow_ok_that_nobody_asked_for": _passed_over("503 COMMAND_INVALID"),
    "channels.number_above_the_channel_max": Difference(
        "opens it: `channel_max` limits the count alone",
        "530 NOT_ALLOWED",
        "`channel-max` is the highest number (section 1.4.2.5)",
    ),
    "channels.opening_before_close_ok": Difference(
        "closes the connection with 504",
        "passes over it",
        "what comes before `channel.close-ok` is discarded (section 1.5.2.5)",
    ),
    "connections.arguments_cut_short": _codes("501 FRAME_ERROR", "502 SYNTAX_ERROR"),
    "connections.arguments_with_more_behind_them": _codes("501 FRAME_ERROR", "502 SYNTAX_ERROR"),
    "connections.channel_0_is_for_the_connection_alone": _codes(
        "504 CHANNEL_ERROR", "503 COMMAND_INVALID"
    ),
    "connections.channel_max_above_the_proposed_is_530": _in_silence("530 NOT_ALLOWED"),
    "connections.connection_opened_twice": _codes("504 CHANNEL_ERROR", "503 COMMAND_INVALID"),
    "connections.content_on_channel_0": _codes("505 UNEXPECTED_FRAME", "501 FRAME_ERROR"),
    "connections.frame_max_above_the_proposed_is_530": _in_silence("530 NOT_ALLOWED"),
    "connections.frame_max_below_the_least_is_530": _in_silence("530 NOT_ALLOWED"),
    "connections.frame_max_of_zero_is_the_proposed": _in_silence("530 NOT_ALLOWED"),
    "connections.header_of_0_8": Difference(
        "takes the protocol header of AMQP 0-8, and speaks 0-9-1",
        "answers with the header of 0-9-1, and closes",
        "no client of 0-8 is left; section 4.2.2 of the specification",
    ),
    "connections.heartbeat_on_another_channel": Difference(
        "closes the connection with 505", "takes it as a heartbeat", "it is a sign of life"
    ),
    "connections.malformed_plain_response": _in_silence("403 ACCESS_REFUSED"),
    "connections.nothing_is_taken_after_the_server_closed": _codes(
        "504 CHANNEL_ERROR", "503 COMMAND_INVALID"
    ),
    "connections.start_says_whether_consumers_have_priorities": Difference(
        "has the capability `consumer_priorities`",
        "says that it has not; `x-priority` is refused with 406",
        "consumers are served in turn; a clear refusal instead of another order than asked for",
    ),
    "connections.tune_ok_before_start_ok": _in_silence("503 COMMAND_INVALID"),
    "connections.unknown_class": _in_silence("503 COMMAND_INVALID"),
    "connections.unknown_field_type_in_a_table": _in_silence("502 SYNTAX_ERROR"),
    "connections.unknown_mechanism": _in_silence("503 COMMAND_INVALID"),
    "connections.unknown_method_of_a_known_class": _in_silence("503 COMMAND_INVALID"),
}
