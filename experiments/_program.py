"""The command line of an experiment: `clearfunds relay`, with options of the experiment's own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from clearfunds._cli._app import run
from clearfunds._cli._relay import Serve


def parser_of(module: str, description: str) -> argparse.ArgumentParser:
    """Return a parser for the experiment's own options; those of the relay are left to the relay.

    `module` is its name behind `python -m`.
    """
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        usage="%(prog)s [OPTIONS] [OPTIONS OF clearfunds relay]",
        description=description,
        add_help=False,
        allow_abbrev=False,
    )


def run_relay(
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    serve_of: Callable[[argparse.Namespace], Serve],
) -> int:
    """Run a relay, served by what `serve_of` makes of the experiment's own options.

    Returns:
        The exit status, as of `clearfunds relay`.

    Raises:
        SystemExit: With status 2, after a usage error in the experiment's own options.
    """
    own, others = parser.parse_known_args(argv)
    if "--help" in others or "-h" in others:
        print(parser.format_help())
        sys.stdout.flush()
    return run(["relay", *others], serve=serve_of(own))
