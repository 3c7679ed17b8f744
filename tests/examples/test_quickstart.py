"""The quick start, run as a reader of the README would run it, and what it prints."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "quickstart.py"


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
    # Above a limit of 5 means 6; the next six come when those have been dealt with.
    *owed, waited = ran.stdout.splitlines()
    assert owed == [
        "alice owes 6 items: photos/0, ...",
        "alice owes 6 items: photos/6, ...",
        "alice owes 6 items: photos/12, ...",
    ]
    seconds = re.fullmatch(r"album blocked alice for (\d+\.\d) s", waited)
    assert seconds is not None
    assert float(seconds[1]) >= 0.2  # twice while the album took its time


def test_the_readme_shows_it_as_it_is() -> None:
    code = EXAMPLE.read_text().partition('"""\n\n')[2]
    assert f"```python\n{code}```" in (ROOT / "README.md").read_text()


def test_it_stays_short() -> None:
    lines = EXAMPLE.read_text().partition('"""\n\n')[2].splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 25
