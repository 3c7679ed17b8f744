"""One connection for a client identifier in the whole cluster [MQTT-3.1.4-2].

A relay that lets a client in tells the others, and they end what they have under that identifier. A
message says when the client came, so that of two that came at about the same time one stays.
"""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING, Final

import trio

from ..transports import TransportError
from ..transports.mqtt.server._server import MqttServer

if TYPE_CHECKING:
    from ..transports.nats import Message
    from ._companion import Place

logger = logging.getLogger("clearfunds.cluster")

SUBJECT: Final = "clearfunds-clients"


class TakeOver:
    """Tells the other relays of clients that come, and hears of theirs.

    Args:
        mqtt: The relay's MQTT side; from now on it tells of each client that it lets in.
    """

    def __init__(self, mqtt: MqttServer) -> None:
        self._mqtt = mqtt
        self._place: Place | None = None
        mqtt.on_client = self._came

    async def run(
        self, place: Place, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See `Companion.run`."""
        self._place = place
        subject = f"{SUBJECT}.{place.cluster}.*"
        end = place.nats.subscribe_with(subject, self._heard, self._refused)
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            self._place = None
            end()

    def _came(self, key: str, came: float, is_clean: bool) -> None:
        place = self._place
        if place is None:
            return
        message = json.dumps({"key": key, "came": came, "clean": is_clean}).encode()
        try:
            place.nats.publish_nowait(f"{SUBJECT}.{place.cluster}.{place.name}", message)
        except (trio.WouldBlock, TransportError):
            # Cut off from the others: what they have of the client ends when it is found dead.
            logger.debug("the other relays are not told of a client: there is no connection")

    def _heard(self, message: Message) -> None:
        relay = message.subject.rpartition(".")[2]
        place = self._place
        if place is None or relay == place.name:
            return
        try:
            said = json.loads(message.payload)
            key, came, is_clean = str(said["key"]), float(said["came"]), bool(said["clean"])
        except (ValueError, TypeError, KeyError, RecursionError) as exc:
            logger.error("relay %s tells of a client what cannot be read: %r", relay, exc)
            return
        session = self._mqtt.sessions.get(key)
        if session is not None:
            if (session.came, place.name) > (came, relay):
                return
            session.give_way()
        if is_clean:
            self._end_session(key, math.inf if session is not None else came)

    def _end_session(self, key: str, came: float) -> None:
        """End a session that its client does not want: the other relay did not know of it yet."""
        sessions = self._mqtt.persistent_sessions
        kept = None if sessions is None else sessions.by_id.get(key)
        if sessions is None or kept is None or kept.left is None or kept.taken_up:
            return
        if kept.left <= came:
            sessions.discard(key)

    def _refused(self, why: str | None) -> None:
        if why is not None:
            logger.error("NATS does not let this relay hear of the others' clients: %s", why)
