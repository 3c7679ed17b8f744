"""The command line: its commands, the sources of options, exit statuses."""

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import (
    App,
    ArgumentCollection,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
)

from ._errors import CommandFailedError, UsageError
from ._printable import printable_lines
from ._sources import PREFIX, Source, sources
from ._wording import one_line

COMMANDS: Final = {
    "relay": "Run a relay (MQTT and Syndicate server) until SIGTERM or SIGINT.",
    "cluster": "Run a cluster of relays on this machine, to try it.",
    "pub": "Publish MQTT messages.",
    "sub": "Subscribe over MQTT and print messages.",
    "top": "Monitor a relay: outstanding work, slow consumers, blocked publishers.",
    "ctl": "Change a running relay: limits, policies, clients, the log level.",
    "queues": "Inspect the AMQP queues of a relay, purge them, move messages.",
    "audit": "Check that the books of a relay, or of a whole cluster, balance.",
    "trace": "Trace an account's next event to its last subscriber.",
    "mint": "Make keys and sturdyrefs for Syndicate clients.",
    "passwd": "Set passwords of MQTT users, in a relay's password file.",
    "store": "Inspect and repair a relay's store on disk.",
    "journal": "Merge and verify the files of a relay's journal.",
    "report": "Analyse a relay's journal: debts, slow consumers, recommended limits.",
    "perf": "Load-test any MQTT server: throughput, latency, blocked publishers.",
    "config": "Check a configuration file; show every option and where it comes from.",
    "completion": "Print the script that completes commands and options in a shell.",
    "demo": "Show backpressure with a month of flights and one slow subscriber.",
}
"""The commands and their lines in the list, which is printed without loading any of them."""

_HELP: Final = f"""\
Publish and subscribe with backpressure: every event is charged to its publisher.

Options come from the command line, else from the environment
(`{PREFIX}RELAY_LIMIT_ITEMS`), else from a TOML file (`[relay]`, `limit_items = ...`).
"""


Use = Callable[[App, Sequence[str]], Any]
"""Does something with the tokens of a command: it is called, or its arguments are looked at."""


def _version() -> str:
    return f"clearfunds {metadata.version('clearfunds')}"


def _build(argv: Sequence[str], use: Use, *more: Source) -> App:
    app = App(
        name="clearfunds",
        help=_HELP,
        help_format="markdown",
        version=_version,
        result_action="return_value",
    )
    for name, summary in COMMANDS.items():
        # A command that is called shows its docstring, not its line in the list.
        listed = {} if name in argv else {"help": summary}
        app.command(f"clearfunds._cli._{name}:{name}", name=name, **listed)

    # The launcher reads --config anywhere on the command line, so that the file is known before
    # the options of the command are put together.
    @app.meta.default
    def launch(  # pyright: ignore[reportUnusedFunction]
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Annotated[
            Path | None,
            Parameter(
                group=Group("Configuration", sort_key=9),
                help=f"TOML file with a table for each command (or {PREFIX}CONFIG).",
                env_var=f"{PREFIX}CONFIG",
                show_env_var=False,
            ),
        ] = None,
    ) -> Any:
        app.config = [*sources(config, COMMANDS), *more]
        return use(app, tokens)

    return app


def command_line() -> App:
    """Return all commands with their options, to be looked at and not called."""
    return _build((), lambda _app, _tokens: None)


def _names_file(argv: Sequence[str]) -> bool:
    """Whether there may be a file of options."""
    return f"{PREFIX}CONFIG" in os.environ or any(each.startswith("--config") for each in argv)


def _names_command(argv: Sequence[str]) -> bool:
    """Whether a command is to be called; otherwise help is wanted, or the name is a mistake."""
    return (
        bool(argv)
        and argv[0] in COMMANDS
        and not any(token.startswith(("--help", "-h", "--version")) for token in argv)
    )


def _call(given: Mapping[str, object], app: App, tokens: Sequence[str]) -> Any:
    command, bound, unparsed = app.parse_args(tokens, exit_on_error=False, print_error=False)
    more = {name: given[name] for name in unparsed if name in given}
    return command(*bound.args, **bound.kwargs, **more)


def _arguments(app: App, tokens: Sequence[str]) -> Mapping[str, Any]:
    command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    defaults = {
        each.name: each.default
        for each in inspect.signature(command).parameters.values()
        if each.default is not each.empty
    }
    return {**defaults, **bound.kwargs}


def read_arguments(
    argv: Sequence[str], *, needs_all: bool = True, seen: list[ArgumentCollection] | None = None
) -> Mapping[str, Any]:
    """Return the arguments of a command as its sources have them now.

    Args:
        argv: The command line.
        needs_all: Whether it is a mistake if an argument is missing that the command needs;
            otherwise the result has only those that are given then.
        seen: Gets the options of the command, with what each source has given.

    Raises:
        UsageError: They have a mistake.
    """
    options: list[ArgumentCollection] = [] if seen is None else seen

    def look(_: App, __: tuple[str, ...], arguments: ArgumentCollection) -> None:
        options.append(arguments)

    try:
        try:
            found: Mapping[str, Any] = _launched(_build(argv, _arguments, look), argv)
        except MissingArgumentError:
            if needs_all or not options:
                raise
            # The arguments of cyclopts have no types.
            given: list[Any] = [each for each in options[-1] if each.tokens]
            found = {each.field_info.name: each.convert_and_validate() for each in given}
    except CycloptsError as error:
        error.verbose = False  # which only the command's own parsing sets
        raise UsageError(one_line(error)) from error
    return found


def _launched(app: App, argv: Sequence[str]) -> Any:
    """Do with a command line what `app` was built for, with the options of its file.

    A launcher that knows of the commands puts the options of theirs together, too, to show them
    with its own. That takes twice 25 ms for a relay, so it is left out where no help is wanted.
    """
    launcher = app.meta
    if _names_command(argv):
        launcher = App(name=app.name, help_flags=(), version_flags=())
        launcher.default(app.meta.default_command)
    return launcher(
        list(argv), exit_on_error=False, print_error=False, result_action="return_value"
    )


def run(argv: Sequence[str], **given: object) -> int:
    """Run one command to its end and return the exit status.

    `given` are arguments of the command that are no options (`Parameter(parse=False)`), by name.
    0 success, 1 failure, 2 usage error, 130 interrupted. With 1 and 2, one line on stderr has the
    reason.
    """
    read_again = partial(read_arguments, tuple(argv)) if _names_file(argv) else None
    given = {"argv": tuple(argv), "read_again": read_again, **given}
    name = f"clearfunds {argv[0]}" if argv and argv[0] in COMMANDS else "clearfunds"
    try:
        app = _build(argv, partial(_call, given))
        given["app"] = app
        result = _launched(app, argv)
        # Here, and not at the interpreter's end, where a closed pipe can only be a traceback.
        sys.stdout.flush()
    except (UsageError, CycloptsError) as error:
        _complain(f"{name}: {one_line(error)} (see {name} --help)")
        return 2
    except CommandFailedError as error:
        _complain(f"{name}: {error}")
        return 1
    except BrokenPipeError:
        # The reader of our output has gone: no message would reach it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) else 0


def _complain(line: str) -> None:
    # Parts of it may come from a server.
    print(printable_lines(line), file=sys.stderr)
