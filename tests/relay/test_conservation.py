"""Whatever is cancelled, and whenever: the books balance, and no task, descriptor or debt is left.

The same conversation of three clients is held again and again, with real sockets. Each time the
relay, or one of its connections, is cancelled one step of one task later.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from typing import Any, cast

import pytest
import trio
from trio.abc import Instrument

from clearfunds.accounts import Account, AuditError
from clearfunds.relay import Relay as RealRelay
from clearfunds.relay import RelayAddresses, RelaySettings, serve_relay
from clearfunds.transports import Outlet
from clearfunds.transports.mqtt import (
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
    encode5,
)
from tests.transports.peers import RunningRelay, connected, descriptors, running, until

LITTLE = 4096
SETTINGS: dict[str, Any] = {
    "listen": ("mqtt+tcp://127.0.0.1:0",),
    "limit_items": 3,
    "max_inflight": 2,
    "grace": 0.0,
    # While one of them is waited for, the kernel has room for what the others do not read.
    "unsent_bytes": None,
}


async def talk(port: int) -> None:
    """A bit of everything: replays, runs, both handshakes, waiting, a take-over, a will."""
    async with (
        connected(port, "slow", receive_buffer=LITTLE) as slow,
        connected(port, "acker") as acker,
        connected(port, "pub", will=Will("t/will", b"w", 1)) as pub,
    ):
        for n in range(1, 4):
            await pub.publish(f"t/kept/{n}", b"kept", 1, retain=True, packet_id=n)
            await pub.expect(PubAck(n))
        await slow.subscribe("t/#")
        await slow.publications(3)
        await acker.subscribe("t/#", qos=1)
        await acker.publications(3, ack=True)
        await pub.send(
            *(Publish(f"t/{n % 2}", bytes(60_000)) for n in range(10)),
            Publish("t/2", b"x", 1, packet_id=7),
            Publish("t/2", b"y", 2, packet_id=8),
            PingReq(),
        )
        await acker.send(Unsubscribe(5, ("u",)), PingReq(), Publish("t/acker", b"z"))
        await slow.publications(13)
        heard: list[Packet | None] = []
        for _ in range(15):
            heard.append(packet := await acker.receive())
            if isinstance(packet, Publish) and packet.qos:
                await acker.send(PubAck(packet.packet_id))
        assert {UnsubAck(5), PingResp()} <= set(heard)
        answers = {await pub.receive() for _ in range(3)}
        assert answers == {PingResp(), PubAck(7), PubRec(8)}
        await pub.send(PubRel(8))
        await pub.expect(PubComp(8))
        async with connected(port, "pub") as again:
            assert (await slow.publication()).payload == b"w"
            assert (await acker.publication()).payload == b"w"
            await again.publish("t/again", bytes(60_000))
            await again.send(Disconnect())
            assert await again.gone() == []
        await slow.publication()


class AtStep(Instrument):
    """Does something after so many steps of all tasks."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.what: Any = None
        self.done = False

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.what is not None and not self.done:
            self.step -= 1
            if self.step < 0:
                self.done = True
                self.what()


async def try_to_talk(port: int, lost: trio.CancelScope) -> bool:
    """Talk until a connection is lost; whether it was said to the end."""
    try:
        with lost:
            await talk(port)
            return True
    except* (AssertionError, trio.BrokenResourceError, OSError):
        pass
    return False


async def cancelled_relay(step: int) -> bool:
    """Cancel the whole relay after so many steps; whether it came to that."""
    made: list[RealRelay] = []

    class Relay(RealRelay):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    before = descriptors()
    at_step = AtStep(step)
    lost = trio.CancelScope()
    serving = trio.CancelScope()
    trio.lowlevel.add_instrument(at_step)
    try:
        async with trio.open_nursery() as nursery:

            async def serve(task_status: trio.TaskStatus[RelayAddresses]) -> None:
                with serving:
                    await serve_relay(RelaySettings(**SETTINGS), task_status=task_status)
                lost.cancel()

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("clearfunds.relay._relay.Relay", Relay)
                addresses: RelayAddresses = await nursery.start(serve)
            (relay,) = made
            at_step.what = serving.cancel
            said = await try_to_talk(int(addresses.listening[0].rpartition(":")[2]), lost)
            assert said or at_step.done
            serving.cancel()
    finally:
        trio.lowlevel.remove_instrument(at_step)
    relay.ledger.audit()
    assert relay.ledger.statistics().debt_items == 0
    assert set(relay.ledger.accounts) == {"server"}
    assert [holder.kind for holder in relay.ledger.holders] == ["router"]
    assert not relay.mqtt.open
    assert not relay.mqtt.sessions
    assert relay.mqtt.counters.internal_errors == 0
    assert not relay.mqtt.flusher.nursery.child_tasks
    assert descriptors() == before
    return at_step.done


async def test_a_relay_that_is_cancelled_at_any_step_leaves_nothing() -> None:
    gc.collect()  # what earlier tests have left must not vanish in between
    step = 0
    while await cancelled_relay(step):
        step += 1
    assert step > 200


async def cut_connection(relay: RunningRelay, step: int, which: int) -> bool:
    """Cut one of the connections after so many steps; whether it came to that."""
    at_step = AtStep(step)
    lost = trio.CancelScope()

    def cut() -> None:
        sessions = sorted(relay.relay.mqtt.open, key=lambda session: session.name)
        if sessions:
            sessions[which % len(sessions)].cut("for a test")
        # Whoever waits for something of its does so in vain.
        lost.deadline = trio.current_time() + 0.1

    at_step.what = cut
    trio.lowlevel.add_instrument(at_step)
    try:
        said = await try_to_talk(relay.port, lost)
    finally:
        trio.lowlevel.remove_instrument(at_step)
    assert said or at_step.done
    await relay.deserted()
    return at_step.done


