"""How a client that speaks MQTT 5 proves who it is in several steps (section 4.12).

    client: CONNECT with a method and data     AUTH 0x18 with data
    server:               AUTH 0x18 with data                     CONNACK 0 with data

A client that is connected may do it again, with AUTH 0x19 in place of CONNECT and AUTH 0 in place
of CONNACK; it stays who it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._packets import Auth
from ._passwords import Passwords
from ._properties import Properties
from ._reasons import Reason, ReasonedError
from ._scram import METHOD, AuthenticationFailedError, ScramExchange

if TYPE_CHECKING:
    from ._packets import Connect


class Authentication:
    """That of one connection.

    Args:
        connect: The CONNECT that begins it.
        passwords: Whom the server knows.

    Attributes:
        connect: See above.
        user: Who the client is; None until it has proved that.
        claimed: Who it says it is; "" until it has said that.
        last: What the server has to say when it has.
    """

    __slots__ = ("_exchange", "_passwords", "claimed", "connect", "last", "user")

    def __init__(self, connect: Connect, passwords: Passwords) -> None:
        self.connect = connect
        self.user: str | None = None
        self.claimed = ""
        self.last = b""
        self._passwords = passwords
        self._exchange: ScramExchange | None = None

    @classmethod
    def of(cls, connect: Connect, passwords: object) -> Authentication | None:
        """Begin what a CONNECT asks for; None: there is no such method here."""
        method = connect.properties.authentication_method
        if method == METHOD and isinstance(passwords, Passwords) and passwords.knows_scram:
            return cls(connect, passwords)
        return None

    def begin(self, properties: Properties) -> Auth:
        """Take the first that the client says, in CONNECT or AUTH; return the answer.

        Raises:
            AuthenticationFailedError: It makes no sense.
        """
        self._exchange = ScramExchange(self._passwords.scram_keys)
        answer = self._exchange.begin(properties.authentication_data or b"")
        self.claimed = self._exchange.user
        return _auth(Reason.CONTINUE_AUTHENTICATION, answer)

    def step(self, packet: Auth) -> Auth:
        """Take what the client says in an AUTH; return the answer, with reason 0 if it is the last.

        Raises:
            AuthenticationFailedError: The client has not proved who it is; or is another user than
                it was before, or has named in CONNECT.
            ReasonedError: There is nothing that could go on.
        """
        if packet.reason == Reason.REAUTHENTICATE:
            if self.user is None:
                msg = "AUTH begins anew (0x19) before CONNACK (section 4.12.1)"
                raise ReasonedError(msg, Reason.PROTOCOL_ERROR)
            return self.begin(packet.properties)
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            msg = "AUTH goes on (0x18) where nothing was begun (section 4.12.1)"
            raise ReasonedError(msg, Reason.PROTOCOL_ERROR)
        self.last = exchange.finish(packet.properties.authentication_data or b"")
        known = self.connect.username if self.user is None else self.user
        if known is not None and exchange.user != known:
            msg = f"{METHOD}: the client is another user than it has said before"
            raise AuthenticationFailedError(msg)
        self.user = exchange.user
        return _auth(Reason.SUCCESS, self.last)


def _auth(reason: Reason, data: bytes) -> Auth:
    return Auth(reason, Properties(authentication_method=METHOD, authentication_data=data))
