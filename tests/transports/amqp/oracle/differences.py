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
    "connections.header_of_0_8": Difference("1", "2", "3"),
    **{name: Difference("1", "2", "3") for name in """connections.unknown_mechanism connections.malformed_plain_response connections.frame_max_below_the_least_is_530 connections.frame_max_above_the_proposed_is_530 connections.frame_max_without_a_limit_is_530 connections.channel_max_above_the_proposed_is_530 connections.tune_ok_before_start_ok connections.unknown_class connections.unknown_method_of_a_known_class connections.unknown_field_type_in_a_table channels.number_above_the_channel_max arguments.queue_type_quorum arguments.queue_type_stream dead_letters.delivery_limit queues.line_ends_in_names confirms.tx_in_confirm_mode publishing.body_longer_than_announced publishing.properties_cut_short transactions.commit_without_select transactions.select transactions.commit transactions.rollback""".split()},
}
