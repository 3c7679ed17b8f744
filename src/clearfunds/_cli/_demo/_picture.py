"""The demo's table as a picture, for a web page."""

import io
import re
from pathlib import Path

from rich.console import Console, RenderableType

_COLUMNS = 80


def save_picture(path: Path, table: RenderableType) -> None:
    """Write `table` as SVG, in the reader's own monospaced font: it fetches nothing.

    Raises:
        OSError: The file cannot be written.
    """
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(table)
    svg = console.export_svg(title="make demo")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    path.write_text(svg.replace("Fira Code", "monospace"), encoding="utf-8")
