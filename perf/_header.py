"""The header of each payload, by which the generator recognises its messages.

    8 bytes  the time when the message was due, in nanoseconds of the chosen clock
    2 bytes  the run: another generator may publish to the same topics
    2 bytes  the number of its publisher
    4 bytes  the number of its topic, among its publisher's topics
    8 bytes  the number of messages that its publisher had published to the topic before

Big-endian. The rest of the payload has no meaning.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER: Final = struct.Struct(">QHHIQ")

HEADER_BYTES: Final = HEADER.size
