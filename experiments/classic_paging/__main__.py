"""`python -m experiments.classic_paging`: a relay whose queues page by memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments._program import parser_of, run_relay

from . import serve_with_classic_paging


def main(argv: Sequence[str]) -> int:
    """Run the relay, and return its exit status."""
    parser = parser_of(
        "experiments.classic_paging",
        "Run a relay with RabbitMQ's paging up to 3.8: queues keep as many messages in memory as "
        "it has room for, and page out from half of --memory-alarm on.",
    )
    return run_relay(parser, argv, lambda _: serve_with_classic_paging)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
