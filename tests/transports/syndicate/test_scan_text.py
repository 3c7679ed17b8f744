"""Where a packet in text ends, compared with the library's parser."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.syndicate._preserves import decode_text, encode_text
from clearfunds.transports.syndicate._scan_text import TextScanner
from tests.transports.syndicate.preserves_values import values

relaxed = settings(deadline=None)


@relaxed
@given(st.lists(values), st.sampled_from(["", " ", "\n", "[]", "<a>", "\x84"]))
def test_the_end_of_a_packet_is_found_whatever_follows(value: Any, rest: str) -> None:
    data = encode_text(value).encode()
    assert TextScanner().find_end(data + rest.encode("latin-1"), 0) == len(data)
    scanner = TextScanner()
    for size in range(len(data)):
        assert scanner.find_end(data[:size], 0) is None
    assert scanner.find_end(data, 0) == len(data)


@pytest.mark.parametrize(
    "text",
    [
        '["]" \']\' #"]" #x"5d" #xd"3ff0000000000000" #[XQ==] "\\"]" \'\\\']\' a1]',
        "[1,2 , 3]",
        "{a:1 b : 2}",
        "#{1 2}",
        "[ # a comment ] \n 1]",
        "[#!a comment ]\n 1]",
        "[#\n1]",
        "@a []",
        "@a @b [@c 1 2]",
        "# comment\n# another\n[]",
        "[#:[0 1] #:#:[0 1]]",
        "@#:a []",
        "[#f#t]",
        "[a#f]",
        "<a<b>c>",
        "['' \"\"]",
        '["\\\\"]',
    ],
)
def test_the_library_reads_just_what_was_found(text: str) -> None:
    data = text.encode()
    for rest in (b"", b"]", b"[", b'"', b" 1"):
        assert TextScanner().find_end(data + rest, 0) == len(data)
    scanner = TextScanner()
    for size in range(len(data)):
        assert scanner.find_end(data[:size], 0) is None
    assert scanner.find_end(data, 0) == len(data)
    decode_text(text)


@pytest.mark.parametrize(
    "text",
    ["]", "[>", "<]", "[}", "[@]", "[#:]", "[@a]", "[;", "[(", "[#q", "[#xe", "[#x ", "[#)"],
)
def test_what_does_not_match_is_refused(text: str) -> None:
    scanner = TextScanner()
    for size in range(1, len(text)):
        assert scanner.find_end(text[:size].encode(), 0) is None
    with pytest.raises(RemoteProtocolError):
        scanner.find_end(text.encode(), 0)


@pytest.mark.parametrize(
    "text", ['["' + "x" * 4000, "[" + "x" * 4000, "[#[" + "x" * 4000, "# " * 9]
)
def test_what_was_looked_at_is_not_looked_at_again(text: str) -> None:
    data = text.encode()
    scanner = TextScanner()
    for size in range(1, len(data)):
        assert scanner.find_end(data[:size], 0) is None
    # Of what came before, at most the last two bytes matter by now.
    blank = b"\0" * (len(data) - 2) + data[-2:]
    assert scanner.find_end(blank, 0) is None
