"""Files with users and passwords, as mosquitto_passwd writes them: see `Passwords`."""

import logging
from pathlib import Path

from clearfunds.access import PasswordFileError, Passwords
from clearfunds.sockets import trouble_with_file

from ._errors import UsageError
from ._secret_file import check_secret

log = logging.getLogger("clearfunds.relay")


def read_passwords(file: Path) -> Passwords:
    """Return the passwords in a file; log a warning if it has none.

    Raises:
        UsageError: The file cannot be read, others can read it, or it has something else in it.
    """
    check_secret(file)
    try:
        passwords = Passwords.from_file(file)
    except OSError as error:
        raise UsageError(trouble_with_file(file, error)) from error
    except PasswordFileError as error:
        raise UsageError(str(error)) from error
    if not passwords:
        log.warning("%s has no users in it; mosquitto_passwd %s USER adds one", file, file)
    return passwords
