"""The book of unfinished input: who is charged, who has to go, who has to wait."""

from __future__ import annotations

import random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import Ledger
from clearfunds.transports._input import (
    LOOKAHEAD_FLOOR,
    PROGRESS_BYTES,
    STALL_SECONDS,
    HeldInput,
    InputBook,
    InputLimits,
    address_of,
)
from clearfunds.transports._link import LITTLE_BYTES, READ_BYTES

KIB = 1024


@attrs.define(eq=False)
class Peer:
    """One connection, as the book sees it."""

    scene: Scene
    share: str
    size: int = 0
    cut: str | None = None
    held: HeldInput | None = None

    def note(self, size: int, *, lookahead: bool = False) -> HeldInput:
        self.size = size
        if self.held is None:
            self.held = self.scene.book.open(
                f"input/{self.share}",
                self.scene.limit,
                f"peer of {self.share}",
                self,
                measure=lambda: self.size,
                cut=self.drop,
            )
        self.held.note(size, lookahead=lookahead)
        return self.held

    def grows_to(self, size: int) -> bool:
        """Hold so much, and say whether it may be read on."""
        return self.note(size).may_grow()

    def drop(self, why: str) -> None:
        self.cut = why
        self.size = 0
        self.held = None

    def end(self) -> None:
        held, self.held = self.held, None
        self.size = 0
        if held is not None:
            held.close()


class Scene:
    """A book with a clock that is moved by hand."""

    def __init__(self, total: int | None = 64 * KIB, limit: int | None = None) -> None:
        self.now = 0.0
        self.limit = limit
        self.ledger = Ledger(clock=lambda: self.now)
        self.book = InputBook(self.ledger, InputLimits(total=total))
        self.peers: list[Peer] = []

    def peer(self, share: str) -> Peer:
        peer = Peer(self, share)
        self.peers.append(peer)
        return peer

    def audit(self) -> None:
        self.ledger.audit()
        assert self.book.nbytes == sum(p.held.nbytes for p in self.peers if p.held is not None)


def test_what_is_held_is_charged_to_its_share_and_to_all() -> None:
    scene = Scene()
    a, b, c = scene.peer("a"), scene.peer("a"), scene.peer("b")
    for peer, size in ((a, 5 * KIB), (b, 6 * KIB), (c, 7 * KIB)):
        assert peer.grows_to(size)
    accounts = scene.ledger.accounts
    assert {name: accounts[name].debt_bytes for name in ("input", "input/a", "input/b")} == {
        "input": 18 * KIB,
        "input/a": 11 * KIB,
        "input/b": 7 * KIB,
    }
    assert scene.ledger.statistics().at_rest_bytes == {"ram": 18 * KIB}
    assert scene.ledger.statistics().debt_bytes == 0
    scene.audit()
    a.note(3 * KIB)
    scene.audit()
    for peer in (a, b, c):
        peer.end()
    assert not scene.ledger.accounts
    assert list(scene.ledger.holders) == [scene.ledger.router]
    scene.audit()


def test_the_share_with_most_goes_first_and_of_it_the_one_that_has_stalled_longest() -> None:
    scene = Scene()
    many = [scene.peer("greedy") for _ in range(6)]
    for peer in many:
        scene.now += 0.01
        assert peer.grows_to(10 * KIB)
    honest = scene.peer("honest")
    assert honest.grows_to(20 * KIB)  # 80 KiB in all: two have to go
    assert [peer.cut is not None for peer in many] == [True, True, False, False, False, False]
    assert scene.book.nbytes == 60 * KIB
    assert scene.book.cut == 2
    scene.audit()


def test_a_share_that_has_less_never_pays_for_one_that_has_more() -> None:
    scene = Scene()
    honest, greedy, other = scene.peer("honest"), scene.peer("greedy"), scene.peer("greedy")
    assert honest.grows_to(20 * KIB)
    assert greedy.grows_to(40 * KIB)
    scene.now += 100
    assert other.grows_to(30 * KIB)
    assert greedy.cut is not None
    assert honest.cut is None
    scene.now += 100
    assert not other.grows_to(50 * KIB)  # nobody else of its share, so it has to wait
    assert honest.cut is None
    scene.audit()


def test_within_a_share_one_that_makes_progress_is_not_cut_for_another() -> None:
    scene = Scene()
    first, second = scene.peer("a"), scene.peer("a")
    assert first.grows_to(40 * KIB)
    assert not second.grows_to(30 * KIB)
    scene.now += STALL_SECONDS / 2
    first.note(40 * KIB + PROGRESS_BYTES)
    scene.now += STALL_SECONDS / 2
    assert not second.grows_to(30 * KIB)
    assert (first.cut, second.cut) == (None, None)
    # A byte now and then is no progress.
    first.note(41 * KIB + 1)
    scene.now += STALL_SECONDS / 2
    first.note(41 * KIB + 2)
    assert second.grows_to(30 * KIB)
    assert first.cut is not None
    scene.audit()


def test_where_all_of_a_share_wait_for_room_one_goes() -> None:
    scene = Scene()
    many = [scene.peer("a") for _ in range(8)]
    for peer in many:
        scene.now += 0.01
        peer.grows_to(9 * KIB)
    assert not any(peer.held is None or peer.held.may_grow() for peer in many)
    scene.now += STALL_SECONDS
    many[5].note(9 * KIB + 1)
    assert many[3].held is not None
    assert many[3].held.may_grow()
    assert [peer.cut is not None for peer in many] == [False] * 5 + [True, False, False]
    scene.audit()


