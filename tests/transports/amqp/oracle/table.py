"""The table of differences in docs/rabbitmq.md.

python -m tests.transports.amqp.oracle.table            prints it
python -m tests.transports.amqp.oracle.table --write    writes it there
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.transports.amqp.oracle.differences import DIFFERENCES, Difference

PAGE: Final = Path(__file__).parents[4] / "docs" / "rabbitmq.md"
BEGIN: Final = "<!-- differences -->\n"
END: Final = "<!-- end -->\n"


def table() -> str:
    """Return the table."""
    rows = ["| cases | RabbitMQ 3.10 | here | why |", "|---|---|---|---|"]
    alike: defaultdict[Difference, list[str]] = defaultdict(list)
    for name, each in sorted(DIFFERENCES.items()):
        alike[each].append(f"`{name}`")
    for each, names in alike.items():
        rows.append(f"| {', '.join(names)} | {each.rabbitmq} | {each.clearfunds} | {each.why} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """Return the page with the table of now."""
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(), "utf-8")
    else:
        print(table(), end="")
