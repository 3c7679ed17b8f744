"""docs/nats.md: its programs print what stands below them, with a real server."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.nats_servers import NatsServer, needs_nats

PAGE = (Path(__file__).parents[3] / "docs/nats.md").read_text("utf-8")
PROGRAMS = re.findall(r"```python\n((?:(?!```).*\n)+)```\n\n((?:    .*\n)+)", PAGE)


@needs_nats
@pytest.mark.parametrize("number", range(2))
def test_a_program_prints_what_the_page_says(
    shared: NatsServer, number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = PROGRAMS[number]
    path = tmp_path / "program.py"
    path.write_text(code.replace("nats://127.0.0.1:4222", shared.url))
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr() == (re.sub("^    ", "", printed, flags=re.MULTILINE), "")


def test_there_are_as_many() -> None:
    assert len(PROGRAMS) == 2
