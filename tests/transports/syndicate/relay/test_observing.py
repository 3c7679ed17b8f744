"""What concerns whom: patterns, captures, and assertions as a bag, over the wire."""

from __future__ import annotations

import pytest

from clearfunds.transports.syndicate._preserves import decode_text
from tests.transports.peers import until
from tests.transports.syndicate.relay.peers import (
    BIND,
    WHOLE_SAYS,
    flat,
    observe,
    rec,
    relay,
    text_of,
    wire,
)

LIT_2 = "<lit 2>"


def arr(*parts: str) -> str:
    entries = " ".join(f"{n}: {part}" for n, part in enumerate(parts) if part)
    return f"<group <arr> {{{entries}}}>"


def dictionary(**parts: str) -> str:
    return f"<group <dict> {{{' '.join(f'{key}: {part}' for key, part in parts.items())}}}>"


def shown(text: str) -> str:
    """How `Peer.told` writes a value."""
    return text_of(decode_text(text))


# Each: a pattern, a value, and what is captured of it; None if it does not match.
PATTERNS: list[tuple[str, str, str | None]] = [
    # Whatever it is, but in a box: observers are assertions, too.
    (rec("box", "<_>"), "<box 17>", "[]"),
    (rec("box", BIND), "<box 17>", "[17]"),
    (rec("box", BIND), "<box <a b [c]>>", "[<a b [c]>]"),
    (rec("box", BIND), "<box #{1 2}>", "[#{1 2}]"),
    (rec("box", BIND), "<box {a: 1 b: 2}>", "[{a: 1 b: 2}]"),
    # The outer before the inner, and depth first.
    (rec("box", "<bind <bind <_>>>"), "<box 7>", "[7 7]"),
    ("<bind <lit 7>>", "7", "[7]"),
    ("<bind <lit 7>>", "8", None),
    (f"<bind {rec('r', BIND, BIND)}>", "<r 1 2>", "[<r 1 2> 1 2]"),
    (
        f"<bind {rec('r', f'<bind {arr(BIND, BIND)}>', BIND)}>",
        "<r [1 2] 3>",
        "[<r [1 2] 3> [1 2] 1 2 3]",
    ),
    (rec("r", "", BIND), "<r 1 2>", "[2]"),
    # Constants of all types, and none that is equal only to Python.
    ("<lit 1>", "1", "[]"),
    ("<lit 1>", "#t", None),
    ("<lit 1>", "1.0", None),
    ("<lit #t>", "#t", "[]"),
    ("<lit #t>", "1", None),
    ("<lit #f>", "#f", "[]"),
    ("<lit #f>", "0", None),
    ("<lit 0>", "#f", None),
    ("<lit 1.0>", "1.0", "[]"),
    ("<lit 1.0>", "1", None),
    ("<lit -1.5>", "-1.5", "[]"),
    ('<lit "a">', '"a"', "[]"),
    ('<lit "a">', "a", None),
    ('<lit "a">', '#"a"', None),
    ("<lit a>", "a", "[]"),
    ("<lit a>", '"a"', None),
    ('<lit #"a">', '#"a"', "[]"),
    ('<lit #"a">', '"a"', None),
    ('<lit "">', '""', "[]"),
    ('<lit "">', '#""', None),
    ("<lit 123456789012345678901234567890>", "123456789012345678901234567890", "[]"),
    ("<lit -129>", "-129", "[]"),
    ("<lit -129>", "127", None),
    # ... within something, too, where another table keeps them.
    (arr("<lit 1>", BIND), "[1 x]", "[x]"),
    (arr("<lit 1>", BIND), "[#t x]", None),
    (arr("<lit 1>", BIND), "[1.0 x]", None),
    (arr("<lit #t>", BIND), "[1 x]", None),
    (arr("<lit #t>", BIND), "[#t x]", "[x]"),
    (rec("r", "<lit 0>"), "<r #f>", None),
    (rec("r", "<lit 0>"), "<r 0.0>", None),
    (rec("r", '<lit "s">', "<lit s>", '<lit #"s">'), '<r "s" s #"s">', "[]"),
    (rec("r", '<lit "s">', "<lit s>", '<lit #"s">'), '<r s "s" #"s">', None),
    # Records: by their label; more fields match, fewer do not.
    (rec("r"), "<r>", "[]"),
    (rec("r"), "<r 1 2 3>", "[]"),
    (rec("r"), "<s 1 2 3>", None),
    (rec("r"), "[1 2 3]", None),
    (rec("r"), "r", None),
    (rec("r", BIND), "<r>", None),
    (rec("r", BIND), "<r 1 2>", "[1]"),
    (rec("r", "", "<_>"), "<r 1>", None),
    (rec("r", "", "<_>"), "<r 1 2>", "[]"),
    (rec("r", "", "<_>"), "<r 1 2 3>", "[]"),
    (rec("r", "<_>", LIT_2), "<r 1 2 3>", "[]"),
    (rec("r", "<_>", LIT_2), "<r 2 1 3>", None),
    # Labels that are no symbols.
    (rec("1", BIND), "<1 x>", "[x]"),
    (rec("1", BIND), "<#t x>", None),
    (rec("#t", BIND), "<#t x>", "[x]"),
    (rec('"r"', BIND), '<"r" x>', "[x]"),
    (rec('"r"', BIND), "<r x>", None),
    (rec("[1 2]", BIND), "<[1 2] x>", "[x]"),
    (rec("[1 2]", BIND), "<[1 3] x>", None),
    (rec("<a b>", BIND), "<<a b> x>", "[x]"),
    (rec("<a b>", BIND), "<<a c> x>", None),
    (rec("{a: 1 b: 2}", BIND), "<{b: 2 a: 1} x>", "[x]"),
    (rec("a" * 200, BIND), f"<{'a' * 200} x>", "[x]"),
    # Sequences.
    (arr(), "[]", "[]"),
    (arr(), "[1 2]", "[]"),
    (arr(), "<r>", None),
    (arr(), "#{}", None),
    (arr(), "{}", None),
    (arr(BIND), "[]", None),
    (arr("", BIND), "[1 2 3]", "[2]"),
    (arr(arr(arr(BIND))), "[[[5]]]", "[5]"),
    (arr(arr(arr(BIND))), "[[5]]", None),
    ("<group <arr> {10: <bind <_>>}>", "[0 1 2 3 4 5 6 7 8 9 10]", "[10]"),
    ("<group <arr> {10: <bind <_>>}>", "[0 1 2 3 4 5 6 7 8 9]", None),
    # Dictionaries: by keys of any type; in the order of the keys, as Preserves has it.
    (dictionary(), "{}", "[]"),
    (dictionary(), "{a: 1}", "[]"),
    (dictionary(), "[]", None),
    (dictionary(a=BIND), "{a: 1}", "[1]"),
    (dictionary(a=BIND), "{a: 1 b: 2}", "[1]"),
    (dictionary(a=BIND), "{b: 2}", None),
    (dictionary(a=BIND), '{"a": 1}', None),
    (dictionary(b=BIND, a=BIND), "{b: 2 a: 1}", "[1 2]"),
    (dictionary(a=LIT_2), "{a: 2}", "[]"),
    (dictionary(a=LIT_2), "{a: 1}", None),
    ("<group <dict> {1: <bind <_>>}>", "{1: x}", "[x]"),
    ("<group <dict> {1: <bind <_>>}>", "{#t: x}", None),
    ("<group <dict> {1: <bind <_>>}>", "{1.0: x}", None),
    ("<group <dict> {#t: <bind <_>>}>", "{#t: x}", "[x]"),
    ("<group <dict> {#t: <bind <_>>}>", "{1: x}", None),
    ("<group <dict> {1.0: <bind <_>>}>", "{1.0: x}", "[x]"),
    ("<group <dict> {1.0: <bind <_>>}>", "{1: x}", None),
    ("<group <dict> {-1: <bind <_>>}>", "{-1: x}", "[x]"),
    ('<group <dict> {"s": <bind <_>> s: <bind <_>>}>', '{s: 1 "s": 2}', "[2 1]"),
    ('<group <dict> {#"s": <bind <_>>}>', '{#"s": 1}', "[1]"),
    ("<group <dict> {[1 #t]: <bind <_>>}>", "{[1 #t]: x}", "[x]"),
    ("<group <dict> {[1 #t]: <bind <_>>}>", "{[1 1]: x}", None),
    ("<group <dict> {b: <bind <_>> 2: <bind <_>> a: <bind <_>>}>", "{a: x b: y 2: z}", "[z x y]"),
    # One in another.
    (rec("r", dictionary(a=arr("", BIND)), BIND), "<r {a: [1 2]} 3>", "[2 3]"),
    (rec("r", dictionary(a=arr("", BIND)), BIND), "<r {a: [1]} 3>", None),
    (rec("r", rec("s", BIND)), "<r <s <t>>>", "[<t>]"),
    (rec("r", rec("s", BIND)), "<r <t <t>>>", None),
    # Nothing that can be looked into.
    (rec("r", arr()), "<r #{1}>", None),
    (rec("r", BIND), "<r #{1 [2] {3: 4}}>", "[#{1 [2] {3: 4}}]"),
]


@pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])
@pytest.mark.parametrize(("pattern", "value", "captures"), PATTERNS)
async def test_what_a_pattern_says(
    pattern: str, value: str, captures: str | None, text: bool
) -> None:
    """Of messages and of assertions, of those that stand already and of those that come."""
    told = captures and shown(captures)
    async with (
        relay() as served,
        served.peer(text=text) as publisher,
        served.peer(text=text) as observer,
        served.peer(text=text) as late,
    ):
        await observer.send(observe(pattern))
        await observer.sync()
        await publisher.send(f"[[0 <M {value}>]]", f"[[0 <A {value} 1>]]")
        await publisher.sync()
        assert await observer.sync() == ([[f"1 ! {told}"], [f"1 + {told}"]] if told else [])
        await late.send(observe(pattern))
        assert await late.sync() == ([[f"1 + {told}"]] if told else [])
        await publisher.send("[[0 <R 1>]]", f"[[0 <M {value}>]]", f"[[0 <M {value}>]]")
        await publisher.sync()
        for peer in observer, late:
            found = [[f"1 - {told}"], [f"1 ! {told}"], [f"1 ! {told}"]]
            assert await peer.sync() == (found if told else [])


async def test_text_and_binary_meet() -> None:
    """What one says in text the other is told in binary, and the other way round."""
    async with (
        relay() as served,
        served.peer(text=True) as one,
        served.peer() as other,
    ):
        await one.send(observe(WHOLE_SAYS))
        await one.sync()
        await other.send(observe(WHOLE_SAYS))
        await other.sync()
        value = '<Says "a" #"b" c -1 1.5 [#t] {k: #f} #{1}>'
        for number, peer in enumerate((one, other)):
            await peer.send(f"[[0 <M {value}>] [0 <A {value} {number + 5}>]]")
            expected = [f"1 ! {shown(f'[{value}]')}", *([f"1 + {shown(f'[{value}]')}"][number:])]
            assert await one.told() == expected
            assert await other.told() == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "17",
        "<__>",
        "<_ 1>",
        "<bind>",
        "<bind 1>",
        "<lit>",
        "<lit [1]>",
        "<lit {}>",
        "<lit #{}>",
        "<lit <r>>",
        "<group>",
        "<group <arr>>",
        "<group <arr> []>",
        "<group arr {}>",
        "<group <tuple> {}>",
        "<group <rec> {}>",
        "<group <arr> {a: <_>}>",
        "<group <arr> {-1: <_>}>",
        "<group <rec r> {#t: <_>}>",
        "<group <arr> {0: 1}>",
        "<group <dict> {#:[0 1]: <_>}>",
    ],
)
async def test_what_is_no_pattern_cannot_be_observed(pattern: str) -> None:
    async with relay() as served, served.peer() as peer, served.peer() as other:
        await peer.send(observe(BIND, 2, 7), observe(pattern))
        why, turns = await peer.refused()
        assert "pattern" in why or "group" in why or "lit" in why or "keys" in why
        assert len(turns) <= 1
        assert await other.sync() == []
        assert served.side.counters.protocol_errors == 1


