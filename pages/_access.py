"""Access to the pages: authentication, and the host names that a browser may use.

1. `Access.open_pages` are for everybody. They say that the relay is alive, and nothing about peers.
2. All others require a token or a password, if there are any: as `Authorization: Bearer TOKEN`, or
   as `Basic` with a user's name and password, or with any name and a token: a browser can send
   only that. Requests that change something require a token as `Bearer`.
3. A web page may make a browser that can connect read these pages, under a name of its own
   (DNS rebinding, see `_hosts.py`). So the name in the browser's request has to be this machine's,
   or one of `Access.hosts`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..access._hosts import host_of, is_own
from ._attempts import Attempts
from ._messages import Request, Response

if TYPE_CHECKING:
    from ..access._bearer_tokens import BearerTokens
    from ..access._passwords import Authenticator

OPEN_PAGES: Final = frozenset({"/healthz", "/readyz"})
"""Pages for probes, which have no secret to send."""

ANY_HOST: Final = "*"
"""Stands for every name."""

NOBODY: Final = "-"
"""The user, where no authentication is required."""

TOKEN: Final = "token"
"""The user of a token, whose holder is unknown."""

REMEMBERED_MAX: Final = 64
"""Right passwords that need no second hashing."""

_CHALLENGES: Final = (
    ("WWW-Authenticate", 'Basic realm="clearfunds", charset="UTF-8"'),
    ("WWW-Authenticate", 'Bearer realm="clearfunds"'),
)


@attrs.frozen
class Verdict:
    """The result of checking a request, before any page has seen it."""

    user: str
    """The user; `NOBODY` if it is unknown, or does not matter."""
    refusal: Response | None = None
    """The answer, if it is not a page."""
    token: int = 0
    """The position, from 1, of the token that was sent as `Bearer`; 0: none was.

    Only that may change something: browsers send what they have for `Basic` by themselves, also
    for the pages of others."""


def _names(given: Iterable[str]) -> frozenset[str]:
    return frozenset(each.lower().rstrip(".") for each in given)


@attrs.define(kw_only=True, eq=False)
class Access:
    """The rules of this file's docstring, for the pages of one server."""

    tokens: BearerTokens | None = None
    """Valid tokens; any one is enough."""
    passwords: Authenticator | None = attrs.field(default=None, repr=False)
    """Checks the passwords of users."""
    hosts: frozenset[str] = attrs.field(factory=frozenset[str], converter=_names)
    """Host names, without a port, that requests may use; `*`: any. This machine's own name and
    `localhost` are always among them."""
    open_pages: frozenset[str] = OPEN_PAGES
    """Pages for everybody, by any host name."""
    advice: str = "or name it to the relay (--http-host NAME)"
    """For a browser that uses a name that is not among `hosts`: another way than an address."""
    _attempts: Attempts = attrs.field(factory=Attempts, init=False)
    _remembered: OrderedDict[bytes, str] = attrs.field(
        factory=OrderedDict[bytes, str], init=False, repr=False
    )
    _key: bytes = attrs.field(factory=lambda: secrets.token_bytes(32), init=False, repr=False)
    _hashing: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(1), init=False, repr=False
    )

    @property
    def asks(self) -> bool:
        """Whether authentication is required."""
        return self.tokens is not None or self.passwords is not None

    async def judge(self, request: Request, address: str) -> Verdict:
        """Return the user who asks for a page, and whether access is granted.

        A password is hashed in a thread, one at a time.
        """
        if request.path in self.open_pages:
            return Verdict(NOBODY)
        refusal = self._check_host(request)
        if refusal is not None:
            return Verdict(NOBODY, refusal)
        return await self._check_secret(request, address) if self.asks else Verdict(NOBODY)

    def _check_host(self, request: Request) -> Response | None:
        given = request.field(b"host")
        if given is None or ANY_HOST in self.hosts:
            return None
        name = host_of(given.decode("latin-1"))
        if name is not None and is_own(name, self.hosts):
            return None
        return Response.sentence(
            421,
            f"The relay's pages are not known as {given.decode('latin-1')[:200]!r}: ask for them "
            f"by an address or as localhost, {self.advice}.",
        )

    async def _check_secret(self, request: Request, address: str) -> Verdict:
        given = request.field(b"authorization")
        if given is None:
            return Verdict(NOBODY, _unauthorized("This page needs a token or a password."))
        scheme, _, rest = given.strip().partition(b" ")
        rest = rest.strip()
        if scheme.lower() == b"bearer":
            name, secret = "", rest
        else:
            name, secret = _user_and_password(rest) if scheme.lower() == b"basic" else ("", b"")
        position = 0 if self.tokens is None else self.tokens.find(secret)
        if position:
            return Verdict(TOKEN, token=position if scheme.lower() == b"bearer" else 0)
        if await self._knows(name, secret, given, address):
            return Verdict(name)
        seconds = self._attempts.seconds_to_wait(address)
        if seconds:
            sentence = (
                f"There were too many wrong tokens and passwords from {address}; wait {seconds} s."
            )
            retry = ("Retry-After", str(seconds))
            return Verdict(NOBODY, Response.sentence(429, sentence, retry))
        self._attempts.failed(address)
        return Verdict(NOBODY, _unauthorized("The token, or the user or the password, is wrong."))

    async def _knows(self, user: str, password: bytes, given: bytes, address: str) -> bool:
        passwords = self.passwords
        if passwords is None or not user:
            return False
        # An authenticator without a generation, which counts changes, is asked each time.
        generation = getattr(passwords, "generation", None)
        known_as = hmac.digest(self._key, b"%d " % (generation or 0) + given, sha256)
        if generation is not None and known_as in self._remembered:
            self._remembered.move_to_end(known_as)
            return True
        if self._attempts.seconds_to_wait(address):
            return False
        if not await self._is_right(passwords, user, password):
            return False
        if generation is not None:
            self._remembered[known_as] = user
            if len(self._remembered) > REMEMBERED_MAX:
                self._remembered.popitem(last=False)
        return True

    async def _is_right(self, passwords: Authenticator, user: str, password: bytes) -> bool:
        if getattr(passwords, "quick", False):
            return passwords.check(user, password)
        return await trio.to_thread.run_sync(
            passwords.check, user, password, limiter=self._hashing, abandon_on_cancel=True
        )


def _unauthorized(sentence: str) -> Response:
    return Response.sentence(401, sentence, *_CHALLENGES)


def _user_and_password(credentials: bytes) -> tuple[str, bytes]:
    """Parse the credentials of `Basic` [RFC 7617]; ("", b"") if they are malformed."""
    try:
        user, colon, password = base64.b64decode(credentials, validate=True).partition(b":")
        return (user.decode(), password) if colon else ("", b"")
    except (binascii.Error, UnicodeDecodeError):
        return "", b""
