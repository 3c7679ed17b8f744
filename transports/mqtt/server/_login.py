"""One client's login: from its CONNECT to the user that it has proved to be, if it has to.

A certificate, a token, a password or an enhanced authentication (MQTT 5) proves it. None of these
has an effect before it is decided that the client is let in.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import attrs
import trio

from ....access._addresses import address_of
from ....access._admission import Refusal
from ....access._guesses import Attempt
from ....access._scram import AuthenticationFailedError
from ....access._tenants import printable
from ....access._tokens import TokenError, Tokens
from ..._errors import RemoteProtocolError
from ..._link import Voucher
from ..codec._packets import ConnectReturnCode
from ..codec._packets5 import PROTOCOL_LEVEL_5
from ..codec._reasons import Reason, ReasonedError
from ._authentication import Authentication
from ._filters import Filters
from ._mqtt5 import Mqtt5

if TYPE_CHECKING:
    from ..._link import Link
    from ..codec._packets import Auth, Connect
    from ._log_ins import Checked
    from ._sender import Sender
    from ._server import MqttServer

SHOWN_OF_USER: Final = 100
"""Characters of the name of a refused user, or client, in the log; it may have 65,535."""


class Login:
    """Checks who one client is.

    Its methods return the CONNECT of a client that may be let in, with its user; None: not yet.
    If they raise `RemoteProtocolError`, the client is not let in, and has been told.

    Args:
        server: The server.
        link: The client's socket.
        sender: Sends the answers.

    Attributes:
        authentication: The enhanced authentication, if the client asks for one.
        ends_at: When the client's token expires, on the ledger's clock; None: it does not.
        undecided: The CONNECT of a client that waits for `decide`: nothing more of its input is
            handled before.
        is_delayed: Whether the client is refused and waits to be told.
    """

    __slots__ = (
        "_checked", "_link", "_sender", "_server", "authentication", "ends_at", "is_delayed",
        "undecided",
    )  # fmt: skip

    def __init__(self, server: MqttServer, link: Link, sender: Sender) -> None:
        self._server = server
        self._link = link
        self._sender = sender
        self.authentication: Authentication | None = None
        self.ends_at: float | None = None
        self.undecided: Connect | None = None
        self.is_delayed = False
        # The result of the check, if it is known and the client is told later.
        self._checked: Checked | None = None

    def begin(self, packet: Connect) -> Connect | None:
        """Handle a CONNECT."""
        settings = self._server.settings
        if packet.protocol_level == PROTOCOL_LEVEL_5:
            wall = self._server.wall
            self._sender.mqtt5 = Mqtt5(packet, Filters(), wall, settings.max_topic_alias)
        if len(packet.client_id.encode()) > settings.max_client_id:
            why = (
                f"the client identifier has {len(packet.client_id.encode())} bytes, more than the "
                f"{settings.max_client_id} allowed here (max_client_id)"
            )
            self.deny(ConnectReturnCode.IDENTIFIER_REJECTED, why)
        if self._link.voucher is not None:
            return self._let_in_by(self._link.voucher, packet)
        method = packet.properties.authentication_method
        passwords = settings.passwords
        if method is not None:
            authentication = self.authentication = Authentication.of(packet, passwords)
            if authentication is None:
                method = printable(method[:SHOWN_OF_USER])
                why = f"there is no authentication by {method} here; use a password or certificate"
                self.deny(Reason.BAD_AUTHENTICATION_METHOD, why)
            return self._do(authentication, partial(authentication.begin, packet.properties))
        if (
            (passwords is None and settings.tokens is None)
            or self._link.user is not None  # its certificate says who it is
            or (settings.anonymous and packet.username is None and packet.password is None)
        ):
            return packet
        if settings.tokens is not None and Tokens.is_one(packet.password or b""):
            return self._read_token(settings.tokens, packet)
        if packet.username is None:
            self.deny(ConnectReturnCode.NOT_AUTHORIZED, "it named no user, and has to")
        checked = self._server.log_ins.look(passwords, self._attempt(packet), packet.password)
        if checked is None or checked.delay:
            self._decide_later(packet, checked)
            return None
        return self._let_in_if(packet, checked)

    def _let_in_by(self, voucher: Voucher, packet: Connect) -> Connect:
        """Let a client in whom another relay has passed on, and has asked already."""
        if voucher.expires_in is not None:
            self.ends_at = self._server.ledger.clock() + voucher.expires_in
        if packet.properties.authentication_method is not None:
            authentication = Authentication.of(packet, self._server.settings.passwords)
            if authentication is not None:
                authentication.user, authentication.last = packet.username, voucher.last
            self.authentication = authentication
        return packet

    def vouch(self, *, is_verified: bool) -> Voucher:
        """Return this relay's word for the client, which is let in elsewhere."""
        ends_at, self.ends_at = self.ends_at, None
        return Voucher(
            is_verified,
            None if ends_at is None else ends_at - self._server.ledger.clock(),
            b"" if self.authentication is None else self.authentication.last,
        )

    def step(self, packet: Auth) -> Connect | None:
        """Handle an AUTH; see `_do`."""
        authentication = self.authentication
        assert authentication is not None
        return self._do(authentication, partial(authentication.step, packet))

    def _do(self, authentication: Authentication, step: Callable[[], Auth]) -> Connect | None:
        """Do a step of an authentication, and answer; its last step lets a client in.

        Raises:
            RemoteProtocolError: If the client has not proved who it is; it has been told so, or
                will be.
        """
        connected = self._sender.account is not None
        connect = authentication.connect
        # As the client claims; without a user before it has named one.
        address = address_of(self._link.peer)
        attempt = Attempt(address, authentication.claimed, connect.client_id)
        log_ins = self._server.log_ins
        if not connected and attempt.user and (checked := log_ins.refusal(attempt)) is not None:
            self._let_in_if(connect, checked)
        try:
            answer = step()
            user, certified = authentication.user, self._link.user
            if user is not None and certified is not None and user != certified:
                why = f"its certificate is of another user (user {certified})"
                raise AuthenticationFailedError(why)
        except AuthenticationFailedError as exc:
            if connected:
                raise ReasonedError(str(exc), Reason.NOT_AUTHORIZED) from exc
            checked = log_ins.failed(attempt)
            if not checked.delay:
                self.deny(ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD, str(exc), counted=True)
            self._decide_later(connect, checked)
            return None
        if connected:
            self._sender.send(answer)
        elif user is None:
            self._sender.send_unowed(answer)
        else:
            log_ins.guesses.right(attempt)
            return attrs.evolve(connect, username=user)
        return None

    def _attempt(self, packet: Connect) -> Attempt:
        return Attempt(address_of(self._link.peer), packet.username or "", packet.client_id)

    def _decide_later(self, packet: Connect, checked: Checked | None) -> None:
        self._checked = checked
        self.undecided = packet

    def _read_token(self, tokens: Tokens, packet: Connect) -> Connect:
        """Let a client in, until its token expires."""
        assert packet.password is not None
        now = self._server.wall()
        try:
            token = tokens.read(packet.password, now)
        except TokenError as exc:
            why = f"its token is not good: {printable(str(exc))}"
            self.deny(ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD, why)
        if packet.username and packet.username != token.user:
            why = f"its token is of another user (user {token.user[:SHOWN_OF_USER]})"
            self.deny(ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD, why)
        self.ends_at = self._server.ledger.clock() + token.expires - now
        return attrs.evolve(packet, username=token.user)

    async def decide(self, watch: Callable[[trio.CancelScope], Awaitable[object]]) -> Connect:
        """Check the password of the `undecided` client in a thread.

        The time that the client has to be let in goes on. If the client leaves meanwhile, `watch`
        cancels the check: otherwise those who come back sooner than it is their turn would keep all
        threads busy with nobody, for ever.

        Cancellation: the thread ends on its own, and until then it counts as one of those that
        there may be. Nothing else is left.

        Raises:
            RemoteProtocolError: If it is wrong, or could not be checked; the client has been told.
            ConnectionAbortedError: If the client has left.
        """
        packet = self.undecided
        assert packet is not None
        checked: Checked | None = None
        trouble: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            try:
                checked = await self._check(packet)
            except Exception as exc:  # noqa: BLE001  (somebody else's code: it may be anything)
                trouble = exc
            nursery.cancel_scope.cancel()
        self.undecided = None
        if trouble is not None:
            why = f"its password could not be checked: {trouble!r}"
            self.deny(ConnectReturnCode.SERVER_UNAVAILABLE, why)
        if checked is None:
            raise ConnectionAbortedError(
                errno.ECONNABORTED, "the client left before its password was checked"
            )
        return self._let_in_if(packet, checked)

    async def _check(self, packet: Connect) -> Checked:
        """Check the client's password, and wait until it may be told."""
        checked = self._checked
        if checked is None:
            passwords = self._server.settings.passwords
            assert passwords is not None
            assert packet.password is not None
            attempt = self._attempt(packet)
            checked = await self._server.log_ins.check(passwords, attempt, packet.password)
        if checked.delay:
            self.is_delayed = True
            await trio.sleep(checked.delay)
        return checked

    def _let_in_if(self, packet: Connect, checked: Checked) -> Connect:
        """Go on if a client's password was right."""
        fault = checked.fault(printable((packet.username or "")[:SHOWN_OF_USER]))
        if fault is not None:
            self.deny(*fault, counted=True)
        return packet

    def deny(self, return_code: int, why: str, *, counted: bool = False) -> NoReturn:
        """Refuse a client that may not come in.

        Raises:
            RemoteProtocolError: Always.
        """
        self._server.counters.refused += 1
        if not counted:
            self._server.admission.refused[Refusal.OTHER] += 1
        self._sender.refuse(return_code, why)
        raise RemoteProtocolError(why)
