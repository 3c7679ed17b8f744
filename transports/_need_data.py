"""The result of the protocols' cores when their input holds no further whole packet."""

from __future__ import annotations

import enum
from typing import Final, Literal, TypeAlias


class NeedData(enum.Enum):
    """The type of `NEED_DATA`, an enum so that type checkers narrow on `is NEED_DATA`."""

    NEED_DATA = "NEED_DATA"

    def __repr__(self) -> str:
        return "NEED_DATA"


#: The result when the input holds no further whole packet.
NEED_DATA: Final = NeedData.NEED_DATA

NeedDataType: TypeAlias = Literal[NeedData.NEED_DATA]
"""For annotations."""
