"""Exceptions that a client's calls raise."""

from __future__ import annotations

from typing import Final

from ....sockets import TransportError
from ..codec._packets import ConnectReturnCode, Disconnect
from ..codec._reasons import Reason, in_words

_LOGIN: Final = "check the user name and the password"
_VERSION: Final = "try another MQTT version"
_IDENTIFIER: Final = "give another client identifier"
_LATER: Final = "try again later"

_ADVICE: Final = {
    "UNACCEPTABLE_PROTOCOL_LEVEL": _VERSION,
    "UNSUPPORTED_PROTOCOL_VERSION": _VERSION,
    "IDENTIFIER_REJECTED": _IDENTIFIER,
    "CLIENT_IDENTIFIER_NOT_VALID": _IDENTIFIER,
    "BAD_USER_NAME_OR_PASSWORD": _LOGIN,
    "NOT_AUTHORIZED": _LOGIN,
    "SERVER_UNAVAILABLE": _LATER,
    "SERVER_BUSY": _LATER,
}
"""What to do about a refusal, by the name of its code."""


class ConnectionLostError(TransportError):
    """The connection ended, though the client had not disconnected; `__cause__` may say more.

    Attributes:
        kept: whether the client's session has kept the publication. The next connection sends it
            again; do not publish it again.
        reason: the reason code of the server's DISCONNECT, in MQTT 5; None if none came.
    """

    kept = False
    reason: int | None = None


class ConnectRefusedError(TransportError):
    """The server answered CONNECT with a CONNACK that refuses.

    Attributes:
        return_code: why (section 3.2.2.3): a `ConnectReturnCode`; in MQTT 5 a `Reason`.
        reason_string: the server's own words, if any, in MQTT 5.
        server_reference: the server to use instead, if the server names one, in MQTT 5.
    """

    def __init__(
        self,
        return_code: ConnectReturnCode | Reason,
        reason_string: str | None = None,
        server_reference: str | None = None,
    ) -> None:
        if isinstance(return_code, Reason):
            why = in_words(return_code, reason_string)
        else:
            why = f"{return_code.name.lower().replace('_', ' ')} ({return_code.value})"
        if server_reference:
            why += f'; use "{server_reference}"'
        advice = _ADVICE.get(return_code.name, "the server's log may say more")
        super().__init__(f"the server refused the connection: {why}; {advice}")
        self.return_code = return_code
        self.reason_string = reason_string
        self.server_reference = server_reference


class PublicationRefusedError(TransportError):
    """The server did not take a publication of QoS 1 or 2; only MQTT 5 can say so.

    Attributes:
        topic: the publication's topic.
        reason: the reason code, a `Reason` if it is a known one.
        reason_string: the server's own words, if any.
    """

    def __init__(self, topic: str, reason: int, reason_string: str | None = None) -> None:
        super().__init__(
            f"the server refused a publication to {topic!r}: {in_words(reason, reason_string)}"
        )
        self.topic = topic
        self.reason = reason
        self.reason_string = reason_string


class SubscriptionRefusedError(TransportError):
    """The server refused at least one topic filter of a SUBSCRIBE; it accepted the others.

    In MQTT 5 also of an UNSUBSCRIBE; the other subscriptions have ended.

    Attributes:
        granted: the QoS granted for each filter, or None if it was refused.
        reasons: the reason code for each refused filter; 0x80 in MQTT 3.1.1.
        reason_string: the server's own words, if any, in MQTT 5.
    """

    def __init__(
        self,
        granted: dict[str, int | None],
        reasons: dict[str, int] | None = None,
        reason_string: str | None = None,
        what: str = "subscribe this client to",
    ) -> None:
        self.granted = granted
        self.reasons = reasons or {}
        self.reason_string = reason_string
        refused = ", ".join(
            f"{name!r}{self._why(name)}" for name, qos in granted.items() if qos is None
        )
        words = f': "{reason_string}"' if reason_string else ""
        super().__init__(f"the server refused to {what} {refused}{words}")

    def _why(self, name: str) -> str:
        code = self.reasons.get(name, Reason.UNSPECIFIED_ERROR)
        return "" if code == Reason.UNSPECIFIED_ERROR else f", {in_words(code)}"


def why_disconnected(packet: Disconnect) -> str:
    """Return the sentence for a server's DISCONNECT, in MQTT 5."""
    said = in_words(packet.reason, packet.properties.reason_string)
    other = packet.properties.server_reference
    return f"the server disconnected this client: {said}" + (f'; use "{other}"' if other else "")
