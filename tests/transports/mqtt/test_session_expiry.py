"""What MQTT 5 adds to kept sessions: an expiry of their own, options, identifiers, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.access._account_tree import AccountTree
from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    Faults,
    Ledger,
    LoanedItem,
    Outcome,
)
from clearfunds.dataspace import Dataspace, Mailbox, Observation, Publication
from clearfunds.dataspace.queues import MemoryShelf
from clearfunds.transports import ServerSettings
from clearfunds.transports.mqtt.codec._options import NO_LOCAL, RETAIN_AS_PUBLISHED
from clearfunds.transports.mqtt.codec._packets import Publish, decode, encode_publish
from clearfunds.transports.mqtt.server._framing import Framing
from clearfunds.transports.mqtt.server._persistent_inflight import PersistentInflight
from clearfunds.transports.mqtt.server._persistent_session import SESSION_PREFIX, PersistentSession
from clearfunds.transports.mqtt.server._persistent_sessions import PersistentSessions
from clearfunds.transports.mqtt.server._stored_session import StoredSession

NAME = "l/u/c"
KEY = SESSION_PREFIX + "c"


class Persistence:
    """What is kept, in RAM: durable at once, but for queues."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.faults = Faults()

    def shelf(self, name: str) -> MemoryShelf:
        return MemoryShelf()

    def drop(self, shelf: MemoryShelf) -> None:
        pass

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)

    def when_durable(self, callback: Callable[[], object], whose: object = None) -> None:
        callback()

    def hurry(self) -> None:
        pass


class Way:
    """An outlet that keeps what it is to forward."""

    def __init__(self) -> None:
        self.loans: list[LoanedItem[list[bytes]]] = []

    def forward(self, loan: LoanedItem[list[bytes]]) -> None:
        self.loans.append(loan)

    def unbegun(self) -> Iterator[LoanedItem[list[bytes]]]:
        return iter(())

    @property
    def packets(self) -> list[Publish]:
        packets = [b"".join(loan.item) for loan in self.loans]
        return [cast("Publish", decode(packet[0], packet[2:])) for packet in packets]


class Bench:
    """A relay's sessions, one client, and somebody else who publishes."""

    def __init__(
        self, expiry: float | None = 100.0, values: dict[str, bytes] | None = None
    ) -> None:
        self.now = 1_000.0
        self.ledger = Ledger(clock=lambda: self.now)
        self.dataspace = Dataspace(self.ledger)
        self.persistence = Persistence()
        self.persistence.values.update(values or {})
        server = self.ledger.open("server", limit=NO_LIMIT)
        self.tree = AccountTree(server)
        self.at_rest = self.ledger.open("kept", limit=NO_LIMIT, at_rest="ram")
        self.sessions = PersistentSessions(
            self.dataspace,
            self.persistence,
            self.tree,
            self.at_rest,
            ServerSettings(
                session_expiry=expiry,
                max_sessions=10,
                max_queued=None,
                max_queued_bytes=None,
                max_inflight=4,
                max_awaiting_release=10,
            ),
            outlives=False,
            wall=lambda: self.now,
        )
        self.sessions.restore(dict(self.persistence.values))
        self.client = self.ledger.open(NAME, limit=NO_LIMIT)
        self.payer = self.ledger.open("payer", limit=NO_LIMIT)
        self.other = self.ledger.open("other", limit=NO_LIMIT)
        self.mailbox = Mailbox(self.ledger, "qos 0")

    def own(self, account: Account) -> bool:
        return account in (self.client, self.payer)

    def session(self, *, v5: bool = True) -> PersistentSession:
        session = self.sessions.find("c") or self.sessions.create("c", NAME)
        assert session is not None
        own = self.own if v5 else None
        for _ in session.attaching(self.client, NAME, self.mailbox, own=own):
            pass
        return session

    def detach(self, session: PersistentSession) -> None:
        for step in session.detaching(self.client):
            step()

    def subscribe(self, session: PersistentSession, text: str, qos: int, **options: int) -> None:
        with self.client.turn() as turn:
            observation = session.observe(turn, text, qos, self.mailbox)
        session.subscribed(text, qos, observation, **options)
        session.write()

    def publish(self, account: Account, topic: str = "t", **more: Any) -> None:
        with account.turn() as turn:
            fields: dict[str, Any] = {"qos": 1, **more}
            turn.publish(self.dataspace, Publication(topic, b"1", **fields))
        self.ledger.audit()

    def way(
        self, session: PersistentSession, window: int = 4, **more: Any
    ) -> tuple[Way, PersistentInflight]:
        """Let what is queued go to the client; return where to, and what is under way."""
        way = Way()
        inflight = PersistentInflight(session, cast("Any", way), window, **more)
        inflight.begin(lambda _: None)
        session.shelf.settle()
        return way, inflight

    def restarted(self) -> Bench:
        return Bench(values=self.persistence.values)

    def end(self) -> None:
        self.ledger.audit()
        for client_id in list(self.sessions.by_id):
            self.sessions.discard(client_id)
        self.mailbox.close()
        self.ledger.audit()
        for account in (self.client, self.payer, self.other, self.at_rest):
            assert (account.debt_items, account.debt_bytes) == (0, 0)
        assert self.client.standing().items == 0


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.end()


