"""`clearfunds passwd`: users and passwords, for clients that authenticate with SCRAM."""

import contextlib
import getpass
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from clearfunds.access import PasswordFileError, Passwords
from clearfunds.access._scram import MIN_ITERATIONS, ScramKeys
from clearfunds.sockets import trouble_with_file

from ._errors import CommandFailedError, UsageError

_MAX_PASSWORD: Final = 65_535
"""Limit of MQTT for a password, in bytes."""


def passwd(
    file: Annotated[Path, Parameter(help="Password file; created if missing.")],
    user: Annotated[str, Parameter(help="User name.")],
    /,
    *,
    iterations: Annotated[
        int,
        Parameter(
            validator=Number(gte=MIN_ITERATIONS),
            help="Hash iterations (SCRAM): the cost of each guess, and of each client's login.",
        ),
    ] = MIN_ITERATIONS,
    delete: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Delete the user instead."),
    ] = False,
) -> int:
    """Set a user's password, in a relay's password file (--passwords).

    Asks for the password in the terminal; without a terminal it is the first line of stdin. The
    file gets keys for SCRAM-SHA-256: MQTT 5 clients can authenticate without sending the password,
    and others send it as usual. Lines of mosquitto_passwd may stand in the same file. A relay
    reloads the file at SIGHUP.
    """
    lines = _lines(file)
    own = [number for number, line in enumerate(lines) if line.partition(":")[0] == user]
    if delete:
        if not own:
            msg = f"{file} has no user {user!r}: give one of those in it; nothing was deleted"
            raise UsageError(msg)
        del lines[own[0]]
    else:
        # Before a password is typed: check the user's name.
        _check(f"{ScramKeys(MIN_ITERATIONS, bytes(16), bytes(32), bytes(32)).line(user)}\n", user)
        line = _keys(_password(user), iterations).line(user)
        if own:
            lines[own[0]] = line
        else:
            lines.append(line)
    _write(file, "".join(f"{line}\n" for line in lines))
    return 0


def _lines(file: Path) -> list[str]:
    """Return the lines of the file; none if it does not exist."""
    try:
        text = file.read_text(encoding="utf-8")
        Passwords.from_text(text)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(trouble_with_file(file, error)) from error
    except UnicodeDecodeError as error:
        msg = f"{file} is not in UTF-8, so it is no password file: give another"
        raise UsageError(msg) from error
    except PasswordFileError as error:
        msg = f"{file}: {error}"
        raise UsageError(msg) from error
    return text.removesuffix("\n").split("\n") if text else []


def _check(text: str, user: str) -> None:
    if ":" in user or user.startswith("#"):
        msg = f"{user!r} cannot be a user: give a name without a colon, and without # in front"
        raise UsageError(msg)
    try:
        Passwords.from_text(text)
    except PasswordFileError as error:
        msg = f"{user!r} cannot be a user: {str(error).removeprefix('line 1: ')}"
        raise UsageError(msg) from error


def _password(user: str) -> str:
    if not sys.stdin.isatty():
        password = sys.stdin.readline(_MAX_PASSWORD + 1).removesuffix("\n")
    else:
        password = getpass.getpass(f"Password of {user}: ")
        if getpass.getpass("The same again: ") != password:
            raise UsageError("the passwords are not the same: try again; nothing was written")
    if not password:
        raise UsageError("the password is empty: give one; nothing was written")
    return password


def _keys(password: str, iterations: int) -> ScramKeys:
    try:
        return ScramKeys.of(password, iterations)
    except ModuleNotFoundError as error:
        msg = 'SCRAM-SHA-256 needs scramp, which is not installed: pip install "clearfunds[auth]"'
        raise CommandFailedError(msg) from error
    except ValueError as error:
        msg = f"this password cannot be used: {error}"
        raise UsageError(msg) from error


def _write(file: Path, text: str) -> None:
    """Replace the file by a rename, so that a relay never reads half of it."""
    try:
        before = file.stat() if file.exists() else None
        descriptor, name = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as opened:
                opened.write(text)
                opened.flush()
                os.fsync(descriptor)
                # For its owner, as mkstemp makes it, and for a group that could read it before.
                if before is not None:
                    os.fchmod(descriptor, before.st_mode & 0o7740)
                    with contextlib.suppress(PermissionError):
                        os.fchown(descriptor, before.st_uid, before.st_gid)
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CommandFailedError(f"cannot write {trouble_with_file(file, error)}") from error
