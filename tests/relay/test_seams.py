"""Faults of our own, injected where a task that all share runs code of one connection.

Each ends the connection that it belongs to, and nothing else: a pair beside it gets everything, the
fault is counted and logged with its trace, and the books balance.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from clearfunds.accounts import Holder
from clearfunds.persistence._spool import Spool
from clearfunds.relay._throttle_notices import ThrottledNotices
from clearfunds.transports import Link
from clearfunds.transports._listener import ListenURL, open_listeners
from clearfunds.transports._outlet import Outlet
from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
    Will,
    encode,
)
from clearfunds.transports.mqtt.server._framing import Framing
from clearfunds.transports.mqtt.server._inflight import Inflight
from clearfunds.transports.mqtt.server._mqtt5 import AtMostOnce
from clearfunds.transports.mqtt.server._persistent_inflight import PersistentInflight
from clearfunds.transports.mqtt.server._persistent_session import PersistentSession, SessionQueue
from clearfunds.transports.mqtt.server._persistent_sessions import PersistentSessions
from clearfunds.transports.mqtt.server._sender import Sender
from clearfunds.transports.mqtt.server._server import MqttServer
from clearfunds.transports.mqtt.server._session import MqttSession
from experiments.credit_flow import CreditScheme
from tests.experiments.credit_flow.relays import on_credit
from tests.transports.mqtt.peers5 import connected5
from tests.transports.peers import (
    BareClient,
    RunningRelay,
    connected,
    dial,
    log_of,
    running,
    until,
)

VICTIM = "victim"
LITTLE = 4096


class InjectedError(Exception):
    """A fault of our own."""


def is_victims(each: Any) -> bool:
    """Whether something is of the connection, or the session, of the victim."""
    if isinstance(each, AtMostOnce):
        each = each.last_holder
    if isinstance(each, Spool):
        each = each.holder
    if isinstance(each, PersistentInflight):
        return "victim" in repr(each)
    return VICTIM in str(getattr(each, "name", each))


@attrs.define
class Seam:
    """A method that fails for the victim, from the moment that `arm` is called."""

    patch: pytest.MonkeyPatch
    armed: bool = False
    hits: int = 0

    def at(self, cls: type, method: str, *, of: Callable[[Any], bool] = is_victims) -> None:
        original: Any = getattr(cls, method)
        prop = isinstance(original, property)
        function: Any = original.fget if prop else original

        def fails(me: Any, *args: Any, **kwargs: Any) -> Any:
            if self.armed and (of(me) or any(map(of, args))):
                self.hits += 1
                raise InjectedError(method)
            return function(me, *args, **kwargs)

        setter = original.fset if prop else None
        self.patch.setattr(cls, method, property(fails, setter) if prop else fails)


@pytest.fixture
def seam(monkeypatch: pytest.MonkeyPatch) -> Seam:
    return Seam(monkeypatch)


@asynccontextmanager
async def relay_with_pair(
    seam: Seam, caplog: pytest.LogCaptureFixture, *, gone: bool = True, **settings: Any
) -> AsyncGenerator[RunningRelay]:
    """Run a relay; see afterwards that the fault was met, and has hit nobody but the victim."""
    caplog.set_level(logging.INFO)
    async with running(**settings) as relay:
        async with connected(relay.port, "hears") as hears, connected(relay.port, "tells") as tells:
            await hears.subscribe("pair", qos=1)

            async def one(body: bytes) -> None:
                await tells.publish("pair", body, 1)
                assert (await hears.publications(1, ack=True))[0].payload == body
                await tells.expect(PubAck(1))

            await one(b"before")
            yield relay
            await until(lambda: seam.hits)
            await until(lambda: relay.relay.internal_errors)
            await one(b"after")
            if gone:
                await until(lambda: VICTIM not in relay.relay.mqtt.sessions)
            seam.armed = False
            await one(b"at last")
            relay.ledger.audit()
        faults = relay.relay.internal_errors
        assert faults
        traced = [each for each in caplog.records if each.exc_info and each.exc_info[1]]
        assert any(isinstance(each.exc_info[1], InjectedError) for each in traced)  # type: ignore[index]
        if gone:
            assert log_of(caplog, "closed for an error of the relay's")
        for side in relay.relay.sides:
            side.counters.internal_errors = 0
        relay.ledger.faults.unowned = 0


# -- what is sent to it ---------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(
    ("cls", "method"),
    [
        (Outlet, "hold"),
        (Outlet, "flush"),
        (Outlet, "ready"),
        (Inflight, "hold"),
        (Inflight, "ready"),
        (Outlet, "_block"),
        (Outlet, "forward"),
        (Framing, "frame"),
    ],
)
@pytest.mark.parametrize("run", [1, 30])
async def test_a_subscriber_that_fails_when_it_is_sent_something(
    seam: Seam, caplog: pytest.LogCaptureFixture, cls: type, method: str, qos: int, run: int
) -> None:
    if cls is Inflight and not qos:
        pytest.skip("what is not acknowledged does not come by there")
    if method == "ready" and (cls is Outlet or not qos) and not (cls is Inflight and qos):
        pytest.skip("nobody calls it then")
    if cls is Outlet and method in ("hold", "flush") and run == 1 and not qos:
        pytest.skip("it is written to the socket at once")
    if bool(qos) == (method in ("hold", "_block")) and cls is Outlet:
        pytest.skip("it does not come to that")
    if not qos and method in ("forward", "frame"):
        pytest.skip("what is not acknowledged does not come by there")
    if method == "_block":
        run = 2000
    theirs: list[Any] = []
    seam.at(cls, method, of=lambda each: is_victims(each) or any(each is it for it in theirs))
    async with (
        relay_with_pair(seam, caplog) as relay,
        connected(relay.port, VICTIM, receive_buffer=LITTLE) as victim,
        connected(relay.port, "other") as other,
        connected(relay.port, "pub") as pub,
    ):
        for client in (victim, other):
            await client.subscribe("t/#", qos=qos)
        session: Any = relay.relay.mqtt.sessions[VICTIM]
        inflight = session._unacknowledged()
        if inflight is not None:
            theirs.append(inflight._framing)
        seam.armed = True
        body = bytes(4000) if method == "_block" else b"x"
        sent = b"".join(
            encode(Publish(f"t/{n % 3}", body, qos, packet_id=n * qos)) for n in range(1, run + 1)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pub.stream.send_all, sent)
            got = await other.publications(run, ack=True)
        assert len(got) == run
        for n in range(run * qos):
            await pub.expect(PubAck(n + 1))


async def test_a_subscriber_whose_socket_fails_in_a_way_that_sockets_do_not(
    seam: Seam, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one publication at a time, which is written to one socket after the other."""
    async with (
        relay_with_pair(seam, caplog) as relay,
        connected(relay.port, VICTIM) as victim,
        connected(relay.port, "other") as other,
        connected(relay.port, "pub") as pub,
    ):
        for client in (other, victim):
            await client.subscribe("t")

        class Broken:
            def __init__(self, sock: Any) -> None:
                self.sock = sock

            def send(self, data: bytes) -> int:
                seam.hits += 1
                raise InjectedError("send")

            def __getattr__(self, name: str) -> Any:
                return getattr(self.sock, name)

        outlet: Any = relay.relay.mqtt.sessions[VICTIM].outlet
        outlet.sock = Broken(outlet.sock)
        for n in range(5):
            await pub.publish("t", b"%d" % n)
            assert (await other.publication()).payload == b"%d" % n


