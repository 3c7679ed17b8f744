"""Publishers beside servers that take everything at once, or nothing at all."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
import trio

pytest.importorskip("hdrh")

from clearfunds.perf import PerfError, Profile, Result, Scenario, measure, summary
from clearfunds.perf._connect import connect
from clearfunds.perf._header import HEADER
from clearfunds.perf._publisher import Publisher, PublisherLatencies
from clearfunds.perf._subscriber import Subscriber
from clearfunds.perf._wire import Publications
from tests.transports.peers import running


@contextmanager
def a_server(deal_with: Callable[[socket.socket], object]) -> Generator[str]:
    """Accept one client, let it in, and deal with what it sends, in a thread."""

    def serve(listener: socket.socket) -> None:
        with listener, listener.accept()[0] as sock:
            sock.recv(4096)
            sock.sendall(b"\x20\x02\x00\x00")
            deal_with(sock)

    listener = socket.create_server(("127.0.0.1", 0))
    thread = Thread(target=serve, args=(listener,), daemon=True)
    uri = f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
    thread.start()
    yield uri
    thread.join(10)


def take_everything(sock: socket.socket) -> None:
    buffer = bytearray(1 << 22)
    while sock.recv_into(buffer):
        pass


async def run(uri: str, rate: Profile | None) -> Result:
    with trio.fail_after(60):
        return await measure(
            Scenario(uri=uri, subscribers=0, rate=rate, seconds=1.0, drain=1.0, processes=1)
        )


async def test_it_comes_to_an_end_where_the_server_is_quicker_than_the_generator() -> None:
    with a_server(take_everything) as uri:
        result = await run(uri, None)
    assert result.published > 1_000
    assert result.samples


async def test_nobody_is_stalled_for_more_than_all_of_the_time() -> None:
    done = Event()
    with a_server(lambda _: done.wait(60)) as uri:
        result = await run(uri, Profile.parse("200000"))
        done.set()
    assert 0.1 < result.stalled <= 1.0
    longest = result.stalls.most()
    assert longest is not None
    assert 0.1 < longest <= 3.0
    (line,) = (each for each in summary(result) if each.startswith("publishers stalled"))
    assert float(line.split()[2].rstrip("%")) <= 100


async def test_rates_are_not_of_the_time_in_which_it_waited_to_be_told() -> None:
    async with running() as relay:
        scenario = Scenario(
            uri=f"mqtt://127.0.0.1:{relay.port}", rate=Profile.parse("20"), seconds=1.2
        )
        with trio.fail_after(60):
            result = await measure(scenario)
    assert result.missing == 0
    # Everything is told of each whole second: at the end of the second one.
    assert 1.2 <= result.seconds < 2.0


def test_an_acknowledgement_is_no_excuse_for_being_late() -> None:
    measured = PublisherLatencies()
    publisher = Publisher(Scenario(rate=Profile.parse("1"), qos=1), 0, "test", measured)
    publisher.opened(b"")
    publisher.go_on(0.0)
    publisher.go_on(3.0)  # something was acknowledged; it could have sent all the time
    fill = publisher._fill  # pyright: ignore[reportPrivateUsage]
    fill(3.0, 10.0, 0)
    most = measured.late.most()
    assert most is not None
    assert most == pytest.approx(3.0, rel=1e-3)
    publisher.opened(b"")
    publisher.go_on(6.0)  # there was no connection
    fill(6.0, 10.0, 0)
    assert len(measured.late) == 7
    assert measured.late.most() == most


def test_what_was_half_sent_makes_up_for_nothing_that_is_missing() -> None:
    scenario = Scenario(topics=2, topic="t/{topic}")
    publisher = Publisher(scenario, 0, "test", PublisherLatencies())
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        publisher._sock = here  # pyright: ignore[reportPrivateUsage]
        publisher.opened(b"")
        while publisher.push(0.0, 10.0, 0) is not None:
            pass  # until the kernel takes no more
    doubtful = publisher.uncertain()
    assert [(topic, first) for topic, first, _ in doubtful] == list(enumerate(publisher.sent))
    assert sum(end - first for _, first, end in doubtful) == publisher.unsent > 100
    publisher.opened(b"")  # on another connection
    assert publisher.uncertain() == doubtful
    assert publisher.unsent == 0

    subscriber = Subscriber(scenario, 0, "test")
    (_, sent, end), _ = doubtful
    # All of one topic but two, of which one was sent for certain; and of the half sent some.
    packets = Publications(["t/0"], 0)
    subscriber.opened(
        b"".join(
            packets.frame(0, 0, HEADER.pack(1, subscriber.run_id, 0, 0, number), b"")
            for number in range(sent + 10)
            if number not in (5, sent + 3)
        )
    )
    take = subscriber.take
    assert take() == subscriber.received == sent + 8
    assert subscriber.received_of([(0, *each) for each in doubtful]) == 9
    assert subscriber.received_of([(0, 0, 0, end)]) == sent + 8
    # So that of the `sent` one is missed, though more came.
    assert sent - (subscriber.received - 9) == 1


async def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as relay:

        async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, relay.port))
                for host in ("127.0.0.2", "127.0.0.1")
            ]

        monkeypatch.setattr(trio.socket, "getaddrinfo", found)
        opened = await connect("two.example", 1883, "test")
        assert isinstance(opened.sock, socket.socket)
        assert opened.sock.getpeername() == ("127.0.0.1", relay.port)
        opened.sock.close()


async def test_what_fails_at_once_is_said_as_it_is() -> None:
    # Nobody connects to everybody: it is not even begun.
    with pytest.raises(PerfError, match=r"Permission denied|unreachable"):
        await connect("255.255.255.255", 1883, "test")
