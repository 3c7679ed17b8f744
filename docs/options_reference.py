"""Makes `docs/options.md` from the command line, so that it cannot drift::

python -m docs.options_reference > docs/options.md
python -m docs.options_reference --check docs/options.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, cast, get_args, get_origin

import attrs
from cyclopts.validators import Number

from clearfunds._cli import _types as types
from clearfunds._cli._app import command_line
from clearfunds._cli._reloading import RELOADABLE_OPTIONS
from clearfunds._cli._sources import PREFIX
from dashboards._printed import print_or_check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import App, Argument

HEAD: Final = f"""\
# Options

Every option of every command. `python -m docs.options_reference` makes this page from the code; a
test fails where the two differ.

An option's value comes from the first of these that has it. They are not joined: a list on the
command line replaces that of the file.

1. The command line: `--limit-items 500`; a list is the option repeated.
2. The environment: `{PREFIX}RELAY_LIMIT_ITEMS=500`, which is the command and the option in
   capitals; a list is separated by spaces.
3. The file (TOML): `limit_items = 500` below `[relay]`, the table of the command. `-` and `_` are
   the same there. A list is `listen = ["mqtt://0.0.0.0"]`, or tables: `[[relay.tenant]]`.
4. The default.

Each command takes `--config FILE` (or `{PREFIX}CONFIG`), the file of options, and `--help`;
`clearfunds --version` prints the version. Sizes may have a unit: `8388608`, `8MiB`, `2GB`. `none`
means no limit, or that the thing is not there.

