"""The relay and syndicate-py, a client that others wrote, in processes of its own.

Over WebSocket syndicate-py needs the package `websockets`; where that is not installed, the one
test of it is left out. `test_transports.py` has another WebSocket client.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pytest
import trio

from clearfunds.accounts import Account
from clearfunds.transports.syndicate import SturdyRef, Value, attenuated_sturdyref, mint
from clearfunds.transports.syndicate._preserves import decode_text
from tests.transports.peers import SECONDS, connected, until
from tests.transports.syndicate.relay.peers import (
    TCP,
    WHOLE_SAYS,
    SyndicateRelay,
    observe,
    relay,
    says,
    wire,
)

pytestmark = pytest.mark.skipif(
    find_spec("syndicate") is None, reason="syndicate-py is not installed (extra: test)"
)

CLIENT = Path(__file__).parent / "peer_syndicate_py.py"
COUNT = 300
KEY = b"the key of a test"
TOLD_LARGE = f"<long 500000 {zlib.crc32(b'x' * 500_000)}>>]"


class Foreign:
    """A syndicate-py client in a process of its own; see `peer_syndicate_py.py` for its words."""

    def __init__(self, process: trio.Process, errors: IO[bytes]) -> None:
        self.process = process
        self._errors = errors
        self._read = b""
        self.heard: list[str] = []

    async def do(self, *commands: str) -> None:
        """Have it do things, one after the other."""
        assert self.process.stdin is not None
        with trio.fail_after(SECONDS):
            await self.process.stdin.send_all("".join(f"{c}\n" for c in commands).encode())

    async def line(self) -> str | None:
        """Return the next line that it prints; None at the end."""
        assert self.process.stdout is not None
        with trio.fail_after(SECONDS):
            while b"\n" not in self._read:
                data = await self.process.stdout.receive_some()
                if not data:
                    return None
                self._read += data
        line, _, self._read = self._read.partition(b"\n")
        self.heard.append(line.decode())
        return self.heard[-1]

    async def lines(self, count: int) -> list[str]:
        """Return the next lines that it prints."""
        found: list[str] = []
        for _ in range(count):
            line = await self.line()
            assert line is not None, f"it printed only {found[-3:]}"
            found.append(line)
        return found

    async def expect(self, *expected: str) -> None:
        """Read lines, which have to be these."""
        assert await self.lines(len(expected)) == [*expected]

    async def sync(self, target: str = "ds") -> None:
        """Wait until all that it has said has been dealt with; nothing else may come meanwhile."""
        await self.do(f"sync {target} sync")
        await self.expect("sync synced")

    async def gone(self) -> None:
        """Read to the end, and wait for it."""
        while await self.line() is not None:
            pass
        with trio.fail_after(SECONDS):
            await self.process.wait()

    def errors(self) -> str:
        """Return what it has written about errors."""
        self._errors.seek(0)
        return self._errors.read().decode()


@asynccontextmanager
async def foreign(
    served: SyndicateRelay, listener: int = 0, *, ref: SturdyRef | str = "", connects: bool = True
) -> AsyncGenerator[Foreign]:
    """Run a client for the length of a block, and see that it connects; kill it at the end."""
    where = served.where(listener)
    address = f'<tcp "127.0.0.1" {where}>' if isinstance(where, int) else f'<unix "{where}">'
    if served.running.addresses.listening[listener].startswith("syndicate+ws:"):
        address = f'<ws "ws://127.0.0.1:{where}/">'
    with tempfile.TemporaryFile() as errors:
        process = await trio.lowlevel.open_process(
            [sys.executable, str(CLIENT), address, str(ref)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        client = Foreign(process, errors)
        try:
            if connects:
                await client.expect("connected")
            yield client
        except BaseException as exc:
            exc.add_note(f"it printed, at last: {client.heard[-5:]}\n{client.errors()[-5000:]}")
            raise
        finally:
            with trio.CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                await process.wait()
                assert process.stdin is not None
                assert process.stdout is not None
                await process.stdin.aclose()
                await process.stdout.aclose()


def shown(lines: list[str], what: str) -> list[Value]:
    """Return the values of the lines that begin so: the same can be written in several ways."""
    return [decode_text(line[len(what) :]) for line in lines if line.startswith(what)]


# -- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tcp", "unix", "ws"])
async def test_messages_pass_in_order_both_ways(kind: str, tmp_path: Path) -> None:
    if kind == "ws" and find_spec("websockets") is None:
        pytest.skip("syndicate-py needs the package websockets for that, which is not installed")
    listen = {
        "tcp": TCP,
        "unix": f"syndicate+unix://{tmp_path}/relay.sock",
        "ws": "syndicate+ws://127.0.0.1:0",
    }
    async with (
        relay(listen=(TCP, listen[kind])) as served,
        served.peer() as peer,
        foreign(served, 1) as client,
        foreign(served, 1) as other,
    ):
        await peer.send(observe(WHOLE_SAYS))
        await peer.sync()
        await other.do("observe ds it <Says $ $>")
        await other.sync()
        # Each in a turn of its own; a type and a length of its own each; all in one turn.
        await client.do(f"flood ds {COUNT} 3", *[f"send ds <Says {n} [{n}]>" for n in range(20)])
        await client.do(f"together ds {COUNT}")
        numbers = [*[(n, '"xxx"') for n in range(COUNT)], *[(n, f"[{n}]") for n in range(20)]]
        numbers += [(n, '"together"') for n in range(COUNT)]
        await other.expect(*[f"it ! [{n} {what}]" for n, what in numbers])
        assert await peer.lines(len(numbers)) == [f"1 ! [<Says {n} {w}>]" for n, w in numbers]
        assert served.side.counters.received == len(numbers)
        # From a peer to syndicate-py; and syndicate-py observes, as it publishes.
        await client.do("observe ds mine <Says _ $>")
        await client.sync()
        await peer.send_raw(wire(*[says(str(n), f'"{n}"') for n in range(COUNT)]))
        await other.expect(*[f'it ! [{n} "{n}"]' for n in range(COUNT)])
        await client.expect(*[f'mine ! ["{n}"]' for n in range(COUNT)])
        served.audit()


async def test_values_of_all_kinds_come_through_as_they_are() -> None:
    values = [
        '"grüße"', "symbol", '#x"00ff"', "#t", "#f", "0", "-129", "12345678901234567890", "1.5",
        "[]", '[1 [2 ["three"]]]', "<r>", '<r <s "x"> {1: a b: [2]}>', "#{1 2 3}", '{"k": v}',
    ]  # fmt: skip
    async with relay() as served, foreign(served) as client, foreign(served) as other:
        await other.do("observe ds it <value $>", "observe ds there <standing $>")
        await other.sync()
        await client.do(*[f"send ds <value {value}>" for value in values])
        expected = [decode_text(f"[{value}]") for value in values]
        assert shown(await other.lines(len(values)), "it !") == expected
        await client.do(*[f"assert ds {n} <standing {v}>" for n, v in enumerate(values)])
        assert shown(await other.lines(len(values)), "there +") == expected


# -- state ----------------------------------------------------------------------------------------


async def test_what_it_asserts_appears_and_goes() -> None:
    async with relay() as served, served.peer() as peer:
        async with foreign(served) as client:
            await client.do(*[f"assert ds {n} <Says {n}>" for n in range(COUNT)])
            await client.sync()
            await peer.send(observe(WHOLE_SAYS))
            found = await peer.lines(COUNT)
            assert sorted(found) == sorted(f"1 + [<Says {n}>]" for n in range(COUNT))
            await client.do(*[f"retract {n}" for n in range(COUNT - 2)])
            expected = [f"1 - [<Says {n}>]" for n in range(COUNT - 2)]
            assert await peer.lines(COUNT - 2) == expected
            # Twice the same is there until it goes for the second time.
            await client.do("assert ds a <Says x>", "assert ds b <Says x>", "retract a")
            await client.sync()
            assert await peer.lines(1) == ["1 + [<Says x>]"]
            assert await peer.sync() == []
            await client.do("retract b")
            assert await peer.lines(1) == ["1 - [<Says x>]"]
            client.process.kill()
            last = [f"1 - [<Says {n}>]" for n in (COUNT - 2, COUNT - 1)]
            assert sorted(await peer.lines(2)) == last
        await until(lambda: len(served.side.open) == 1)


async def test_it_sees_what_others_assert_and_retract() -> None:
    async with relay() as served, foreign(served) as client:
        async with served.peer() as peer, foreign(served) as other:
            await peer.send(*[f"[[0 <A <Says {n} early> {n}>]]" for n in range(COUNT)])
            await peer.sync()
            await client.do("observe ds it <Says $ _>")
            found = await client.lines(COUNT)
            assert sorted(found) == sorted(f"it + [{n}]" for n in range(COUNT))
            await peer.send(*[f"[[0 <R {n}>]]" for n in range(COUNT - 1)])
            await client.expect(*[f"it - [{n}]" for n in range(COUNT - 1)])
            # It cannot tell apart what differs only in what it does not look at.
            await other.do("assert ds one <Says a 1>", "assert ds two <Says a 2>", "retract one")
            await other.sync()
            await client.expect("it + [a]")
            await other.do("retract two", "assert ds three <Says three 3>")
            await client.expect("it - [a]", "it + [three]")
            await other.do("leave")
            await client.expect("it - [three]")
            await other.gone()
            assert other.process.returncode == 0, other.errors()
            await peer.reset()
        await client.expect(f"it - [{COUNT - 1}]")
        await client.sync()


async def test_it_sees_who_is_killed() -> None:
    async with relay() as served, foreign(served) as watching:
        await watching.do("observe ds it <here $>")
        async with foreign(served) as killed:
            await killed.do("assert ds a <here 1>", "assert ds b <here 2>")
            assert sorted(await watching.lines(2)) == ["it + [1]", "it + [2]"]
            killed.process.kill()
        assert sorted(await watching.lines(2)) == ["it - [1]", "it - [2]"]


async def test_it_notices_that_the_relay_stops() -> None:
    async with relay() as served, foreign(served) as client:
        await client.do("assert ds a <here 1>")
        await client.sync()
        served.running.relay.stop()
        await client.expect("disconnected")
        await client.do("leave")
        await client.gone()
        assert "Error" not in client.errors()


# -- sync and references --------------------------------------------------------------------------


async def test_a_sync_is_answered_when_all_before_it_has_been_dealt_with() -> None:
    """It wraps the reference to whom is to be answered in another one."""
    async with relay() as served, served.peer() as peer, foreign(served) as client:
        await peer.send(observe(WHOLE_SAYS))
        await peer.sync()
        for n in range(1, 4):
            await client.do(f"flood ds {COUNT} 10")
            await client.sync()
            assert served.side.counters.received == n * COUNT
            lines = await peer.lines(COUNT)
            assert lines == [f'1 ! [<Says {n} "xxxxxxxxxx">]' for n in range(COUNT)]
        await client.do(*[f"sync ds s{n}" for n in range(50)])
        await client.expect(*[f"s{n} synced" for n in range(50)])


async def test_two_talk_past_the_dataspace() -> None:
    """By a reference that one has asserted and the other observed."""
    async with relay() as served, foreign(served) as client:
        async with foreign(served) as service:
            await service.do("serve ds clock")
            await service.sync()
            await client.do("reach ds clock")
            await client.expect("clock reached")
            await client.do(*[f"send clock <tick {n}>" for n in range(COUNT)])
            await client.do("assert clock a <at 12>", "retract a", "assert clock b <at 13>")
            # The service itself answers that, through the relay.
            await client.sync("clock")
            await service.expect(
                *[f"clock ! <tick {n}>" for n in range(COUNT)],
                *["clock + <at 12>", "clock - <at 12>", "clock + <at 13>"],
            )
            served.audit()
            # Whoever asserted it leaves: the service is told.
            client.process.kill()
            await service.expect("clock - <at 13>")
        await until(lambda: not served.side.open)


# -- sturdyrefs -----------------------------------------------------------------------------------


def caveats(*texts: str) -> list[Value]:
    return [decode_text(text) for text in texts]


@asynccontextmanager
async def guarded() -> AsyncGenerator[SyndicateRelay]:
    """Run a relay: the dataspace on its first listener, a gatekeeper on its second."""
    async with relay(listen=(TCP, f"{TCP}?gatekeeper"), sturdy_key=KEY) as served:
        yield served


async def test_with_a_sturdyref_it_meets_the_dataspace() -> None:
    async with guarded() as served, served.peer() as peer:
        await peer.send(observe(WHOLE_SAYS), "[[0 <A <Here 1> 9>]]")
        await peer.sync()
        async with foreign(served, 1, ref=mint("syndicate", KEY)) as client:
            await client.do("observe ds it <Here $>", "send ds <Says 1>", "assert ds a <Says 2>")
            await client.expect("it + [1]")
            await client.sync()
            assert await peer.lines(2) == ["1 ! [<Says 1>]", "1 + [<Says 2>]"]
            await client.do("leave")
            await client.gone()
            assert await peer.lines(1) == ["1 - [<Says 2>]"]


async def test_a_reject_caveat_rejects() -> None:
    secret = "<reject <rec Says [<lit secret> <_>]>>"
    ref = attenuated_sturdyref(mint("syndicate", KEY), caveats(secret))
    async with (
        guarded() as served,
        served.peer() as peer,
        foreign(served, 1, ref=ref) as client,
    ):
        await peer.send(observe(WHOLE_SAYS))
        await peer.sync()
        await client.do(
            "send ds <Says open 1>", "send ds <Says secret 2>", "send ds <Says open 3>",
            "assert ds a <Says secret 4>", "assert ds b <Says open 5>", "retract a",
            "send ds <Says secret>", "retract b",
        )  # fmt: skip
        await client.sync()
        assert await peer.lines(5) == [
            "1 ! [<Says open 1>]", "1 ! [<Says open 3>]",
            "1 + [<Says open 5>]", "1 ! [<Says secret>]", "1 - [<Says open 5>]",
        ]  # fmt: skip
        assert await peer.sync() == []
        # What it rejects is what goes in; it may observe what others say.
        await client.do("observe ds it <Says secret $>")
        await client.sync()
        await peer.send(says("secret", "6"))
        await client.expect("it ! [6]")


async def test_a_rewrite_caveat_rewrites_and_lets_nothing_else_through() -> None:
    signed = "<rewrite <rec Says [<_> <bind <_>>]> <rec Says [<lit tony> <ref 0>]>>"
    ref = attenuated_sturdyref(mint("syndicate", KEY), caveats(signed))
    async with guarded() as served, served.peer() as peer:
        await peer.send(observe(WHOLE_SAYS), "[[0 <A <Here 1> 9>]]")
        await peer.sync()
        async with foreign(served, 1, ref=ref) as client:
            await client.do(
                "observe ds it <Here $>", "send ds <Says eve 1>", "send ds <Other 1>",
                "assert ds a <Says eve [2]>", "send ds <Says eve 1 2>", "retract a",
            )  # fmt: skip
            # To observe is to assert, which the rewrite does not let through.
            await client.sync()
            assert await peer.lines(3) == [
                "1 ! [<Says tony 1>]", "1 + [<Says tony [2]>]", "1 - [<Says tony [2]>]",
            ]  # fmt: skip
            assert await peer.sync() == []
        # With one more caveat, which is run first, less comes through.
        fewer = attenuated_sturdyref(ref, caveats("<reject <rec Says [<_> <lit 7>]>>"))
        async with foreign(served, 1, ref=fewer) as client:
            await client.do("send ds <Says eve 7>", "send ds <Says eve 8>")
            assert await peer.lines(1) == ["1 ! [<Says tony 8>]"]


async def test_alternatives_are_tried_in_order() -> None:
    either = (
        "<or [<rewrite <rec Says [<bind SignedInteger>]> <rec Says [<lit number> <ref 0>]>>"
        " <rewrite <bind <rec Observe [<_> <_>]>> <ref 0>>]>"
    )
    ref = attenuated_sturdyref(mint("syndicate", KEY), caveats(either))
    async with guarded() as served, foreign(served, 1, ref=ref) as client:
        await client.do("observe ds it <Says $ $>", "observe ds all <Says $>")
        await client.do("send ds <Says 1>", 'send ds <Says "1">')
        assert sorted(await client.lines(2)) == ["all ! [number]", "it ! [number 1]"]
        await client.sync()


WHOLE = mint("syndicate", KEY)
LESS = attenuated_sturdyref(WHOLE, caveats("<reject <rec Says [<_>]>>"))


@pytest.mark.parametrize(
    "ref",
    [
        mint("syndicate", b"another key"),
        mint("another", KEY),
        SturdyRef("syndicate", WHOLE.sig[:-1]),
        SturdyRef("syndicate", LESS.sig),  # the caveat taken off
        SturdyRef("syndicate", WHOLE.sig, LESS.caveats),  # one that was not signed
        SturdyRef("syndicate", LESS.sig, LESS.caveats * 2),
    ],
    ids=["key", "oid", "short", "without its caveat", "with a caveat", "with one twice"],
)
async def test_a_wrong_sturdyref_is_rejected(ref: SturdyRef) -> None:
    async with guarded() as served, foreign(served, 1, ref=ref, connects=False) as client:
        await client.gone()
        assert client.heard == []
        assert "Could not resolve reference: Resolved.Rejected" in client.errors()
        await until(lambda: not served.side.open)
        assert served.side.counters.protocol_errors == 0


# -- with others ----------------------------------------------------------------------------------


async def test_it_sees_mqtts_publications_and_makes_some() -> None:
    listen = (TCP, "mqtt+tcp://127.0.0.1:0")
    async with relay(listen=listen) as served, foreign(served) as client:
        port = served.where(1)
        async with connected(port, "thermometer") as mqtt:
            await mqtt.subscribe("c/#", "d/+", qos=1)
            await client.do(
                "observe ds all <publication $ $ $ $>",
                'observe ds some <publication ["a" _] $ _ _>',
            )
            await client.sync()
            for n in range(COUNT):
                await mqtt.publish("a/b", b"%d" % n)
            found = await client.lines(2 * COUNT)
            payloads = [b"%d" % n for n in range(COUNT)]
            assert shown(found, "all !") == [(("a", "b"), p, 0, False) for p in payloads]
            assert shown(found, "some !") == [(p,) for p in payloads]
            await client.do('send ds <publication ["c" "x" "y"] #x"00ff" 1 #f>')
            await client.do('send ds <publication ["d" "x"] #"plain" 0 #f>')
            one, two = await mqtt.publications(2, ack=True)
            assert (one.topic, one.payload, one.qos) == ("c/x/y", b"\x00\xff", 1)
            assert (two.topic, two.payload, two.qos) == ("d/x", b"plain", 0)


async def test_a_publisher_that_knows_no_flow_control_is_held() -> None:
    """And loses nothing: syndicate-py never looks how much it has written and not sent."""
    count = 24
    async with (
        relay(limit_items=3, patience=60) as served,
        served.peer(receive_buffer=4096) as stuck,
        foreign(served) as client,
        foreign(served) as bystander,
    ):
        await stuck.send(observe(WHOLE_SAYS))
        await stuck.sync()
        await client.do(f"flood ds {count} 500000", "sync ds end")
        account = await waiting(served)
        assert served.holders(account) == {served.account(stuck).name: account.debt_items}
        served.audit()
        # Others are served meanwhile.
        await bystander.do("observe ds it <Other $>", "send ds <Other 1>")
        await bystander.expect("it ! [1]")
        await bystander.sync()
        assert account.waiting
        assert served.side.counters.received < count
        assert "end synced" not in client.heard
        lines = await stuck.lines(count)
        assert [int(line.split(" ")[3]) for line in lines] == list(range(count))
        assert {line.split(" ", 4)[4] for line in lines} == {TOLD_LARGE}
        await client.expect("end synced")
        await until(lambda: not account.debt_items)


async def waiting(served: SyndicateRelay) -> Account:
    """Wait until somebody waits for funds, and goes on doing so; return its account."""
    while True:
        await until(lambda: any(session.account.waiting for session in served.side.open))
        await trio.sleep(0.1)  # the kernel takes some more at first
        found = [s.account for s in served.side.open if s.account.waiting]
        if found:
            (account,) = found
            return account
