"""Sizes of payloads."""

from __future__ import annotations

import re
from random import Random
from typing import Final

import attrs

from ._errors import ScenarioError
from ._header import HEADER_BYTES

MAX_SIZE: Final = 16 << 20
"""Bytes of a payload. Brokers take no more than 256 MiB in one packet; most take much less."""

_SIZE: Final = r"[0-9][0-9_]*"


@attrs.frozen
class Sizes:
    """Sizes of payloads in bytes: several in turn, or random ones between two."""

    choices: tuple[int, ...]
    """One or more sizes, used in turn."""
    most: int | None = None
    """If set, each size is random, from the only choice to this."""

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """Read `200`, or `100,1000,10000` in turn, or a random `50-5000`.

        Raises:
            ScenarioError: It has another form, or is too small for the header of a payload.
        """
        by_lot = re.fullmatch(rf"({_SIZE})-({_SIZE})", text)
        if by_lot is not None:
            found = cls((int(by_lot[1]),), int(by_lot[2]))
        elif re.fullmatch(rf"{_SIZE}(,{_SIZE})*", text):
            found = cls(tuple(int(part) for part in text.split(",")))
        else:
            msg = (
                f'"{text}" is not a size of payloads: bytes ("200"), several in turn '
                '("100,1000"), or any between two ("50-5000")'
            )
            raise ScenarioError(msg)
        least, most = min(found.choices), max(*found.choices, found.most or 0)
        if least < HEADER_BYTES:
            msg = (
                f"a payload of {least} bytes is too small: the time when it was due, its publisher "
                f"and its number take {HEADER_BYTES}"
            )
            raise ScenarioError(msg)
        if most > MAX_SIZE or (found.most is not None and found.most < least):
            msg = f'"{text}": sizes go from the smaller to the larger, up to {MAX_SIZE} bytes'
            raise ScenarioError(msg)
        return found

    @property
    def mean(self) -> float:
        """The mean size of a payload, in bytes."""
        if self.most is not None:
            return (self.choices[0] + self.most) / 2
        return sum(self.choices) / len(self.choices)

    def of(self, number: int, random: Random) -> int:
        """Return the size of message `number`."""
        if self.most is not None:
            return random.randint(self.choices[0], self.most)
        return self.choices[number % len(self.choices)]
