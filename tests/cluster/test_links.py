"""One end of a link, and the other, over a line that loses frames."""

from __future__ import annotations

import contextlib
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.cluster._links import (
    ASK_IDLE_SECONDS,
    ASK_SECONDS,
    CHUNK_BYTES,
    HEAD_BYTES,
    SILENT_SECONDS,
    WINDOW_BYTES,
    Frame,
    Kind,
    LinkEnd,
)
from clearfunds.transports import RemoteProtocolError


class Pair:
    """Two ends, and what is on its way between them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ends = [LinkEnd(7, is_opener=opener, now=0.0) for opener in (True, False)]
        self.lines: list[deque[bytes]] = [deque(), deque()]
        self.put_in = [bytearray(), bytearray()]
        self.taken_out = [bytearray(), bytearray()]

    def send(self, side: int, nbytes: int) -> None:
        """Put bytes in at one end, as far as there is room."""
        nbytes = min(nbytes, self.ends[side].room)
        if nbytes:
            begin = len(self.put_in[side])
            data = bytes((begin + each) % 251 for each in range(nbytes))
            self.put_in[side] += data
            self.lines[side].append(self.ends[side].send(data))

    def take(self, side: int) -> None:
        """Take out all that has come at one end."""
        data = self.ends[side].take()
        self.taken_out[side] += data
        told = self.ends[side].took(len(data))
        if told is not None:
            self.lines[side].append(told)

    def arrive(self, side: int) -> None:
        """Let the next frame of one end come to the other one."""
        if self.lines[side]:
            frame = Frame.of(self.lines[side].popleft())
            answer = self.ends[1 - side].receive(frame, self.now)
            if answer is not None:
                self.lines[1 - side].append(answer)

    def look(self, side: int) -> None:
        question = self.ends[side].look(self.now)
        if question is not None:
            self.lines[side].append(question)

    def check(self) -> None:
        for side in (0, 1):
            whole, part = self.put_in[side], self.taken_out[1 - side]
            assert whole[: len(part)] == part
            assert self.ends[side].held <= WINDOW_BYTES
            assert 0 <= self.ends[side].under_way <= WINDOW_BYTES


steps = st.lists(
    st.tuples(
        st.sampled_from(["send", "take", "arrive", "arrive", "look", "lose", "pass"]),
        st.integers(0, 1),
        st.integers(1, CHUNK_BYTES),
    ),
    max_size=80,
)


@given(steps)
def test_what_comes_out_is_a_prefix_whatever_is_lost(steps: list[tuple[str, int, int]]) -> None:
    pair = Pair()
    try:
        for what, side, number in steps:
            match what:
                case "send":
                    pair.send(side, number)
                case "lose":
                    if pair.lines[side]:
                        pair.lines[side].popleft()
                case "pass":
                    pair.now += number / CHUNK_BYTES
                case "take":
                    pair.take(side)
                case "arrive":
                    pair.arrive(side)
                case _:
                    pair.look(side)
            pair.check()
    except RemoteProtocolError:
        pair.check()  # the link ends, and nothing wrong has come out


@given(steps)
def test_all_comes_out_if_nothing_is_lost(steps: list[tuple[str, int, int]]) -> None:
    pair = Pair()
    for what, side, number in steps:
        if what == "send":
            pair.send(side, number)
        elif what == "take":
            pair.take(side)
        else:
            pair.arrive(side)
        pair.check()
    for side in (0, 1):
        pair.lines[side].append(pair.ends[side].end("the client has left"))
    while any(pair.lines):
        pair.arrive(0)
        pair.arrive(1)
    for side in (0, 1):
        pair.take(side)
        assert pair.taken_out[side] == pair.put_in[1 - side]
        assert pair.ends[side].ended == "the client has left"
        assert not pair.ends[side].room


@given(st.binary(max_size=3 * HEAD_BYTES))
def test_no_garbage_causes_any_other_error(data: bytes) -> None:
    pair = Pair()
    with contextlib.suppress(RemoteProtocolError):
        pair.ends[0].receive(Frame.of(data), 1.0)


def test_a_chunk_that_is_lost_is_noticed_at_the_next_frame_whatever_that_is() -> None:
    for kind in ("data", "taken", "ask", "end"):
        pair = Pair()
        pair.send(0, 10)
        pair.lines[0].clear()
        if kind == "data":
            pair.send(0, 10)
        elif kind == "taken":
            pair.send(1, CHUNK_BYTES)
            pair.arrive(1)
            pair.take(0)
        elif kind == "ask":
            pair.now += ASK_SECONDS
            pair.look(0)
        else:
            pair.lines[0].append(pair.ends[0].end("over"))
        with pytest.raises(RemoteProtocolError, match="chunks were sent, and 0 have come"):
            pair.arrive(0)


def test_an_end_that_takes_nothing_stops_the_other_one_at_the_window() -> None:
    pair = Pair()
    for _ in range(10):
        pair.send(0, CHUNK_BYTES)
        pair.arrive(0)
    assert len(pair.put_in[0]) == pair.ends[1].held == WINDOW_BYTES
    assert not pair.ends[0].room
    pair.take(1)
    pair.arrive(1)
    assert pair.ends[0].room == WINDOW_BYTES


def test_more_than_the_window_is_refused() -> None:
    pair = Pair()
    for number in range(WINDOW_BYTES // CHUNK_BYTES):
        data = Frame(Kind.DATA, True, 7, number, 0, bytes(CHUNK_BYTES))
        assert pair.ends[1].receive(data, 0.0) is None
    with pytest.raises(RemoteProtocolError, match="more than the window"):
        pair.ends[1].receive(Frame(Kind.DATA, True, 7, WINDOW_BYTES // CHUNK_BYTES, 0, b"x"), 0.0)


def test_an_end_asks_and_ends_the_link_if_there_is_no_answer() -> None:
    pair = Pair()
    end = pair.ends[0]
    assert end.look(ASK_IDLE_SECONDS - 0.1) is None
    assert end.look(ASK_IDLE_SECONDS) is not None
    assert end.look(ASK_IDLE_SECONDS + 0.1) is None
    with pytest.raises(RemoteProtocolError, match="no answer"):
        end.look(ASK_IDLE_SECONDS + SILENT_SECONDS)


def test_an_answer_is_enough_however_slow_the_client_is() -> None:
    pair = Pair()
    pair.send(0, 10)
    pair.arrive(0)
    for _ in range(20):
        pair.now += ASK_SECONDS
        pair.look(0)
        pair.arrive(0)
        pair.arrive(1)
    assert pair.ends[0].under_way == 10


def test_an_end_asks_sooner_only_as_long_as_something_may_be_lost() -> None:
    pair = Pair()
    end = pair.ends[0]
    pair.send(0, 10)
    assert end.look(ASK_SECONDS - 0.1) is None
    pair.now = ASK_SECONDS
    pair.look(0)
    while any(pair.lines):
        pair.arrive(0)
        pair.arrive(1)
    assert end.under_way == 10
    assert end.look(2 * ASK_SECONDS) is None
    assert end.look(ASK_SECONDS + ASK_IDLE_SECONDS) is not None


def test_an_end_in_doubt_asks_at_once() -> None:
    pair = Pair()
    pair.ends[0].doubt()
    assert pair.ends[0].look(0.0) is not None
