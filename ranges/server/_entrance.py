"""The start of a connection: HELLO, and then authentication, if the relay requires it.

Rules of this file:
1. A peer that is not let in may send HELLO and AUTH, each once, in small frames, and nothing else.
   Anything else ends the connection, with a sentence that says what to send.
2. A certificate identifies its peer, and needs no password. A slow password check runs in a thread,
   as for MQTT, and shares its limit on concurrent checks; answers to wrong passwords are delayed
   longer and longer (`_guesses`).
3. Claims without proof are ignored: without passwords and certificates, no peer has a name here.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn

import attrs
import trio

from ...access._addresses import address_of
from ...access._guesses import Attempt, Guesses
from ...access._passwords import Authenticator
from ...access._tenants import NO_USER, printable
from ...access._tokens import TokenError, Tokens
from ...transports._errors import RemoteProtocolError
from ...transports.mqtt.server._log_ins import Checked, LogIns
from ..wire import AUTH_IS_KNOWN, AUTH_IS_WANTED, VERSION, Auth, Hello, Kind, Ping, Request

if TYPE_CHECKING:
    from ...transports._link import Link

SHOWN_OF_USER = 100
"""Characters shown of the name of a user that was not let in; as with MQTT's clients."""


class NotLetInError(RemoteProtocolError):
    """The peer is not let in; it gets the reason, and the connection is closed."""


def _own_log_ins() -> LogIns:
    return LogIns(Guesses(), time.monotonic, Counter())


@attrs.frozen(slots=True, kw_only=True)
class Doorkeeper:
    """The relay's rules for letting peers in; the same for all connections.

    Attributes:
        passwords: Holds users' passwords; None: there are none.
        tokens: Checks tokens that peers give as passwords; None: tokens are not accepted.
        anonymous: With one of these: whether a peer without a user name is let in.
        certificates: Whether some peers show a certificate that identifies them.
        log_ins: Checks passwords, of all protocols.
        wall: The wall clock, by which tokens expire.
    """

    passwords: Authenticator | None = None
    tokens: Tokens | None = None
    anonymous: bool = False
    certificates: bool = False
    log_ins: LogIns = attrs.field(factory=_own_log_ins)
    wall: Callable[[], float] = time.time

    @property
    def asks(self) -> bool:
        """Whether peers without a certificate must authenticate."""
        return self.passwords is not None or self.tokens is not None

    @property
    def knows_users(self) -> bool:
        """Whether peers have identities: then each user owns what it makes."""
        return self.asks or self.certificates


