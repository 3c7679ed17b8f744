"""SCRAM-SHA-256 for MQTT clients: a proof that both sides know a password, without sending it.

The server knows keys that were made of the password, and cannot be used in its place. They stand in
the file of passwords, as PostgreSQL writes them:

    USER:SCRAM-SHA-256$ITERATIONS:SALT$STORED-KEY:SERVER-KEY

Source: RFC 5802 and RFC 7677; the messages are made and checked by scramp.
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
"""What the method is called in CONNECT; also how a line of a user's keys begins."""

MIN_ITERATIONS: Final = 4_096
"""The least that RFC 7677 allows."""

MIN_SALT: Final = 12
"""Bytes of salt that clients ask for at least; as scramp's."""

SALT_BYTES: Final = 16
"""Of new salts, as PostgreSQL's."""

KEY_BYTES: Final = 32
"""What SHA-256 gives."""

IS_HERE: Final = find_spec("scramp") is not None
"""Whether what speaks it is installed: the extra `auth`."""


def scramp() -> Any:
    """Return the library, which has no types."""
    return import_module("scramp")


class AuthenticationFailedError(Exception):
    """A client has not proved who it is; the message says why, and may be logged."""


@attrs.frozen(slots=True, repr=False)
class ScramKeys:
    """What is known of one user's password."""

    iterations: int
    salt: bytes
    stored: bytes
    """The key that a proof is checked with."""
    server: bytes
    """The key that the server's own proof is made with."""

    @classmethod
    def of(cls, password: str, iterations: int = MIN_ITERATIONS) -> ScramKeys:
        """Make keys of a password, with a new salt.

        Raises:
            ValueError: No password can be so, or there are too few iterations.
            ModuleNotFoundError: There is no scramp.
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
        """Return the user's line in a file of passwords."""
        salt, stored, server = (
            b64encode(each).decode() for each in (self.salt, self.stored, self.server)
        )
        return f"{user}:{METHOD}${self.iterations}:{salt}${stored}:{server}"

    def is_of(self, password: bytes) -> bool:
        """Whether these keys were made of a password; it takes as long as making them."""
        salted = hashlib.pbkdf2_hmac("sha256", _prepared(password), self.salt, self.iterations)
        stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
        return hmac.compare_digest(stored, self.stored)


def _prepared(password: bytes) -> bytes:
    """Return a password as SCRAM has it (SASLprep, RFC 4013), if it can be."""
    if password.isascii() or not IS_HERE:
        return password
    try:
        prepared: str = import_module("scramp.utils").saslprep(password.decode())
    except (UnicodeDecodeError, scramp().ScramException):
        return password
    return prepared.encode()


class MadeUpKeys:
    """Keys of users that do not exist: a client cannot tell them from others.

    They are the same whenever they are asked for, as long as the process runs.
    """

    __slots__ = ("_secret",)

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(KEY_BYTES)

    def of(self, user: str, others: ScramKeys) -> ScramKeys:
        """Return a user's, such as others have."""
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
        keys_of: Returns the keys of a user, or some that nobody knows the password of.

    Attributes:
        user: Who the client says it is; who it is, after `finish`.
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
        """Take the client's first message; return the server's.

        Raises:
            AuthenticationFailedError: It is none.
        """
        return self._step(data, self._server.set_client_first, self._server.get_server_first)

    def finish(self, data: bytes) -> bytes:
        """Take the client's last message, which has its proof; return the server's.

        Raises:
            AuthenticationFailedError: It proves nothing.
        """
        return self._step(data, self._server.set_client_final, self._server.get_server_final)

    @staticmethod
    def _step(data: bytes, take: Callable[[str], object], answer: Callable[[], str]) -> bytes:
        try:
            take(data.decode())
            return answer().encode()
        # What a peer sends is handed to somebody else's code: it may raise anything.
        except Exception as error:
            msg = f"{METHOD}: {error}"
            raise AuthenticationFailedError(msg) from error
