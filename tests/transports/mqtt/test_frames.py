"""The fixed header: lengths at the borders of their encodings, incomplete, too large."""

import pytest

from clearfunds.transports import LocalProtocolError, RemoteProtocolError
from clearfunds.transports.mqtt.codec._frames import (
    MAX_REMAINING_LENGTH,
    encode_remaining_length,
    find_frame,
)

# Table 2.4: the smallest and the largest length of each size.
BORDERS = {
    0: "00",
    127: "7f",
    128: "8001",
    16_383: "ff7f",
    16_384: "808001",
    2_097_151: "ffff7f",
    2_097_152: "80808001",
    268_435_455: "ffffff7f",
}


@pytest.mark.parametrize(("length", "wire"), BORDERS.items())
def test_lengths_at_the_borders(length: int, wire: str) -> None:
    encoded = bytes.fromhex(wire)
    assert encode_remaining_length(length) == encoded
    junk = b"junk"
    header = junk + b"\x30" + encoded
    start = len(header)
    assert find_frame(header, len(junk)) == (start, start + length)
    for cut in range(len(junk), start):
        assert find_frame(header[:cut], len(junk)) is None


@pytest.mark.parametrize("length", [-1, MAX_REMAINING_LENGTH + 1])
def test_lengths_that_cannot_be_said(length: int) -> None:
    with pytest.raises(LocalProtocolError, match=str(length)):
        encode_remaining_length(length)


def test_a_length_may_be_padded() -> None:
    # MQTT 5 forbids it, 3.1.1 does not.
    assert find_frame(b"\xc0\x80\x80\0", 0) == (4, 4)


def test_a_fifth_byte_of_length_is_refused_before_it_comes() -> None:
    with pytest.raises(RemoteProtocolError, match="more than four bytes"):
        find_frame(b"\x30\xff\xff\xff\xff", 0)


def test_the_limit_counts_the_whole_packet() -> None:
    assert find_frame(b"\x30\x62", 0, 100) == (2, 100)
    with pytest.raises(RemoteProtocolError, match="101 bytes is announced, at most 100"):
        find_frame(b"\x30\x63", 0, 100)
