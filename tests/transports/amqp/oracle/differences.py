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


DIFFERENCES: Final[Mapping[str, Difference]] = {
    "arguments.priorities": Difference(
        "messages have priorities (`x-max-priority`)",
        "refused: 406",
        "a queue is in order; use a queue for each priority",
    ),
    "arguments.queue_type_quorum": Difference(
        "a quorum queue on one node",
        "refused without `--store nats`: 406",
        "a queue that says it is replicated has to be",
    ),
    "arguments.queue_type_stream": Difference(
        "has streams",
        "refused: 406",
        "there are none; a client that wants to read again needs another server",
    ),
    "channels.close_ok_that_nobody_asked_for": Difference(
        "503 COMMAND_INVALID",
        "passes over it",
        "it is an answer, and changes nothing",
    ),
    "channels.flow_ok_that_nobody_asked_for": Difference(
        "503 COMMAND_INVALID",
        "passes over it",
        "it is an answer, and changes nothing",
    ),
    "channels.number_above_the_channel_max": Difference(
        "counts channels and takes any number",
        "530 for a number above the agreed `channel_max`",
        "the specification says that the number is the limit",
    ),
    "channels.opening_before_close_ok": Difference(
        "closes the connection with 504",
        "passes over it",
        "what comes before `channel.close-ok` is discarded (section 1.5.2.5)",
    ),
    "confirms.tx_in_confirm_mode": Difference(
        "406: a channel cannot change from confirms to transactions",
        "540 NOT_IMPLEMENTED",
        "there are no transactions",
    ),
    "connections.arguments_cut_short": Difference(
        "501 FRAME_ERROR",
        "502 SYNTAX_ERROR, with the name of the field",
        "the frame is whole, its arguments are not: a syntax error",
    ),
    "connections.arguments_with_more_behind_them": Difference(
        "501 FRAME_ERROR",
        "502 SYNTAX_ERROR, with the name of the field",
        "the frame is whole, its arguments are not: a syntax error",
    ),
    "connections.channel_0_is_for_the_connection_alone": Difference(
        "504 CHANNEL_ERROR",
        "503 COMMAND_INVALID",
        "no channel is at fault: the method is not one for this state of the connection",
    ),
    "connections.channel_max_above_the_proposed_is_530": Difference(
        "closes the socket without a word",
        "`connection.close` with 530",
        "a client that is cut off ought to know why",
    ),
    "connections.connection_opened_twice": Difference(
        "504 CHANNEL_ERROR",
        "503 COMMAND_INVALID",
        "no channel is at fault: the method is not one for this state of the connection",
    ),
    "connections.content_on_channel_0": Difference(
        "505 UNEXPECTED_FRAME",
        "501 FRAME_ERROR",
        "the frame's own head is wrong, whatever was expected",
    ),
    "connections.frame_max_above_the_proposed_is_530": Difference(
        "closes the socket without a word",
        "`connection.close` with 530",
        "a client that is cut off ought to know why",
    ),
    "connections.frame_max_below_the_least_is_530": Difference(
        "closes the socket without a word",
        "`connection.close` with 530",
        "a client that is cut off ought to know why",
    ),
    "connections.frame_max_without_a_limit_is_530": Difference(
        "closes the socket without a word",
        "`connection.close` with 530",
        "a client that is cut off ought to know why",
    ),
    "connections.header_of_0_8": Difference(
        "takes the header of 0-8 as that of 0-9-1",
        "answers with its own header and closes",
        "no client of today sends it, and 0-8 is another protocol",
    ),
    "connections.heartbeat_on_another_channel": Difference(
        "505 UNEXPECTED_FRAME",
        "501 FRAME_ERROR",
        "the frame's own head is wrong, whatever was expected",
    ),
    "connections.malformed_plain_response": Difference(
        "closes the socket without a word",
        "`connection.close` with 403",
        "a client that is cut off ought to know why",
    ),
    "connections.start_says_whether_consumers_have_priorities": Difference(
        "consumers have priorities (`x-priority`)",
        "refused: 406; the capability is false",
        "consumers with room take turns; better refused than ignored",
    ),
    "connections.tune_ok_before_start_ok": Difference(
        "closes the socket without a word",
        "`connection.close` with 503",
        "a client that is cut off ought to know why",
    ),
    "connections.unknown_class": Difference(
        "closes the socket without a word",
        "`connection.close` with 503",
        "a client that is cut off ought to know why",
    ),
    "connections.unknown_field_type_in_a_table": Difference(
        "closes the socket without a word",
        "`connection.close` with 502",
        "a client that is cut off ought to know why",
    ),
    "connections.unknown_mechanism": Difference(
        "closes the socket without a word",
        "`connection.close` with 503",
        "a client that is cut off ought to know why",
    ),
    "connections.unknown_method_of_a_known_class": Difference(
        "closes the socket without a word",
        "`connection.close` with 503",
        "a client that is cut off ought to know why",
    ),
    "consuming.consumers_with_a_higher_priority_come_first": Difference(
        "consumers have priorities (`x-priority`)",
        "refused: 406; the capability is false",
        "consumers with room take turns; better refused than ignored",
    ),
    "dead_letters.delivery_limit": Difference(
        "classic queues ignore `x-delivery-limit`, quorum queues keep to it",
        "all queues keep to it; `basic.reject` counts, `basic.nack` does not",
        "a poison message is one in any queue",
    ),
    "lengths.bytes_of_a_message": Difference(
        "counts bodies",
        "counts bodies, properties and names",
        "that is the debt of the message, and the room that it takes",
    ),
    "publishing.body_longer_than_announced": Difference(
        "takes the longer body",
        "501 FRAME_ERROR",
        "a size that lies is malformed content",
    ),
    "publishing.properties_cut_short": Difference(
        "541 INTERNAL_ERROR",
        "502 SYNTAX_ERROR",
        "the fault is the client's",
    ),
    "transactions.commit": Difference(
        "has transactions on a channel",
        "540 NOT_IMPLEMENTED",
        "they promise little more than confirms, at many times the cost; use confirms",
    ),
    "transactions.commit_without_select": Difference(
        "has transactions on a channel",
        "540 NOT_IMPLEMENTED",
        "they promise little more than confirms, at many times the cost; use confirms",
    ),
    "transactions.rollback": Difference(
        "has transactions on a channel",
        "540 NOT_IMPLEMENTED",
        "they promise little more than confirms, at many times the cost; use confirms",
    ),
    "transactions.select": Difference(
        "has transactions on a channel",
        "540 NOT_IMPLEMENTED",
        "they promise little more than confirms, at many times the cost; use confirms",
    ),
}
