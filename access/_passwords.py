"""Authentication of MQTT clients by user name and password.

They are in a file in the format of `mosquitto_passwd`, a line for each user:

    USER:$7$ITERATIONS$SALT$HASH    PBKDF2-HMAC-SHA512 [RFC 8018 section 5.2], from mosquitto 2.0 on
    USER:$6$SALT$HASH               SHA-512 of the password and then the salt, before that
    USER:SCRAM-SHA-256$ITERATIONS:SALT$STORED-KEY:SERVER-KEY
                                    for clients that do not send the password; see `_scram`

`clearfunds passwd` writes the last form. SALT, HASH and keys are in base64; HASH has 64 bytes.
Empty lines and lines that begin with # are ignored. mosquitto also ignores lines that it does not
understand. Here they are an error, so that a typing mistake does not silently lock a user out.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import attrs

from . import _scram as scram
from ._scram import IS_HERE, KEY_BYTES, MIN_ITERATIONS, MIN_SALT, SALT_BYTES, MadeUpKeys, ScramKeys
from ._tenants import NO_USER

MAX_ITERATIONS: Final = 10_000_000
"""Most iterations of PBKDF2 for one user: they take six seconds, at 0.6 us each, of the ten that a
client has for its CONNECT (`connect_timeout`). OWASP's Password Storage Cheat Sheet wants 220,000.
"""

QUICK_ITERATIONS: Final = 400
"""Most iterations done in the event loop. A thread costs 0.25 ms of CPU time and delays the client
by as much, which is what they take; with mosquitto's 101 iterations (0.06 ms) 5,000 clients a
second connect instead of 2,000 (measured on two cores)."""

_HASH_BYTES: Final = 64
"""The size of a SHA-512 hash."""

_ANEW: Final = "write the line anew with `mosquitto_passwd FILE USER`"
_SCRAM_ANEW: Final = "write the line anew with `clearfunds passwd FILE USER`"


class PasswordFileError(ValueError):
    """A password file has a bad line; the message has its number and a remedy, but no secret."""


class _Known(Protocol):
    """The stored verifier of one user's password."""

    @property
    def iterations(self) -> int: ...
    def is_of(self, password: bytes) -> bool: ...


class Authenticator(Protocol):
    """Checks users' passwords: `Passwords`, or your own class."""

    def check(self, user: str, password: bytes) -> bool:
        """Return whether a password is the user's.

        It may block: it is called in threads, several at once. It should take as long for a user
        that does not exist.
        """
        ...


@attrs.frozen(slots=True, repr=False)
class _Stored:
    """The stored hash of one user's password."""

    iterations: int
    """Iterations of PBKDF2; 0: plain SHA-512."""
    salt: bytes
    hash: bytes

    def is_of(self, password: bytes) -> bool:
        if self.iterations:
            made = hashlib.pbkdf2_hmac("sha512", password, self.salt, self.iterations)
        else:
            made = hashlib.sha512(password + self.salt).digest()
        return hmac.compare_digest(made, self.hash)


_NOBODYS: Final = _Stored(101, bytes(12), bytes(_HASH_BYTES))
"""The hash that is checked if there are no users; as costly as those of mosquitto_passwd."""


_NOBODYS_KEYS: Final = ScramKeys(
    MIN_ITERATIONS, bytes(SALT_BYTES), bytes(KEY_BYTES), bytes(KEY_BYTES)
)


class Passwords:
    """Users and their passwords, as in a file of mosquitto_passwd.

    Made by `from_file` or `from_text`. Several threads may use it.

    Attributes:
        file: The file they were read from; None: they are from a text.
        quick: Whether checks are too short to be worth a thread.
        generation: How often they have been read; a password may be wrong in another generation.
    """

    __slots__ = ("_made_up", "_scram", "_users", "file", "generation", "quick")

    def __init__(self, users: Mapping[str, _Known], file: Path | None = None) -> None:
        self.file = file
        self.generation = 0
        self._made_up = MadeUpKeys()
        self._take(users)

    def _take(self, users: Mapping[str, _Known]) -> None:
        self._scram = {user: each for user, each in users.items() if isinstance(each, ScramKeys)}
        # Of all users alike, so that the time of a check does not tell which names exist.
        self.quick = all(each.iterations <= QUICK_ITERATIONS for each in users.values())
        # One assignment, because another thread may read between two.
        self._users = users, tuple(users.values()) or (_NOBODYS,)
        self.generation += 1

    def __repr__(self) -> str:
        return f"<Passwords: {len(self)} users, {self.file or 'of a text'}>"

    def __len__(self) -> int:
        """Return the number of users."""
        return len(self._users[0])

    @classmethod
    def from_text(cls, text: str) -> Passwords:
        """Read the passwords in a text.

        Raises:
            PasswordFileError: A line of it is bad.
        """
        return cls(_parse(text, ""))

    @classmethod
    def from_file(cls, file: Path | str) -> Passwords:
        """Read the passwords in a file.

        Raises:
            OSError: The file cannot be read.
            PasswordFileError: A line of it is bad.
        """
        file = Path(file)
        return cls(_read(file), file)

    def reload(self) -> None:
        """Read the file again, if they come from one. Connected clients stay connected.

        Raises:
            OSError: The file cannot be read; the old passwords stay.
            PasswordFileError: A line of it is bad; the old passwords stay.
        """
        if self.file is not None:
            self._take(_read(self.file))

    @property
    def knows_scram(self) -> bool:
        """Whether some users can authenticate by SCRAM-SHA-256."""
        return bool(self._scram) and IS_HERE

    def scram_keys(self, user: str) -> ScramKeys:
        """Return a user's keys for SCRAM-SHA-256; made-up ones, of no password, if it has none."""
        keys = self._scram.get(user)
        if keys is not None:
            return keys
        others = tuple(self._scram.values()) or (_NOBODYS_KEYS,)
        return self._made_up.of(user, others[hash(user) % len(others)])

    def check(self, user: str, password: bytes) -> bool:
        """Return whether a password is the user's.

        It takes as long for a user that does not exist: an existing user's hash is checked in its
        place, always the same one until the users change. Python hashes names with a key that is
        new in each process, so nobody can predict which one.
        """
        users, others = self._users  # read once, because they may change meanwhile
        stored = users.get(user)
        if stored is None:
            others[hash(user) % len(others)].is_of(password)
            return False
        return stored.is_of(password)


