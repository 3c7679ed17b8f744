"""The relay's AMQP side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..transports.amqp.server import AmqpProperties, AmqpServer
from ._virtual_hosts import VirtualHosts

if TYPE_CHECKING:
    from ..access._admission import Admission
    from ..persistence import RamShelves, Shelves
    from ..transports.mqtt.server._server import MqttServer
    from ._settings import RelaySettings


def amqp_server(
    mqtt: MqttServer,
    persistence: Shelves | RamShelves,
    ram: RamShelves,
    settings: RelaySettings,
    admission: Admission,
) -> AmqpServer:
    """Make the server for AMQP clients, with the virtual hosts that are in the store."""
    hosts = VirtualHosts(mqtt, persistence, ram, settings, AmqpProperties())
    return AmqpServer(
        mqtt.dataspace,
        mqtt.flusher,
        mqtt.account,
        settings,
        hosts,
        admission=admission,
        tree=mqtt.tree,
        log_ins=mqtt.log_ins,
    )
