"""The errors of the transports.

Rule: whatever bytes a peer sends, nothing but `RemoteProtocolError` comes of parsing them. A
session catches that one type, closes that one connection and goes on serving the others.
"""


class TransportError(Exception):
    """Something went wrong on the way between this process and a peer."""


class ProtocolError(TransportError):
    """Somebody broke the rules of a wire protocol; see the two subclasses for who."""


class LocalProtocolError(ProtocolError):
    """This side was about to break the protocol; nothing was sent, the connection stands."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol. The connection cannot be used any further: close it."""