@pytest.mark.parametrize("value", ["<Observe>", "<Observe 1 2>", "<Observe <_>>", "[Observe]"])
async def test_what_only_looks_like_observing_is_an_assertion(value: str) -> None:
    async with relay() as served, served.peer() as peer, served.peer() as other:
        await other.send(observe(BIND))
        await other.sync()
        await peer.send(f"[[0 <A {value} 7>]]")
        await peer.sync()
        assert served.statistics.observations == 1
        assert f"1 + [{value}]" in flat(await other.sync())


# -- a bag --------------------------------------------------------------------------------------


async def test_equal_assertions_appear_once_and_go_once() -> None:
    async with (
        relay() as served,
        served.peer() as one,
        served.peer() as two,
        served.peer() as observer,
    ):
        await observer.send(observe(WHOLE_SAYS))
        await observer.sync()
        await one.send("[[0 <A <Says 1> 1>]]", "[[0 <A <Says 1> 2>]]")
        await one.sync()
        await two.send("[[0 <A <Says 1> 1>]]")
        await two.sync()
        assert served.statistics.assertions == 2  # with <Observe ...>
        await one.send("[[0 <R 1>]]", "[[0 <R 2>]]")
        await one.sync()
        assert await observer.sync() == [["1 + [<Says 1>]"]]
        await two.send("[[0 <R 1>]]")
        await two.sync()
        assert await observer.sync() == [["1 - [<Says 1>]"]]
        await two.send("[[0 <A <Says 1> 1>]]")
        await two.sync()
        assert await observer.sync() == [["1 + [<Says 1>]"]]


