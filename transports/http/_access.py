"""Who may look at the pages, and by what name a browser may know them.

1. `Access.open_pages` are for everybody. They say that the relay is there, and nothing of anybody.
2. All others are for those who have a token or a password, if there are any: as `Authorization:
   Bearer TOKEN`, or as `Basic` with a user's name and password, or with any name and a token, which
   is how a browser can give one.
3. A page on the Web may have a browser that can connect read what is here, under a name of its own
   (DNS rebinding, see `_hosts.py`). So the name by which the browser came has to be this machine's,
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

from .._hosts import host_of, is_own
from ._attempts import Attempts
from ._messages import Request, Response

if TYPE_CHECKING:
    from .._bearer_tokens import BearerTokens
    from ..mqtt._passwords import Authenticator

OPEN_PAGES: Final = frozenset({"/healthz", "/readyz"})
"""What a probe asks for, which has no secret to give."""

ANY_HOST: Final = "*"
"""Stands for every name."""

NOBODY: Final = "-"
"""The user, where nobody is asked."""

TOKEN: Final = "token"
"""The user who has given a token; it is not known who has it."""

REMEMBERED_MAX: Final = 64
"""Passwords that were right, which need not be hashed again."""

_CHALLENGES: Final = (
    ("WWW-Authenticate", 'Basic realm="clearfunds", charset="UTF-8"'),
    ("WWW-Authenticate", 'Bearer realm="clearfunds"'),
)


@attrs.frozen
class Verdict:
    """What has become of a request, before any page has seen it."""

    user: str
    """Who asks; `NOBODY` if that is not known, or does not matter."""
    refusal: Response | None = None
    """What it is answered with, if not with a page."""


def _names(given: Iterable[str]) -> frozenset[str]:
    return frozenset(each.lower().rstrip(".") for each in given)


@attrs.define(kw_only=True, eq=False)
class Access:
    """See this file's docstring. For the pages of one server."""

    tokens: BearerTokens | None = None
    """Of which one is enough."""
    passwords: Authenticator | None = attrs.field(default=None, repr=False)
    """Who knows the passwords of users."""
    hosts: frozenset[str] = attrs.field(factory=frozenset[str], converter=_names)
    """Names, without a port, by which the pages may be asked for; `*`: by any. This machine's own
    name and `localhost` are always among them."""
    open_pages: frozenset[str] = OPEN_PAGES
    """Pages that are for everybody, by whatever name."""
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
        """Whether anything is asked for."""
        return self.tokens is not None or self.passwords is not None

    async def judge(self, request: Request, address: str) -> Verdict:
        """Say who asks for a page, and whether he gets it.

        Where a password has to be hashed that is done in a thread, one at a time.
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
            "by an address or as localhost, or name it to the relay (--http-host NAME).",
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
        if self.tokens is not None and self.tokens.check(secret):
            return Verdict(TOKEN)
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
        # An authenticator that does not say when its passwords change is asked each time.
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
    """Take the credentials of `Basic` apart [RFC 7617]; ("", b"") if they are none."""
    try:
        user, colon, password = base64.b64decode(credentials, validate=True).partition(b":")
        return (user.decode(), password) if colon else ("", b"")
    except (binascii.Error, UnicodeDecodeError):
        return "", b""
