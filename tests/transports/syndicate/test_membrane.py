"""The two tables: counts, handles, limits; and two membranes that face each other."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clearfunds.transports import LocalProtocolError, RemoteProtocolError
from clearfunds.transports.syndicate import (
    Assert,
    Embedded,
    Membrane,
    MembraneStatistics,
    Message,
    Record,
    Retract,
    Symbol,
    Sync,
    TurnEvent,
    WireRef,
)


@attrs.frozen(eq=False)
class Thing:
    name: str

    def __repr__(self) -> str:
        return self.name


INERT = Thing("inert")
DATASPACE = Thing("dataspace")


def proxy(oid: int) -> Thing:
    return Thing(f"proxy of {oid}")


def attenuate(thing: Thing, caveats: tuple[Any, ...]) -> Thing:
    if caveats == ("bad",):
        raise RemoteProtocolError("bad caveat")
    return Thing(f"{thing} with {caveats}")


def new(**limits: Any) -> Membrane[Thing]:
    membrane = Membrane(proxy=proxy, attenuate=attenuate, inert=INERT, **limits)
    membrane.export(DATASPACE)
    return membrane


def mine(oid: int) -> Embedded:
    return Embedded(WireRef(True, oid))


def yours(oid: int, *caveats: Any) -> Embedded:
    return Embedded(WireRef(False, oid, caveats))


def counts(membrane: Membrane[Thing]) -> tuple[int, int, int, int]:
    s = membrane.statistics()
    return s.exported, s.imported, s.assertions_received, s.assertions_sent


def test_references_live_as_long_as_assertions_have_them() -> None:
    membrane = new()
    first = membrane.receive_assert(0, Assert((mine(5), [mine(5)], mine(6)), 1))
    second = membrane.receive_assert(0, Assert({"a": mine(5)}, 2))
    assert first is not None
    assert second is not None
    assert first.target is DATASPACE
    five = first.assertion[0].embeddedValue
    assert first.assertion[1][0].embeddedValue is five
    assert second.assertion["a"].embeddedValue is five
    assert first.assertion[2].embeddedValue is not five
    assert counts(membrane) == (1, 2, 2, 0)
    assert membrane.receive_retract(Retract(1)) is first
    assert counts(membrane) == (1, 1, 1, 0)
    # It is the peer's own that goes back to it.
    assert membrane.send_message(five, Embedded(five)) == TurnEvent(5, Message(yours(5)))
    assert membrane.receive_retract(Retract(2)) is second
    assert counts(membrane) == (1, 0, 0, 0)
    with pytest.raises(LocalProtocolError, match="not the peer's"):
        membrane.send_message(five, 1)
    # The same oid may come again, and is another reference then.
    again = membrane.receive_assert(0, Assert(mine(5), 1))
    assert again is not None
    assert again.assertion.embeddedValue is not five


def test_a_handle_in_use_is_an_error_and_an_unknown_one_is_nothing() -> None:
    membrane = new()
    assert membrane.receive_retract(Retract(1)) is None
    membrane.receive_assert(0, Assert("a", 1))
    with pytest.raises(RemoteProtocolError, match="handle 1 is asserted again"):
        membrane.receive_assert(0, Assert(mine(1), 1))
    assert counts(membrane) == (1, 0, 1, 0)
    membrane.receive_retract(Retract(1))
    assert membrane.receive_retract(Retract(1)) is None
    assert membrane.receive_assert(0, Assert("a", 1)) is not None


def test_events_for_nobody_do_nothing() -> None:
    membrane = new()
    assert membrane.exported(0) is DATASPACE
    assert membrane.exported(7) is None
    assert membrane.receive_assert(7, Assert(mine(1), 1)) is None
    assert membrane.receive_message(7, Message(mine(1))) is None
    assert membrane.receive_sync(7, Sync(WireRef(True, 1))) is None
    assert counts(membrane) == (1, 0, 0, 0)


def test_a_message_brings_nothing_new() -> None:
    membrane = new()
    with pytest.raises(RemoteProtocolError, match=r"#:\[0 3\]"):
        membrane.receive_message(0, Message([mine(3)]))
    membrane.receive_assert(0, Assert(mine(3), 1))
    received = membrane.receive_message(0, Message((mine(3), yours(0), yours(9))))
    assert received is not None
    target, body = received
    assert target is DATASPACE
    assert [part.embeddedValue for part in body[1:]] == [DATASPACE, INERT]
    peer = body[0].embeddedValue
    with pytest.raises(LocalProtocolError, match="does not know it"):
        membrane.send_message(peer, Embedded(Thing("x")))
    assert counts(membrane) == (1, 1, 1, 0)


def test_what_is_sent_is_exported_as_long_as_it_stands() -> None:
    membrane = new()
    pin = membrane.import_()
    server = pin.entity
    here = Thing("here")
    event = membrane.send_assert(server, (Embedded(here), Embedded(here), Embedded(server)))
    assert event == TurnEvent(0, Assert((mine(1), mine(1), yours(0)), 1))
    assert membrane.exported(1) is here
    assert membrane.send_message(server, Embedded(here)) == TurnEvent(0, Message(mine(1)))
    other = membrane.send_assert(server, [Embedded(here), Embedded(DATASPACE)])
    assert other == TurnEvent(0, Assert((mine(1), mine(0)), 2))
    assert membrane.send_retract(1) == TurnEvent(0, Retract(1))
    assert membrane.exported(1) is here
    assert membrane.send_retract(2) == TurnEvent(0, Retract(2))
    assert membrane.exported(1) is None
    with pytest.raises(LocalProtocolError, match="handle 2"):
        membrane.send_retract(2)
    # An oid is not given to another: events for the first may still be on their way.
    assert membrane.send_assert(server, Embedded(Thing("x"))).event == Assert(mine(2), 3)


def test_the_target_is_held_by_what_stands_at_it() -> None:
    membrane = new()
    received = membrane.receive_assert(0, Assert(mine(4), 1))
    assert received is not None
    four = received.assertion.embeddedValue
    sent = membrane.send_assert(four, "a").event
    assert isinstance(sent, Assert)
    membrane.receive_retract(Retract(1))
    assert membrane.send_message(four, "b") == TurnEvent(4, Message("b"))
    membrane.send_retract(sent.handle)
    assert counts(membrane) == (1, 0, 0, 0)

    # The other way round: what this side exported, and the peer asserted something at.
    server = membrane.import_().entity
    here = Thing("here")
    sent = membrane.send_assert(server, Embedded(here)).event
    assert sent == Assert(mine(1), 2)
    membrane.receive_assert(1, Assert("c", 5))
    membrane.send_retract(2)
    assert membrane.exported(1) is here
    membrane.receive_retract(Retract(5))
    assert membrane.exported(1) is None


def test_the_peer_of_a_sync_is_pinned() -> None:
    membrane = new()
    received = membrane.receive_sync(0, Sync(WireRef(True, 2)))
    assert received is not None
    target, pin = received
    assert target is DATASPACE
    assert counts(membrane) == (1, 1, 0, 0)
    assert membrane.send_message(pin.entity, True) == TurnEvent(2, Message(True))
    pin.release()
    pin.release()
    assert counts(membrane) == (1, 0, 0, 0)

    server = membrane.import_()
    me = Thing("me")
    event, mine_ = membrane.send_sync(server.entity, me)
    assert event == TurnEvent(0, Sync(WireRef(True, 1)))
    assert membrane.exported(1) is me
    mine_.release()
    server.release()
    assert counts(membrane) == (1, 0, 0, 0)
    assert "released" in repr(server)


def test_caveats_are_put_before_what_they_attenuate() -> None:
    membrane = new()
    received = membrane.receive_assert(0, Assert((yours(0), yours(0, "less"), yours(3, "x")), 1))
    assert received is not None
    plain, less, nothing = [part.embeddedValue for part in received.assertion]
    assert plain is DATASPACE
    assert less.name == "dataspace with ('less',)"
    assert nothing is INERT
    # Sent back, it is something new: the peer cannot take the caveats off.
    server = membrane.import_().entity
    assert membrane.send_assert(server, Embedded(less)).event == Assert(mine(1), 1)


def test_what_is_refused_leaves_the_tables_as_they_were() -> None:
    membrane = new(max_imported=3)
    with pytest.raises(RemoteProtocolError, match="bad caveat"):
        membrane.receive_assert(0, Assert((mine(1), yours(0, "bad")), 1))
    with pytest.raises(RemoteProtocolError, match="more than 3 references"):
        membrane.receive_assert(0, Assert((mine(1), mine(2), mine(3), mine(4)), 1))
    with pytest.raises(RemoteProtocolError, match="the same reference"):
        membrane.receive_assert(0, Assert([mine(1), {yours(8): mine(2), yours(9): mine(3)}], 1))
    with pytest.raises(RemoteProtocolError, match="bad caveat"):
        membrane.receive_sync(0, Sync(WireRef(False, 0, ("bad",))))
    assert counts(membrane) == (1, 0, 0, 0)
    server = membrane.import_().entity
    with pytest.raises(TypeError):
        membrane.send_assert(server, (Embedded(Thing("x")), Embedded([])))
    assert counts(membrane) == (1, 1, 0, 0)


def test_everything_has_a_limit() -> None:
    membrane = new(max_exported=2, max_imported=2, max_received=2, max_sent=3)
    server = membrane.import_().entity
    assert membrane.receive_assert(0, Assert(mine(1), 1)) is not None
    with pytest.raises(RemoteProtocolError, match="2 references are imported"):
        membrane.receive_assert(0, Assert(mine(2), 2))
    with pytest.raises(RemoteProtocolError, match="2 references are imported"):
        membrane.receive_sync(0, Sync(WireRef(True, 2)))
    with pytest.raises(RemoteProtocolError, match="2 references are imported"):
        membrane.import_(9)
    assert membrane.receive_assert(0, Assert(1, 2)) is not None
    with pytest.raises(RemoteProtocolError, match="2 assertions are live"):
        membrane.receive_assert(0, Assert(1, 3))
    membrane.send_assert(server, Embedded(Thing("one")))
    with pytest.raises(LocalProtocolError, match="2 references are exported"):
        membrane.send_assert(server, Embedded(Thing("two")))
    membrane.send_assert(server, 1)
    membrane.send_assert(server, 1)
    with pytest.raises(LocalProtocolError, match="3 assertions to one peer"):
        membrane.send_assert(server, 1)
    assert counts(membrane) == (2, 2, 2, 3)


def test_the_end_gives_back_what_stood_and_forgets_the_rest() -> None:
    membrane = new()
    server = membrane.import_()
    membrane.receive_assert(0, Assert(mine(3), 9))
    membrane.receive_assert(0, Assert("b", 2))
    membrane.send_assert(server.entity, Embedded(Thing("x")))
    standing = membrane.disconnect()
    assert [(one.handle, one.target) for one in standing] == [(9, DATASPACE), (2, DATASPACE)]
    assert counts(membrane) == (1, 1, 0, 0)
    assert membrane.disconnect() == []
    assert membrane.receive_retract(Retract(9)) is None


def test_what_is_exported_already_is_not_exported_again() -> None:
    membrane = new()
    with pytest.raises(LocalProtocolError, match="already"):
        membrane.export(Thing("x"))
    with pytest.raises(LocalProtocolError, match="already"):
        membrane.export(DATASPACE, 3)
    one, two = membrane.import_(4), membrane.import_(4)
    assert one.entity is two.entity
    one.release()
    assert counts(membrane) == (1, 1, 0, 0)
    two.release()
    assert counts(membrane) == (1, 0, 0, 0)
    assert repr(membrane) == "<Membrane 1 exported, 0 imported, 0 assertions received, 0 sent>"
    assert membrane.statistics() == MembraneStatistics(1, 0, 0, 0)


class TwoSides(RuleBasedStateMachine):
    """Two membranes; what one sends the other receives at once.

    The model is the list of the assertions that stand: from it follows what each side must know.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sides = [new(), new()]
        self.roots = [side.import_().entity for side in self.sides]
        self.own = [[Thing(f"{side}.{n}") for n in range(4)] for side in range(2)]
        # (from, handle) -> the things in it, each as (side that exports it, thing).
        self.standing: dict[tuple[int, int], list[tuple[int, Any]]] = {}
        # By side: the other's things, as the proxies that stand for them here.
        self.proxies: list[dict[Any, Any]] = [{}, {}]

    def known(self, exporter: int) -> set[Any]:
        """Return what of `exporter`'s things live assertions have."""
        return {
            thing for things in self.standing.values() for side, thing in things if side == exporter
        }

    def translate(self, sender: int, things: list[tuple[int, Any]]) -> list[Embedded]:
        return [
            Embedded(thing if side == sender else self.proxies[sender][thing])
            for side, thing in things
        ]

    @rule(
        sender=st.integers(0, 1),
        picks=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=4),
    )
    def assert_(self, sender: int, picks: list[tuple[bool, int]]) -> None:
        receiver = 1 - sender
        things: list[tuple[int, Any]] = []
        theirs = sorted(self.known(receiver), key=str)
        for own, n in picks:
            if own:
                things.append((sender, self.own[sender][n]))
            elif n < len(theirs):
                things.append((receiver, theirs[n]))
        value = Record(Symbol("has"), self.translate(sender, things))
        entry = self.sides[sender].send_assert(self.roots[sender], value)
        assert isinstance(entry.event, Assert)
        received = self.sides[receiver].receive_assert(entry.oid, entry.event)
        assert received is not None
        assert received.target is DATASPACE
        for (exporter, thing), part in zip(things, received.assertion.fields, strict=True):
            if exporter == receiver:
                assert part.embeddedValue is thing
            elif thing in self.known(sender):
                assert part.embeddedValue is self.proxies[receiver][thing]
            else:
                self.proxies[receiver].setdefault(thing, part.embeddedValue)
                assert part.embeddedValue is self.proxies[receiver][thing]
        self.standing[sender, entry.event.handle] = things

    @precondition(lambda self: self.standing)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        sender, handle = data.draw(st.sampled_from(sorted(self.standing)))
        entry = self.sides[sender].send_retract(handle)
        assert isinstance(entry.event, Retract)
        assert self.sides[1 - sender].receive_retract(entry.event) is not None
        del self.standing[sender, handle]
        for side in range(2):
            known = self.known(1 - side)
            self.proxies[side] = {
                thing: one for thing, one in self.proxies[side].items() if thing in known
            }

    @rule(sender=st.integers(0, 1), n=st.integers(0, 3))
    def message(self, sender: int, n: int) -> None:
        receiver = 1 - sender
        thing = self.own[sender][n]
        if thing not in self.known(sender):
            with pytest.raises(LocalProtocolError):
                self.sides[sender].send_message(self.roots[sender], Embedded(thing))
            return
        entry = self.sides[sender].send_message(self.roots[sender], Embedded(thing))
        assert isinstance(entry.event, Message)
        received = self.sides[receiver].receive_message(entry.oid, entry.event)
        assert received is not None
        assert received[1].embeddedValue is self.proxies[receiver][thing]

    @invariant()
    def each_side_knows_just_what_stands(self) -> None:
        for side in range(2):
            membrane = self.sides[side]
            sent = sum(sender == side for sender, _ in self.standing)
            assert counts(membrane) == (
                1 + len(self.known(side)),
                1 + len(self.known(1 - side)),
                len(self.standing) - sent,
                sent,
            )


TwoSidesTest = TwoSides.TestCase
TwoSidesTest.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
