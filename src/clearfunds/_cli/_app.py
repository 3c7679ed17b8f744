"""The command line as a whole: its commands, where options come from, how it ends."""

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, CycloptsError, Group, Parameter

from ._config import PREFIX, sources
from ._errors import CommandFailedError, UsageError
from ._printable import printable_lines

_COMMANDS: Final = {
    "relay": "Run a relay until SIGTERM or SIGINT.",
    "pub": "Publish over MQTT.",
    "sub": "Print what is published over MQTT.",
    "top": "Show who waits on whom, and who owes what, in a terminal.",
    "trace": "Follow an account's next event to the last who is done with it.",
    "mint": "Make keys and sturdyrefs for Syndicate clients.",
    "passwd": "Give MQTT users passwords, in a file for a relay.",
    "store": "Look at what a relay keeps on disk, and put it in order.",
    "report": "Say from a relay's journal who owed, who held, and which limits would have helped.",
    "perf": "Put a load on any MQTT server, and say what came, how late, and who had to wait.",
    "demo": "Send a month of flights through a relay, and watch who owes, holds and waits.",
}
"""The commands, each with what the list of them says, for which none of them is loaded."""

_HELP: Final = f"""\
Publish and subscribe, with every event charged to whoever caused it.

Options come from the command line, else from the environment
(`{PREFIX}RELAY_LIMIT_ITEMS`), else from a TOML file (`[relay]`, `limit_items = ...`).
"""


def _build(argv: Sequence[str]) -> App:
    app = App(
        name="clearfunds",
        help=_HELP,
        help_format="markdown",
        version=f"clearfunds {metadata.version('clearfunds')}",
        result_action="return_value",
    )
    for name, summary in _COMMANDS.items():
        # A command that is called says of itself what it has to, and not what the list says.
        listed = {} if name in argv else {"help": summary}
        app.command(f"clearfunds._cli._{name}:{name}", name=name, **listed)

    # The launcher reads --config wherever it stands, so that the file is known before the
    # options of the command are put together.
    @app.meta.default
    def launch(  # pyright: ignore[reportUnusedFunction]
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Annotated[
            Path | None,
            Parameter(
                group=Group("Configuration", sort_key=9),
                help=f"A TOML file with a table for each command (or {PREFIX}CONFIG).",
                env_var=f"{PREFIX}CONFIG",
                show_env_var=False,
            ),
        ] = None,
    ) -> Any:
        app.config = sources(config, _COMMANDS)
        return app(tokens, exit_on_error=False, print_error=False)

    return app


def run(argv: Sequence[str]) -> int:
    """Run one command to its end and return the exit status.

    0 done, 1 could not be done, 2 called wrongly, 130 interrupted. In the cases 1 and 2 there is
    one line on stderr that says why.
    """
    name = f"clearfunds {argv[0]}" if argv and argv[0] in _COMMANDS else "clearfunds"
    try:
        result = _build(argv).meta(
            list(argv), exit_on_error=False, print_error=False, result_action="return_value"
        )
        # Here, and not at the interpreter's end, where a closed pipe can only be a traceback.
        sys.stdout.flush()
    except (UsageError, CycloptsError) as error:
        _complain(f"{name}: {_one_line(error)} (see {name} --help)")
        return 2
    except CommandFailedError as error:
        _complain(f"{name}: {error}")
        return 1
    except BrokenPipeError:
        # Whoever read our output has gone: there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) else 0


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    # cyclopts names an option's origin in some of its messages and not in others.
    token = getattr(error, "token", None)
    if token is not None and token.source not in ("", "cli", "env") and token.source not in text:
        text = f"{text} (from {token.source})"
    return text


def _complain(line: str) -> None:
    # Parts of it may be what a server said.
    print(printable_lines(line), file=sys.stderr)
