"""Sources of options besides the command line.

One precedence for all commands and all kinds of options: command line, then environment, then TOML
file, then default. A source that gives an option replaces it as a whole: a list on the command line
replaces the file's list, it does not add to it.

    CLEARFUNDS_RELAY_LIMIT_ITEMS=500        one value; a list is separated by spaces
    [relay]                                 the file has one table a command,
    limit_items = 500                       with the options' names, - or _ alike
    [[relay.tenant]]                        a list option may be tables: its converter gets each
    name = "press"                          as JSON
"""

import difflib
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, cast

from cyclopts import App, ArgumentCollection
from cyclopts.config import Dict, Env

from clearfunds.sockets import trouble_with_file

from ._errors import UsageError

PREFIX: Final = "CLEARFUNDS_"

Source = Callable[[App, tuple[str, ...], ArgumentCollection], Any]


def sources(file: Path | None, commands: Iterable[str]) -> list[Source]:
    """Return the sources between the command line and the defaults, highest first.

    Raises:
        UsageError: The file cannot be read, is not TOML, or has something other than the tables of
            commands. (The command's own parsing checks the content of its table.)
    """
    found: list[Source] = [_warn_of_unknown_variables, Env(PREFIX)]
    if file is not None:
        found.append(Dict(read_file(file, sorted(commands)), source=str(file)))
    return found


def read_file(file: Path, commands: list[str]) -> dict[str, Any]:
    """Return the tables of a file, tables within lists as JSON.

    Raises:
        UsageError: As of `sources`.
    """
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(trouble_with_file(file, error)) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not in UTF-8: save it in that") from error
    except RecursionError as error:
        raise UsageError(f"{file} has lists or tables nested too deeply: flatten them") from error
    except ValueError as error:
        msg = f"{file} is not TOML: {error}; correct it there"
        raise UsageError(msg) from error
    for key in tables:
        if key not in commands:
            tables_there = ", ".join(f"[{name}]" for name in commands)
            msg = f"{file}: {key} is not a command{_instead(key, commands)}; tables: {tables_there}"
            raise UsageError(msg)
    return {key: _with_tables_as_text(table) for key, table in tables.items()}


def _with_tables_as_text(table: Any) -> Any:
    if not isinstance(table, dict):
        return table
    options = cast("dict[str, Any]", table)
    return {name: _tables_as_text(value) for name, value in options.items()}


def _tables_as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()  # As TOML has it, for messages.
    if not isinstance(value, list):
        return value
    each: list[Any] = cast("Any", value)
    # TOML has dates, which JSON has not: the reader of the text reports the mistake.
    return [json.dumps(one, default=str) if isinstance(one, dict) else one for one in each]


def _warn_of_unknown_variables(
    _: App, commands: tuple[str, ...], arguments: ArgumentCollection
) -> None:
    """Warn of variables that look like this command's options, but are none.

    No error: a variable of this form can come from elsewhere (Kubernetes makes
    CLEARFUNDS_RELAY_PORT for a service that is named clearfunds-relay).
    """
    prefix = PREFIX + "".join(f"{name.upper()}_" for name in commands)
    known = [
        name.lstrip("-").replace("-", "_").upper() for each in arguments for name in each.names
    ]
    for variable in sorted(os.environ):
        rest = variable.removeprefix(prefix)
        if commands and rest != variable and rest not in known:
            print(
                f"clearfunds: {variable} is in the environment, but is not an option of "
                f"clearfunds {' '.join(commands)}{_instead(rest, known, prefix)}; ignored",
                file=sys.stderr,
            )


def _instead(name: str, known: Iterable[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""
