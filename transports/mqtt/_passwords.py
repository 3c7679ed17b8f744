"""Who an MQTT client says it is, and whether it is: user names and passwords.

They are in a file as `mosquitto_passwd` writes it, a line for each user:

    USER:$7$ITERATIONS$SALT$HASH    PBKDF2-HMAC-SHA512 [RFC 8018 section 5.2], from mosquitto 2.0 on
    USER:$6$SALT$HASH               SHA-512 of the password and then the salt, before that
    USER:SCRAM-SHA-256$ITERATIONS:SALT$STORED-KEY:SERVER-KEY
                                    for clients that do not send the password; see `_scram`

The last is written by `clearfunds passwd`. SALT, HASH and keys are in base64, HASH has 64 bytes.
Empty lines are passed over, and lines that begin with #. mosquitto passes over what it does not
understand, too; here that is an error, so that nobody is locked out by a typing mistake without a
word.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import attrs

from .._tenants import NO_USER
from . import _scram as scram
from ._scram import IS_HERE, KEY_BYTES, MIN_ITERATIONS, MIN_SALT, SALT_BYTES, MadeUpKeys, ScramKeys

MAX_ITERATIONS: Final = 10_000_000
"""Of PBKDF2, for one user: six seconds, at 0.6 us each, of the ten that a client has for its
CONNECT (`connect_timeout`). OWASP's Password Storage Cheat Sheet wants 220,000."""

QUICK_ITERATIONS: Final = 400
"""So many are done where the password is asked for. To have a thread do it costs 0.25 ms of CPU
time and of the client's, which is as much; with mosquitto's 101 iterations (0.06 ms) 5,000 clients
a second connect instead of 2,000 (measured on two cores)."""

_HASH_BYTES: Final = 64
"""What SHA-512 gives."""

_ANEW: Final = "write the line anew with `mosquitto_passwd FILE USER`"
_SCRAM_ANEW: Final = "write the line anew with `clearfunds passwd FILE USER`"


class PasswordFileError(ValueError):
    """A password file has something else in it; says which line, and what to do, but no secret."""


class _Known(Protocol):
    """What is known of one user's password."""

    @property
    def iterations(self) -> int: ...
    def is_of(self, password: bytes) -> bool: ...


class Authenticator(Protocol):
    """Who knows users' passwords; `Passwords`, or one of your own."""

    def check(self, user: str, password: bytes) -> bool:
        """Return whether a password is the user's.

        Called in a thread, and in several at once, so it may take its time; it should take as much
        for a user that does not exist.
        """
        ...


@attrs.frozen(slots=True, repr=False)
class _Stored:
    """What is known of one user's password."""

    iterations: int
    """Of PBKDF2; 0: it is SHA-512 alone."""
    salt: bytes
    hash: bytes

    def is_of(self, password: bytes) -> bool:
        if self.iterations:
            made = hashlib.pbkdf2_hmac("sha512", password, self.salt, self.iterations)
        else:
            made = hashlib.sha512(password + self.salt).digest()
        return hmac.compare_digest(made, self.hash)


_NOBODYS: Final = _Stored(101, bytes(12), bytes(_HASH_BYTES))
"""What is looked at where there are no users; as costly as what mosquitto_passwd writes."""


_NOBODYS_KEYS: Final = ScramKeys(
    MIN_ITERATIONS, bytes(SALT_BYTES), bytes(KEY_BYTES), bytes(KEY_BYTES)
)


class Passwords:
    """Users and their passwords, as in a file of mosquitto_passwd's.

    Made by `from_file` or `from_text`. May be used by several threads.

    Attributes:
        file: Where they are from; None: from a text.
        quick: Whether a check takes so little time that no thread is worth its while.
        generation: How often they have been read; what was right in another one may not be.
    """

    __slots__ = ("_made_up", "_scram", "_users", "file", "generation", "quick")

    def __init__(self, users: Mapping[str, _Known], file: Path | None = None) -> None:
        self.file = file
        self.generation = 0
        self._made_up = MadeUpKeys()
        self._take(users)

    def _take(self, users: Mapping[str, _Known]) -> None:
        self._scram = {user: each for user, each in users.items() if isinstance(each, ScramKeys)}
        # Of all: it must not tell who is one of the users.
        self.quick = all(each.iterations <= QUICK_ITERATIONS for each in users.values())
        # One after the other would not do: another thread may look in between.
        self._users = users, tuple(users.values()) or (_NOBODYS,)
        self.generation += 1

    def __repr__(self) -> str:
        return f"<Passwords: {len(self)} users, {self.file or 'of a text'}>"

    def __len__(self) -> int:
        """Return how many users there are."""
        return len(self._users[0])

    @classmethod
    def from_text(cls, text: str) -> Passwords:
        """Take the passwords in a text.

        Raises:
            PasswordFileError: It has something else in it.
        """
        return cls(_parse(text, ""))

    @classmethod
    def from_file(cls, file: Path | str) -> Passwords:
        """Read the passwords in a file.

        Raises:
            OSError: It cannot be read.
            PasswordFileError: It has something else in it.
        """
        file = Path(file)
        return cls(_read(file), file)

    def reload(self) -> None:
        """Read the file again, if they come from one. Who is connected stays.

        Raises:
            OSError: It cannot be read; the passwords are those of before.
            PasswordFileError: It has something else in it; likewise.
        """
        if self.file is not None:
            self._take(_read(self.file))

    @property
    def knows_scram(self) -> bool:
        """Whether some users may prove who they are by SCRAM-SHA-256."""
        return bool(self._scram) and IS_HERE

    def scram_keys(self, user: str) -> ScramKeys:
        """Return a user's keys for SCRAM-SHA-256; of who has none, some that are of no password."""
        keys = self._scram.get(user)
        if keys is not None:
            return keys
        others = tuple(self._scram.values()) or (_NOBODYS_KEYS,)
        return self._made_up.of(user, others[hash(user) % len(others)])

    def check(self, user: str, password: bytes) -> bool:
        """Return whether a password is the user's.

        It takes as long for a user that does not exist: for each such name one of those that do
        stands in, always the same one until the users change. Python hashes names with a key that
        is new in each process, so that nobody can say which.
        """
        users, others = self._users  # looked at once: they may change meanwhile
        stored = users.get(user)
        if stored is None:
            others[hash(user) % len(others)].is_of(password)
            return False
        return stored.is_of(password)


def _read(file: Path) -> dict[str, _Known]:
    # What is no UTF-8 is found line by line.
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
            # What stands in the line may be a secret, wherever in it: it is not shown.
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
                "it is no hash that is known here, which begins with $7$ or $6$; "
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
        return "the user's name is not in UTF-8, as MQTT has it; write the line anew in that"
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
    # Longer ones are not even read: int() has a limit of its own, and another message.
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
