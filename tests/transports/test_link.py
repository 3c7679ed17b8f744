"""One accepted connection: what is read, when others get a turn, and how it is cut and closed."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio
from trio.testing import assert_checkpoints, assert_no_checkpoints, wait_all_tasks_blocked

from clearfunds.transports import Link
from clearfunds.transports._link import LITTLE_BYTES, READ_BYTES
from clearfunds.transports._reactor import Reactor, open_reactor


@pytest.fixture
def pair() -> Iterator[tuple[Link, socket.socket]]:
    """A link and its peer; the kernel takes a few reads' worth between them."""
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * READ_BYTES)
        sock.setblocking(False)
    link = Link(ours, "peer")
    yield link, theirs
    ours.close()
    theirs.close()


async def test_what_there_is_is_read_at_most_one_read_at_a_time(
    pair: tuple[Link, socket.socket],
) -> None:
    link, peer = pair
    sent = bytes(range(256)) * (READ_BYTES // 256) + b"rest"
    assert peer.send(sent) == len(sent)
    assert await link.receive() == sent[:READ_BYTES]
    assert await link.receive() == b"rest"
    peer.close()
    assert await link.receive() == b""
    assert await link.receive() == b""


async def test_the_read_of_a_task_that_has_just_begun_takes_what_is_there(
    pair: tuple[Link, socket.socket],
) -> None:
    link, peer = pair
    peer.send(b"first")
    with assert_no_checkpoints():
        assert await link.receive_first(None) == b"first"
    peer.send(b"second")
    with assert_checkpoints():
        assert await link.receive() == b"second"


async def test_a_first_read_waits_in_the_reactor(pair: tuple[Link, socket.socket]) -> None:
    link, peer = pair
    got: list[bytes] = []

    async def read(reactor: Reactor) -> None:
        got.append(await link.receive_first(reactor))

    async with open_reactor() as reactor:
        assert reactor is not None
        peer.send(b"is there")
        with assert_no_checkpoints():
            assert await link.receive_first(reactor) == b"is there"
        with trio.move_on_after(0.01) as scope:
            await link.receive_first(reactor)
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, reactor)
            await wait_all_tasks_blocked()
            peer.send(bytes(LITTLE_BYTES) + b"rest")
        assert got == [bytes(LITTLE_BYTES)]
        assert await link.receive() == b"rest"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, reactor)
            await wait_all_tasks_blocked()
            peer.close()
        assert got[1:] == [b""]


async def test_a_read_waits_for_something(pair: tuple[Link, socket.socket]) -> None:
    link, peer = pair
    got: list[bytes] = []

    async def read() -> None:
        got.append(await link.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert not got
        peer.send(b"something")
    assert got == [b"something"]


@pytest.mark.parametrize("full", [True, False])
async def test_a_read_lets_others_run(pair: tuple[Link, socket.socket], full: bool) -> None:
    link, peer = pair
    others = 0

    async def run() -> None:
        nonlocal others
        while True:
            others += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        for _ in range(10):
            peer.send(bytes(READ_BYTES if full else 10))
            await link.receive()
        assert others >= 9  # the two may swap places once
        nursery.cancel_scope.cancel()


async def test_a_flooded_reader_can_be_cancelled(pair: tuple[Link, socket.socket]) -> None:
    link, peer = pair
    reads = 0
    with trio.move_on_after(60) as scope:
        while True:
            peer.send(bytes(READ_BYTES))
            assert len(await link.receive()) == READ_BYTES
            reads += 1
            if reads == 5:
                scope.cancel()
    assert reads == 5


async def test_a_cancelled_read_loses_nothing(pair: tuple[Link, socket.socket]) -> None:
    """A reader that looks ahead is cancelled at any of its waits, and goes on reading later."""
    link, peer = pair
    sent = b"".join(i.to_bytes(4, "big") for i in range(READ_BYTES))  # four reads
    assert peer.send(sent) == len(sent)
    peer.shutdown(socket.SHUT_WR)
    got = b""
    for _ in range(20):
        with trio.CancelScope() as scope:
            scope.cancel()
            got += await link.receive()
        with trio.move_on_after(10):
            if not (data := await link.receive()):
                break
            got += data
    assert got == sent


async def test_an_error_of_the_socket_is_an_oserror(pair: tuple[Link, socket.socket]) -> None:
    link, _ = pair
    link.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        await link.receive()


async def test_who_waits_for_a_closed_link_hears_of_it(pair: tuple[Link, socket.socket]) -> None:
    link, _ = pair
    heard: list[BaseException] = []

    async def read() -> None:
        try:
            await link.receive()
        except trio.ClosedResourceError as exc:
            heard.append(exc)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        link.close()
        link.close()
    assert len(heard) == 1
    assert link.closed


async def test_the_first_reason_to_cut_counts(pair: tuple[Link, socket.socket]) -> None:
    link, _ = pair
    with link.scope:
        link.cut("the first")
        link.cut("the second")
        await link.receive()
    assert link.scope.cancelled_caught
    assert link.why == "the first"
    assert not link.closed
    assert repr(link) == "<Link to peer>"
