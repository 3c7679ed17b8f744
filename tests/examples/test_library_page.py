"""docs/library.md, docs/asyncio.md, docs/trio.md: their programs print what stands below them."""

import re
import runpy
from pathlib import Path

import attrs
import pytest

from tests.docs.blocks import blocks

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("library.md", "asyncio.md", "trio.md")


@attrs.frozen
class Block:
    """Code on the page."""

    heading: str
    code: str
    printed: str
    """What stands below it, indented; "" for nothing."""


def programs() -> list[Block]:
    found: list[Block] = []
    sections = [
        section
        for page in PAGES
        for section in re.split("^##? ", (DOCS / page).read_text(), flags=re.MULTILINE)[1:]
    ]
    for section in sections:
        heading = section.partition("\n")[0]
        for each in re.finditer(
            r"```python\n((?:(?!```).*\n)+)```\n(?:\n((?:    .*\n)+))?", section
        ):
            printed = "".join(line[4:] for line in (each[2] or "").splitlines(keepends=True))
            found.append(Block(heading, each[1], printed))
    return found


BLOCKS = programs()


WAITED = re.compile(r"(?<=waited )\d+\.\d(?= s )")


def test_there_are_some() -> None:
    there = [each for each in blocks() if each.page in PAGES and each.language == "python"]
    assert len(BLOCKS) == len(there) > 9


@pytest.mark.parametrize("program", BLOCKS, ids=[block.heading for block in BLOCKS])
def test_a_program_prints_what_the_page_says(
    program: Block, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text(program.code)
    runpy.run_path(str(path), run_name="__main__")
    printed, errors = capsys.readouterr()
    assert errors == ""
    assert WAITED.sub("", printed) == WAITED.sub("", program.printed)
    # On a busy machine it takes longer.
    for took, said in zip(WAITED.findall(printed), WAITED.findall(program.printed), strict=True):
        assert float(took) >= float(said)
