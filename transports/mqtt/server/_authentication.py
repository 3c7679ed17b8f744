"""Enhanced authentication of MQTT 5: client and server exchange several steps (section 4.12).

    client: CONNECT with a method and data     AUTH 0x18 with data
    server:               AUTH 0x18 with data                     CONNACK 0 with data

A connected client may authenticate again, with AUTH 0x19 in place of CONNECT and AUTH 0 in place of
CONNACK. Its user must stay the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....access._passwords import Passwords
from ....access._scram import METHOD, AuthenticationFailedError, ScramExchange
from ..codec._packets import Auth
from ..codec._properties import Properties
from ..codec._reasons import Reason, ReasonedError

if TYPE_CHECKING:
    from ..codec._packets import Connect


class Authentication:
    """The enhanced authentication of one connection.

    Args:
        connect: The CONNECT that begins it.
        passwords: The users that the server knows.

    Attributes:
        connect: See above.
        user: The user that the client has authenticated as; None before that.
        claimed: The user that the client claims to be; "" before that.
        last: The server's final data, for a client that has authenticated.
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
        """Return the authentication that a CONNECT asks for; None: its method is not supported."""
        method = connect.properties.authentication_method
        if method == METHOD and isinstance(passwords, Passwords) and passwords.knows_scram:
            return cls(connect, passwords)
        return None

    def begin(self, properties: Properties) -> Auth:
        """Handle the client's first data, in CONNECT or AUTH; return the answer.

        Raises:
            AuthenticationFailedError: The data is malformed.
        """
        self._exchange = ScramExchange(self._passwords.scram_keys)
        answer = self._exchange.begin(properties.authentication_data or b"")
        self.claimed = self._exchange.user
        return _auth(Reason.CONTINUE_AUTHENTICATION, answer)

    def step(self, packet: Auth) -> Auth:
        """Handle an AUTH of the client; return the answer, with reason 0 if it is the last.

        Raises:
            AuthenticationFailedError: The proof is wrong, or the user is not the one that the
                client was before, or that its CONNECT names.
            ReasonedError: The AUTH begins again before CONNACK, or goes on with no authentication
                under way.
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
            msg = f"{METHOD}: the client authenticates as another user than before"
            raise AuthenticationFailedError(msg)
        self.user = exchange.user
        return _auth(Reason.SUCCESS, self.last)


def _auth(reason: Reason, data: bytes) -> Auth:
    return Auth(reason, Properties(authentication_method=METHOD, authentication_data=data))
