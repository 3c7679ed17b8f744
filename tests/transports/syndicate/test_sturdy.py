"""Sturdyrefs and what their caveats let through."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.transports import LocalProtocolError, RemoteProtocolError
from clearfunds.transports.syndicate import (
    Embedded,
    Record,
    Refusal,
    SturdyRef,
    Symbol,
    attenuate_value,
    attenuated_sturdyref,
    compile_caveat,
    compile_caveats,
    is_genuine,
    mint,
    parse_sturdyref,
    read_sturdyref,
    sturdyref_value,
)
from clearfunds.transports.syndicate._preserves import canonical, decode_text, encode_text
from clearfunds.transports.syndicate._sturdy import DEFAULT_MAX_CAVEATS_SIZE, max_attenuated_size
from tests.transports.syndicate.preserves_values import alike, plain_values

relaxed = settings(deadline=None)


def no_attenuation(entity: Any, caveats: tuple[Any, ...]) -> Any:
    raise AssertionError((entity, caveats))


def run(caveats: str, value: str) -> str | None:
    """Return what caveats in text make of a value in text."""
    compiled = compile_caveats(decode_text(caveats))
    result = attenuate_value(compiled, decode_text(value), no_attenuation)
    return None if result is None else encode_text(result)


# -- signatures ---------------------------------------------------------------------------------


def test_the_signature_that_is_known() -> None:
    # What syndicate-server makes for the examples' key.
    ref = mint("syndicate", b"")
    assert ref.sig.hex() == "69ca300c1dbfa08fba692102dd82311a"
    assert str(ref) == '<ref {oid: "syndicate" sig: #[acowDB2/oI+6aSEC3YIxGg==]}>'
    assert is_genuine(ref, b"")


def test_the_chain_is_as_specified() -> None:
    def f(key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, hashlib.blake2s).digest()[:16]

    one, two = decode_text("<reject <_>>"), decode_text("<reject <lit {b: 1 a: 2}>>")
    ref = mint(Symbol("x"), b"key", [one, two])
    assert ref.sig == f(f(f(b"key", canonical(Symbol("x"))), canonical(one)), canonical(two))
    assert (
        attenuated_sturdyref(attenuated_sturdyref(mint(Symbol("x"), b"key"), [one]), [two]) == ref
    )


@relaxed
@given(plain_values, st.binary(), st.integers(0, 3), st.binary(min_size=1, max_size=3))
def test_only_the_key_makes_it_genuine(oid: Any, key: bytes, n: int, other: bytes) -> None:
    caveats = [decode_text(f"<reject <lit {i}>>") for i in range(n)]
    ref = read_sturdyref(str(mint(oid, key, caveats)))
    assert is_genuine(ref, key)
    assert not is_genuine(ref, key + b"\1")
    assert not is_genuine(SturdyRef([ref.oid], ref.sig, ref.caveats), key)
    assert not is_genuine(SturdyRef(ref.oid, ref.sig + other, ref.caveats), key)
    assert not is_genuine(SturdyRef(ref.oid, ref.sig[:-1], ref.caveats), key)
    assert not is_genuine(SturdyRef(ref.oid, b"", ref.caveats), key)
    if n:
        assert not is_genuine(SturdyRef(ref.oid, ref.sig, ref.caveats[1:]), key)
        assert not is_genuine(SturdyRef(ref.oid, ref.sig, ref.caveats[:-1]), key)
        assert is_genuine(attenuated_sturdyref(ref, caveats), key)


def test_a_reference_cannot_be_signed() -> None:
    with pytest.raises(LocalProtocolError, match="reference in it"):
        mint(Embedded(1), b"")
    with pytest.raises(LocalProtocolError, match="reference in it"):
        mint("x", b"", [decode_text("<reject <lit #:1>>")])
    assert not is_genuine(SturdyRef(Embedded(1), b"x" * 16), b"")
    assert not is_genuine(SturdyRef("x", b"x" * 16, (Embedded(1),)), b"")


def test_what_lets_nothing_through_is_not_minted() -> None:
    with pytest.raises(LocalProtocolError, match="no caveat is called 'expires'"):
        mint("x", b"", [decode_text("<expires 2030>")])


def test_the_form_on_the_wire() -> None:
    caveat = decode_text("<reject <_>>")
    for ref in (mint("a", b"k"), mint("a", b"k", [caveat])):
        assert parse_sturdyref(sturdyref_value(ref)) == ref
        assert read_sturdyref(str(ref)) == ref
    assert "caveats" not in str(mint("a", b"k"))
    more = '<ref {sig: #x"00" oid: a more: 1 caveats: []}>'
    assert read_sturdyref(more) == SturdyRef(Symbol("a"), b"\0")


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "<ref>",
        "<ref 1>",
        "<ref {}>",
        "<ref {oid: 1}>",
        '<ref {sig: #x"00"}>',
        '<ref {oid: 1 sig: "x"}>',
        '<ref {oid: 1 sig: #x"00" caveats: 1}>',
        '<ref {oid: 1 sig: #x"00"} 1>',
        '<ref2 {oid: 1 sig: #x"00"}>',
        "[",
    ],
)
def test_what_is_no_sturdyref(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        read_sturdyref(text)


# -- caveats ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("<_>", ["1", "[]", "#:1"], []),
        ("Boolean", ["#t", "#f"], ["1", "t"]),
        ("SignedInteger", ["1", "-1"], ["#t", "1.0"]),
        ("Double", ["1.0"], ["1"]),
        ("String", ['"a"'], ["a", '#"a"']),
        ("ByteString", ['#"a"'], ['"a"']),
        ("Symbol", ["a"], ['"a"']),
        ("Embedded", ["#:1"], ["1"]),
        ("<lit 1>", ["1"], ["1.0", "#t", "2"]),
        ("<lit [1 {a: b}]>", ["[1 {a: b}]"], ["[1 {a: c}]", "[#t {a: b}]"]),
        ("<bind <lit 1>>", ["1"], ["2"]),
        ("<not <lit 1>>", ["2"], ["1"]),
        ("<and [SignedInteger <not <lit 1>>]>", ["2"], ["1", '"2"']),
        ("<and []>", ["1"], []),
        ("<rec a [<_>]>", ["<a 1>"], ["<a>", "<a 1 2>", "<b 1>", "[1]", '<"a" 1>']),
        ("<rec [1] []>", ["<[1]>"], ["<[2]>", "<[#t]>"]),
        ("<arr [<lit 1> <_>]>", ["[1 2]"], ["[1]", "[2 2]", "[1 2 3]", "<1 2>", "#{1 2}"]),
        ("<dict {a: <lit 1>}>", ["{a: 1}", "{a: 1 b: 2}"], ["{}", "{a: 2}", "[a 1]"]),
        ("<dict {1: <_>}>", ["{1: 1}"], ["{#t: 1}", "{1.0: 1}"]),
        ("<dict {#t: <_>}>", ["{#t: 1}"], ["{1: 1}"]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    for value in yes:
        assert alike(decode_text(run(f"[<rewrite {pattern} <lit ok>>]", value) or ""), Symbol("ok"))
        assert run(f"[<reject {pattern}>]".replace("<bind <lit 1>>", "<lit 1>"), value) is None
    for value in no:
        assert run(f"[<rewrite {pattern} <lit ok>>]", value) is None
        assert run(f"[<reject {pattern}>]", value) == encode_text(decode_text(value))


@pytest.mark.parametrize(
    ("caveat", "value", "result"),
    [
        ("<rewrite <bind <_>> <ref 0>>", "[1 2]", "[1 2]"),
        (
            "<rewrite <bind <arr [<bind <_>> <bind <_>>]>> <arr [<ref 2> <ref 1> <ref 0>]>>",
            "[1 2]",
            "[2 1 [1 2]]",
        ),
        (
            "<rewrite <rec Says [<_> <bind String>]> <rec Says [<lit anon> <ref 0>]>>",
            '<Says tony "hi">',
            '<Says anon "hi">',
        ),
        (
            "<rewrite <and [<arr [<bind <_>>]> <bind <_>>]> <dict {a: <ref 0> b: <ref 1>}>>",
            "[1]",
            "{a: 1 b: [1]}",
        ),
        # Bindings of a mapping are numbered in the order of Preserves, not as they are written.
        (
            (
                "<rewrite <dict {256: <bind <_>> b: <bind <_>> aa: <bind <_>> -1: <bind <_>>}>"
                " <arr [<ref 0> <ref 1> <ref 2> <ref 3>]>>"
            ),
            "{-1: 0 256: 1 aa: 2 b: 3}",
            "[0 1 2 3]",
        ),
        ("<rewrite <_> <lit <a {b: #{1}}>>>", "1", "<a {b: #{1}}>"),
        ("<or [<rewrite <lit 1> <lit one>> <rewrite <bind <_>> <ref 0>>]>", "1", "one"),
        ("<or [<rewrite <lit 1> <lit one>> <rewrite <bind <_>> <ref 0>>]>", "2", "2"),
        ("<or [<rewrite <lit 1> <lit one>> <rewrite <lit 2> <lit two>>]>", "3", None),
        ("<or []>", "1", None),
    ],
)
def test_rewrites(caveat: str, value: str, result: str | None) -> None:
    assert run(f"[{caveat}]", value) == result


def test_bindings_of_an_alternative_that_did_not_match_are_forgotten() -> None:
    caveat = (
        "<or [<rewrite <arr [<bind <_>> <lit 1>]> <ref 0>>"
        "     <rewrite <arr [<_> <bind <_>>]> <ref 0>>]>"
    )
    assert run(f"[{caveat}]", "[a 2]") == "2"


def test_caveats_are_run_from_the_right() -> None:
    wrap = "<rewrite <bind <_>> <arr [<ref 0>]>>"
    only_three = "<rewrite <bind <lit 3>> <ref 0>>"
    assert run(f"[{wrap} {only_three}]", "3") == "[3]"
    assert run(f"[{only_three} {wrap}]", "3") is None
    assert run("[]", "3") == "3"


@pytest.mark.parametrize(
    "caveat",
    [
        "1",
        "<expires 2030>",
        "<rewrite <_>>",
        "<rewrite <_> <lit 1> 2>",
        "<rewrite 1 <lit 1>>",
        "<rewrite <_> 1>",
        "<rewrite <_> <ref 0>>",
        "<rewrite <bind <_>> <ref 1>>",
        "<rewrite <bind <_>> <ref -1>>",
        "<rewrite <bind <_>> <ref #f>>",
        "<rewrite <bind <_>> <arr [<ref 0> <ref 1>]>>",
        "<rewrite <not <bind <_>>> <lit 1>>",
        "<rewrite <lit> <lit 1>>",
        "<rewrite <arr <_>> <lit 1>>",
        "<rewrite <rec a> <lit 1>>",
        "<rewrite <dict []> <lit 1>>",
        "<rewrite <and <_>> <lit 1>>",
        "<rewrite Float <lit 1>>",
        '<rewrite "String" <lit 1>>',
        "<rewrite <bind <_>> <attenuate <ref 0> [<expires 1>]>>",
        "<rewrite <bind <_>> <attenuate <ref 0> 1>>",
        "<or <rewrite <_> <lit 1>>>",
        "<or [<reject <_>>]>",
        "<or [<rewrite <_> <lit 1>> 1]>",
        "<reject>",
        "<reject 1>",
        '<"reject" <lit 2>>',
    ],
)
def test_what_is_unknown_or_makes_no_sense_lets_nothing_through(caveat: str) -> None:
    assert isinstance(compile_caveat(decode_text(caveat)), Refusal)
    assert run(f"[{caveat}]", "1") is None
    assert run(f"[<rewrite <bind <_>> <ref 0>> {caveat}]", "1") is None
    with pytest.raises(LocalProtocolError, match="lets nothing through"):
        mint("x", b"", [decode_text(caveat)])


def test_a_template_can_attenuate_a_reference() -> None:
    caveat = decode_text(
        "<rewrite <arr [<bind <_>>]> <arr [<attenuate <ref 0> [<reject <lit 1>>]>]>>"
    )
    made: list[tuple[Any, tuple[Any, ...]]] = []

    def attenuate(entity: Any, caveats: tuple[Any, ...]) -> Any:
        made.append((entity, caveats))
        return "less"

    compiled = compile_caveats([caveat])
    result = attenuate_value(compiled, (Embedded("all"),), attenuate)
    assert result == (Embedded("less"),)
    assert made == [("all", (decode_text("<reject <lit 1>>"),))]
    assert attenuate_value(compiled, ("no reference",), attenuate) is None
    assert len(made) == 1


# -- limits -------------------------------------------------------------------------------------


def test_a_chain_of_copies_is_cut_short() -> None:
    # Each doubles what it is given: fifty of them would make it 2**50 times as large.
    double = "<rewrite <bind <_>> <arr [<ref 0> <ref 0>]>>"
    assert run(f"[{double * 10}]", "1") is not None
    # (Not fifty here: were they let through, nothing would ever come of writing down the result.)
    many = compile_caveats(decode_text(f"[{double * 22}]"))
    assert attenuate_value(many, 1, no_attenuation) is None
    caveats = compile_caveats(decode_text(f"[{double}]"))
    assert attenuate_value(caveats, "x" * 100, no_attenuation, max_size=203) is not None
    assert attenuate_value(caveats, "x" * 100, no_attenuation, max_size=202) is None


def test_what_becomes_of_a_message_is_in_proportion_to_it() -> None:
    """Or each message of a few bytes would be megabytes of work, which others may pay for."""
    assert max_attenuated_size(0) == DEFAULT_MAX_CAVEATS_SIZE == 16 << 10
    assert max_attenuated_size(1 << 20) == (16 << 10) + (4 << 20)
    for size in (10, 10_000):
        value = "x" * size
        for copies in (1, 4, 5, 100, 2_000, 5_000):
            repeat = decode_text(f"[<rewrite <bind <_>> <arr [{'<ref 0> ' * copies}]>>]")
            caveats = compile_caveats(repeat, max_size=1 << 20)
            most = max_attenuated_size(size)
            found = attenuate_value(caveats, value, no_attenuation, max_size=most)
            assert (found is not None) is (1 + copies * (1 + size) <= most), (size, copies)


def test_a_chain_of_wraps_is_cut_short() -> None:
    wrap = "<rewrite <bind <_>> <arr [<ref 0>]>>"
    assert run(f"[{wrap * 60}]", "1") is not None
    assert run(f"[{wrap * 70}]", "1") is None


def test_many_caveats_are_one_refusal() -> None:
    many = [decode_text(f'<reject <lit "{n:0100}">>') for n in range(200)]
    assert not isinstance(compile_caveats(many[:100])[0], Refusal)
    assert isinstance(compile_caveats(many)[0], Refusal)
    assert len(compile_caveats(many, max_size=1 << 20)) == 200
    assert isinstance(compile_caveats([b"x" * 100], max_size=50)[0], Refusal)


def test_what_cannot_be_compared_is_refused() -> None:
    entities = frozenset([Embedded(object()), Embedded(object())])
    caveat = compile_caveats([decode_text("<reject <lit 1>>")])
    assert attenuate_value(caveat, entities, no_attenuation) == entities
    literal = Record(Symbol("reject"), [Record(Symbol("lit"), [entities])])
    assert attenuate_value(compile_caveats([literal]), entities, no_attenuation) is None
