"""Files with the key that sturdyrefs are made with: hex digits, for nobody else to read."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ._errors import UsageError
from ._secret_file import read_secret

# As the hash has it: a longer key adds nothing.
_NEW_KEY_BYTES: Final = 32

# Who can try all keys of this length could as well try all signatures.
_GUESSABLE_BELOW: Final = 16


def random_key() -> bytes:
    """Make a random key."""
    return secrets.token_bytes(_NEW_KEY_BYTES)


def read_key(file: Path, warn: Callable[[str], object]) -> bytes:
    """Return the key in a file; `warn` is told if others can guess it.

    Raises:
        UsageError: the file cannot be read, others can read it, or it has something else in it.
    """
    content = read_secret(file)
    try:
        key = bytes.fromhex(content.decode("ascii"))
    except ValueError:
        # What it has instead may be a secret, too: it is not shown.
        msg = f"{file}: a key is written in hex digits, two for each byte, and nothing else"
        raise UsageError(msg) from None
    if len(key) < _GUESSABLE_BELOW:
        warn(
            f"the key in {file} has {len(key)} bytes and can be guessed; "
            "clearfunds mint --new-key makes a good one"
        )
    return key


def write_key(file: Path, key: bytes) -> None:
    """Write a key to a file that is not there yet, for its owner alone to read.

    Raises:
        UsageError: it is there already, or cannot be written.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as opened:
            opened.write(f"{key.hex()}\n")
    except FileExistsError as error:
        msg = (
            f"{file} exists and is not overwritten: what was made with the key in it would be "
            "worth nothing; leave --new-key out to use that key"
        )
        raise UsageError(msg) from error
    except OSError as error:
        msg = f"{file}: {error.strerror}"
        raise UsageError(msg) from error
