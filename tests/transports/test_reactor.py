"""The reactor reads for tasks that wait, and wakes them for what it does not handle."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from traceback import format_exception

import pytest
import trio

from clearfunds.persistence._idle import calls_from_threads
from clearfunds.transports import Flusher, open_flusher
from clearfunds.transports._link import LITTLE_BYTES, Link
from clearfunds.transports._reactor import MOST, Reactor, open_reactor
from tests.transports.peers import until

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="only Linux has epoll")


class Waiting:
    """A link that is lent to a reactor for as long as its step goes on, and its other end."""

    def __init__(self, reactor: Reactor, answer: Callable[[bytes], bool | None]) -> None:
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.link = Link(near, "the other end")
        self.seen: list[bytes] = []
        self.woken = 0
        self.back: list[bytes | None] = []
        self.error: BaseException | None = None
        self.scope = trio.CancelScope()
        self._reactor = reactor
        self._answer = answer

    def step(self, data: bytes) -> bool | None:
        self.seen.append(data)
        return self._answer(data)

    def is_at(self, seen: bytes, back: list[bytes | None]) -> bool:
        return self.seen[-1:] == [seen] and self.back == back

    def is_closed(self) -> bool:
        return self.far.fileno() < 0

    async def run(self) -> None:
        try:
            with self.scope:
                while True:
                    data = await self.link.lend(self._reactor, self.step)
                    self.back.append(data)
                    if data == b"":
                        return
        except Exception as exc:  # noqa: BLE001 (the test looks at it)
            self.error = exc
        finally:
            self.link.close()
            self.far.close()


def all_have_seen(many: list[Waiting], count: int) -> bool:
    return all(len(each.seen) == count for each in many)


@asynccontextmanager
async def reacting() -> AsyncGenerator[tuple[Flusher, Reactor, trio.Nursery]]:
    async with open_flusher() as flusher, trio.open_nursery() as nursery:
        assert flusher.reactor is not None
        yield flusher, flusher.reactor, nursery
        nursery.cancel_scope.cancel()


class Counting(trio.abc.Instrument):
    """Counts the tasks that run."""

    def __init__(self) -> None:
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1


async def test_no_task_runs_for_what_a_step_handles() -> None:
    counting = Counting()
    async with reacting() as (_, reactor, nursery):
        one = Waiting(reactor, lambda _: True)
        nursery.start_soon(one.run)
        await trio.testing.wait_all_tasks_blocked()

        def write() -> None:
            for n in range(100):
                one.far.send(b"%d" % n)
                while len(one.seen) <= n:
                    pass  # another thread: the loop sleeps, but for the reactor

        trio.lowlevel.add_instrument(counting)
        before = counting.steps
        await trio.to_thread.run_sync(write)
        trio.lowlevel.remove_instrument(counting)
        assert one.seen == [b"%d" % n for n in range(100)]
        assert one.back == []
        assert counting.steps - before < 20  # the thread's own end, and Trio's queue of calls


async def test_what_a_step_does_not_handle_goes_to_the_task() -> None:
    async with reacting() as (_, reactor, nursery):
        one = Waiting(reactor, {b"handled": True, b"not": None, b"stop": False}.__getitem__)
        nursery.start_soon(one.run)
        wanted: list[tuple[bytes, list[bytes | None]]] = [
            (b"handled", []),
            (b"not", [b"not"]),
            (b"stop", [b"not", None]),
        ]
        for sent, back in wanted:
            one.far.send(sent)
            await until(partial(one.is_at, sent, back))


async def test_a_full_read_goes_to_the_task_which_reads_on() -> None:
    async with reacting() as (_, reactor, nursery):
        one = Waiting(reactor, lambda _: True)
        nursery.start_soon(one.run)
        one.far.sendall(bytes(LITTLE_BYTES))
        await until(lambda: one.back == [bytes(LITTLE_BYTES)])
        assert one.seen == []


async def test_the_end_of_the_stream_goes_to_the_task() -> None:
    async with reacting() as (_, reactor, nursery):
        one = Waiting(reactor, lambda data: None if not data else True)
        nursery.start_soon(one.run)
        await trio.testing.wait_all_tasks_blocked()
        one.far.shutdown(socket.SHUT_WR)
        await until(lambda: one.back == [b""])


async def test_an_error_of_a_step_is_its_tasks_and_nobody_elses() -> None:
    def fail(data: bytes) -> bool:
        raise ValueError(data)

    async with reacting() as (_, reactor, nursery):
        bad, good = Waiting(reactor, fail), Waiting(reactor, lambda _: True)
        nursery.start_soon(bad.run)
        nursery.start_soon(good.run)
        await trio.testing.wait_all_tasks_blocked()
        for each in bad, good:
            each.far.send(b"x")
        await until(lambda: good.seen and bad.error is not None)
        assert isinstance(bad.error, ValueError)
        assert good.error is None
        good.far.send(b"y")
        await until(lambda: good.seen == [b"x", b"y"])


async def test_an_error_of_the_socket_is_its_tasks() -> None:
    async with reacting() as (_, reactor, nursery):
        listening = socket.create_server(("127.0.0.1", 0))
        far = socket.create_connection(listening.getsockname())
        near, _ = listening.accept()
        listening.close()
        near.setblocking(False)
        one = Waiting(reactor, lambda _: True)
        one.link.close()
        one.link = Link(near, "the other end")
        nursery.start_soon(one.run)
        await trio.testing.wait_all_tasks_blocked()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        await until(lambda: one.error is not None)
        assert isinstance(one.error, ConnectionResetError)


async def test_nothing_is_lost_by_cancelling() -> None:
    async with reacting() as (_, reactor, nursery):
        one = Waiting(reactor, lambda _: True)
        with trio.move_on_after(0.01):
            await one.link.lend(reactor, one.step)
        one.far.send(b"later")
        await trio.sleep(0.01)
        assert one.seen == []
        nursery.start_soon(one.run)
        await until(lambda: one.seen == [b"later"])


async def test_a_step_may_end_its_own_task_or_another_one() -> None:
    async with reacting() as (_, reactor, nursery):
        pair: list[Waiting] = []

        def end_both(_: bytes) -> bool:
            for each in pair:
                each.scope.cancel()
            return False

        pair += [Waiting(reactor, end_both), Waiting(reactor, end_both)]
        for each in pair:
            nursery.start_soon(each.run)
        await trio.testing.wait_all_tasks_blocked()
        for each in pair:
            each.far.send(b"x")
        await until(lambda: all(each.link.closed for each in pair))
        assert len(pair[0].seen) + len(pair[1].seen) == 1
        third = Waiting(reactor, lambda _: True)
        nursery.start_soon(third.run)
        third.far.send(b"y")
        await until(lambda: third.seen == [b"y"])


async def test_who_lent_a_socket_that_is_closed_hears_of_it() -> None:
    async with reacting() as (_, reactor, nursery):
        one = Waiting(reactor, lambda _: True)
        nursery.start_soon(one.run)
        await trio.testing.wait_all_tasks_blocked()
        number = one.link.sock.fileno()
        one.link.close()
        await until(lambda: one.error is not None)
        assert isinstance(one.error, trio.ClosedResourceError)
        # Its number means another one now, also where that has been closed without a word.
        for _ in range(2):
            again = Waiting(reactor, lambda _: True)
            assert again.link.sock.fileno() == number
            nursery.start_soon(again.run)
            await trio.testing.wait_all_tasks_blocked()
            again.far.send(b"x")
            await until(partial(again.seen.__eq__, [b"x"]))
            again.scope.cancel()
            await until(again.is_closed)


async def test_time_goes_on_while_sockets_are_busy() -> None:
    async with reacting() as (_, reactor, nursery):
        one = Waiting(reactor, lambda data: bool(one.link.sock.send(data)))
        nursery.start_soon(one.run)
        await trio.testing.wait_all_tasks_blocked()
        one.far.setblocking(False)
        # What comes back goes out again: there is always something in the socket.
        echo = Waiting(reactor, lambda data: bool(echo.link.sock.send(data)))
        echo.link.close()
        echo.link = Link(one.far.dup(), "the first")
        nursery.start_soon(echo.run)
        one.far.send(b"ball")
        began = trio.current_time()
        for _ in range(20):
            await trio.sleep(0.005)
        assert 0.1 <= trio.current_time() - began < 5
        assert len(one.seen) > 100
        assert await trio.to_thread.run_sync(lambda: 7) == 7
        echo.scope.cancel()


async def test_whoever_waits_until_nothing_happens_is_told() -> None:
    async with reacting() as (_, reactor, nursery):
        one = Waiting(reactor, lambda _: True)
        nursery.start_soon(one.run)
        for cushion in (0.0, 0.01, 0.1):
            with trio.fail_after(5):
                await trio.testing.wait_all_tasks_blocked(cushion)
            one.far.send(b"x")
        await until(lambda: len(one.seen) == 3)
        began = trio.current_time()
        await trio.sleep(0.2)
        assert trio.current_time() - began < 0.4  # no deadline is late for it


async def test_many_at_once_all_have_their_turn() -> None:
    async with reacting() as (_, reactor, nursery):
        many = [Waiting(reactor, lambda _: True) for _ in range(MOST + 50)]
        for each in many:
            nursery.start_soon(each.run)
        await trio.testing.wait_all_tasks_blocked()
        for round_ in range(3):
            for each in many:
                each.far.send(b"x")
            await until(partial(all_have_seen, many, round_ + 1))


async def test_two_flushers_share_one() -> None:
    async with open_reactor() as outer, open_flusher() as one, open_flusher() as other:
        assert outer is one.reactor is other.reactor
        assert outer is not None
        assert outer.users == 3
    async with open_flusher() as later:
        assert later.reactor is not None
        assert later.reactor is not outer


async def test_without_it_connections_read_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing() -> None:
        return None

    monkeypatch.setattr("clearfunds.transports._reactor._fd_of_loop", nothing)
    async with open_flusher() as flusher:
        assert flusher.reactor is None


# -- calls of other threads ---------------------------------------------------------------------


def in_thread(*calls: Callable[[], object]) -> threading.Thread:
    """Do that in another thread, with a pause before each."""

    def run() -> None:
        for each in calls:
            time.sleep(0.02)
            each()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


async def test_no_task_runs_for_the_call_of_a_thread() -> None:
    counting, steps, threads = Counting(), list[int](), list[int]()
    done = trio.Event()

    def note() -> None:
        steps.append(counting.steps)
        threads.append(threading.get_ident())

    async with reacting():
        trio.lowlevel.add_instrument(counting)
        with calls_from_threads() as call:
            thread = in_thread(partial(call, note), partial(call, note), partial(call, done.set))
            await done.wait()
        trio.lowlevel.remove_instrument(counting)
    thread.join()
    assert steps[0] == steps[1]
    assert threads == [threading.get_ident()] * 2


async def test_a_call_is_made_while_tasks_are_always_ready_and_while_a_socket_is_lent() -> None:
    done = trio.Event()
    async with reacting() as (_, reactor, nursery):
        one = Waiting(reactor, lambda _: True)
        nursery.start_soon(one.run)
        with calls_from_threads() as call:
            thread = in_thread(partial(call, done.set))
            while not done.is_set():
                await trio.lowlevel.checkpoint()
            one.far.send(b"a")
            await until(lambda: one.seen == [b"a"])
    thread.join()


@pytest.mark.parametrize("with_reactor", [True, False])
def test_the_error_of_a_call_ends_the_run(*, with_reactor: bool) -> None:
    """As that of a call through Trio's own token does."""

    async def main() -> None:
        async with reacting() if with_reactor else nullcontext():
            with calls_from_threads() as call:
                thread = in_thread(partial(call, partial(int, "x")))
                try:
                    await trio.sleep_forever()
                finally:
                    thread.join()

    with pytest.raises(trio.TrioInternalError) as caught:
        trio.run(main)
    assert "ValueError: invalid literal for int()" in "".join(format_exception(caught.value))


async def test_a_call_after_the_reactors_end_is_made_by_trio() -> None:
    done = trio.Event()
    async with reacting() as (_, reactor, _):
        pass
    in_thread(partial(reactor.call_soon, done.set)).join()
    await done.wait()


async def test_a_call_asked_for_right_before_its_end_is_made() -> None:
    done = trio.Event()
    async with reacting() as (_, reactor, _):
        reactor.call_soon(done.set)
    await done.wait()


def test_a_call_after_the_run_is_none() -> None:
    made: list[int] = []

    async def main() -> Callable[[Callable[[], object]], None]:
        with calls_from_threads() as call:
            return call

    call = trio.run(main)
    call(partial(made.append, 1))
    assert made == []