Below each option is its name in the file. *Live* says what SIGHUP changes while the command runs:
`yes`, the option; `its file`, what is in the file that it names; `-`, nothing
([more](#changed-while-it-runs)). *Since* is the first version that had the option.
"""

TAIL: Final = """\

## Changed while it runs

`kill -HUP`, or `systemctl reload clearfunds`, makes a relay read the file of `--config` again. All
of these options change at once. If the file has a mistake, none of them does, and the log has an
error (`not_reloaded`):

{options}

Of `--tenant` the amounts can change; who belongs to a tenant, `kept` and `latency` cannot. The
command line still has precedence. If other options differ from before, a warning names them
(`restart_needed`). The relay also reads the files again that have `its file` above.
"""

FIRST: Final = {
    "relay": """
        account-limit anonymous behind-bytes behind-items behind-limit busy-poll connect-timeout
        credit credit-queue-store credit-reader-outlet credit-reader-queue disk-alarm disk-limit
        flow fsync-interval grace http idle-timeout journal journal-roll-every journal-roll-size
        journal-rows-per-second journal-snapshot-every kept-limit limit-bytes limit-items
        limit-latency listen log-format log-level max-assertions max-awaiting-release
        max-caveats-size max-client-id max-connections max-depth max-inflight max-packet-size
        max-queued max-queued-bytes max-references max-retained max-retained-bytes max-sessions
        max-shapes max-sinks max-subscriptions max-text-size max-topic-alias max-topic-length
        max-topic-levels max-turn-deliveries memory-alarm origin otel-every paging passwords
        patience quota-bytes quota-items rate resolve-answer server-limit-bytes server-limit-items
        session-expiry sink-batch-limit sink-expiry sink-grace slow-wait store stuck sturdy-key-file
        sturdy-oid subscription-policy tenant throttled-after tls-certificate tls-client-ca tls-key
    """,
    "pub": """
        client-id count file keep-alive message password qos retain tls-ca tls-certificate
        tls-insecure tls-key topic url username
    """,
    "sub": """
        client-id count format keep-alive log-level password persistent qos show-topic tls-ca
        tls-certificate tls-insecure tls-key topic url username
    """,
    "top": "interval json limit once sort url",
    "trace": "account events holder json loans url wait",
    "mint": "attenuate caveat key-file new-key oid",
    "store verify": "",
    "store repair": "",
    "store dump": "json max-body queue values",
    "report": "every follow last margin memory out target threads",
    "perf": """
        ack-every ack-interval clock csv delay drain filter html in-flight json mqtt prefetch
        processes prometheus publishers qos quiet ramp rate receive-buffer reconnect scenario
        seconds seed size slow slow-delay slow-stalls subscriber-qos subscribers tls-ca
        tls-certificate tls-insecure tls-key topic topics uri
    """,
    "demo": "days limit-items pause picture",
}
"""The options of 0.1.0, by command; all others came with 0.2.0."""

_KINDS: Final[dict[Any, tuple[str, str]]] = {
    types.Count: ("whole number", "-"),
    types.OptionalCount: ("whole number", "-"),
    types.Size: ("size", "bytes"),
    types.OptionalSize: ("size", "bytes"),
    types.Seconds: ("number", "seconds"),
    types.OptionalSeconds: ("number", "seconds"),
    types.OptionalShareOrSize: ("share, or size", "of all, or bytes"),
}
"""Type and unit of the options that have a reader of their own (`clearfunds._cli._types`)."""

_READERS: Final[dict[Any, tuple[str, str]]] = {
    kind.__metadata__[0].converter: said for kind, said in _KINDS.items()
}
_WORDS: Final = {int: "whole number", float: "number", str: "text", bool: "switch", Path: "path"}
_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_MARKUP: Final = re.compile(r"[*|<\\_\[\]]")
_UNIT: Final = re.compile(r"\bin (seconds|bytes|messages|events|minutes|items)\b")
_RELOADED: Final = "Reloaded at SIGHUP"


@attrs.frozen
class Entry:
    """One option of a command."""

    command: str
    names: tuple[str, ...]
    """As the command line has them."""
    key: str
    """Its name in the file; empty: an argument, which is not in the file."""
    group: str
    type: str
    default: str
    unit: str
    live: str
    since: str
    meaning: str

    def row(self) -> str:
        """Return its row in the table."""
        names = ", ".join(f"`{name}`" for name in self.names)
        if self.key:
            names += f"<br>`{self.key}`"
        cells = (names, self.type, self.default, self.unit, self.live, self.since)
        return f"| {' | '.join(cells)} | {self.meaning} |\n"


def entries() -> list[Entry]:
    """Return every option and argument, in the order of the commands and of their help."""
    app = command_line()
    return [entry for name in _names(app) for entry in _of_command(app[name], (name,))]


def _names(app: App) -> list[str]:
    return [name for name in app if not name.startswith("-")]


def _of_command(app: App, path: tuple[str, ...]) -> Iterator[Entry]:
    if app.default_command is not None:
        found = [
            _entry(" ".join(path), argument)
            for argument in app.assemble_argument_collection(parse_docstring=True)
            if argument.show and argument.parse
        ]
        groups = list(dict.fromkeys(entry.group for entry in found))
        yield from sorted(found, key=lambda entry: groups.index(entry.group))
    for name in _names(app):
        yield from _of_command(app[name], (*path, name))


def _entry(command: str, argument: Argument) -> Entry:
    long = next((name for name in argument.names if name.startswith("--")), "")
    option = long.removeprefix("--")
    meaning = " ".join((argument.parameter.help or "").split())
    kind, unit = _kind(argument, meaning)
    live = "-"
    if command == "relay" and option.replace("-", "_") in RELOADABLE_OPTIONS:
        live = "yes"
    elif _RELOADED in meaning:
        live = "its file"
    groups: Any = argument.parameter.group
    return Entry(
        command=command,
        names=tuple(argument.names),
        key=option.replace("-", "_"),
        group=str(groups[0].name),
        type=kind,
        default=_default(argument, unit),
        unit=unit,
        live=live,
        since="0.1.0" if _was_in_the_first(command, argument.names) else "0.2.0",
        meaning=_in_a_table(meaning),
    )


def _was_in_the_first(command: str, names: Sequence[str]) -> bool:
    there = FIRST.get(command)
    if there is None:
        return False
    options = {name.removeprefix("--") for name in names if name.startswith("--")}
    # No command of 0.1.0 has got an argument since.
    return not options or not options.isdisjoint(there.split())


def _in_a_table(text: str) -> str:
    """Return a text of the help in Markdown: options are code, all else is no markup."""
    # Patterns have asterisks, and choices have bars; code needs only the latter.
    pieces = text.split("`")
    pieces[::2] = [_prose(piece) for piece in pieces[::2]]
    pieces[1::2] = [piece.replace("|", "\\|") for piece in pieces[1::2]]
    return "`".join(pieces)


def _prose(text: str) -> str:
    return _OPTION.sub(r"`\g<0>`", _MARKUP.sub(r"\\\g<0>", text))


def _kind(argument: Argument, meaning: str) -> tuple[str, str]:
    # By its type it may also be the name of a method, which none of ours is.
    converter: Callable[..., Any] | None = argument.parameter.converter  # type: ignore[assignment]
    hint, is_optional = _without_none(argument.hint)
    said, unit = _READERS.get(converter, (None, "-"))
    kind = said or _words(hint)
    for validator in _validators(argument):
        least, most = validator.gte, validator.lte
        if most is not None:
            kind += f", {least} to {most}"
        elif least is not None and said is None:
            kind += f", at least {least}"
    if is_optional and converter is not None:
        kind += ", or `none`"
    found = _UNIT.search(meaning)
    return kind, found[1] if unit == "-" and found else unit


def _validators(argument: Argument) -> list[Number]:
    each: Any = argument.parameter.validator
    return [validator for validator in each if isinstance(validator, Number)]


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    others = [each for each in get_args(hint) if each is not NoneType]
    return others[0] if len(others) == 1 else Union[tuple(others)], True  # noqa: UP007


def _words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in get_args(hint))
    if origin in (Union, UnionType):
        return " or ".join(_words(each) for each in get_args(hint))
    if origin is tuple or origin is list:
        each = get_args(hint)[0]
        if each in _WORDS or get_origin(each) is not None:
            return "list of pairs" if get_origin(each) is tuple else f"list of {_words(each)}"
        return f"list of {_words(each)}s".replace("ys", "ies")
    if hint in _WORDS:
        return _WORDS[hint]
    return re.sub(r"(?<!^)(?=[A-Z])", " ", hint.__name__).lower()


def _default(argument: Argument, unit: str) -> str:
    if argument.required:
        return "required"
    default = argument.field_info.default
    if default is argument.field_info.empty or default is None or default == ():
        return "-" if argument.parameter.converter is None or default == () else "`none`"
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ", ".join(f"`{each}`" for each in cast("tuple[object, ...]", default))
    if default == "":
        return "empty"
    if unit == "bytes" and isinstance(default, int):
        return f"`{_size(default)}`"
    return f"`{default:.15g}`" if isinstance(default, float) else f"`{default}`"


def _size(nbytes: int) -> str:
    for power, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes and nbytes % (1 << power) == 0:
            return f"{nbytes >> power}{name}"
    return str(nbytes)


def reference() -> str:
    """Return the text of `docs/options.md`."""
    found = entries()
    commands = command_line()
    parts = [HEAD]
    group = command = None
    for entry in found:
        if entry.command != command:
            command, group = entry.command, None
            summary = "" if " " in command else f"\n{commands[command].help}\n"
            parts.append(f"\n## clearfunds {command}\n{summary}")
        if entry.group != group:
            group = entry.group
            parts.append(
                f"\n### {command}: {group}\n\n"
                "| option | type | default | unit | live | since | meaning |\n"
                f"|{' - |' * 7}\n"
            )
        parts.append(entry.row())
    live = ", ".join(f"`{entry.names[0]}`" for entry in found if entry.live == "yes")
    parts.append(TAIL.format(options=f"{live}."))
    return "".join(parts)


def main(arguments: Sequence[str]) -> int:
    """Print the reference, or compare it with a file; return the exit status."""
    return print_or_check(reference(), arguments, "docs.options_reference", __doc__ or "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