async def test_a_subscriber_that_fails_while_its_backlog_goes_out(
    seam: Seam, caplog: pytest.LogCaptureFixture
) -> None:
    seam.at(Outlet, "_send_some")
    async with (
        relay_with_pair(seam, caplog) as relay,
        connected(relay.port, VICTIM, receive_buffer=LITTLE) as victim,
        connected(relay.port, "pub") as pub,
    ):
        await victim.subscribe("t")
        outlet = relay.relay.mqtt.sessions[VICTIM].outlet
        while not outlet.blocked:
            await pub.stream.send_all(encode(Publish("t", bytes(60_000))))
        seam.armed = True
        with trio.move_on_after(5):
            while await victim.stream.receive_some(1 << 20):
                pass


async def test_mqtt5s_own_way_fails(seam: Seam, caplog: pytest.LogCaptureFixture) -> None:
    seam.at(AtMostOnce, "hold")
    async with (
        relay_with_pair(seam, caplog) as relay,
        connected5(relay.port, VICTIM) as victim,
        connected(relay.port, "other") as other,
        connected(relay.port, "pub") as pub,
    ):
        await victim.subscribe("t")
        await other.subscribe("t")
        seam.armed = True
        for n in range(3):
            await pub.publish("t", b"%d" % n)
            assert (await other.publication()).payload == b"%d" % n


# -- what is kept for it --------------------------------------------------------------------------


async def keeper(port: int, client: BareClient, *, present: bool = False) -> None:
    """Connect as the victim, to a session that is kept."""
    await client.stream.send_all(client.connection.send(Connect(VICTIM, False, 0)))
    await client.expect(ConnAck(present, 0))


