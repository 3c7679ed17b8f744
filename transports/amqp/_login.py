"""One client's login by SASL: PLAIN, AMQPLAIN or EXTERNAL, with the relay's own users.

A certificate, a token or a password proves the user. Where the relay checks nothing, a client
counts as the user that it names, as with MQTT.

Source: RFC 4616 (PLAIN), RFC 4422 appendix A (EXTERNAL); RabbitMQ's rabbit_auth_mechanism_*.erl for
AMQPLAIN, which is a field table, and for the texts.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NoReturn

import attrs
import trio

from ...access._addresses import address_of
from ...access._admission import Refusal
from ...access._guesses import Attempt
from ...access._tenants import NO_USER, printable
from ...access._tokens import TokenError, Tokens
from ._field_tables import NAMES, MalformedError, read_table
from ._replies import AmqpError, Code

if TYPE_CHECKING:
    from .._link import Link
    from ..mqtt.server._log_ins import Checked
    from ._server import AmqpServer

PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"

SHOWN_OF_USER: Final = 100
"""Characters of the name of a refused user in the log; as with MQTT's clients."""

_START_OK: Final = (10, 11)


@attrs.frozen(slots=True)
class Credentials:
    """A user's name and password, as a client gives them."""

    user: str
    password: bytes


@attrs.frozen(slots=True)
class User:
    """A client that may come in."""

    name: str | None
    """None: it has none."""
    is_verified: bool
    """Whether it has proved to be that user."""


class LoginRefusedError(AmqpError):
    """A client is not let in. The reason is for the log; the client hears only that it is not."""

    def __init__(self, mechanism: str, why: str) -> None:
        super().__init__(
            Code.ACCESS_REFUSED,
            f"Login was refused using authentication mechanism {mechanism}. For details see the "
            "broker logfile.",
        )
        self.ends_connection = True
        self.why = why

    def __str__(self) -> str:
        return self.why