@pytest.mark.parametrize("which", range(3))
async def test_a_connection_that_is_cut_at_any_step_leaves_nothing(which: int) -> None:
    async with running(**SETTINGS) as relay:
        step = which
        while await cut_connection(relay, step, which):
            step += 3
        assert step > 200


async def test_a_client_that_is_cut_anywhere_in_what_it_says_leaves_nothing() -> None:
    """At each byte of it, by a reset or by closing, while another one talks."""
    said = b"".join(
        encode(packet)
        for packet in (
            Publish("t", b"run"),
            Publish("t", b"run"),
            Publish("t", b"1", 1, packet_id=1),
            Publish("u", bytes(300), 2, retain=True, packet_id=2),
            PubRel(2),
            Unsubscribe(3, ("t",)),
            PingReq(),
        )
    )
    async with running(limit_items=2) as relay, connected(relay.port, "other") as other:
        await other.subscribe("#")
        for end in range(0, len(said), 3):
            await other.publish("t", b"from the other one")
            will = Will("w", b"gone") if end % 2 else None
            async with connected(relay.port, "cut", will=will) as client:
                await client.subscribe("t", qos=end % 2)
                await client.stream.send_all(said[:end])
                await (client.reset() if end % 3 else client.stream.aclose())
            await until(lambda: len(relay.relay.mqtt.open) == 1)
            relay.audit()
            while not await other.silent(0.001):
                pass


@pytest.mark.parametrize(
    "fault",
    [
        b"",
        b"\x10\xff\xff\x7f",  # a CONNECT of 2 MiB
        b"\x10\x0c\0\4MQTT\4\0\0\0\0\0",  # without a client identifier, to be kept
        encode5(Connect("c", protocol_level=5)) + b"\xd0\0",
        encode(Connect("c")) + b"\x30\xff\xff\xff\x7f",
        encode(Connect("c")) + b"\x36\0",
    ],
)
async def test_what_has_ended_is_not_left_to_the_garbage_collector(fault: bytes) -> None:
    """Which the relay lets run seldom: what is in a cycle would stay, connection by connection."""

    async def come_and_go(relay: RunningRelay) -> None:
        if fault:
            async with await trio.open_tcp_stream("127.0.0.1", relay.port) as stream:
                await stream.send_all(fault)
                with contextlib.suppress(trio.BrokenResourceError):
                    while await stream.receive_some(1 << 16):
                        pass
            await relay.deserted()
            return
        async with connected(relay.port, "brief", will=Will("t/2", b"w")) as client:
            await client.subscribe("t/+", qos=1)
            await client.send(Publish("t/1", b"x", 1, packet_id=1), Publish("t/1", b"y"))
            for _ in range(3):
                await client.receive()
        await relay.deserted()

    async with running() as relay:
        await come_and_go(relay)  # what is made once
        while gc.collect():  # What earlier tests left may take several turns.
            pass
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(20):
                await come_and_go(relay)
            gc.collect()
            kinds = Counter(type(each).__name__ for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.enable()
            gc.garbage.clear()
    for kind in (
        "MqttSession",
        "Link",
        "Outlet",
        "Inflight",
        "Connection",
        "Account",
        "LoanedItem",
    ):
        assert kinds[kind] == 0, (kind, kinds)
    assert kinds.total() < 5 * 20  # none of the relay's own, at any rate


# -- what nobody was charged for is found (rule 15) -----------------------------------------------


@pytest.mark.parametrize("how", ["uncharged", "in a loan", "no loan"])
async def test_a_path_that_forgets_to_charge_is_found(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as what it delivered is anywhere in the relay: by the first audit."""
    proper = Outlet.hold
    stowaway = encode(Publish("t", bytes(100)))

    def hold(
        self: Outlet, account: Account, item: Any, items: int, nbytes: int, now: float
    ) -> None:
        proper(self, account, item, items, nbytes, now)
        if self.name.endswith("/stuck"):
            monkeypatch.undo()  # once
            if how == "uncharged":
                proper(self, account, stowaway, 1, len(stowaway), now)
            elif how == "in a loan":
                self.queue[-1].item.append(stowaway)
            else:
                self.queue.append(cast("Any", stowaway))

    async with (
        running(grace=0) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "pub") as pub,
    ):
        await stuck.subscribe("t")
        while relay.account("pub").debt_items < 4:
            await pub.publish("t", bytes(500_000))
            await trio.sleep(0.05)  # the kernel takes some more at first
        relay.audit()
        borrowed = relay.account("pub").borrowed_items
        monkeypatch.setattr(Outlet, "hold", hold)
        await pub.publish("t", b"and one more")
        await until(lambda: relay.account("pub").borrowed_items > borrowed)
        expected = {
            "uncharged": "but holders have",
            "in a loan": f"{len(stowaway)} bytes that no loan covers",
            "no loan": "which is not a loan",
        }[how]
        with pytest.raises(AuditError, match=expected):
            relay.ledger.audit()
        # Let the relay end in order.
        (outlet,) = (h for h in relay.ledger.holders if isinstance(h, Outlet) and h.queue)
        if how == "uncharged":
            relay.account("pub").borrow(1, len(stowaway))
        elif how == "in a loan":
            outlet.queue[-1].item.pop()
        else:
            outlet.queue.pop()
        relay.audit()
