"""Files with users and passwords, as mosquitto_passwd writes them: see `Passwords`."""

from collections.abc import Callable
from pathlib import Path

from clearfunds.transports.mqtt import PasswordFileError, Passwords

from ._errors import UsageError
from ._key_file import warn_of_readers


def read_passwords(file: Path, warn: Callable[[str], object]) -> Passwords:
    """Return the passwords in a file; `warn` is told if others can read it, or nobody gets in.

    Raises:
        UsageError: the file cannot be read, or has something else in it.
    """
    try:
        mode = file.stat().st_mode
        passwords = Passwords.from_file(file)
    except OSError as error:
        msg = f"{file}: {error.strerror}"
        raise UsageError(msg) from error
    except PasswordFileError as error:
        raise UsageError(str(error)) from error
    warn_of_readers(file, mode, warn)
    if not passwords:
        warn(f"{file} has no users in it; mosquitto_passwd {file} USER adds one")
    return passwords
