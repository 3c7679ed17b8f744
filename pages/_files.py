"""Files of pages for browsers, which are the same for everybody."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ._messages import Response

FOLDER: Final = Path(__file__).with_name("live")
"""The folder of the live page."""

SHARED_FILES: Final = {
    "/live/style.css": ("style.css", "text/css; charset=utf-8"),
    "/live/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Files of the live page that other pages use, too: by path, the name and the media type."""

HEADERS: Final = (
    # Peers choose the names on the page: should one ever become more than text, nothing that it
    # asks for is run or loaded.
    (
        "Content-Security-Policy",
        (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
    ("Referrer-Policy", "no-referrer"),
)
"""Header fields of everything that a browser shows or runs."""


def read_files(folder: Path, files: Mapping[str, tuple[str, str]]) -> dict[str, Response]:
    """Return the answers for files in a folder, by path.

    Args:
        folder: The folder.
        files: By path, the name of the file and its media type.

    Raises:
        OSError: One of them cannot be read.
    """
    return {
        path: Response((folder / name).read_bytes(), content_type=kind, headers=HEADERS)
        for path, (name, kind) in files.items()
    }
