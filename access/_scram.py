"""SCRAM-SHA-256 for MQTT clients: a proof that both sides know a password, without sending it.

The server has keys derived from the password. They cannot be used in its place. The password file
holds them in the format of PostgreSQL:

    USER:SCRAM-SHA-256$ITERATIONS:SALT$STORED-KEY:SERVER-KEY

Source: RFC 5802 and RFC 7677; scramp makes and checks the messages.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64encode
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import attrs

METHOD: Final = "SCRAM-SHA-256"
"""The name of the method in CONNECT; also the beginning of a user's keys in the password file."""

MIN_ITERATIONS: Final = 4_096
"""The least number that RFC 7677 allows."""

MIN_SALT: Final = 12
"""The shortest salt, in bytes, that clients accept; as in scramp."""

SALT_BYTES: Final = 16
"""The size of new salts, as in PostgreSQL."""

KEY_BYTES: Final = 32
"""The size of a SHA-256 hash."""

IS_HERE: Final = find_spec("scramp") is not None
"""Whether scramp is installed: the extra `auth`."""


def scramp() -> Any:
    """Return the library; it has no type annotations."""
    return import_module("scramp")


class AuthenticationFailedError(Exception):
    """A client has failed to authenticate; the message has the reason, and may be logged."""


@attrs.frozen(slots=True, repr=False)
class ScramKeys:
    """The keys derived from one user's password."""

    iterations: int
    salt: bytes
    stored: bytes
    """The key that checks a client's proof."""
    server: bytes
    """The key that makes the server's own proof."""

    @classmethod
    def of(cls, password: str, iterations: int = MIN_ITERATIONS) -> ScramKeys:
        """Derive keys from a password, with a new salt.

        Raises:
            ValueError: The password is not allowed, or there are too few iterations.
            ModuleNotFoundError: scramp is not installed.
        """
        library = scramp()
        try:
            made = library.ScramMechanism(METHOD).make_auth_info(
                password, iteration_count=iterations, salt=secrets.token_bytes(SALT_BYTES)
            )
        except library.ScramException as error:
            raise ValueError(str(error)) from error
        salt, stored, server, _ = made
        return cls(iterations, salt, stored, server)

    def line(self, user: str) -> str:
        """Return the user's line in a password file."""
        salt, stored, server = (
            b64encode(each).decode() for each in (self.salt, self.stored, self.server)
        )
        return f"{user}:{METHOD}${self.iterations}:{salt}${stored}:{server}"

    def is_of(self, password: bytes) -> bool:
        """Whether these keys were derived from a password; it takes as long as deriving them."""
        salted = hashlib.pbkdf2_hmac("sha256", _prepared(password), self.salt, self.iterations)
        stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
        return hmac.compare_digest(stored, self.stored)


def _prepared(password: bytes) -> bytes:
    """Return a password in the form that SCRAM uses (SASLprep, RFC 4013), if possible."""
    if password.isascii() or not IS_HERE:
        return password
    try:
        prepared: str = import_module("scramp.utils").saslprep(password.decode())
    except (UnicodeDecodeError, scramp().ScramException):
        return password
    return prepared.encode()


class MadeUpKeys:
    """Keys of users that do not exist: a client cannot tell them from real ones.

    A user's keys stay the same as long as the process runs.
    """

    __slots__ = ("_secret",)

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(KEY_BYTES)

    def of(self, user: str, others: ScramKeys) -> ScramKeys:
        """Return made-up keys for a user, with the iterations and salt length of `others`."""
        salt = self._part("salt", user) * (1 + len(others.salt) // KEY_BYTES)
        return attrs.evolve(
            others, salt=salt[: len(others.salt)], stored=self._part("stored", user)
        )

    def _part(self, what: str, user: str) -> bytes:
        said = f"{what}\0{user}".encode(errors="surrogatepass")
        return hmac.digest(self._secret, said, "sha256")


class ScramExchange:
    """The server's side of one authentication.

    Args:
        keys_of: Returns the keys of a user, or made-up keys of no password.

    Attributes:
        user: The user that the client claims to be; after `finish`, has authenticated as.
    """

    __slots__ = ("_server", "user")

    def __init__(self, keys_of: Callable[[str], ScramKeys]) -> None:
        def found(user: str) -> tuple[bytes, bytes, bytes, int]:
            self.user = user
            keys = keys_of(user)
            return keys.salt, keys.stored, keys.server, keys.iterations

        self.user = ""
        self._server = scramp().ScramMechanism(METHOD).make_server(found)

    def begin(self, data: bytes) -> bytes:
        """Handle the client's first message; return the server's.

        Raises:
            AuthenticationFailedError: The message is malformed.
        """
        return self._step(data, self._server.set_client_first, self._server.get_server_first)

    def finish(self, data: bytes) -> bytes:
        """Handle the client's last message, with its proof; return the server's.

        Raises:
            AuthenticationFailedError: The proof is wrong.
        """
        return self._step(data, self._server.set_client_final, self._server.get_server_final)

    @staticmethod
    def _step(data: bytes, take: Callable[[str], object], answer: Callable[[], str]) -> bytes:
        try:
            take(data.decode())
            return answer().encode()
        # The library gets the peer's input, and may raise anything.
        except Exception as error:
            msg = f"{METHOD}: {error}"
            raise AuthenticationFailedError(msg) from error
