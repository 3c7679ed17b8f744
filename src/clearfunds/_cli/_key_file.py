"""Files with the key for sturdyrefs: hex digits, for nobody else to read."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from clearfunds.sockets import trouble_with_file

from ._errors import UsageError
from ._secret_file import read_secret

# The hash's size: a longer key adds nothing.
_NEW_KEY_BYTES: Final = 32

# To try all keys of this length is as much work as to try all signatures.
_GUESSABLE_BELOW: Final = 16


def random_key() -> bytes:
    """Make a random key."""
    return secrets.token_bytes(_NEW_KEY_BYTES)


def read_key(file: Path, warn: Callable[[str], object]) -> bytes:
    """Return the key in a file; call `warn` if others can guess it.

    Raises:
        UsageError: The file cannot be read, others can read it, or it has something else in it.
    """
    content = read_secret(file)
    try:
        key = bytes.fromhex(content.decode("ascii"))
    except ValueError:
        # The content may be another secret: it is not shown.
        msg = f"{file}: a key has only hex digits, two for each byte"
        raise UsageError(msg) from None
    if len(key) < _GUESSABLE_BELOW:
        warn(
            f"the key in {file} has {len(key)} bytes and can be guessed; "
            "clearfunds mint --new-key makes a good one"
        )
    return key


def write_key(file: Path, key: bytes) -> None:
    """Write a key to a new file, for its owner alone to read.

    Raises:
        UsageError: The file exists already, or cannot be written.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as opened:
            opened.write(f"{key.hex()}\n")
    except FileExistsError as error:
        msg = (
            f"{file} exists and is not overwritten: sturdyrefs made with its key would become "
            "invalid; leave --new-key out to use that key"
        )
        raise UsageError(msg) from error
    except OSError as error:
        raise UsageError(trouble_with_file(file, error)) from error