class Login:
    """Checks who one client is.

    Args:
        server: The server.
        link: The client's socket.

    Attributes:
        user: The client's user, once it is let in.
        ends_at: When the client's token expires, on the ledger's clock; None: it does not.
        undecided: Whether the client waits for `decide`.
        is_delayed: Whether the client is refused, and waits to be told.
    """

    __slots__ = (
        "_checked", "_credentials", "_link", "_mechanism", "_server", "ends_at", "is_delayed",
        "undecided", "user",
    )  # fmt: skip

    def __init__(self, server: AmqpServer, link: Link) -> None:
        self._server = server
        self._link = link
        self._mechanism = PLAIN
        self._credentials: Credentials | None = None
        self._checked: Checked | None = None
        self.user: User | None = None
        self.ends_at: float | None = None
        self.undecided = False
        self.is_delayed = False

    @property
    def mechanisms(self) -> str:
        """The mechanisms that the client may choose from."""
        offered = (AMQPLAIN, PLAIN) if self._link.user is None else (AMQPLAIN, PLAIN, EXTERNAL)
        return " ".join(offered)

    def begin(self, mechanism: str, response: bytes) -> None:
        """Handle the client's response; `user` or `undecided` is set after this.

        Raises:
            AmqpError: If the client is not let in.
        """
        self._mechanism = mechanism
        if mechanism not in self.mechanisms.split():
            raise AmqpError(
                Code.COMMAND_INVALID,
                f"unknown authentication mechanism '{printable(mechanism[:SHOWN_OF_USER])}'",
                _START_OK,
            )
        certified = self._link.user
        if mechanism == EXTERNAL:
            self.user = User(certified, True)
            return
        said = self._credentials = (_read_plain if mechanism == PLAIN else _read_amqplain)(response)
        if said is None:
            raise LoginRefusedError(mechanism, f"its response is not that of {mechanism}")
        if certified is not None:
            self.user = User(certified, True)  # whatever it says
            return
        settings = self._server.settings
        if not settings.verifies:
            # Where others prove who they are, by certificates, a claim is worth nothing.
            self.user = User(None if settings.has_users else said.user or None, False)
        elif settings.anonymous and not said.user and not said.password:
            self.user = User(None, False)
        elif settings.tokens is not None and Tokens.is_one(said.password):
            self._read_token(settings.tokens, said)
        else:
            self._check_now(said)

    def _check_now(self, said: Credentials) -> None:
        """Check a password at once if that is quick; otherwise it is undecided."""
        if not said.user or said.user == NO_USER:
            self._deny("it named no user, and has to")
        passwords = self._server.settings.passwords
        checked = self._server.log_ins.look(passwords, self._attempt(said), said.password)
        if checked is None or checked.delay:
            self._checked = checked
            self.undecided = True
        else:
            self._let_in_if(said, checked)

    def _attempt(self, said: Credentials) -> Attempt:
        return Attempt(address_of(self._link.peer), said.user, "")

    def _read_token(self, tokens: Tokens, said: Credentials) -> None:
        now = self._server.wall()
        try:
            token = tokens.read(said.password, now)
        except TokenError as exc:
            self._deny(f"its token is not good: {printable(str(exc))}")
        if said.user not in ("", token.user):
            self._deny(f"its token is of another user (user {token.user[:SHOWN_OF_USER]})")
        self.ends_at = self._server.ledger.clock() + token.expires - now
        self.user = User(token.user, True)

    def renew(self, secret: bytes) -> None:
        """Take a new token of the same user (connection.update-secret).

        A client that has not logged in with one has nothing to renew, and nothing changes.

        Raises:
            AmqpError: If it is not good.
        """
        tokens, user = self._server.settings.tokens, self.user
        if tokens is None or self.ends_at is None or user is None:
            return
        before = self.ends_at
        try:
            self._read_token(tokens, Credentials(user.name or "", secret))
        except LoginRefusedError as exc:
            self.ends_at, self.user = before, user
            raise AmqpError(Code.NOT_ALLOWED, str(exc), (10, 70)) from None

    async def decide(self, watch: Callable[[trio.CancelScope], Awaitable[object]]) -> None:
        """Check the password of an undecided client in a thread; `watch` cancels if it leaves.

        Cancellation: the thread ends on its own, and until then it counts as one of those that
        there may be. Nothing else is left.

        Raises:
            AmqpError: If it is wrong, or could not be checked.
            ConnectionAbortedError: If the client has left.
        """
        said = self._credentials
        assert said is not None
        checked: Checked | None = None
        trouble: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            try:
                checked = await self._check(said)
            except Exception as exc:  # noqa: BLE001  (somebody else's code: it may be anything)
                trouble = exc
            nursery.cancel_scope.cancel()
        self.undecided = False
        if trouble is not None:
            self._deny(f"its password could not be checked: {trouble!r}")
        if checked is None:
            raise ConnectionAbortedError(
                errno.ECONNABORTED, "the client left before its password was checked"
            )
        self._let_in_if(said, checked)

    async def _check(self, said: Credentials) -> Checked:
        """Check the client's password, and wait until it may be told."""
        checked = self._checked
        if checked is None:
            passwords = self._server.settings.passwords
            assert passwords is not None
            checked = await self._server.log_ins.check(
                passwords, self._attempt(said), said.password
            )
        if checked.delay:
            self.is_delayed = True
            await trio.sleep(checked.delay)
        return checked

    def _let_in_if(self, said: Credentials, checked: Checked) -> None:
        fault = checked.fault(printable(said.user[:SHOWN_OF_USER]))
        if fault is not None:
            self._deny(fault[1], counted=True)
        self.user = User(said.user, True)

    def _deny(self, why: str, *, counted: bool = False) -> NoReturn:
        self._server.counters.refused += 1
        if not counted:
            self._server.admission.refused[Refusal.OTHER] += 1
        raise LoginRefusedError(self._mechanism, why)


def _read_plain(response: bytes) -> Credentials | None:
    """Return the credentials of PLAIN: [authzid] NUL user NUL password (RFC 4616, section 2)."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        return None
    return Credentials(parts[1].decode(errors=NAMES), parts[2])


def _read_amqplain(response: bytes) -> Credentials | None:
    """Return the credentials of AMQPLAIN: a table, without its length, with LOGIN and PASSWORD."""
    try:
        table = read_table(response, 0, len(response))
    except MalformedError:
        return None
    user, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(user, str) or not isinstance(password, str | bytes):
        return None
    return Credentials(user, password.encode() if isinstance(password, str) else password)
