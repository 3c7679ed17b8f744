"""What a client may find when it calls."""

from .._errors import TransportError
from ._packets import ConnectReturnCode


class ConnectionLostError(TransportError):
    """The connection ended without having been asked to; `__cause__` says more where known.

    Attributes:
        kept: whether this is of a publication that the client's session has kept: it is sent again
            on the next connection, and is not to be published again.
    """

    kept = False


class ConnectRefusedError(TransportError):
    """The server answered CONNECT with a CONNACK that refuses.

    Attributes:
        return_code: why (section 3.2.2.3).
    """

    def __init__(self, return_code: ConnectReturnCode) -> None:
        reason = return_code.name.lower().replace("_", " ")
        super().__init__(f"the server refused the connection: {reason} ({return_code.value})")
        self.return_code = return_code


class SubscriptionRefusedError(TransportError):
    """The server refused at least one topic filter of a SUBSCRIBE; the others stand.

    Attributes:
        granted: for each filter the QoS granted, or None where it was refused.
    """

    def __init__(self, granted: dict[str, int | None]) -> None:
        refused = ", ".join(repr(name) for name, qos in granted.items() if qos is None)
        super().__init__(f"the server refused to subscribe this client to {refused}")
        self.granted = granted
