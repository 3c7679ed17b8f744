"""Each rule of accounting has tests, and docs/rules.md says which."""

from __future__ import annotations

import pytest

from tests.rules import PAGE, RULES, by_rule, marked, page


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_has_tests_in_more_than_one_file(rule: int) -> None:
    assert len(by_rule()[rule]) > 1


def test_no_other_rule_is_named() -> None:
    assert {*by_rule()} == {*RULES}


def test_the_page_says_which() -> None:
    assert PAGE.read_text("utf-8") == page(), "python -m tests.rules --write"


def test_how_tests_are_counted() -> None:
    source = """
pytestmark = [pytest.mark.long, pytest.mark.rule(3)]

@pytest.mark.rule(1, 7)
async def test_a(): ...

class TestB:
    def test_c(self): ...

def helper(): ...
"""
    assert marked(source) == {1: 1, 3: 2, 7: 1}
