"""One connection's way in: HELLO, and then who its peer is, where the relay wants to know.

Rules of this file:
1. Whoever has not been let in may say HELLO and AUTH, each once, in small frames, and nothing else;
   what else comes ends the connection, with a sentence that says what is wanted.
2. A certificate says who its peer is, and needs no password. A password is looked at in a thread
   where that takes a while, as MQTT's are, and as many at a time as with those; a wrong one is
   answered later and later (`_guesses`).
3. What a peer says of itself that nobody can prove is not believed: without passwords and
   certificates nobody has a name here.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn

import attrs
import trio

from .._addresses import address_of
from .._errors import RemoteProtocolError
from .._guesses import Attempt, Guesses
from .._tenants import NO_USER, printable
from ..mqtt._log_ins import Checked, LogIns
from ..mqtt._passwords import Authenticator
from ..mqtt._tokens import TokenError, Tokens
from ._frames import AUTH_IS_KNOWN, AUTH_IS_WANTED, VERSION, Auth, Hello, Kind, Ping, Request

if TYPE_CHECKING:
    from .._link import Link

SHOWN_OF_USER = 100
"""How much of a name is shown of a user who was not let in; as with MQTT's clients."""


class NotLetInError(RemoteProtocolError):
    """A peer that is not let in; it is told why, and the connection is closed."""


def _own_log_ins() -> LogIns:
    return LogIns(Guesses(), time.monotonic, Counter())


@attrs.frozen(slots=True, kw_only=True)
class Doorkeeper:
    """Who is let in; the same for all connections of a relay.

    Attributes:
        passwords: Who knows users' passwords; None: nobody does.
        tokens: What tokens are checked with that peers give as passwords; None: none is taken.
        anonymous: With one of these: whether a peer is let in that names no user.
        certificates: Whether some peers show a certificate that says who they are.
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
        """Whether peers without a certificate are asked who they are."""
        return self.passwords is not None or self.tokens is not None

    @property
    def knows_users(self) -> bool:
        """Whether peers are told apart: what one has made is not another's then."""
        return self.asks or self.certificates


class Entrance:
    """How far a connection's peer has got on its way in.

    Attributes:
        greeted: Whether it has said HELLO.
        let_in: Whether it may ask for something.
        expires_in: Seconds that the peer may stay, from its log-in on; None: as long as it likes.
        owner: Whose what it makes is: a user; `NO_USER` for those who have proved nothing, where
            others have to; None where nobody has to.
    """

    __slots__ = (
        "_asked", "_keeper", "_link", "_named", "expires_in", "greeted", "let_in", "owner",
    )  # fmt: skip

    def __init__(self, keeper: Doorkeeper, link: Link) -> None:
        self._keeper = keeper
        self._link = link
        self.greeted = False
        self.let_in = False
        self.expires_in: float | None = None
        self.owner: str | None = NO_USER if keeper.knows_users else None
        # Whether it has sent AUTH, and whether anything that stands on who it is.
        self._named = False
        self._asked = False

    @property
    def user(self) -> str:
        """Who the peer is known to be; `NO_USER`: nobody knows."""
        return NO_USER if self.owner is None else self.owner

    def check(self, request: Request) -> None:
        """See whether a request may be made now.

        Raises:
            RemoteProtocolError: If it may not.
        """
        match request:
            case Hello():
                if self.greeted:
                    raise RemoteProtocolError("HELLO was said already")
            case _ if not self.greeted:
                kind = type(request).__name__.upper()
                msg = f"{kind} is the first frame, not HELLO ({Kind.HELLO.value})"
                raise RemoteProtocolError(msg)
            case Auth():
                if self._named or self._asked:
                    raise RemoteProtocolError("AUTH comes once, and before anything else is asked")
            case _ if not self.let_in:
                raise NotLetInError(
                    "this relay wants to know who its readers and writers are: give a user and a "
                    "password (in Python user=, password=; in Spark the options 'user' and "
                    "'password'); clients that are older than that cannot be let in"
                )
            case Ping():
                pass
            case _:
                self._asked = True

    def greet(self, hello: Hello) -> int:
        """Take the peer's first word; return the flags of the answer.

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
        elif self._keeper.asks and not self._keeper.anonymous:
            return AUTH_IS_KNOWN | AUTH_IS_WANTED
        self.let_in = True
        return AUTH_IS_KNOWN

    def log_in(self, auth: Auth, read: Callable[[], Awaitable[bool]]) -> Awaitable[None] | None:
        """Let a peer in if its password is right; or return what has to be awaited for that.

        Args:
            auth: What it says.
            read: Reads on, and returns whether the peer is still there.

        Raises:
            NotLetInError: If it is wrong, or cannot be looked at.
        """
        self._named = True
        passwords, tokens = self._keeper.passwords, self._keeper.tokens
        if self._link.user is not None or not self._keeper.asks:
            return None  # its certificate says who it is; or nobody can say
        self.let_in = False  # as long as it is not known
        if tokens is not None and Tokens.is_one(auth.password):
            self._let_in_by_token(auth, tokens)
            return None
        if passwords is None:
            self._deny(auth.user)
        attempt = Attempt(address_of(self._link.peer), auth.user, "")
        checked = self._keeper.log_ins.look(passwords, attempt, auth.password)
        if checked is not None and not checked.delay:
            self._let_in(auth, checked)
            return None
        return self._look_at(auth, self._check(passwords, attempt, auth, checked), read)

    async def _check(
        self, passwords: Authenticator, attempt: Attempt, auth: Auth, known: Checked | None
    ) -> Checked:
        """Check a password, unless that is done, and wait until the peer may be told."""
        checked = known
        if checked is None:
            checked = await self._keeper.log_ins.check(passwords, attempt, auth.password)
        await trio.sleep(checked.delay)
        return checked

    async def _look_at(
        self, auth: Auth, check: Awaitable[Checked], read: Callable[[], Awaitable[bool]]
    ) -> None:
        """See `log_in`; a thread looks, and nobody looks any more for a peer that has left.

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
            except Exception as exc:  # noqa: BLE001  (somebody else's code: it may be anything)
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
        now = self._keeper.wall()
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
