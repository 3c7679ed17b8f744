"""The program in docs/queues.md, as it stands there, and what it prints."""

import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "queues.md"


def test_it_prints_what_the_page_says(tmp_path: Path) -> None:
    found = re.search(r"```python\n((?:.*\n)+?)```\n\n((?:    .*\n)+)", DOCUMENT.read_text())
    assert found is not None
    code, said = found[1], re.sub("^    ", "", found[2], flags=re.MULTILINE)
    program = tmp_path / "program.py"
    program.write_text(code)

    def run() -> str:
        ran = subprocess.run(
            [sys.executable, "-W", "error", str(program), str(tmp_path / "store")],
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
        )
        assert ran.stderr == ""
        assert ran.returncode == 0
        return ran.stdout

    assert run() == said
    again = run().splitlines()
    assert again[0] == "from before: 1"
    assert again[-2:] == ["1 2 False", "2 0 False"]
