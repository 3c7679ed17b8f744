"""Regular expressions over the names of accounts and holders, in time linear in the name.

Python's `re` backtracks: `(a+)+b` takes it minutes over a name of thirty letters, and holds the
whole relay for as long. The expressions of a scrape come from outside, so they are matched by an
automaton instead, as Prometheus does with its own matchers (RE2), and like those they are anchored
at both ends.

Theory of operation. Each place of the expression that consumes a character is a *position*
(Glushkov's construction, which needs no empty transitions). A state is the set of positions that
may have consumed the last character, kept as the bits of an integer; a step is

    next = union of follow(p) for p in state, restricted to positions that take this character

and steps are remembered, so that names of one make cost one dictionary look-up a character.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

PATTERN_CHARACTERS_MAX: Final = 200
# Of the expression as it is written.
POSITIONS_MAX: Final = 128
# Of the expression with its {m,n} written out: bounds the cost of one step.
NAME_CHARACTERS_MAX: Final = 256
# Of a name: what comes behind is not looked at. With the two above, no match takes longer than a
# few milliseconds, whatever the expression.
JOINS_MAX: Final = 2000
# While building: an empty group may be repeated over and over without taking up a position.
DEPTH_MAX: Final = 20
STEPS_REMEMBERED_MAX: Final = 4096

_CLASSES: Final = "dDwWsS"
_ENDS: Final = re.compile(r"\{(\d{1,3})(,(\d{1,3})?)?\}")


class _Part(NamedTuple):
    """A part of the automaton: whether it matches nothing, and where it begins and ends."""

    nullable: bool
    first: int
    last: int


class NamePattern:
    """A regular expression that a whole name must match.

    Known are literal characters, `.`, `[...]`, `\\d \\w \\s` and their opposites, escaped
    punctuation, groups, `|`, `*`, `+`, `?` and `{m,n}`. There are no back-references, no
    look-around and no flags. A name is matched by its first 256 characters.

    Raises:
        ValueError: the expression cannot be read or is too large; the message is a sentence that
            says what is wrong.
    """

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARACTERS_MAX:
            msg = (
                f"The pattern has {len(text)} characters; at most {PATTERN_CHARACTERS_MAX} "
                "are allowed."
            )
            raise ValueError(msg)
        self.text = text
        self._joins = 0
        self._follow: list[int] = []
        self._takers: dict[str, int] = {}
        self._tests: list[tuple[Callable[[str], object], int]] = []
        self._steps: dict[tuple[int, str], int] = {}
        parser = _Parser(text)
        whole = parser.parse()(self)
        self._nullable, self._first, self._last = whole
        for test, positions in self._takers.items():
            self._tests.append((_test(test), positions))

    def __repr__(self) -> str:
        return f"<NamePattern {self.text!r}: {len(self._follow)} positions>"

    def matches(self, name: str) -> bool:
        """Whether the whole name, or its first 256 characters, match."""
        if not name:
            return self._nullable
        steps = self._steps
        state = -1  # Before the first character; no set of positions is negative.
        for character in name[:NAME_CHARACTERS_MAX]:
            key = (state, character)
            following = steps.get(key)
            if following is None:
                following = self._step(state, character)
                if len(steps) >= STEPS_REMEMBERED_MAX:
                    steps.clear()
                steps[key] = following
            if not following:
                return False
            state = following
        return bool(state & self._last)

    def _step(self, state: int, character: str) -> int:
        if state < 0:
            following = self._first
        else:
            following = 0
            while state:
                lowest = state & -state
                following |= self._follow[lowest.bit_length() - 1]
                state ^= lowest
        taken = 0
        for test, positions in self._tests:
            if following & positions and test(character):
                taken |= positions
        return following & taken

    # What the parser builds with.

    def character(self, test: str) -> _Part:
        """One position, which takes the characters that `test` (an item of `re`) matches."""
        position = len(self._follow)
        if position >= POSITIONS_MAX:
            msg = (
                f"The pattern, with its repetitions written out, is longer than {POSITIONS_MAX} "
                "characters."
            )
            raise ValueError(msg)
        self._follow.append(0)
        bit = 1 << position
        self._takers[test] = self._takers.get(test, 0) | bit
        return _Part(nullable=False, first=bit, last=bit)

    def concatenate(self, left: _Part, right: _Part) -> _Part:
        """One after the other."""
        self._joins += 1
        if self._joins > JOINS_MAX:
            msg = "The pattern repeats too much."
            raise ValueError(msg)
        self._join(left.last, right.first)
        return _Part(
            left.nullable and right.nullable,
            left.first | right.first if left.nullable else left.first,
            left.last | right.last if right.nullable else right.last,
        )

    def loop(self, part: _Part) -> _Part:
        """Once or more often."""
        self._join(part.last, part.first)
        return part

    def _join(self, last: int, first: int) -> None:
        while last:
            lowest = last & -last
            self._follow[lowest.bit_length() - 1] |= first
            last ^= lowest


_EMPTY: Final = _Part(nullable=True, first=0, last=0)


def _test(item: str) -> Callable[[str], object]:
    return re.compile(item, re.DOTALL).fullmatch


class _Parser:
    """Reads an expression into a function that builds its automaton.

    A function, because what is repeated by {m,n} is built as many times.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> Callable[[NamePattern], _Part]:
        """Read the whole expression."""
        if self._text.startswith("^"):
            self._at = 1
        make = self._alternatives()
        if self._at < len(self._text):
            msg = f"The pattern has a ) without a ( at character {self._at + 1}."
            raise ValueError(msg)
        return make

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _alternatives(self) -> Callable[[NamePattern], _Part]:
        makes = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            makes.append(self._sequence())

        def make(target: NamePattern) -> _Part:
            parts = [each(target) for each in makes]
            nullable, first, last = parts[0]
            for part in parts[1:]:
                nullable, first, last = (
                    nullable or part.nullable,
                    first | part.first,
                    last | part.last,
                )
            return _Part(nullable, first, last)

        return make

    def _sequence(self) -> Callable[[NamePattern], _Part]:
        makes: list[Callable[[NamePattern], _Part]] = []
        while self._peek() not in ("", "|", ")"):
            if self._text[self._at :] == "$":
                self._at += 1
                break
            makes.append(self._repetition())

        def make(target: NamePattern) -> _Part:
            part = _EMPTY
            for each in makes:
                part = target.concatenate(part, each(target))
            return part

        return make

    def _repetition(self) -> Callable[[NamePattern], _Part]:
        once = self._item()
        character = self._peek()
        if character in ("*", "+", "?"):
            self._at += 1
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        elif ends := _ENDS.match(self._text, self._at):
            self._at = ends.end()
            low = int(ends[1])
            high = low if ends[2] is None else None if ends[3] is None else int(ends[3])
            if high is not None and high < low:
                msg = f"The pattern repeats at least {low} and at most {high} times."
                raise ValueError(msg)
        else:
            return once
        if self._peek() == "?":
            self._at += 1  # Lazy or not, a whole name matches or it does not.
        if self._peek() in ("*", "+", "?") or _ENDS.match(self._text, self._at):
            msg = f"The pattern repeats a repetition at character {self._at + 1}."
            raise ValueError(msg)

        return _repeat(once, low, high)

    def _item(self) -> Callable[[NamePattern], _Part]:
        start = self._at
        character = self._text[start]
        if character == "(":
            return self._group()
        if character == "[":
            return _taking(self._class())
        self._at += 1
        if character == "\\":
            escaped = self._peek()
            self._at += 1
            if not escaped or (escaped.isalnum() and escaped not in _CLASSES):
                msg = f"The pattern has \\{escaped} at character {start + 1}, which is not known."
                raise ValueError(msg)
            return _taking(f"\\{escaped}" if escaped in _CLASSES else re.escape(escaped))
        if character in "*+?{^$":
            msg = f"The pattern has {character} at character {start + 1}, where it has no meaning."
            raise ValueError(msg)
        return _taking(character if character == "." else re.escape(character))

    def _group(self) -> Callable[[NamePattern], _Part]:
        start = self._at
        self._at += 1
        self._depth += 1
        if self._depth > DEPTH_MAX:
            msg = f"The pattern has groups nested more than {DEPTH_MAX} deep."
            raise ValueError(msg)
        if self._text.startswith("?:", self._at):
            self._at += 2
        make = self._alternatives()
        if self._peek() != ")":
            msg = f"The pattern has a ( at character {start + 1} that is not closed."
            raise ValueError(msg)
        self._at += 1
        self._depth -= 1
        return make

    def _class(self) -> str:
        start = self._at
        end = start + 1
        if self._text.startswith("^", end):
            end += 1
        if self._text.startswith("]", end):
            end += 1
        while end < len(self._text) and self._text[end] != "]":
            end += 2 if self._text[end] == "\\" else 1
        item = self._text[start : end + 1]
        self._at = end + 1
        try:
            with warnings.catch_warnings():
                # `re` warns of what it may read as a set operation one day.
                warnings.simplefilter("error", FutureWarning)
                _test(item)
        except (re.error, FutureWarning) as error:
            msg = f"The pattern has {item} at character {start + 1}, which cannot be read: {error}."
            raise ValueError(msg) from error
        return item


def _taking(test: str) -> Callable[[NamePattern], _Part]:
    return lambda target: target.character(test)


def _repeat(
    once: Callable[[NamePattern], _Part], low: int, high: int | None
) -> Callable[[NamePattern], _Part]:
    """At least `low` and at most `high` times; None for as often as may be."""

    def make(target: NamePattern) -> _Part:
        whole = _EMPTY
        copies = max(low, 1) if high is None else high
        for number in range(copies):
            part = once(target)
            if high is None and number == copies - 1:
                part = target.loop(part)
            if number >= low:
                part = part._replace(nullable=True)
            whole = target.concatenate(whole, part)
        return whole

    return make