def test_one_that_waits_for_room_is_not_cut_where_another_has_stalled() -> None:
    scene = Scene()
    first, second, third = (scene.peer("a") for _ in range(3))
    assert first.grows_to(40 * KIB)
    assert not second.grows_to(30 * KIB)
    scene.now += 2 * STALL_SECONDS
    assert third.grows_to(20 * KIB)
    assert first.cut is not None
    assert second.cut is None
    scene.audit()


def test_a_share_has_a_limit_of_its_own() -> None:
    scene = Scene(total=None, limit=16 * KIB)
    first, second, other = scene.peer("a"), scene.peer("a"), scene.peer("b")
    assert first.grows_to(10 * KIB)
    scene.now += 1
    assert other.grows_to(16 * KIB)
    assert second.grows_to(10 * KIB)
    assert first.cut is not None
    assert other.cut is None
    scene.audit()


def test_what_is_looked_ahead_at_is_bounded_and_never_cut() -> None:
    scene = Scene(total=256 * KIB)
    waiting = scene.peer("a")
    assert scene.book.stretch(1 << 20) == 128 * KIB
    waiting.note(100 * KIB, lookahead=True)
    assert scene.book.stretch(1 << 20) == 28 * KIB
    assert scene.book.stretch(1 << 10) == 1 << 10
    scene.peer("b").note(120 * KIB, lookahead=True)
    assert scene.book.stretch(1 << 20) == LOOKAHEAD_FLOOR
    scene.now += 100
    late = scene.peer("c")
    assert not late.grows_to(60 * KIB)
    assert waiting.cut is None
    scene.book.tick(scene.now, 20.0)
    assert waiting.cut is None
    scene.audit()
    waiting.note(50 * KIB)
    assert scene.book.stretch(1 << 20) == LOOKAHEAD_FLOOR
    waiting.end()
    assert late.grows_to(60 * KIB)
    scene.audit()


def test_reads_are_little_while_half_of_it_is_used_up() -> None:
    scene = Scene()
    peer = scene.peer("a")
    assert scene.book.read_bytes == READ_BYTES
    peer.note(33 * KIB)
    assert scene.book.read_bytes == LITTLE_BYTES
    peer.end()
    assert scene.book.read_bytes == READ_BYTES


def test_a_packet_that_makes_no_progress_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    slow, stuck = scene.peer("a"), scene.peer("a")
    assert slow.grows_to(5 * KIB)
    assert stuck.grows_to(5 * KIB)
    scene.now = 15.0
    assert slow.grows_to(7 * KIB)
    assert stuck.grows_to(5 * KIB + 1)
    scene.book.tick(20.0, 20.0)
    assert (slow.cut, stuck.cut) == (None, None)
    scene.now = 20.1
    scene.book.tick(20.1, 20.0)
    assert slow.cut is None
    assert stuck.cut is not None
    assert "made no progress for 20 s" in caplog.text
    scene.audit()


def test_the_log_has_a_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    for _ in range(100):
        scene.now += 0.02
        scene.peer("greedy").grows_to(10 * KIB)
    for _ in range(50):
        scene.now += 0.05
        scene.peer("other").grows_to(5 * KIB)
    assert scene.book.cut > 4
    assert len(caplog.records) <= 6
    record = caplog.records[0]
    assert record.__dict__["event"] == "input_cut"
    scene.audit()


def test_the_alarm_has_those_cut_that_hold_most() -> None:
    scene = Scene()
    small, large = scene.peer("a"), scene.peer("b")
    assert small.grows_to(10 * KIB)
    assert large.grows_to(40 * KIB)
    assert scene.book.relieve(20 * KIB) == 40 * KIB
    assert (small.cut is None, large.cut is None) == (True, False)
    assert scene.book.relieve(1 << 30) == 10 * KIB
    assert scene.book.relieve(1 << 30) == 0
    scene.audit()


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("127.0.0.1:80", "127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6:80", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1:80", "10.0.0.1"),
        ("fe80::1%eth0:80", "fe80::/64"),
        ("/run/relay.sock#7", "/run/relay.sock"),
        ("what:80", "what"),
    ],
)
def test_addresses(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_what_is_not_charged_is_found_by_the_audit() -> None:
    scene = Scene()
    peer = scene.peer("a")
    peer.note(10 * KIB)
    peer.size += READ_BYTES
    scene.ledger.audit()
    peer.size += 1
    assert "1 bytes of input" in " ".join(scene.ledger.discrepancies())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30))
def test_whatever_happens_the_total_is_bounded_and_the_books_balance(seed: int) -> None:
    chance = random.Random(seed)
    scene = Scene(limit=chance.choice((None, 40 * KIB)))
    peers = [scene.peer(chance.choice("abc")) for _ in range(12)]
    for _ in range(200):
        scene.now += chance.choice((0.0, 0.01, 0.3, 1.0))
        peer = chance.choice(peers)
        what = chance.randrange(8)
        if what == 0:
            peer.end()
        elif what == 1:
            scene.book.tick(scene.now, 20.0)
        elif what == 2:
            most = scene.book.stretch(chance.randrange(64 * KIB))
            peer.note(
                min(peer.size + chance.randrange(1, 4 * KIB), max(peer.size, most, 1)),
                lookahead=True,
            )
        elif peer.held is None or peer.held.may_grow():
            peer.grows_to(peer.size + chance.randrange(1, 4 * KIB))
        scene.audit()
        # Each may have read once more since it was last seen to fit.
        assert scene.book.nbytes <= 64 * KIB + len(peers) * max(4 * KIB, LOOKAHEAD_FLOOR)
    for peer in peers:
        peer.end()
    scene.audit()
    assert not scene.ledger.accounts
    assert scene.book.stretch(1 << 20) == 32 * KIB
