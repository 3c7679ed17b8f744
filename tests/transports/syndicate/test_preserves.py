"""What is mended of the `preserves` library, and what of it everything here leans on."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clearfunds.transports import LocalProtocolError, RemoteProtocolError
from clearfunds.transports.syndicate import Embedded, Record, Symbol
from clearfunds.transports.syndicate._preserves import (
    canonical,
    decode_binary,
    decode_text,
    encode_binary,
    encode_text,
    entries_in_order,
    frozen,
    map_embedded,
    same,
)
from tests.transports.syndicate.preserves_values import alike, plain_values, texts

relaxed = settings(deadline=None)


@relaxed
@given(plain_values)
def test_values_come_back_from_binary_and_from_text(value: Any) -> None:
    assert alike(decode_binary(encode_binary(value)), value)
    assert alike(decode_text(encode_text(value)), value)
    assert alike(decode_binary(canonical(value)), value)


@relaxed
@given(texts | st.from_regex(r"[-+]?[0-9]+(\.[0-9]+)?([eE][0-9]+)?\n?", fullmatch=True))
@example("12")
@example("-1.5e3")
@example("1e9")
@example("a\n")
@example("")
@example("\u0661")
def test_every_symbol_comes_back_from_text(name: str) -> None:
    for value in (Symbol(name), Record(Symbol(name), [Symbol(name)]), {Symbol(name): Symbol(name)}):
        assert alike(decode_text(encode_text(value)), value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, -0.0, 1e300, 5e-324, 1e16])
def test_extreme_doubles_come_back(value: float) -> None:
    assert decode_text(encode_text(value)) == value
    assert canonical(decode_text(encode_text(value))) == canonical(value)
    assert decode_binary(encode_binary(value)) == value


def test_not_a_number_comes_back() -> None:
    assert math.isnan(decode_text(encode_text(math.nan)))


@pytest.mark.parametrize("value", [None, object(), "\ud800", [None], {1: object()}, 2**9000])
def test_what_is_no_value_is_a_local_error(value: Any) -> None:
    with pytest.raises(LocalProtocolError, match="not a Preserves value"):
        encode_binary(value)
    with pytest.raises(LocalProtocolError, match="not a Preserves value"):
        canonical(value)


def test_text_says_what_cannot_be_written() -> None:
    with pytest.raises(LocalProtocolError, match="not a Preserves value"):
        encode_text([None])
    with pytest.raises(LocalProtocolError, match="not a Preserves value"):
        encode_text(10**5000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "]",
        "[1 2",
        "1 2",
        "<>",
        "{1}",
        "{1:2 1:3}",
        "#{1 1}",
        "#q",
        '#x"0"',
        ";",
        "[" * 5000,
        "@" * 5000 + "1",
        "9" * 5000,
        '"\\q"',
        '"\\ud800"',
        '#"ሴ"',
    ],
    ids=lambda text: text[:10],
)
def test_bad_text_is_a_remote_error(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed Preserves"):
        decode_text(text)


@pytest.mark.parametrize("data", [b"", b"\xb5", b"\x80\x80", b"\xb1\x01\xff", b"\xb4\x84"])
def test_bad_bytes_are_a_remote_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed Preserves"):
        decode_binary(data)


def test_an_error_of_who_reads_a_reference_is_let_through() -> None:
    def refuse(value: Any) -> Any:
        raise KeyError(value)

    with pytest.raises(KeyError):
        decode_binary(b"\x86\x80", refuse)


@relaxed
@given(plain_values, plain_values)
def test_values_are_the_same_if_their_canonical_forms_are(one: Any, other: Any) -> None:
    assert same(one, other) is (canonical(one) == canonical(other))
    assert same(one, decode_binary(encode_binary(one)))


def test_one_and_true_and_one_point_oh_are_three() -> None:
    ones: list[Any] = [1, True, 1.0, Symbol("1"), "1", b"1"]
    for i, one in enumerate(ones):
        for j, other in enumerate(ones):
            assert same(one, other) is (i == j)
            assert same([one], [other]) is (i == j)


def test_the_order_of_keys_is_that_of_preserves() -> None:
    keys: list[Any] = [True, -2.5, -1, 2, 256, "aa", "b", b"a", Symbol("a"), Record("a", ()), (1,)]
    mapping = {key: str(key) for key in reversed(keys)}
    assert [key for key, _ in entries_in_order(mapping)] == keys


def test_frozen_values_can_be_hashed_and_are_the_same() -> None:
    value = {"a": [1, {2}, {"b": [3]}], "c": Record(Symbol("r"), ([4],))}
    assert alike(frozen(value), value)
    hash(frozen(value))


def test_references_are_replaced_wherever_they_stand() -> None:
    one = Embedded(1)
    value = (one, Record(one, [one]), {one: one}, frozenset([one]))
    two = Embedded(2)
    assert map_embedded(lambda n: Embedded(n + 1), value) == (
        two,
        Record(two, [two]),
        {two: two},
        frozenset([two]),
    )


def test_the_base_package_does_without_the_library() -> None:
    code = (
        "import sys, clearfunds, clearfunds.transports, clearfunds.transports.mqtt\n"
        "print('preserves' in sys.modules)\n"
        "import clearfunds.transports.syndicate\n"
        "print('preserves' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\nTrue\n"