def _read(file: Path) -> dict[str, _Known]:
    # `_user_fault` finds bad UTF-8, line by line.
    return _parse(file.read_bytes().decode(errors="surrogateescape"), f"{file}, ")


def _parse(text: str, where: str) -> dict[str, _Known]:
    users: dict[str, _Known] = {}
    line_of: dict[str, int] = {}
    # Not splitlines(), which also ends lines where mosquitto does not.
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip()
        if not line or line.startswith("#"):
            continue
        try:
            user, stored = _parse_line(line)
            if user in users:
                msg = f"its user has line {line_of[user]} already; remove one of the two"
                raise PasswordFileError(msg)
        except PasswordFileError as error:
            # The line is not shown, because any part of it may be a secret.
            raise PasswordFileError(f"{where}line {number}: {error}") from None
        users[user] = stored
        line_of[user] = number
    return users


def _parse_line(line: str) -> tuple[str, _Known]:
    user, colon, secret = line.partition(":")
    fault = _user_fault(user) if colon else f"there is no colon behind a user's name; {_ANEW}"
    if fault is not None:
        raise PasswordFileError(fault)
    match secret.strip().split("$"):
        case ["", "7", iterations, salt, made]:
            return user, _Stored(_iterations(iterations), _salt(salt), _hash(made))
        case ["", "6", salt, made]:
            return user, _Stored(0, _salt(salt), _hash(made))
        case [scram.METHOD, counted, keys] if counted.count(":") == keys.count(":") == 1:
            iterations, _, salt = counted.partition(":")
            stored, _, server = keys.partition(":")
            return user, ScramKeys(
                _scram_iterations(iterations), _scram_salt(salt), _key(stored), _key(server)
            )
        case [scram.METHOD, *_]:
            fault = f"parts of the keys are missing, or there are too many; {_SCRAM_ANEW}"
        case ["", "6" | "7", *_]:
            fault = f"parts of the hash are missing, or there are too many; {_ANEW}"
        case ["", _, *_]:
            fault = (
                "its hash is of an unknown kind; known ones begin with $7$ or $6$; "
                "write the line anew with `mosquitto_passwd -H sha512-pbkdf2 FILE USER`"
            )
        case _:
            fault = f"the password is not hashed; {_ANEW}"
    raise PasswordFileError(fault)


def _scram_iterations(text: str) -> int:
    iterations = _iterations(text)
    if iterations < MIN_ITERATIONS:
        msg = f"the number of iterations has to be {MIN_ITERATIONS} at least; {_SCRAM_ANEW}"
        raise PasswordFileError(msg)
    return iterations


def _scram_salt(text: str) -> bytes:
    salt = _salt(text)
    if len(salt) < MIN_SALT:
        msg = f"the salt has {len(salt)} bytes, less than {MIN_SALT}; {_SCRAM_ANEW}"
        raise PasswordFileError(msg)
    return salt


def _key(text: str) -> bytes:
    made = _base64(text, "key")
    if len(made) != KEY_BYTES:
        msg = f"a key has {len(made)} bytes instead of {KEY_BYTES}; {_SCRAM_ANEW}"
        raise PasswordFileError(msg)
    return made


def _user_fault(user: str) -> str | None:
    if any("\ud800" <= letter <= "\udfff" for letter in user):
        return "the user's name is not in UTF-8, which MQTT needs; write the line anew in UTF-8"
    if not user:
        return "the user has no name; write one before the colon, or remove the line"
    if user != user.strip():
        return "there are blanks around the user's name; remove them"
    if not user.isprintable():
        return "the user's name has a character that cannot be printed; remove it"
    if user == NO_USER:
        return f"a user cannot be called {NO_USER}, which stands for no name; choose another one"
    return None


def _iterations(text: str) -> int:
    # Longer numbers are not parsed: int() has its own limit, with another message.
    if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_ITERATIONS)):
        iterations = int(text)
        if 1 <= iterations <= MAX_ITERATIONS:
            return iterations
    msg = f"the number of iterations has to be from 1 to {MAX_ITERATIONS}; {_ANEW}"
    raise PasswordFileError(msg)


def _base64(text: str, what: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise PasswordFileError(f"the {what} is not in base64; {_ANEW}") from None


def _salt(text: str) -> bytes:
    salt = _base64(text, "salt")
    if not salt:
        raise PasswordFileError(f"the salt is empty; {_ANEW}")
    return salt


def _hash(text: str) -> bytes:
    made = _base64(text, "hash")
    if len(made) != _HASH_BYTES:
        msg = f"the hash has {len(made)} bytes instead of {_HASH_BYTES}; {_ANEW}"
        raise PasswordFileError(msg)
    return made
