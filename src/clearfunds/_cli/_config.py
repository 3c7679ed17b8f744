"""`clearfunds config`: check a configuration file, show every option and its origin."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, cast

import attrs
from cyclopts import App, Argument, ArgumentCollection, Parameter

from clearfunds.relay._relay import check_relay
from clearfunds.transports import TransportError

from ._app import COMMANDS, read_arguments
from ._errors import CommandFailedError, UsageError
from ._printable import printable
from ._relay import prepared
from ._reloading import Arguments, options_of
from ._rule_tables import is_table
from ._sources import read_file

_SECRET: Final = re.compile(r"://(?:([^/@\s:]*:)|)[^/\s]*@")
# The password in a URL, or what stands alone there: a token of NATS.

_SECRETS: Final = ("password", "token")
# Options whose value is a secret, not a file with it.

config = App(
    name="config", help="Check a configuration file; show every option and where it comes from."
)


@config.command
def check(file: Annotated[Path, Parameter(help="The file, as for --config.")], /) -> int:
    """Check a configuration file before a relay is started or reloaded with it.

    Options, and the files that they name (passwords, keys, certificates, the access control list),
    are read as the commands read them; nothing is opened or started. 0: no mistake; 1: a mistake,
    which is named.
    """
    try:
        tables = read_file(file, sorted(COMMANDS))
        for name, table in tables.items():
            _check_table(name, table, file)
    except UsageError as error:
        text = str(error)
        raise CommandFailedError(text if str(file) in text else f"{file}: {text}") from error
    names = ", ".join(f"[{name}]" for name in tables) or "no table"
    print(f"{file}: no mistake in {names}")
    return 0


def _check_table(name: str, table: object, file: Path) -> None:
    if not isinstance(table, dict):
        msg = f"{file}: {name} must be a table: [{name}]"
        raise UsageError(msg)
    if name == "relay":
        _check_relay(read_arguments(["relay", "--config", str(file)]))
        return
    for argv in _commands_of(name, cast("dict[str, object]", table)):
        read_arguments([*argv, "--config", str(file)], needs_all=False)


def _commands_of(name: str, table: dict[str, object]) -> list[list[str]]:
    """Return the commands that a table is for: one, or one for each table in it."""
    below = [key for key, value in table.items() if isinstance(value, dict)]
    return [[name, key] for key in below] or [[name]]


def _check_relay(given: Arguments) -> None:
    settings, _ = prepared(
        given["options"], given["tls"], given["tokens"], given["journal"], given["workers"]
    )
    try:
        check_relay(settings)
    except TransportError as error:
        raise UsageError(str(error)) from error


@config.command
def show(
    *options: Annotated[
        str,
        Parameter(
            help="The command, `relay` if none is given, and options for it.",
            allow_leading_hyphen=True,
        ),
    ],
    argv: Annotated[Sequence[str], Parameter(parse=False)] = (),
) -> int:
    """Show every option of a command with its value and its origin, in the form of a file.

    Lines with a value that is the default are comments. Passwords and tokens are not shown.
    """
    # With --config, which the launcher has taken out of `options`.
    rest = [*argv[argv.index("show") + 1 :]]
    command = ["relay", *rest] if not rest or rest[0].startswith("-") else rest
    seen: list[ArgumentCollection] = []
    values = options_of(read_arguments(command, needs_all=False, seen=seen))
    print(f"[{command[0]}]")
    group = ""
    for argument in seen[-1]:
        if not argument.show or not argument.name.startswith("--") or argument.children:
            continue
        title = _group_of(argument)
        if title != group:
            group = title
            print(f"\n# {group}")
        name = argument.name.removeprefix("--").replace("-", "_")
        value = values.get(argument.field_info.name, argument.field_info.default)
        if value is argument.field_info.empty:
            print(f"# {name}: must be given")
        else:
            print(printable(_line(name, value, argument)))
    return 0


def _group_of(argument: Argument) -> str:
    groups = argument.parameter.group
    found = groups[0] if isinstance(groups, tuple) and groups else groups
    return getattr(found, "name", "")


def _line(name: str, value: object, argument: Argument) -> str:
    if not argument.tokens:
        return f"# {name} = {_toml(value)}"
    token = argument.tokens[0]
    origin = {"cli": "command line", "env": token.keyword or "environment"}.get(
        token.source, token.source
    )
    if name in _SECRETS:
        value = "***"
    if isinstance(value, tuple):
        several = cast("tuple[object, ...]", value)
        if any(attrs.has(each.__class__) for each in several):
            several = tuple(_rule(each.value) for each in argument.tokens if each.value)
        value = several
    return f"{name} = {_toml(value)}  # {origin}"


def _rule(text: str) -> object:
    """Return a rule as it was given: a text, or a table."""
    return json.loads(text) if is_table(text) else text


def _toml(value: object) -> str:
    """Return a value as it stands in a file; `none` for its absence, as TOML has no null."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value).removesuffix(".0")
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        return f"{{{', '.join(f'{name} = {_toml(each)}' for name, each in pairs)}}}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, cast('Sequence[object]', value)))}]"
    return json.dumps(_SECRET.sub(r"://\1***@", str(value)), ensure_ascii=False)
