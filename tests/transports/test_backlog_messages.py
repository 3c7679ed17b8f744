"""What a connection that is behind keeps: by each policy, exactly what it says, against a list."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import StuckPolicy
from clearfunds.transports._backlog_messages import MESSAGES_BY_POLICY, BacklogMessages, Room
from clearfunds.transports.mqtt import Publish, encode
from clearfunds.transports.mqtt.codec._packets import encode_publish
from clearfunds.transports.mqtt.server._droppable import QOS_ZERO

OLDEST, NEWEST, LATEST = StuckPolicy.DROP_OLDEST, StuckPolicy.DROP_NEWEST, StuckPolicy.CONFLATE

CHUNKS = st.lists(
    st.lists(st.tuples(st.sampled_from(["a", "b/c", "d"]), st.integers(0, 200)), min_size=1),
    max_size=12,
)


@attrs.define
class Naive:
    """The same, message by message."""

    policy: StuckPolicy
    room: Room
    kept: list[tuple[str, bytes]] = attrs.field(factory=list[tuple[str, bytes]])

    def fits(self, kept: list[tuple[str, bytes]]) -> bool:
        nbytes = sum(len(frame) for _, frame in kept)
        return len(kept) <= 1 or (len(kept) <= self.room.items and nbytes <= self.room.nbytes)

    def add(self, chunk: list[tuple[str, bytes]]) -> None:
        if self.policy is NEWEST:
            for message in chunk:
                if not self.fits([*self.kept, message]):
                    return  # nothing overtakes what was dropped, of one chunk
                self.kept.append(message)
            return
        for message in chunk:
            if self.policy is LATEST:
                self.kept = [each for each in self.kept if each[0] != message[0]]
            self.kept.append(message)
        while not self.fits(self.kept):
            self.kept.pop(0)


@pytest.mark.parametrize("policy", MESSAGES_BY_POLICY)
@given(chunks=CHUNKS, items=st.integers(1, 12), nbytes=st.integers(1, 1_500), taken=st.data())
@settings(max_examples=60, deadline=None)
def test_it_keeps_what_its_policy_says(
    policy: StuckPolicy,
    chunks: list[list[tuple[str, int]]],
    items: int,
    nbytes: int,
    taken: st.DataObject,
) -> None:
    room = Room(items, nbytes)
    kept, naive = BacklogMessages(QOS_ZERO, room), Naive(policy, room)
    came = dropped = gone = 0
    number = 0
    for each in chunks:
        chunk: list[tuple[str, bytes]] = []
        for topic, size in each:
            number += 1
            chunk.append((topic, encode_publish(topic, b"%04d" % number + bytes(size))))
        raw = b"".join(frame for _, frame in chunk)
        came += len(chunk)
        some, size = kept.add(policy, raw, len(chunk))
        dropped += some
        gone += size
        naive.add(chunk)
        assert len(kept) == len(naive.kept)
        assert kept.nbytes == sum(len(frame) for _, frame in naive.kept)
        assert came - dropped == len(kept)
        if taken.draw(st.integers(0, 4)) == 0:
            out, count = kept.take(taken.draw(st.integers(1, 600)))
            assert b"".join(out) == b"".join(frame for _, frame in naive.kept[:count])
            del naive.kept[:count]
            came -= count
    rest, count = kept.take(1 << 30)
    assert b"".join(rest) == b"".join(frame for _, frame in naive.kept)
    assert count == len(naive.kept)
    assert not len(kept)
    assert kept.nbytes == 0


def test_one_message_is_kept_whatever_its_size() -> None:
    for policy in MESSAGES_BY_POLICY:
        kept = BacklogMessages(QOS_ZERO, Room(1_000, 10))
        frame = encode_publish("t", bytes(300_000))
        assert kept.add(policy, frame, 1) == (0, 0)
        assert kept.take(1) == ([frame], 1)


def test_what_several_policies_keep_comes_in_the_order_of_its_coming() -> None:
    kept = BacklogMessages(QOS_ZERO, Room(10, 10_000))
    frames = [encode_publish(topic, b"%d" % n) for n, topic in enumerate("abcabc")]
    for policy, frame in zip((OLDEST, NEWEST, LATEST) * 2, frames, strict=True):
        kept.add(policy, frame, 1)
    # The latest of `c` has taken the place of the first.
    assert b"".join(kept.take(1 << 20)[0]) == b"".join((*frames[:2], *frames[3:]))


@given(
    st.lists(st.tuples(st.text("ab/é", min_size=1, max_size=70), st.integers(0, 20_000))),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_frames_are_found_again(messages: list[tuple[str, int]], retain: bool) -> None:
    frames = [encode_publish(topic, bytes(size), retain=retain) for topic, size in messages]
    raw = b"".join(frames)
    found = list(QOS_ZERO.frames(raw))
    assert [raw[start:end] for _, start, end, _ in found] == frames
    assert [key.decode() for key, _, _, _ in found if key is not None] == [t for t, _ in messages]
    if len(frames) > 1:
        assert list(QOS_ZERO.frames(raw, found[1][1])) == found[1:]


def test_only_publications_of_qos_0_may_be_dropped() -> None:
    assert QOS_ZERO.may_drop(encode_publish("t", b""))
    assert QOS_ZERO.may_drop(encode_publish("t", b"", retain=True))
    assert not QOS_ZERO.may_drop(encode(Publish("t", b"", 1, packet_id=1)))
    assert not QOS_ZERO.may_drop(encode(Publish("t", b"", 2, packet_id=1)))
    for first in (0x20, 0x40, 0x50, 0x62, 0x70, 0x90, 0xB0, 0xD0):
        assert not QOS_ZERO.may_drop(bytes((first, 0)))
