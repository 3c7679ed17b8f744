"""Which tests hold which rule of accounting: the table at the end of docs/rules.md.

python -m tests.rules            prints it
python -m tests.rules --write    writes it there
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "rules.md"
HEADING: Final = "## Which tests hold them\n"
RULES: Final = range(1, 17)


def numbers(decorator: ast.expr) -> list[int]:
    """Return the rules that `pytest.mark.rule(...)` names; none for another expression."""
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.rule":
        return [ast.literal_eval(each) for each in decorator.args]
    return []


def marked(source: str) -> Counter[int]:
    """Return how many tests of a module are marked for each rule."""
    tree = ast.parse(source)
    everywhere: list[int] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            values = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            everywhere += [number for value in values for number in numbers(value)]
    found: Counter[int] = Counter()
    for function in ast.walk(tree):
        if isinstance(
            function, ast.FunctionDef | ast.AsyncFunctionDef
        ) and function.name.startswith("test_"):
            own = [number for each in function.decorator_list for number in numbers(each)]
            found.update({*everywhere, *own})
    return found


@cache
def by_rule() -> dict[int, dict[str, int]]:
    """Return the number of marked tests by file, for each rule."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text("utf-8")
        for rule, count in marked(source).items() if "mark.rule(" in source else ():
            found[rule][path.relative_to(ROOT).as_posix()] = count
    return found


def section() -> str:
    """Return the section of the page."""
    found = by_rule()
    rows = [
        f"| {rule} | {', '.join(f'`{file}` ({count})' for file, count in found[rule].items())} |"
        for rule in RULES
    ]
    return (
        f"{HEADING}\nThe tests are marked `@pytest.mark.rule(n)`; `pytest -m rule` runs them all. "
        "In brackets: how many.\n`python -m tests.rules --write` writes this table.\n\n"
        "| rule | tests |\n|---:|---|\n" + "\n".join(rows) + "\n"
    )


def page() -> str:
    """Return the page with the section as it should be."""
    return PAGE.read_text("utf-8").partition(HEADING)[0].rstrip("\n") + "\n\n" + section()


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), "utf-8")
    else:
        print(section(), end="")