@pytest.mark.parametrize("how", ["leave", "reset", "error"])
async def test_what_a_connection_asserted_goes_with_it(how: str) -> None:
    async with relay() as served, served.peer() as observer, served.peer() as other:
        await observer.send(observe(rec("Says", BIND)), observe(rec("Observe", BIND), 2, 2))
        pattern = (await observer.sync())[0]
        await other.send("[[0 <A <Says 1> 1>]]")
        await other.sync()
        async with served.peer() as peer:
            await peer.send("[[0 <A <Says 1> 1>] [0 <A <Says 2> 2>]]", observe(rec("x"), handle=3))
            await peer.sync()
            if how == "error":
                await peer.send_raw(b"\xff")
                await peer.refused()
            else:
                await (peer.leave() if how == "leave" else peer.reset())
            await until(lambda: len(served.side.open) == 2)
        # What another asserts too stays.
        seen = f"2 + {shown('[<group <rec x> {}>]')}"
        found = flat(await observer.sync())
        assert found == ["1 + [1]", "1 + [2]", seen, *sorted(found[3:])]
        assert sorted(found[3:]) == ["1 - [2]", seen.replace("+", "-", 1)]
        assert pattern
        assert served.statistics.observations == 2


async def test_what_differs_only_in_what_is_not_captured_is_one_assertion() -> None:
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(
            observe(rec("Says", BIND), 1, 1),
            observe(rec("Says", "", BIND), 2, 2),
            observe(rec("Says"), 3, 3),
        )
        await observer.sync()
        await peer.send("[[0 <A <Says a 1> 1>]]", "[[0 <A <Says a 2> 2>]]")
        await peer.send("[[0 <R 1>]]", "[[0 <A <Says b 2> 3>]]", "[[0 <R 2>]]", "[[0 <R 3>]]")
        await peer.sync()
        turns = await observer.sync()
        assert [sorted(turn) for turn in turns] == [
            ["1 + [a]", "2 + [1]", "3 + []"],
            ["2 + [2]"],
            ["2 - [1]"],
            ["1 + [b]"],
            ["1 - [a]"],
            ["1 - [b]", "2 - [2]", "3 - []"],
        ]
        # Messages are not merged.
        await peer.send("[[0 <M <Says a 1>>] [0 <M <Says a 2>>]]")
        await peer.sync()
        found = flat(await observer.sync())
        assert [line for line in found if line[0] == "1"] == ["1 ! [a]", "1 ! [a]"]
        assert [line for line in found if line[0] == "3"] == ["3 ! []", "3 ! []"]


