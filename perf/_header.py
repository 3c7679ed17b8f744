"""What the generator has in each payload, to know it again.

    8 bytes  when the message was due, in nanoseconds of the clock that was chosen
    2 bytes  which run it is of: another generator may publish to the same topics
    2 bytes  whose it is: the number of its publisher
    4 bytes  the number of its topic, of those that its publisher has
    8 bytes  how many messages this publisher has published to this topic before

Big-endian. What comes after it is of no meaning.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER: Final = struct.Struct(">QHHIQ")

HEADER_BYTES: Final = HEADER.size