def persistence_settings(store: bool, tmp_path: Path) -> dict[str, Any]:
    return {"store": str(tmp_path / "store"), "fsync_interval": 0.0} if store else {}


async def forget_victim(port: int) -> None:
    async with connected(port, VICTIM) as client:
        await client.send(Disconnect())
        await client.gone()


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize(
    ("cls", "method"),
    [
        (SessionQueue, "durable"),
        (SessionQueue, "take_in"),
        (SessionQueue, "ready"),
        (SessionQueue, "tick"),
        (PersistentInflight, "_deliver"),
    ],
)
async def test_a_kept_session_that_fails(
    seam: Seam,
    caplog: pytest.LogCaptureFixture,
    cls: type,
    method: str,
    store: bool,
    tmp_path: Path,
) -> None:
    seam.at(cls, method)
    async with relay_with_pair(seam, caplog, **persistence_settings(store, tmp_path)) as relay:
        async with (
            dial(relay.port) as victim,
            connected(relay.port, "other") as other,
            connected(relay.port, "pub") as pub,
        ):
            await keeper(relay.port, victim)
            await victim.subscribe("t", qos=1)
            await other.subscribe("t", qos=1)
            seam.armed = True
            await pub.publish("t", b"x", 1)
            assert (await other.publications(1, ack=True))[0].payload == b"x"
            await victim.gone()
        seam.armed = False
        await forget_victim(relay.port)


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize(
    "what", ["subscribe", "unsubscribe", "puback", "pubrec", "pubcomp", "pubrel", "retained"]
)
async def test_an_answer_that_fails_when_it_is_due(
    seam: Seam, caplog: pytest.LogCaptureFixture, what: str, store: bool, tmp_path: Path
) -> None:
    """When the disk, or another's queue, has taken responsibility."""
    seam.at(Sender, "send", of=lambda each: is_victims(getattr(each, "outlet", each)))
    async with relay_with_pair(seam, caplog, **persistence_settings(store, tmp_path)) as relay:
        async with dial(relay.port) as victim, connected(relay.port, "pub") as pub:
            await keeper(relay.port, victim)
            await victim.subscribe("t", qos=2)
            got: list[Publish] = []
            if what == "pubcomp":
                await victim.publish("t", b"x", 2)
                while await victim.next() != PubRec(1):
                    pass
            elif what == "pubrel":
                await pub.publish("t", b"x", 1)
                await pub.expect(PubAck(1))
                await pub.publish("t", b"x", 2)
                await pub.expect(PubRec(1))
                got = await victim.publications(2)
            seam.armed = True
            match what:
                case "subscribe":
                    await victim.send(Subscribe(2, (("u", 1),)))
                case "unsubscribe":
                    await victim.send(Unsubscribe(2, ("t",)))
                case "puback":
                    await victim.publish("t", b"x", 1)
                case "pubrec":
                    await victim.publish("t", b"x", 2)
                case "pubcomp":
                    await victim.send(PubRel(1))
                case "pubrel":
                    await victim.send(PubRec(got[1].packet_id))
                case _:
                    await victim.publish("r", b"x", 1, retain=True)
            await victim.gone()
        seam.armed = False
        await forget_victim(relay.port)


