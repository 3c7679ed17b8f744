"""The work queue of the examples, with classic paging.

python -m experiments.classic_paging.work_queue serve 127.0.0.1:4000 --memory 268435456
"""

from __future__ import annotations

import time

from clearfunds.relay._memory import memory_used
from examples.work_queue import arguments, run

from ._classic import classic
from ._memory_monitor import MemoryMonitor


def main() -> None:
    """Run one of the example's commands; a server pages by memory."""
    parser = arguments()
    parser.add_argument(
        "--memory",
        type=int,
        default=512 << 20,
        help="bytes of memory to stay below; messages are paged out from half of them on",
    )
    given = parser.parse_args()
    monitor = MemoryMonitor(clock=time.monotonic, used=memory_used, limit=given.memory)
    run(given, classic(monitor=monitor))


if __name__ == "__main__":
    main()