async def test_a_new_observer_is_told_what_stands_in_one_turn() -> None:
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await peer.send(*[f"[[0 <A <Says {n} {n % 7}> {n}>]]" for n in range(1, 200)])
        await peer.sync()
        await observer.send(observe(rec("Says", BIND)))
        turn = await observer.told()
        assert sorted(turn) == sorted(f"1 + [{n}]" for n in range(1, 200))
        await observer.send(observe(rec("Says", "", BIND), 2, 2))
        assert sorted(await observer.told()) == [f"2 + [{n}]" for n in range(7)]
        # Nothing twice, and nothing more: not for who asks for the same again either.
        await observer.send("[[0 <R 2>]]", observe(rec("Says", "", BIND), 3, 3))
        # What it was told goes with the observation.
        assert sorted(await observer.told()) == [f"2 - [{n}]" for n in range(7)]
        assert sorted(await observer.told()) == [f"3 + [{n}]" for n in range(7)]
        assert await observer.sync() == []


async def test_one_turn_that_asserts_and_observes() -> None:
    """In either order, it is told once."""
    async with relay() as served, served.peer() as peer:
        inner = observe(rec("Says", BIND))[1:-1]
        await peer.send(f"[{inner} [0 <A <Says 1> 2>]]")
        assert await peer.told() == ["1 + [1]"]
        await peer.send("[[0 <R 1>] [0 <R 2>]]", f"[[0 <A <Says 2> 2>] {inner}]")
        assert flat(await peer.sync()) in (["1 + [2]"], ["1 - [1]", "1 + [2]"])


async def test_asserted_and_retracted_in_one_turn() -> None:
    """An observer sees both, or neither; not one of them."""
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe(WHOLE_SAYS))
        await observer.sync()
        await peer.send("[[0 <A <Says 1> 2>] [0 <R 2>]]")
        await peer.sync()
        assert flat(await observer.sync()) in ([], ["1 + [<Says 1>]", "1 - [<Says 1>]"])
        assert not observer.standing
        assert served.statistics.assertions == 1


async def test_observing_can_be_observed() -> None:
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe(rec("Observe", BIND, BIND), 1, 1))
        (own,) = await observer.told()
        # Its own reference comes back as what it is to it.
        inner = "<group <rec Observe> {0: <bind <_>> 1: <bind <_>>}>"
        assert own == f"1 + {shown(f'[{inner} #:[1 1]]')}"
        await peer.send(observe(rec("Says", '<lit "me">', BIND), 4, 1))
        (line,) = await observer.told()
        head = shown('<group <rec Says> {0: <lit "me"> 1: <bind <_>>}>')
        assert line.startswith(f"1 + [{head} #:[0 ")
        # Whoever is seen to observe can be told directly.
        oid = line.rpartition(" ")[2].removesuffix("]]")
        await observer.send(f"[[{oid} <M [direct]>] [{oid} <A [too] 9>]]")
        assert await peer.told() == ["4 ! [direct]", "4 + [too]"]
        await peer.send("[[0 <R 1>]]")
        assert await observer.told() == [line.replace("+", "-", 1)]


async def test_only_who_observes_something_that_interests_another_is_seen() -> None:
    """A pattern for patterns: who wants <Says "me" ...>?"""
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        wanted = rec("Observe", rec("group", rec("rec", "<lit Says>"), dictionary_of_lit()))
        await observer.send(observe(wanted))
        await observer.sync()
        await peer.send(
            observe(rec("Says", '<lit "you">'), 1, 1),
            observe(rec("Says", '<lit "me">'), 1, 2),
            observe(rec("Asks", '<lit "me">'), 1, 3),
            observe(rec("Says", BIND), 1, 4),
        )
        await peer.sync()
        assert await observer.sync() == [['1 + ["you"]'], ['1 + ["me"]']]


def dictionary_of_lit() -> str:
    """The pattern of `{0: <lit ...>}`, capturing the constant."""
    return f"<group <dict> {{0: {rec('lit', BIND)}}}>"