# --- No Local, Retain As Published --------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_with_no_local_it_does_not_get_its_own(bench: Bench, qos: int) -> None:
    session = bench.session()
    bench.subscribe(session, "t", qos, options=NO_LOCAL)
    bench.publish(bench.client)
    bench.publish(bench.payer)
    assert len(session.queue) == 0
    assert bench.ledger.repaid_items[Outcome.DROPPED] == 2
    bench.publish(bench.other)
    assert len(session.queue) == 1
    bench.detach(session)
    # Its will, say: which another account of its connection pays for, nobody can tell then.
    bench.publish(bench.client)
    assert len(session.queue) == 1
    bench.publish(bench.other)
    assert len(session.queue) == 2


def test_an_overlapping_subscription_without_it_counts(bench: Bench) -> None:
    session = bench.session()
    bench.subscribe(session, "#", 1)
    bench.subscribe(session, "t", 2, options=NO_LOCAL)
    bench.publish(bench.client, qos=2)
    assert len(session.queue) == 1
    observation = session.unsubscribed("#")
    assert isinstance(observation, Observation)
    with bench.client.turn() as turn:
        bench.dataspace.unobserve(turn, observation)
    bench.publish(bench.client, qos=2)
    assert len(session.queue) == 1


def test_retain_as_published_counts_for_those_that_were_there_before(bench: Bench) -> None:
    session = bench.session()
    bench.subscribe(session, "t", 2)
    bench.subscribe(session, "+", 1, options=RETAIN_AS_PUBLISHED)
    bench.publish(bench.other, retain=True, qos=2)
    bench.publish(bench.other, qos=2)
    way, _ = bench.way(session)
    assert [each.retain for each in way.packets] == [True, False]


def test_who_has_no_options_is_told_as_before(bench: Bench) -> None:
    session = bench.session(v5=False)
    assert session.acked(0) is None
    assert session.acked(2) is session.queue
    bench.subscribe(session, "t", 1)
    bench.publish(bench.client)
    assert len(session.queue) == 1
    assert session.select(bench.client, Publication("t", b"")) == Publication("t", b"")


def test_options_go_on_after_a_restart_but_not_for_a_client_with_3_1_1(bench: Bench) -> None:
    session = bench.session()
    bench.subscribe(session, "#", 1, identifier=3)
    bench.subscribe(session, "t", 1, options=NO_LOCAL | RETAIN_AS_PUBLISHED, identifier=268_435_455)
    observation = session.unsubscribed("#")
    assert isinstance(observation, Observation)
    with bench.client.turn() as turn:
        bench.dataspace.unobserve(turn, observation)
    bench.subscribe(session, "x/#", 0, identifier=4)
    again = bench.restarted()
    found = again.sessions.by_id["c"]
    assert found.filters.of("t").identifiers == (268_435_455,)
    assert found.filters.of("x/y").identifiers == (4,)
    again.publish(again.client)
    assert len(found.queue) == 0
    again.publish(again.other)
    assert len(found.queue) == 1
    again.session(v5=False)  # which has never heard of them
    again.publish(again.client)
    assert len(found.queue) == 2
    again.end()


# --- expiry -------------------------------------------------------------------------------------


def test_each_session_has_its_own_expiry(bench: Bench) -> None:
    session = bench.session()
    assert session.expiry == 100.0
    session.expiry = 5.0
    bench.detach(session)
    bench.now += 4.9
    assert bench.sessions.expire() == []
    bench.now += 0.1
    assert bench.sessions.expire() == ["c"]
    assert bench.sessions.expired == 1
    assert KEY not in bench.persistence.values


def test_it_is_not_over_while_its_client_is_being_let_in(bench: Bench) -> None:
    """That is done in steps: its time, and its room, may run out in between."""
    session = bench.session()
    bench.subscribe(session, "t", 1)
    session.expiry = 5.0
    bench.detach(session)
    bench.now += 4.9
    steps = session.attaching(bench.client, NAME, bench.mailbox)
    assert session.may_be_ended
    next(steps)
    bench.now += 0.2
    assert bench.sessions.expire() == []
    session.queue.on_given_up("others wait for room")
    assert bench.sessions.find("c") is session
    assert not session.may_be_ended
    # It is not let in after all, and has been away all the time.
    bench.detach(session)
    assert session.may_be_ended
    assert bench.sessions.expire() == ["c"]


@pytest.mark.parametrize(("expiry", "is_over"), [(0.0, True), (None, False), (1e6, False)])
def test_its_expiry_is_there_after_a_restart(
    bench: Bench, expiry: float | None, is_over: bool
) -> None:
    session = bench.session()
    session.expiry = expiry
    bench.detach(session)
    again = bench.restarted()
    assert again.sessions.by_id["c"].expiry == expiry
    again.now += 200
    assert (again.sessions.find("c") is None) == is_over
    again.end()


