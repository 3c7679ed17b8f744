"""Clients of both versions that say whatever hypothesis makes up, go, and come back to sessions.

Besides what `test_session_fuzz` has: all that the relay sends can be read, in each client's own
version; nothing is larger than its client takes, and no more under way than it takes at a time.

What these two look for comes step by step, and each step is over before the next. So they missed
for long what DISCONNECT does in the write that also holds a publication and a subscription: here it
was said alone. It is not any more; `test_whole_packets` looks for what comes together, with a
store, credit, and what is cut within a write.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import TypeAlias

import attrs
import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from clearfunds.access._account_tree import AccountTree
from clearfunds.access._tenants import Tenant
from clearfunds.accounts import Ledger, Limit
from clearfunds.dataspace import Dataspace
from clearfunds.persistence import open_ram_shelves
from clearfunds.transports import Link, ServerSettings, open_flusher
from clearfunds.transports.mqtt import (
    NO_PROPERTIES,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
    Will,
    decode,
    decode5,
    encode,
    encode5,
)
from clearfunds.transports.mqtt.codec._frames import find_frame
from clearfunds.transports.mqtt.server._persistent_sessions import PersistentSessions
from clearfunds.transports.mqtt.server._server import MqttServer
from tests.transports.mqtt.test_session_fuzz import SETTINGS, TENANTS, drain

WALL = 1e9
OWN = "own"  # Stands for the name that each client has for itself.

topics = st.sampled_from(
    ["a", "a/b", "b", "a/b/c", "ä", "$SYS/x", "a/long/topic", "a/longer/topic"]
)
filters = st.sampled_from(
    ["#", "a/#", "a/+", "b", "+/b/#", "a", "f" * 70, "$share/g/a", "$share/g/#"]
)
payloads = st.sampled_from([b"", b"x", bytes(100), bytes(3000)])
packet_ids = st.integers(1, 4)
seconds = st.sampled_from([None, 0, 5, 50])
users = st.sampled_from([(), (("k", "v"),), (("k", "v" * 50), ("k", ""))])

said_of_messages = st.one_of(
    st.just(NO_PROPERTIES),
    st.builds(
        Properties,
        message_expiry=seconds,
        payload_format=st.sampled_from([None, 0, 1]),
        content_type=st.sampled_from([None, "t"]),
        response_topic=st.sampled_from([None, "b"]),
        correlation_data=st.sampled_from([None, b"\0"]),
        user=users,
    ),
)


def waiting(said: Properties, delay: int | None) -> Properties:
    """Return what is said of a will."""
    return attrs.evolve(said, will_delay=delay)


said_of_wills = st.builds(waiting, said_of_messages, seconds)
wills = st.none() | st.builds(
    Will, topics, payloads, st.integers(0, 2), st.booleans(), properties=said_of_wills
)


@st.composite
def publishes(draw: st.DrawFn, topics: st.SearchStrategy[str] = topics) -> Publish:
    qos = draw(st.integers(0, 2))
    said = draw(said_of_messages)
    topic = draw(topics)
    alias = draw(st.sampled_from([None, None, 1, 2]))
    if alias is not None or not topic:
        said = attrs.evolve(said, topic_alias=alias or 1)
    packet_id = draw(packet_ids) if qos else 0
    dup = bool(qos) and draw(st.booleans())
    return Publish(topic, draw(payloads), qos, draw(st.booleans()), dup, packet_id, said)


@st.composite
def subscribes(draw: st.DrawFn) -> Subscribe:
    asked: list[tuple[str, int]] = []
    for text in draw(st.lists(filters, min_size=1, max_size=3)):
        options = draw(st.integers(0, 2)) | draw(st.sampled_from([0, 8])) | draw(
            st.sampled_from([0, 16, 32])
        )  # fmt: skip
        if not text.startswith("$share/"):
            options |= draw(st.sampled_from([0, 4]))  # No Local
        asked.append((text, options))
    identifier = draw(st.sampled_from([(), (), (1,), (200,)]))
    said = Properties(subscription_ids=identifier) if identifier else NO_PROPERTIES
    return Subscribe(draw(packet_ids), tuple(asked), said)


hellos = st.builds(
    Connect,
    st.sampled_from([OWN] * 6 + ["twin", "", "n" * 70]),
    clean_session=st.booleans(),
    keep_alive=st.integers(0, 3),
    will=wills,
    protocol_level=st.sampled_from([3, 4, 5, 5, 5]),
    bridge=st.booleans(),
    properties=st.builds(
        Properties,
        session_expiry=st.sampled_from([None, 0, 20, 0xFFFF_FFFF]),
        receive_maximum=st.sampled_from([None, 1, 2]),
        maximum_packet_size=st.sampled_from([None, None, 4, 16, 40, 300]),
        topic_alias_maximum=st.sampled_from([None, 1, 5]),
        request_problem_information=st.sampled_from([None, 0]),
    ),
)
packets: st.SearchStrategy[Packet] = st.one_of(
    publishes(),
    publishes(),
    subscribes(),
    subscribes(),
    st.builds(Unsubscribe, packet_ids, st.lists(filters, min_size=1, max_size=2).map(tuple)),
    st.builds(PubRel, packet_ids, st.sampled_from([0, 0x92])),
    st.just(PingReq()),
)
# What ends the connection, most of them.
last_words: st.SearchStrategy[Packet] = st.one_of(
    publishes(st.sampled_from(["", "t" * 70])),
    publishes().map(lambda p: attrs.evolve(p, properties=Properties(topic_alias=9))),
    hellos,
    st.builds(PubAck, packet_ids, st.sampled_from([0, 0x80])),
    st.builds(PubRec, packet_ids, st.sampled_from([0, 0x97])),
    st.builds(PubComp, packet_ids),
    st.builds(Disconnect, st.sampled_from([0, 4, 0x80])),
    st.builds(
        Disconnect, properties=st.builds(Properties, session_expiry=st.sampled_from([0, 20]))
    ),
)


followed: st.SearchStrategy[list[Packet]] = st.tuples(
    st.lists(publishes(), min_size=1, max_size=3) | st.lists(packets, min_size=1, max_size=6),
    st.lists(subscribes(), max_size=1),
    st.just(Disconnect()) | last_words,
).map(lambda said: [*said[0], *said[1], said[2]])


@attrs.frozen
class Say:
    """One of the clients says something, and may read what has come."""

    client: int
    packets: list[Packet]
    reads: bool = False


@attrs.frozen
class Babble:
    """One of the clients says what is no MQTT, or perhaps is."""

    client: int
    data: bytes


@attrs.frozen
class Answer:
    """One of the clients reads, and acknowledges all that it has been sent."""

    client: int


@attrs.frozen
class ComeBack:
    """One of the clients goes without a word, and comes back, perhaps as somebody else."""

    client: int
    hello: Connect


@attrs.frozen
class Wait:
    """Time passes."""

    seconds: float


Step: TypeAlias = Say | Babble | Answer | ComeBack | Wait

numbers = st.integers(0, 1)
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(Say, numbers, st.lists(packets, min_size=1, max_size=8), st.booleans()),
    st.builds(Say, numbers, st.lists(packets, min_size=1, max_size=8), st.booleans()),
    st.builds(Say, numbers, st.lists(packets, min_size=1, max_size=8), st.booleans()),
    st.builds(Answer, numbers),
    st.builds(Answer, numbers),
    st.builds(Answer, numbers),
    st.builds(Say, numbers, last_words.map(lambda last: [last]), st.booleans()),
    # Together with what ends the connection: said alone, all that came before it was over then.
    st.builds(Say, numbers, followed, st.booleans()),
    st.builds(Say, numbers, followed, st.booleans()),
    st.builds(Say, numbers, followed, st.booleans()),
    st.builds(ComeBack, numbers, hellos),
    st.builds(ComeBack, numbers, hellos),
    st.builds(Wait, st.sampled_from([1.0, 6.0, 30.0])),
    st.builds(Babble, numbers, st.binary(min_size=1, max_size=8)),
)


lives = st.lists(steps, min_size=5, max_size=30)


def as_5(packet: Packet) -> Packet:
    """Return a packet as a client of MQTT 5 sends it."""
    if isinstance(packet, Connect):
        return attrs.evolve(packet, protocol_level=5, bridge=False)
    return packet


def as_3_1_1(packet: Packet) -> Packet:
    """Return what is nearest to a packet of MQTT 5 in the version before."""
    match packet:
        case Connect():
            will = packet.will and attrs.evolve(packet.will, properties=NO_PROPERTIES)
            clean = packet.clean_session or not packet.client_id
            old = packet.protocol_level == 3 and packet.client_id
            return attrs.evolve(
                packet,
                will=will,
                clean_session=clean,
                protocol_name="MQIsdp" if old else "MQTT",
                protocol_level=3 if old else 4,
                properties=NO_PROPERTIES,
            )
        case Publish():
            return attrs.evolve(packet, topic=packet.topic or "a", properties=NO_PROPERTIES)
        case Subscribe():
            asked = tuple((text, options & 3) for text, options in packet.filters)
            return Subscribe(packet.packet_id, asked)
        case PubAck() | PubRec() | PubRel() | PubComp():
            return attrs.evolve(packet, reason=0, properties=NO_PROPERTIES)
        case Disconnect():
            return Disconnect()
        case _:
            return packet


class Client:
    """One connection after the other; reads what comes, and looks at it."""

    def __init__(self, server: MqttServer, nursery: trio.Nursery, own: str) -> None:
        self.server = server
        self.own = own
        self.nursery = nursery
        self.sock: socket.socket | None = None
        self.buffer = b""
        self.hello = Connect("fuzz")
        self.under_way: dict[int, int] = {}
        self.aliases: dict[int, str] = {}
        self.awkward = False

    def connect(self, hello: Connect) -> None:
        self.close()
        if hello.client_id == OWN:
            hello = attrs.evolve(hello, client_id=self.own)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self.nursery.start_soon(self.server.handle, Link(ours, "pair"), "test")
        self.sock, self.hello, self.buffer, self.awkward = theirs, hello, b"", False
        self.under_way.clear()
        self.aliases.clear()
        self.say(hello)

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def say(self, *told: Packet) -> None:
        if self.hello.protocol_level == 5:
            data = b"".join(encode5(as_5(packet)) for packet in told)
        else:
            data = b"".join(encode(as_3_1_1(packet)) for packet in told)
        self.babble(data)

    def babble(self, data: bytes) -> None:
        assert self.sock is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
            self.sock.send(data)

    def read(self) -> list[Packet]:
        """Return what has come in full, which can all be read."""
        assert self.sock is not None
        five = self.hello.protocol_level == 5
        most = self.hello.properties.maximum_packet_size if five else None
        self.buffer += drain(self.sock)
        found: list[Packet] = []
        while (frame := find_frame(self.buffer, 0)) is not None and frame[1] <= len(self.buffer):
            start, end = frame
            assert most is None or end <= most
            read = decode5 if five else decode
            packet = read(self.buffer[0], self.buffer[start:end])
            self.buffer = self.buffer[end:]
            found.append(packet)
            if isinstance(packet, Publish):
                self.look_at_alias(packet)
                self.note(packet)
        return found

    def look_at_alias(self, packet: Publish) -> None:
        """See that it is known which topic is meant, by no more names than this client allows."""
        alias = packet.properties.topic_alias
        if alias is None:
            assert packet.topic
            return
        assert packet.qos
        assert 1 <= alias <= (self.hello.properties.topic_alias_maximum or 0)
        if packet.topic:
            self.aliases[alias] = packet.topic
        assert alias in self.aliases

    def note(self, packet: Publish) -> None:
        """See that no more is under way than this client takes."""
        if not packet.qos or self.awkward:
            return
        self.under_way[packet.packet_id] = packet.qos
        most = self.hello.properties.receive_maximum if self.hello.protocol_level == 5 else None
        assert len(self.under_way) <= min(most or 2, 2)

    def answer(self) -> None:
        for packet in self.read():
            match packet:
                case Publish(qos=1):
                    self.under_way.pop(packet.packet_id, None)
                    self.say(PubAck(packet.packet_id))
                case Publish(qos=2):
                    self.say(PubRec(packet.packet_id))
                case PubRec():
                    self.say(PubRel(packet.packet_id))
                case PubRel():
                    self.under_way.pop(packet.packet_id, None)
                    self.say(PubComp(packet.packet_id))
                case _:
                    pass


async def feed(
    hello: Connect, first: list[Packet], said: list[Step], tenants: tuple[Tenant, ...]
) -> None:
    ledger = Ledger(clock=trio.current_time)

    def wall() -> float:
        return WALL + trio.current_time()

    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    mqtt = attrs.evolve(SETTINGS, max_topic_alias=2, max_keep_alive=2)
    async with open_flusher() as flusher, open_ram_shelves(flusher) as shelves:
        limit = Limit(items=12, bytes=None)
        account = ledger.open("server", limit=limit, shared=bool(tenants))
        tree = AccountTree(account, tenants)
        server = MqttServer(Dataspace(ledger, max_retained=3), flusher, account, mqtt, tree=tree)
        server.wall = server.dataspace.retained.wall = wall
        at_rest = ledger.open("kept", limit=Limit(items=None, bytes=50_000), at_rest="ram")
        server.persistent_sessions = PersistentSessions(
            server.dataspace,
            shelves,
            tree,
            at_rest,
            ServerSettings(
                session_expiry=40.0,
                max_sessions=2,
                max_queued=4,
                max_queued_bytes=None,
                max_inflight=2,
                max_awaiting_release=3,
            ),
            outlives=False,
            wall=wall,
            groups=server.groups,
        )
        async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as stack:
            clients = [Client(server, nursery, own) for own in ("fuzz", "twin")]
            for client in clients:
                stack.callback(client.close)
                client.connect(hello)
                client.say(*first)
                await wait_all_tasks_blocked()
            for step in said:
                match step:
                    case Wait():
                        clock.jump(step.seconds)
                        server.each_tick(trio.current_time())
                    case ComeBack():
                        clients[step.client].connect(step.hello)
                    case Babble():
                        clients[step.client].awkward = True
                        clients[step.client].babble(step.data)
                    case Answer():
                        clients[step.client].answer()
                    case Say():
                        client = clients[step.client]
                        # What it acknowledges at random is not looked after.
                        client.awkward |= any(
                            isinstance(each, PubAck | PubRec | PubComp) for each in step.packets
                        )
                        client.say(*step.packets)
                await wait_all_tasks_blocked()
                ledger.audit()
                if isinstance(step, Say) and step.reads:
                    clients[step.client].read()
            for client in clients * 3:
                client.answer()
                await wait_all_tasks_blocked()
                ledger.audit()
            assert server.counters.internal_errors == 0
            for client in clients:
                client.close()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        clock.jump(10_000)
        server.each_tick(trio.current_time())
        assert not len(server.wills)
        for client_id in list(server.persistent_sessions.by_id):
            server.persistent_sessions.discard(client_id)
        await wait_all_tasks_blocked()
        ledger.audit()
        assert account.debt_items == account.debt_bytes == 0
        assert at_rest.debt_items == at_rest.debt_bytes == 0
    tree.close_all()
    ledger.audit()
    assert set(ledger.accounts) == {"server", "kept"}
    assert [holder.kind for holder in ledger.holders] == ["router"]
    assert len(server.dataspace.routes) == 0
    assert not server.open
    assert not server.sessions


def run(hello: Connect, first: list[Packet], said: list[Step], tenants: tuple[Tenant, ...]) -> None:
    logging.getLogger("clearfunds").setLevel(logging.ERROR)
    try:
        with pytest.MonkeyPatch.context() as patch:
            # Others run between two outlets that are sent to, as if there were very many.
            for module in ("_flusher", "_session"):
                patch.setattr(f"clearfunds.transports.{module}.OUTLETS_A_STEP", 1)
            trio.run(feed, hello, first, said, tenants, clock=MockClock())
    finally:
        logging.getLogger("clearfunds").setLevel(logging.NOTSET)


made_up = given(
    hellos,
    st.lists(subscribes(), max_size=1),
    lives,
    st.sampled_from([(), (), TENANTS]),
)


AT_ONCE: list[Step] = [
    Say(0, [Publish("a", b"x", 1, packet_id=1), Subscribe(2, (("b", 0),)), Disconnect()]),
    Say(1, [Publish("a", b"x", 2, packet_id=1), Unsubscribe(2, ("b",)), Disconnect()]),
]
"""What ended the relay once, and was drawn too rarely to be found."""


@settings(max_examples=250, deadline=None)
@example(Connect(OWN, False, 0), [Subscribe(1, (("a", 1),))], AT_ONCE, ())
@example(
    Connect(OWN, False, 0, protocol_level=5, properties=Properties(session_expiry=20)),
    [Subscribe(1, (("a", 2),))],
    AT_ONCE,
    TENANTS,
)
@made_up
def test_nothing_but_clean_closes(
    hello: Connect, first: list[Packet], said: list[Step], tenants: tuple[Tenant, ...]
) -> None:
    run(hello, first, said, tenants)


@pytest.mark.long
@settings(max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@made_up
def test_nothing_but_clean_closes_for_longer(
    hello: Connect, first: list[Packet], said: list[Step], tenants: tuple[Tenant, ...]
) -> None:
    run(hello, first, said, tenants)
