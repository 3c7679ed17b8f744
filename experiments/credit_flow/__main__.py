"""`python -m experiments.credit_flow`: a relay with credit flow in place of debt."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from functools import partial

import attrs
from docstring_parser import parse_from_object

from clearfunds._cli._relay import Serve
from experiments._program import parser_of, run_relay

from . import Credit, CreditSettings, serve_on_credit


def credit_of(text: str) -> Credit:
    """Parse `INITIAL,MORE_AFTER`.

    Raises:
        ArgumentTypeError: It is not that.
    """
    match = re.fullmatch(r"([0-9][0-9_]*),([0-9][0-9_]*)", text)
    if match is None:
        msg = (
            f'"{text}" is not INITIAL,MORE_AFTER: the credit at the start, and the number of '
            'handled messages that grants as much credit again ("400,200").'
        )
        raise argparse.ArgumentTypeError(msg)
    try:
        return Credit(int(match[1]), int(match[2]))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def serve_of(own: argparse.Namespace) -> Serve:
    """Return the function that serves a relay with this credit."""
    return partial(serve_on_credit, CreditSettings(**vars(own)))


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the credit's own options, which are the fields of `CreditSettings`."""
    parser = parser_of(
        "experiments.credit_flow",
        "Run a relay with RabbitMQ's credit flow: a publisher waits for credit from each "
        "destination, and the limits of connections and of the server do not apply.",
    )
    texts = {each.arg_name: each.description for each in parse_from_object(CreditSettings).params}
    for field in attrs.fields(CreditSettings):
        default: Credit = getattr(CreditSettings(), field.name)
        parser.add_argument(
            f"--credit-{field.name.replace('_', '-')}",
            dest=field.name,
            type=credit_of,
            default=default,
            metavar="INITIAL,MORE_AFTER",
            help=f"{texts[field.name]} [default: {default.initial},{default.more_after}]",
        )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the relay, and return its exit status."""
    return run_relay(arguments(), argv, serve_of)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