class Entrance:
    """The progress of a connection's peer in being let in.

    Attributes:
        greeted: Whether it has sent HELLO.
        let_in: Whether it may make requests.
        expires_in: Seconds that the peer may stay after its log-in; None: no limit.
        owner: The owner of what it makes: a user; `NO_USER` for an anonymous peer where others
            authenticate; None where nobody does.
    """

    __slots__ = (
        "_asked", "_doorkeeper", "_link", "_named", "expires_in", "greeted", "let_in", "owner",
    )  # fmt: skip

    def __init__(self, doorkeeper: Doorkeeper, link: Link) -> None:
        self._doorkeeper = doorkeeper
        self._link = link
        self.greeted = False
        self.let_in = False
        self.expires_in: float | None = None
        self.owner: str | None = NO_USER if doorkeeper.knows_users else None
        # Whether it has sent AUTH, or a request that depends on its identity.
        self._named = False
        self._asked = False

    @property
    def user(self) -> str:
        """The peer's proven identity; `NO_USER` if there is none."""
        return NO_USER if self.owner is None else self.owner

    def check(self, request: Request) -> None:
        """Check that a request may be made now.

        Raises:
            RemoteProtocolError: If it may not.
        """
        match request:
            case Hello():
                if self.greeted:
                    raise RemoteProtocolError("HELLO was already sent")
            case _ if not self.greeted:
                kind = type(request).__name__.upper()
                msg = f"{kind} is the first frame, not HELLO ({Kind.HELLO.value})"
                raise RemoteProtocolError(msg)
            case Auth():
                if self._named or self._asked:
                    raise RemoteProtocolError("AUTH comes once, and before any other request")
            case _ if not self.let_in:
                raise NotLetInError(
                    "this relay requires readers and writers to authenticate: give a user and a "
                    "password (in Python user=, password=; in Spark the options 'user' and "
                    "'password'); older clients cannot be let in"
                )
            case Ping():
                pass
            case _:
                self._asked = True

    def greet(self, hello: Hello) -> int:
        """Take the peer's HELLO; return the flags of the answer.

        Raises:
            RemoteProtocolError: If it speaks another version.
        """
        if not hello.lowest <= VERSION <= hello.highest:
            msg = (
                f"version {VERSION} is spoken here, and the reader knows those from "
                f"{hello.lowest} to {hello.highest}"
            )
            raise RemoteProtocolError(msg)
        self.greeted = True
        if self._link.user is not None:
            self.owner = self._link.user
        elif self._doorkeeper.asks and not self._doorkeeper.anonymous:
            return AUTH_IS_KNOWN | AUTH_IS_WANTED
        self.let_in = True
        return AUTH_IS_KNOWN

    def log_in(self, auth: Auth, read: Callable[[], Awaitable[bool]]) -> Awaitable[None] | None:
        """Let a peer in if its password is right; or return an awaitable that checks it.

        Args:
            auth: The name and the password.
            read: Reads on, and returns whether the peer is still connected.
            read: Reads on, and returns whether the peer is still there.

        Raises:
            NotLetInError: If it is wrong, or cannot be checked.
        """
        self._named = True
        passwords, tokens = self._doorkeeper.passwords, self._doorkeeper.tokens
        if self._link.user is not None or not self._doorkeeper.asks:
            return None  # its certificate identifies it; or nothing can
        self.let_in = False  # until its password is checked
        if tokens is not None and Tokens.is_one(auth.password):
            self._let_in_by_token(auth, tokens)
            return None
        if passwords is None:
            self._deny(auth.user)
        attempt = Attempt(address_of(self._link.peer), auth.user, "")
        checked = self._doorkeeper.log_ins.look(passwords, attempt, auth.password)
        if checked is not None and not checked.delay:
            self._let_in(auth, checked)
            return None
        return self._look_at(auth, self._check(passwords, attempt, auth, checked), read)

    async def _check(
        self, passwords: Authenticator, attempt: Attempt, auth: Auth, known: Checked | None
    ) -> Checked:
        """Check a password, unless that is done, and wait until the peer may get the answer."""
        checked = known
        if checked is None:
            checked = await self._doorkeeper.log_ins.check(passwords, attempt, auth.password)
        await trio.sleep(checked.delay)
        return checked

    async def _look_at(
        self, auth: Auth, check: Awaitable[Checked], read: Callable[[], Awaitable[bool]]
    ) -> None:
        """See `log_in`; a thread checks, and is abandoned when the peer has left.

        Cancellation: the thread ends on its own, and counts until then. Nothing else is left.
        """
        checked: Checked | None = None
        trouble: Exception | None = None

        async def until_it_leaves(check: trio.CancelScope) -> None:
            while await read():
                pass
            check.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_it_leaves, nursery.cancel_scope)
            try:
                checked = await check
            except Exception as exc:  # noqa: BLE001  (foreign code: it may raise anything)
                trouble = exc
            nursery.cancel_scope.cancel()
        if trouble is not None:
            raise NotLetInError(f"its password could not be checked: {trouble!r}")
        if checked is None:
            raise ConnectionAbortedError(
                errno.ECONNABORTED, "the peer left before its password was checked"
            )
        self._let_in(auth, checked)

    def _let_in(self, auth: Auth, checked: Checked) -> None:
        fault = checked.fault(printable(auth.user[:SHOWN_OF_USER]))
        if fault is not None:
            raise NotLetInError(fault[1])
        if auth.user == NO_USER:
            self._deny(auth.user)
        self.owner = auth.user
        self.let_in = True

    def _let_in_by_token(self, auth: Auth, tokens: Tokens) -> None:
        now = self._doorkeeper.wall()
        try:
            token = tokens.read(auth.password, now)
        except TokenError as exc:
            raise NotLetInError(f"its token is not good: {printable(str(exc))}") from None
        if auth.user not in ("", token.user):
            raise NotLetInError(f"its token is of another user (user {token.user[:SHOWN_OF_USER]})")
        self.owner = token.user
        self.expires_in = token.expires - now
        self.let_in = True

    @staticmethod
    def _deny(user: str) -> NoReturn:
        user = printable(user[:SHOWN_OF_USER])
        raise NotLetInError(f"the user name or the password is wrong (user {user})")