async def test_what_comes_back_from_the_disk_for_one_that_fails(
    seam: Seam, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    seam.at(SessionQueue, "paged_in")
    settings = persistence_settings(store=True, tmp_path=tmp_path)
    async with (
        running(**settings) as relay,
        dial(relay.port) as victim,
        connected(relay.port, "pub") as pub,
    ):
        await keeper(relay.port, victim)
        await victim.subscribe("t", qos=1)
        await victim.send(Disconnect())
        await victim.gone()
        for n in range(200):
            await pub.publish("t", bytes(1000), 1, packet_id=n + 1)
            await pub.expect(PubAck(n + 1))
    async with relay_with_pair(seam, caplog, **settings) as relay:
        seam.armed = True
        async with dial(relay.port) as victim:
            await keeper(relay.port, victim, present=True)
            await victim.gone()
        seam.armed = False
        await forget_victim(relay.port)


async def test_trouble_with_the_disk_that_one_cannot_be_told_of(
    seam: Seam, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    seam.at(SessionQueue, "shelf_trouble")
    async with relay_with_pair(
        seam, caplog, **persistence_settings(store=True, tmp_path=tmp_path)
    ) as relay:
        async with dial(relay.port) as victim:
            await keeper(relay.port, victim)
            await victim.subscribe("t", qos=1)
            seam.armed = True
            shelves: Any = relay.relay.persistence
            shelves.note_trouble("disk", "the disk is full")
            await victim.gone()
            shelves.note_trouble("disk", None)
        seam.armed = False
        await forget_victim(relay.port)


@pytest.mark.parametrize("method", ["durable", "paged_in"])
async def test_what_was_put_aside_by_one_that_fails(
    seam: Seam, caplog: pytest.LogCaptureFixture, method: str, tmp_path: Path
) -> None:
    seam.at(Spool, method)
    settings = persistence_settings(store=True, tmp_path=tmp_path)
    async with (
        relay_with_pair(seam, caplog, stuck="spill", patience=0.1, **settings) as relay,
        connected(relay.port, VICTIM, receive_buffer=LITTLE) as victim,
        connected(relay.port, "pub") as pub,
        trio.open_nursery() as nursery,
    ):
        await victim.subscribe("t")
        seam.armed = True
        nursery.start_soon(pub.stream.send_all, encode(Publish("t", bytes(10_000))) * 2500)
        outlet = relay.relay.mqtt.sessions[VICTIM].outlet
        await until(lambda: outlet.lagging or outlet.closed)
        if method == "durable":
            await until(lambda: seam.hits)
        with trio.move_on_after(20):
            while await victim.stream.receive_some(1 << 20):
                pass


# -- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["check_deadline"])
async def test_a_deadline_that_cannot_be_looked_at(
    seam: Seam, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    seam.at(MqttSession, method)
    async with (
        relay_with_pair(seam, caplog) as relay,
        connected(relay.port, VICTIM) as victim,
    ):
        seam.armed = True
        await victim.gone()


@pytest.mark.parametrize(
    ("cls", "method"), [(MqttServer, "_publish_delayed"), (PersistentSessions, "discard")]
)
async def test_what_is_due_of_clients_that_are_away(
    seam: Seam, caplog: pytest.LogCaptureFixture, cls: type, method: str
) -> None:
    """A will that waits, a session that is over: they end nobody, and hold up nobody."""
    seam.at(cls, method, of=lambda each: "victim" in str(each))
    async with relay_with_pair(seam, caplog, gone=False) as relay:
        async with connected5(
            relay.port,
            VICTIM,
            clean=False,
            session_expiry=1,
            will=Will("t", b"gone", properties=Properties(will_delay=1)),
        ):
            pass
        async with connected5(relay.port, "other", clean=False, session_expiry=1):
            pass
        kept = relay.relay.mqtt.persistent_sessions
        assert kept is not None
        seam.armed = True
        await until(lambda: seam.hits)
        await until(lambda: "other" not in kept.by_id)
        seam.armed = False
        await until(lambda: VICTIM not in kept.by_id)


@pytest.mark.parametrize("method", ["patience", "give_up", "waited_for"])
async def test_the_patience_of_one_that_fails(
    seam: Seam, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """Somebody waits on it, and on another, which is dealt with all the same."""
    seam.at(Outlet, method)
    async with (
        relay_with_pair(seam, caplog, patience=0.3, stuck="disconnect") as relay,
        connected(relay.port, VICTIM, receive_buffer=LITTLE) as victim,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "pub") as pub,
        connected(relay.port, "last") as last,
        trio.open_nursery() as nursery,
    ):
        await victim.subscribe("t")
        await stuck.subscribe("t")
        await last.subscribe("last")
        seam.armed = True
        data = encode(Publish("t", bytes(60_000))) * 400 + encode(Publish("last", b"x"))
        nursery.start_soon(pub.stream.send_all, data)
        assert (await last.publication()).payload == b"x"
        assert "stuck" not in relay.relay.mqtt.sessions


async def test_a_watch_that_fails_begins_anew(
    seam: Seam, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clearfunds.accounts._faults.PAUSE_SECONDS", 0.01)
    seam.at(ThrottledNotices, "look", of=lambda _: seam.hits < 2)
    async with relay_with_pair(seam, caplog, gone=False) as relay:
        seam.armed = True
        await until(lambda: seam.hits == 2)
        await until(lambda: relay.ledger.faults.unowned == 2)


# -- its beginning and its end --------------------------------------------------------------------


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("cls", "method"),
    [
        (MqttSession, "_withdraw"),
        (MqttSession, "_unsubscribe_all"),
        (MqttSession, "_close"),
        (MqttSession, "_take_leave"),
        (MqttSession, "_part"),
        (MqttSession, "_ending"),
        (Outlet, "close"),
        (PersistentSession, "detaching"),
        (MqttServer, "publish_will"),
    ],
)
@pytest.mark.parametrize("how", ["disconnect", "taken over", "cut"])
async def test_an_end_that_fails(
    seam: Seam, caplog: pytest.LogCaptureFixture, cls: type, method: str, kept: bool, how: str
) -> None:
    """Of the rest nothing is left; and who comes with its identifier is let in."""
    if method == "detaching" and not kept:
        pytest.skip("no session is kept")
    if how != "disconnect" and method in ("_ending", "_take_leave"):
        pytest.skip("nobody calls it then")
    if how != "taken over" and method == "_part":
        pytest.skip("nobody calls it then")
    if how == "disconnect" and method == "publish_will":
        pytest.skip("there is none then")

    def of(each: Any) -> bool:
        return is_victims(each) or getattr(each, "topic", "") == "will"

    seam.at(cls, method, of=of)
    async with relay_with_pair(seam, caplog, gone=False) as relay:
        async with dial(relay.port) as victim, connected(relay.port, "pub") as pub:
            hello = Connect(VICTIM, not kept, 0, will=Will("will", b"x"))
            await victim.stream.send_all(victim.connection.send(hello))
            await victim.expect(ConnAck(False, 0))
            await victim.subscribe("t", qos=1)
            await pub.publish("t", b"x", 1)
            await pub.expect(PubAck(1))
            seam.armed = True
            session = relay.relay.mqtt.sessions[VICTIM]
            if how == "disconnect":
                await victim.send(Disconnect())
            elif how == "cut":
                session.cut("a test")
            else:
                async with dial(relay.port) as new:
                    await new.stream.send_all(new.connection.send(hello))
                    assert isinstance(await new.next(), ConnAck)
                    seam.armed = False
                    await new.send(Subscribe(3, (("u", 0),)))
                    await until(lambda: session not in relay.relay.mqtt.open)
            await until(lambda: session not in relay.relay.mqtt.open)
            await until(lambda: VICTIM not in relay.relay.mqtt.sessions or method == "_close")
        seam.armed = False
        await forget_victim(relay.port)
        await until(lambda: len(relay.relay.mqtt.open) == 2)


async def test_a_session_that_cannot_be_made(seam: Seam, caplog: pytest.LogCaptureFixture) -> None:
    async with relay_with_pair(seam, caplog, gone=False) as relay:
        seam.at(MqttSession, "__init__", of=lambda _: True)
        seam.armed = True
        async with dial(relay.port) as victim:
            await victim.gone()
        seam.armed = False


async def test_a_peer_that_cannot_be_told_what_it_did_wrong(
    seam: Seam, caplog: pytest.LogCaptureFixture
) -> None:
    seam.at(MqttSession, "_say_why")
    async with (
        relay_with_pair(seam, caplog) as relay,
        connected5(relay.port, VICTIM) as victim,
    ):
        seam.armed = True
        await victim.stream.send_all(b"\xff\xff")
        await victim.gone()


async def test_a_link_that_cannot_be_made(caplog: pytest.LogCaptureFixture) -> None:
    """It alone is closed: the next one is accepted."""
    (listener,) = await open_listeners(ListenURL.parse("mqtt+tcp://127.0.0.1:0", ("mqtt",)))
    served = 0

    async def serve(link: Link) -> None:
        nonlocal served
        served += 1
        link.close()

    def make(sock: Any, peer: str) -> Link:
        if not log_of(caplog, "could not be opened"):
            raise InjectedError
        return Link(sock, peer)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.accept_into, nursery, serve, make)
        for _ in range(2):
            async with dial(int(listener.url.port or 0)) as client:
                await client.gone()
        nursery.cancel_scope.cancel()
    listener.close()
    assert served == 1


# -- credit ---------------------------------------------------------------------------------------


async def test_credit_that_cannot_be_given(seam: Seam, caplog: pytest.LogCaptureFixture) -> None:
    """What was repaid is repaid, whatever becomes of credit."""

    def of(each: Any) -> bool:
        return isinstance(each, list | tuple) and any(
            isinstance(holder, Holder) and is_victims(holder)
            for holder, *_ in each  # pyright: ignore
        )

    seam.at(CreditScheme, "repaid_several", of=of)
    async with (
        relay_with_pair(seam, caplog, serve=on_credit()) as relay,
        connected(relay.port, VICTIM) as victim,
        connected(relay.port, "other") as other,
        connected(relay.port, "pub") as pub,
    ):
        await victim.subscribe("t")
        await other.subscribe("t")
        seam.armed = True
        await pub.publish("t", b"x")
        assert (await other.publication()).payload == b"x"