def test_without_one_it_goes_by_the_settings_also_when_they_change(bench: Bench) -> None:
    session = bench.session()
    session.expiry = 5.0
    session.expire_as_set()
    bench.detach(session)
    assert "expiry" not in json.loads(bench.persistence.values[KEY])
    again = Bench(expiry=None, values=bench.persistence.values)
    assert again.sessions.by_id["c"].expiry is None
    again.end()


def test_an_expiry_of_0_ends_it_when_its_client_has_gone(bench: Bench) -> None:
    session = bench.session()
    session.expiry = 0.0
    assert bench.sessions.expire() == []
    assert bench.sessions.find("c") is session
    bench.detach(session)
    assert bench.sessions.find("c") is None
    assert not bench.sessions.by_id


# --- what is written ----------------------------------------------------------------------------

values = st.builds(
    StoredSession,
    st.text(max_size=10),
    st.none() | st.floats(0, 1e11),
    st.lists(
        st.tuples(
            st.sampled_from(["a", "a/#", "+"]),
            st.integers(0, 2),
            st.integers(0, 255),
            st.integers(0, 268_435_455),
        ),
        max_size=4,
    ),
    st.none() | st.just(-1.0) | st.floats(0, 5e9),
    st.none() | st.text(max_size=10),
    st.none() | st.text(max_size=10),
)


@given(values)
def test_what_is_written_is_read(value: StoredSession) -> None:
    read = StoredSession.of(value.encode())
    assert read == attrs.evolve(value, is_older=read.is_older)
    # What says nothing of a user is named as ever, or has nothing that is named in another way.
    assert not read.is_older or (value.user is None and "%" not in value.name)


def test_what_has_nothing_of_mqtt_5_is_as_older_versions_have_it() -> None:
    old = b'{"name":"l/u/c","left":null,"filters":[["a/#",2],["b",0]]}'
    value = StoredSession.of(old)
    assert value.filters == [("a/#", 2, 0, 0), ("b", 0, 0, 0)]
    assert value.encode() == old


@pytest.mark.parametrize(
    "more",
    [
        '"filters":[["a",1,0]]',
        '"filters":[["a",1,256,0]]',
        '"filters":[["a",1,0,268435456]]',
        '"filters":[["a",1,"x",0]]',
        '"filters":[["a",1,0,-1]]',
        '"filters":["ab"]',
        '"filters":[],"expiry":"soon"',
    ],
)
def test_what_is_none_is_refused(more: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        StoredSession.of(f'{{"name":"n","left":null,{more}}}'.encode())


# --- what is under way --------------------------------------------------------------------------


class Small(Framing):
    """Makes packets, but of nothing that is too large."""

    def frame(self, publication: Publication, packet_id: int = 0, dup: bool = False) -> bytes:
        if publication.properties == b"too large":
            return b""
        return encode_publish("framed", b"", publication.qos, dup=dup, packet_id=packet_id)


def test_who_gives_packets_of_its_own_may_drop_some(bench: Bench) -> None:
    session = bench.session()
    bench.subscribe(session, "t", 1)
    bench.publish(bench.other, properties=b"too large")
    bench.publish(bench.other)
    way, inflight = bench.way(session, 1, framing=Small())
    bench.publish(bench.other, properties=b"too large")
    bench.publish(bench.other)
    (first,) = way.packets
    assert (first.topic, first.packet_id, first.dup) == ("framed", 3, False)
    inflight.acknowledged(first.packet_id)
    session.shelf.settle()  # what waited has been paged out
    assert [each.packet_id for each in way.packets] == [3, 5]
    assert session.queue.counters.dropped == 2
    assert bench.ledger.repaid_items[Outcome.DROPPED] == 2
    assert len(inflight) == session.queue.statistics().unacked == 1
    bench.ledger.audit()
    inflight.close()
    way, _ = bench.way(session, 1, framing=Small())
    assert way.packets[-1].dup


def test_what_has_expired_is_not_sent(bench: Bench) -> None:
    session = bench.session()
    bench.subscribe(session, "t", 1)
    wall = bench.now
    way, _ = bench.way(session, framing=Framing(lambda: wall))
    bench.publish(bench.other, expires=4e9)
    wall = 4e9  # which the queue has not seen
    bench.publish(bench.other, expires=4e9)
    assert len(way.loans) == 1
    assert session.queue.counters.expired == 1
    assert bench.ledger.repaid_items[Outcome.EXPIRED] == 1


def test_a_publication_that_is_refused_is_over(bench: Bench) -> None:
    session = bench.session()
    bench.subscribe(session, "t", 2)
    way, inflight = bench.way(session, 1)
    bench.publish(bench.other, qos=2)
    bench.publish(bench.other, qos=2)
    (first,) = way.packets
    assert inflight.refused(first.packet_id)
    assert not inflight.refused(first.packet_id)
    assert not session.releasing
    assert len(way.packets) == 2
    assert bench.ledger.repaid_items[Outcome.REJECTED] == 1
    bench.ledger.audit()
    # Its session may have ended meanwhile.
    bench.sessions.discard("c")
    assert inflight.refused(way.packets[1].packet_id)
