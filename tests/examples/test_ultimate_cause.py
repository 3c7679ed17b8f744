"""The example of who pays for whose work, run as a reader would run it, and what it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "ultimate_cause.py"


def test_it_says_who_waits_and_for_whom() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert ran.stderr == ""
    assert ran.returncode == 0
    *during, shrinker, album = ran.stdout.splitlines()
    # Above a limit of 5 means 6; the next six come when those have been dealt with.
    assert during == [
        "alice owes for 6 photos that album holds",
        "0.jpg to 5.jpg are in the album",
        "alice owes for 6 photos that album holds",
        "6.jpg to 11.jpg are in the album",
        "alice owes for 6 photos that album holds",
        "12.jpg to 17.jpg are in the album",
    ]
    quick = re.fullmatch(r"alice waited (\d+\.\d) s for shrinker", shrinker)
    slow = re.fullmatch(r"alice waited (\d+\.\d) s for album", album)
    assert quick is not None
    assert slow is not None
    assert float(slow[1]) >= 0.2  # twice while the album took its time
