"""The keys of `clearfunds top`."""

from __future__ import annotations

import pytest

from clearfunds._cli._top._choice import NAME_MAX, ORDERS, SORTS, Choice
from clearfunds._cli._top._keys import BACKSPACE, CLEAR, ENTER, ESCAPE, keys_in


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("", []),
        ("qs", ["q", "s"]),
        ("\u00e4\r\n", ["\u00e4", ENTER, ENTER]),
        ("\x7f\x08\x15", [BACKSPACE, BACKSPACE, CLEAR]),
        ("\x1b", [ESCAPE]),
        ("\x1bq", [ESCAPE, "q"]),
        ("\x1b[A\x1b[1;5C\x1bOPq\x1b[15~s", ["q", "s"]),
        ("\x1b[", []),
        ("\x1b[1", []),
        ("\t\x00\u202eq", ["q"]),
    ],
)
def test_what_a_terminal_sends(text: str, keys: list[str]) -> None:
    assert keys_in(text) == keys


def test_keys_change_what_is_seen() -> None:
    choice = Choice()
    assert [choice.sort, *(sorted_by(choice, "s") for _ in SORTS)] == [*SORTS, "waiting"]
    assert sorted_by(choice, "S") == "held"
    assert set(ORDERS) == set(SORTS)
    assert choice.changed.is_set()
    assert not choice.press("x")
    assert not choice.press("?")
    assert choice.helping
    # It ends from everywhere but a name that is being typed.
    assert choice.press("q")


def sorted_by(choice: Choice, key: str) -> str:
    assert not choice.press(key)
    return choice.sort


def typed(choice: Choice, *keys: str) -> str:
    for key in keys:
        assert not choice.press(key)
    return choice.name


def test_a_name_is_typed_corrected_and_left() -> None:
    choice = Choice()
    assert typed(choice, "/", "q", "s", BACKSPACE, "?", ENTER) == "q?"
    assert choice.changed.is_set()
    # What is looked for is there to be changed; Escape leaves it as it was.
    assert typed(choice, "/", "x", ESCAPE) == "q?"
    assert typed(choice, "/", CLEAR, " ", "a", " ", ENTER) == "a"
    assert typed(choice, "/", *("b" * (NAME_MAX + 5)), ENTER) == "a" + "b" * (NAME_MAX - 1)
    assert typed(choice, ESCAPE) == ""
    assert choice.typing is None
