"""The errors of the transports.

Rule: whatever bytes a peer sends, parsing them raises nothing but `RemoteProtocolError`. A session
catches that one type, closes that one connection and goes on serving the others.
"""

from ..sockets._errors import TransportError


class ProtocolError(TransportError):
    """A violation of a wire protocol; the two subclasses say which side's."""


class LocalProtocolError(ProtocolError):
    """This side was about to break the protocol; nothing was sent, the connection stands."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol. The connection cannot be used any further: close it."""
