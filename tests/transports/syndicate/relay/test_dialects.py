"""Both dialects of the answer to `<resolve ...>`, for peers that send what known clients send."""

from __future__ import annotations

import logging

import pytest

from clearfunds.transports.syndicate import decode
from tests.transports.peers import until
from tests.transports.syndicate.relay.peers import TCP, Peer, SyndicateRelay, in_text, relay, says

GATE = f"{TCP}?gatekeeper"

ASKED = (
    "b5b5b000b4b30141b4b3077265736f6c7665b4b303726566b7b3036f6964b10973796e646963617465b3"
    "03736967b21069ca300c1dbfa08fba692102dd82311a848486b5b000b0008484b001{}848484"
)
"""As captured: the question of syndicate-server 0.50.1's and 0.51.0-rc.4's examples, which is the
same, and of syndicate-py 0.19.3. They differ in the handle, which is to be put in."""

RUST = bytes.fromhex(ASKED.format("03"))
PYTHON = bytes.fromhex(ASKED.format("01"))

OBSERVE = bytes.fromhex(
    "b5b5b00101b4b30141b4b3074f627365727665b4b30567726f7570b4b303726563b3045361797384b7b000b4b3"
    "0462696e64b4b3015f8484b00101b4b30462696e64b4b3015f8484848486b5b000b001018484b00121848484"
)
"""As captured: what the Rust examples' `consumer` says next, in both generations."""

RUST_WRONG = RUST.replace(bytes.fromhex("69ca"), bytes.fromhex("69cb"))


async def asked(served: SyndicateRelay, peer: Peer, data: bytes) -> list[str]:
    await peer.send_raw(data)
    answer = await peer.told()
    served.audit()
    return answer


async def test_a_rust_client_hears_both_answers() -> None:
    async with relay(listen=(GATE,), sturdy_key=b"") as served, served.peer() as peer:
        assert await asked(served, peer, RUST) == [
            "0 + <accepted #:[0 1]>", "0 + <ok #:[0 1]>",
        ]  # fmt: skip
        await peer.send_raw(OBSERVE)
        await peer.send("[[1 <M <Says a b>>]]")
        assert await peer.told() == ["1 ! [a b]"]
        await peer.send("[[0 <R 3>]]")
        assert sorted(await peer.told()) == ["0 - <accepted #:[0 1]>", "0 - <ok #:[0 1]>"]


async def test_a_rust_client_hears_both_refusals(caplog: pytest.LogCaptureFixture) -> None:
    async with relay(listen=(GATE,), sturdy_key=b"") as served, served.peer() as peer:
        with caplog.at_level(logging.WARNING):
            older, newer = await asked(served, peer, RUST_WRONG)
        assert older.startswith('0 + <rejected "this sturdyref names no service here')
        assert newer.startswith('0 + <error "this sturdyref names no service here')
        assert "a reference was not resolved" in caplog.text


async def test_syndicate_py_hears_the_older_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        relay(listen=(GATE,), sturdy_key=b"") as served,
        served.peer() as peer,
        served.peer() as another,
    ):
        assert await asked(served, peer, PYTHON) == ["0 + <accepted #:[0 1]>", "0 ? #:[0 2]"]
        await peer.send("[[2 <M #t>]]")
        assert await peer.sync(1) == []
        monkeypatch.setattr("clearfunds.transports.syndicate._gatekeeper.SYNC_SECONDS", 0.0)
        # When the clock has passed another's question, it has passed this one's, too.
        await asked(served, another, PYTHON)
        assert await another.told() == ["0 + <ok #:[0 1]>"]
        assert await peer.sync(1) == []


async def test_a_simple_client_that_answers_no_sync_hears_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clearfunds.transports.syndicate._gatekeeper.SYNC_SECONDS", 0.0)
    async with relay(listen=(GATE,), sturdy_key=b"") as served, served.peer() as peer:
        assert await asked(served, peer, PYTHON) == ["0 + <accepted #:[0 1]>", "0 ? #:[0 2]"]
        assert await peer.told() == ["0 + <ok #:[0 1]>"]
        served.audit()
        await peer.send("[[0 <R 1>]]")
        assert sorted(await peer.told()) == ["0 - <accepted #:[0 1]>", "0 - <ok #:[0 1]>"]


async def test_a_question_that_is_over_is_not_answered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clearfunds.transports.syndicate._gatekeeper.SYNC_SECONDS", 0.0)
    async with relay(listen=(GATE,), sturdy_key=b"") as served, served.peer() as peer:
        async with served.peer() as leaves:
            await leaves.send_raw(PYTHON + bytes.fromhex("b5b5b000b4b30152b00101848484"))
            await leaves.told()
            await until(lambda: served.side.counters.received_bytes)
        await peer.send_raw(PYTHON)
        assert await peer.told() == ["0 + <accepted #:[0 1]>", "0 ? #:[0 2]"]
        assert await peer.told() == ["0 + <ok #:[0 1]>"]


async def test_a_listener_without_a_gatekeeper_answers_too() -> None:
    """Its dataspace resolves; nobody waits in silence."""
    async with relay(sturdy_key=b"") as served, served.peer() as peer:
        # The dataspace is oid 0 already.
        assert await asked(served, peer, RUST) == ["0 + <accepted #:[0 0]>", "0 + <ok #:[0 0]>"]


async def test_a_relay_without_a_key_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with relay() as served, served.peer() as peer:
        with caplog.at_level(logging.WARNING):
            older, newer = await asked(served, peer, RUST)
        assert older.startswith("0 + <rejected ")
        assert newer.startswith("0 + <error ")
        assert "--sturdy-key-file" in newer
        assert "--sturdy-key-file" in caplog.text


@pytest.mark.parametrize("packet", [says("a"), "[[0 <A <Observe <_> #:[0 1]> 3>]]"])
async def test_what_a_gatekeeper_does_not_understand_is_logged(
    packet: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with relay(listen=(GATE,), sturdy_key=b"") as served, served.peer() as peer:
        with caplog.at_level(logging.WARNING):
            await peer.send(packet)
            await peer.sync()
        assert "gatekeeper" in caplog.text


def test_the_captured_packets_are_what_they_seem() -> None:
    assert in_text(decode(RUST)).endswith("#:[0 0]> 3>]]")
    assert in_text(decode(PYTHON)).endswith("#:[0 0]> 1>]]")
