"""The fixed header of an MQTT packet: one byte of type and flags, then the remaining length.

The remaining length is a base-128 number, least significant group first, in one to four bytes
(MQTT 3.1.1, section 2.2.3). These helpers work on `bytes` at an offset, to parse a stream in place.
"""

from ..._errors import LocalProtocolError, RemoteProtocolError

#: The largest remaining length that fits four bytes (section 2.2.3): 256 MiB - 1.
MAX_REMAINING_LENGTH = 268_435_455

#: Largest packet accepted by default, fixed header included. The wire format allows 256 MiB, and
#: one connection could make this process hold that; EMQX allows 1 MiB by default. 2 MiB lets
#: payloads of a whole MiB pass with their headers.
DEFAULT_MAX_PACKET_SIZE = 2 << 20


class OversizedPacketError(RemoteProtocolError):
    """A packet is larger than accepted here; MQTT 5 has its own reason code for that."""


#: The types of packets, by the upper half of their first byte (section 2.2.1).
KIND_NAMES = (
    "reserved type 0",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "reserved type 15",
)

# First bytes, for code that looks at packets without decoding them; a PUBLISH also has flags.
PUBLISH = 0x30
PUBACK = 0x40
PUBREC = 0x50
PUBREL = 0x62
PUBCOMP = 0x70
SUBSCRIBE = 0x82
PINGREQ = 0xC0
DISCONNECT = 0xE0
AUTH = 0xF0  # of MQTT 5; section 3.15 there

# The flags of a PUBLISH (section 3.3.1).
RETAIN = 0x01
QOS_1 = 0x02
QOS_2 = 0x04
DUP = 0x08

_ONE_BYTE_LENGTHS = tuple(bytes([n]) for n in range(128))


def encode_remaining_length(length: int) -> bytes:
    """Encode `length` in as few bytes as possible.

    Raises:
        LocalProtocolError: if it does not fit into four bytes.
    """
    if 0 <= length < 128:
        return _ONE_BYTE_LENGTHS[length]
    if not 0 <= length <= MAX_REMAINING_LENGTH:
        raise LocalProtocolError(
            f"a packet of {length} bytes cannot be sent: the remaining length goes up to "
            f"{MAX_REMAINING_LENGTH} (section 2.2.3); send a smaller payload"
        )
    encoded = bytearray()
    while length >= 128:
        encoded.append(length & 127 | 128)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def find_frame(
    buffer: bytes, position: int, max_packet_size: int = MAX_REMAINING_LENGTH + 5
) -> tuple[int, int] | None:
    """Find the start and the end of the body of the packet at `position`.

    The end may lie beyond the end of `buffer`: then the rest of the packet has not come yet.

    Returns:
        (start of the body, end of the packet), or None while the fixed header is incomplete.

    Raises:
        OversizedPacketError: if the packet, fixed header included, is larger than
            `max_packet_size`.
        RemoteProtocolError: if the remaining length takes more than four bytes (section 2.2.3).
    """
    available = len(buffer)
    at = position + 1
    if at >= available:
        return None
    length = buffer[at]
    at += 1
    if length >= 128:
        length &= 127
        for shift in (7, 14, 21):
            if at >= available:
                return None
            group = buffer[at]
            at += 1
            length |= (group & 127) << shift
            if group < 128:
                break
        else:
            raise RemoteProtocolError(
                "the remaining length takes more than four bytes (section 2.2.3); "
                "this is not an MQTT packet"
            )
    end = at + length
    if end - position > max_packet_size:
        raise OversizedPacketError(
            f"a packet of {end - position} bytes is announced, at most {max_packet_size} are "
            "accepted here; send smaller payloads or raise the limit on the packet size"
        )
    return at, end


def body_of(packets: bytes, position: int) -> tuple[int, int]:
    """Find the start and the end of the body of a whole packet at `position`."""
    at = position + 1
    length = packets[at]
    at += 1
    if length >= 128:
        length &= 127
        shift = 7
        while True:
            group = packets[at]
            at += 1
            length |= (group & 127) << shift
            if group < 128:
                break
            shift += 7
    return at, at + length