# -- what is equal ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("<Says {a: 1 b: 2}>", "<Says {b: 2 a: 1}>"),
        ("<Says #{1 2 3}>", "<Says #{3 2 1}>"),
        ("<Says [{1: a b: #t}]>", "<Says [{b: #t 1: a}]>"),
        ("<Says #{[1] {a: b c: d}}>", "<Says #{{c: d a: b} [1]}>"),
        ("<Says 1>", "<Says @note 1>"),
        ("<Says 1>", "@note <Says 1>"),
        ("<Says {a: 1}>", "<Says {@note a: 1}>"),
        ("<Says <x #:[1 0]>>", "<Says @note <x #:[1 0]>>"),
    ],
)
async def test_what_is_equal_is_one_assertion(one: str, other: str) -> None:
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe(rec("Says", BIND)))
        await observer.sync()
        await peer.send(f"[[0 <A {one} 1>]]", f"[[0 <A {other} 2>]]")
        await peer.sync()
        found = flat(await observer.sync())
        assert len(found) == 1
        assert "@" not in found[0]
        await peer.send("[[0 <R 1>]]")
        await peer.sync()
        assert await observer.sync() == []
        await peer.send("[[0 <R 2>]]")
        await peer.sync()
        assert flat(await observer.sync()) == [found[0].replace("+", "-", 1)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1", "#t"),
        ("0", "#f"),
        ("0.0", "-0.0"),
        ('"a"', "a"),
        ('"a"', '#"a"'),
        ("[1]", "[#t]"),
        ("[]", "#{}"),
        ("{}", "#{}"),
        ("{1: a}", "{#t: a}"),
        ("{1: a}", "{1.0: a}"),
        ("#{1}", "#{1.0}"),
        ("#{1}", "#{#t}"),
        ("[a b]", "<a b>"),
        ("<1 a>", "<#t a>"),
    ],
)
async def test_what_only_python_calls_equal_is_two(one: str, other: str) -> None:
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe(rec("Says", BIND)))
        await observer.sync()
        await peer.send(f"[[0 <A <Says {one}> 1>]]", f"[[0 <A <Says {other}> 2>]]")
        await peer.sync()
        assert flat(await observer.sync()) == [f"1 + {shown(f'[{each}]')}" for each in (one, other)]


async def test_annotations_are_neither_looked_at_nor_passed_on() -> None:
    """Wherever they stand, and in either way of writing."""
    async with relay() as served, served.peer() as peer, served.peer(text=True) as observer:
        says = rec("Says", '<lit "x">', BIND)
        await observer.send(f"@a [@b [@c 0 @d <A @e <Observe @f {says} @h #:@i [0 1]> @j 1>]]")
        await observer.send('@n [@n [@n 0 @n <M @n <@n Says @n "x" @n 1>>]]')
        assert await observer.told() == ["1 ! [1]"]
        note = b"\x85\xb3\x01n"
        plain = wire('[[0 <M <Says "x" 2>>]]')
        noted = plain.replace(b"\xb5", note + b"\xb5").replace(b"\xb4", note + b"\xb4")
        noted = noted.replace(b"\xb1\x01x", note + note + b"\xb1\x01x")
        noted = noted.replace(b"\xb0\x01\x02", note + b"\xb0\x01\x02")
        assert len(noted) == len(plain) + 7 * len(note)
        await peer.send_raw(noted + plain)
        assert await observer.told() == ["1 ! [2]"]
        assert await observer.told() == ["1 ! [2]"]


async def test_who_observes_everything_sees_itself() -> None:
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe(BIND), observe("<_>", 2, 2))
        found = flat(await observer.sync())
        whole, wild = shown("[<Observe <bind <_>> #:[1 1]>]"), shown("[<Observe <_> #:[1 2]>]")
        assert sorted(found) == sorted([f"1 + {whole}", f"1 + {wild}", "2 + []"])
        await peer.send("[[0 <M 17>] [0 <M #{a}>]]")
        await peer.sync()
        found = flat(await observer.sync())
        assert [line for line in found if line[0] == "1"] == ["1 ! [17]", "1 ! [#{a}]"]
        assert [line for line in found if line[0] == "2"] == ["2 ! []", "2 ! []"]
