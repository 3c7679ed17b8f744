"""The store's log in a real JetStream."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from clearfunds.cluster import _store_log
from clearfunds.cluster._store_log import Manifest, StoreLog, StoreLogSettings
from clearfunds.store import Store, StoreFormatError, StoreSettings, StoreTakenError
from clearfunds.transports._one_error import one_error
from clearfunds.transports.nats import (
    JetStream,
    NoAnswerError,
    StreamConfig,
    StreamFullError,
    open_nats,
)
from tests.cluster.members import until
from tests.nats_servers import NatsServer, nats_cluster, needs_nats

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = needs_nats

SETTINGS = StoreSettings(fsync_interval=0.005, logged=True)

BODY = 200


@pytest.fixture
def where() -> StoreLogSettings:
    """A log that no other test has."""
    return StoreLogSettings("c", secrets.token_hex(4))


class Writing:
    """A store that is open, with its log."""

    def __init__(self, log: StoreLog, store: Store, js: JetStream) -> None:
        self.log = log
        self.store = store
        self.js = js
        self.troubles: list[str | None] = []
        if "q" not in store.queues:
            changes = store.begin()
            changes.declare("q")
            store.commit(changes)
        self.queue = store.queues["q"]

    def put(self, nbytes: int = BODY) -> int:
        """Commit a message; return the ticket."""
        changes = self.store.begin()
        seq = self.queue.next_seq
        changes.put(self.queue.id, seq, b"", b"%d," % seq + bytes(nbytes))
        return self.store.commit(changes)

    def finish(self, last: int) -> int:
        """Commit that messages are done."""
        changes = self.store.begin()
        changes.done(self.queue.id, 0, last)
        return self.store.commit(changes)

    async def logged(self, ticket: int, seconds: float = 30) -> None:
        """Wait until a commit is durable."""
        await until(lambda: self.store.durable >= ticket, seconds)

    def numbers(self) -> list[int]:
        """Return the numbers of the messages that are there."""
        records = self.store.read(self.queue.id, 0, count=1 << 20, nbytes=1 << 40)
        for record in records:
            assert record.body.startswith(b"%d," % record.seq)
        return [record.seq for record in records]

    async def written(self) -> None:
        """Wait until the copy has everything."""
        await until(lambda: not self.store.ahead())

    async def bytes(self) -> int:
        """Return the size of the stream."""
        return (await self.js.stream_info(self.log.settings.stream)).bytes


@asynccontextmanager
async def opened(
    servers: str, where: StoreLogSettings, folder: Path
) -> AsyncGenerator[tuple[StoreLog, Path, JetStream]]:
    """Have a log that is open, for the length of a block, and the directory that is made of it."""
    async with open_nats(servers, connect_timeout=2, ping_interval=0.5) as nats:
        js = JetStream(nats, timeout=2)
        log = StoreLog(js, where)
        await trio.to_thread.run_sync(folder.mkdir)
        yield log, await log.open(folder, SETTINGS), js


@asynccontextmanager
async def writing(servers: str, where: StoreLogSettings, folder: Path) -> AsyncGenerator[Writing]:
    """Have a store with a log for the length of a block."""
    with one_error(), one_error():
        async with opened(servers, where, folder) as (log, directory, js):
            store = Store.open(directory, SETTINGS)
            try:
                async with trio.open_nursery() as nursery:
                    found = Writing(log, store, js)
                    nursery.start_soon(trio.to_thread.run_sync, store.run)
                    nursery.start_soon(log.run, store, found.troubles.append)
                    try:
                        yield found
                    finally:
                        store.stop()
                        nursery.cancel_scope.cancel()
            finally:
                store.close()


async def test_everything_is_there_elsewhere(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    async with writing(nats.url, where, tmp_path / "a") as one:
        for _ in range(100):
            one.put()
        changes = one.store.begin()
        changes.set("key", b"value")
        one.store.commit(changes)
        await one.logged(one.finish(9))
        assert one.log.entries >= 1
    for name in "bc":
        async with writing(nats.url, where, tmp_path / name) as two:
            assert two.numbers() == list(range(10, 100))
            assert two.store.values() == {"key": b"value"}
            assert two.queue.next_seq == 100
            assert two.troubles == []
            assert two.log.nbytes > 0


async def test_an_empty_log_is_an_empty_store(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    for name in "ab":
        async with opened(nats.url, where, tmp_path / name) as (log, directory, _):
            assert log.nbytes == 0
            store = Store.open(directory, SETTINGS)
            assert dict(store.queues) == {}
            store.close()


async def test_a_server_that_is_killed_again_and_again(
    own_nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    """Trouble is told, and that it is over; nothing is lost, and nothing is there twice."""
    async with writing(own_nats.url, where, tmp_path / "a") as one:
        await one.logged(one.put())
        for _ in range(3):
            for _ in range(20):
                one.put()
            own_nats.kill()
            before = len(one.troubles)
            ticket = one.put()
            await until(lambda before=before: len(one.troubles) > before)
            assert isinstance(one.troubles[-1], str)
            assert "JetStream does not take what is to be stored" in one.troubles[-1]
            own_nats.start()
            await one.logged(ticket)
            await until(lambda: one.troubles[-1] is None)
        assert one.numbers() == list(range(64))
    async with writing(own_nats.url, where, tmp_path / "b") as two:
        assert two.numbers() == list(range(64))


class LossyJetStream:
    """JetStream whose answers to publications get lost, though it has them."""

    def __init__(self, js: JetStream, every: int, subject: str) -> None:
        self._js = js
        self._numbers = itertools.count(1)
        self._every = every
        self._subject = subject
        self.lost = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._js, name)

    async def publish(self, subject: str, *arguments: object, **options: object) -> object:
        options.pop("message_id")  # or the server would recognise it
        ack = await self._js.publish(subject, *arguments, **options)  # type: ignore[arg-type]
        if subject.endswith(self._subject) and not next(self._numbers) % self._every:
            self.lost += 1
            raise NoAnswerError("it is lost")
        return ack


async def test_an_entry_whose_answer_was_lost_is_there_once(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    async with writing(nats.url, where, tmp_path / "a") as one:
        await one.logged(one.put())
        lossy = LossyJetStream(one.js, 2, "log")
        one.log._js = lossy  # type: ignore[assignment]
        for _ in range(4):
            await one.logged(one.put())
        assert lossy.lost == 2
        assert one.troubles[-1] is None
    async with writing(nats.url, where, tmp_path / "b") as two:
        assert two.numbers() == list(range(5))


async def test_a_manifest_whose_answer_was_lost_counts(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    async with writing(nats.url, where, tmp_path / "a") as one:
        lossy = LossyJetStream(one.js, 1, "manifest")
        one.log._js = lossy  # type: ignore[assignment]
        for _ in range(2):
            await one.logged(one.put())
            await one.written()
            await one.log.make_snapshot(one.store)
        assert lossy.lost == 2
        await one.logged(one.put())
    async with writing(nats.url, where, tmp_path / "b") as two:
        assert two.numbers() == [0, 1, 2]


async def test_who_opens_it_ends_whoever_had_it(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:

    async def lose() -> None:
        async with writing(nats.url, where, tmp_path / "a") as one:
            await one.logged(one.put())
            async with writing(nats.url, where, tmp_path / "b") as two:
                one.put()  # is never durable
                await two.logged(two.put())
                assert two.numbers() == [0, 1]
                with trio.fail_after(30):
                    await trio.sleep_forever()

    with pytest.raises(StoreTakenError, match=f"taken over the store of {where.relay}"):
        await lose()
    async with writing(nats.url, where, tmp_path / "c") as three:
        assert three.numbers() == [0, 1]


async def test_who_had_it_makes_no_snapshot_any_more(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    """Else it would purge entries that the other one has yet to read."""
    async with writing(nats.url, where, tmp_path / "a") as one:
        await one.logged(one.put())
        await one.written()
        async with writing(nats.url, where, tmp_path / "b") as two:
            before = await two.bytes()
            with pytest.raises(StoreTakenError):
                await one.log.make_snapshot(one.store)
            await two.logged(two.put())
            await two.written()
            await two.log.make_snapshot(two.store)
            assert await two.bytes() < before + 400_000
        async with writing(nats.url, where, tmp_path / "c") as three:
            assert three.numbers() == [0, 1]


async def test_a_snapshot_made_before_it_is_taken_over_counts(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    async with writing(nats.url, where, tmp_path / "a") as one:
        for _ in range(5):
            await one.logged(one.put())
        await one.written()
        await one.log.make_snapshot(one.store)
        assert (one.log.snapshots, one.log.nbytes) == (1, 0)
        # There is nothing new to be in another one.
        await one.log.make_snapshot(one.store)
        assert one.log.snapshots == 1
        await one.logged(one.put())
        assert one.log.nbytes > 0
    async with writing(nats.url, where, tmp_path / "b") as two:
        assert two.numbers() == list(range(6))
        await two.logged(two.put())
        await two.written()
        await two.log.make_snapshot(two.store)
    async with writing(nats.url, where, tmp_path / "c") as three:
        assert three.numbers() == list(range(7))
        assert three.log.nbytes == 0


async def test_a_group_that_was_torn_counts_as_nothing(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store_log, "PIECE_BYTES", 1_000)
    async with writing(nats.url, where, tmp_path / "a") as one:
        await one.logged(one.put(5_500))
        entries = one.log.entries
        assert entries >= 6

        async def publish(*arguments: object, **options: object) -> object:
            if one.log.entries == entries + 3:
                await trio.sleep_forever()
            return await real(*arguments, **options)  # type: ignore[arg-type]

        real = one.js.publish
        one.js.publish = publish  # type: ignore[method-assign, assignment]
        one.put(5_500)
        await until(lambda: one.log.entries == entries + 3)
    async with writing(nats.url, where, tmp_path / "b") as two:
        assert two.numbers() == [0]
        await two.logged(two.put(5_500))
    async with writing(nats.url, where, tmp_path / "c") as three:
        assert three.numbers() == [0, 1]


async def test_snapshots_bound_the_stream(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store_log, "SNAPSHOT_BYTES", 200_000)
    async with writing(nats.url, where, tmp_path / "a") as one:
        most = 0
        for number in range(40):
            for _ in range(10):
                one.put(5_000)
            await one.logged(one.finish(10 * number - 1))
            most = max(most, await one.bytes())
        assert one.log.snapshots >= 3
        # 2 MB have gone through it.
        assert most < 1_500_000
        last = one.numbers()
    async with writing(nats.url, where, tmp_path / "b") as two:
        assert two.numbers() == last


@attrs.define
class _Refusal:
    """Lets the third piece of each snapshot fail."""

    real: Callable[..., object]
    pieces: int = 0

    async def publish(self, subject: str, *arguments: object, **options: object) -> object:
        if ".snapshot." in subject:
            self.pieces += 1
            if self.pieces % 3 == 0:
                raise StreamFullError(503, 10077, "no room")
        return await self.real(subject, *arguments, **options)  # type: ignore[misc]


async def test_what_is_left_of_snapshots_goes(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that failed, and of one whose process died."""
    monkeypatch.setattr(_store_log, "PIECE_BYTES", 4_000)
    async with writing(nats.url, where, tmp_path / "a") as one:
        await one.logged(one.put(50_000))
        await one.written()
        before = await one.bytes()
        real = one.js.publish
        one.js.publish = _Refusal(real).publish  # type: ignore[method-assign, assignment]
        with pytest.raises(StreamFullError):
            await one.log.make_snapshot(one.store)
        assert await one.bytes() == before
        one.js.publish = real  # type: ignore[method-assign]
        await one.js.publish(where.subject("snapshot", f"{one.log.life}-left"), bytes(9_000))
        assert await one.bytes() > before + 9_000
    async with writing(nats.url, where, tmp_path / "b") as two:
        assert await two.bytes() < before + 1_000
        await two.log.make_snapshot(two.store)
    async with writing(nats.url, where, tmp_path / "c") as three:
        assert three.numbers() == [0]


async def test_a_stream_that_is_full_goes_on_when_there_is_room(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    """It makes room itself: what has been done in the meantime is in no snapshot."""
    full = attrs.evolve(where, max_bytes=400_000)
    async with writing(nats.url, full, tmp_path / "a") as one:
        for number in range(200):
            one.put(5_000)
            await one.logged(one.finish(number - 3))
        assert one.log.snapshots >= 1
        sentences = [each for each in one.troubles if each is not None]
        assert any("takes no more" in each and "--disk-limit" in each for each in sentences)
        await until(lambda: one.troubles[-1] is None)
        config = (await one.js.stream_info(full.stream)).config
        assert config.max_bytes == 400_000
    async with writing(nats.url, full, tmp_path / "b") as two:
        assert two.numbers() == list(range(197, 200))


async def test_a_stream_that_is_too_small_takes_nothing_until_it_gets_more(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    small = attrs.evolve(where, max_bytes=300_000)
    async with writing(nats.url, small, tmp_path / "a") as one:
        while not one.troubles:
            for _ in range(20):
                one.put(5_000)
            await trio.sleep(0.05)
        lost = one.put()
        await until(lambda: one.log.snapshots > 0)
        durable = one.store.durable
        assert durable < lost
    # It can be opened all the same, with what it has, and with more room goes on.
    async with writing(nats.url, small, tmp_path / "b") as two:
        assert two.numbers()[: durable - 1] == list(range(durable - 1))
        ticket = two.put()
        await until(lambda: two.troubles)
        assert two.store.durable < ticket
    async with writing(nats.url, where, tmp_path / "c") as three:
        await three.logged(three.put())


async def test_three_servers_of_which_the_leader_is_killed(tmp_path: Path) -> None:
    where = StoreLogSettings("c", "r", replicas=3)
    with nats_cluster(tmp_path) as servers:
        urls = ",".join(server.url for server in servers)
        async with writing(urls, where, tmp_path / "a") as one:
            await one.logged(one.put())
            for _ in range(2):
                info = await one.js.stream_info(where.stream)
                assert info.leader is not None
                leader = servers[int(info.leader[1:])]
                for _ in range(20):
                    one.put()
                await trio.to_thread.run_sync(leader.kill)
                await one.logged(one.put(), 60)
                await trio.to_thread.run_sync(leader.start)
            assert one.numbers() == list(range(43))
        async with writing(urls, where, tmp_path / "b") as two:
            assert two.numbers() == list(range(43))


@pytest.mark.parametrize(
    ("subject", "data", "sentence"),
    [
        ("manifest", b"nonsense", "is no manifest"),
        ("manifest", b'{"ident": 7}', "is no manifest"),
        ("log", b"nonsense", "is no entry of a store's log"),
        ("log", b"", "is no entry of a store's log"),
        ("log", _store_log.HEAD.pack(2, 1, 1) + b"nonsense", "lacks an entry"),
    ],
)
async def test_what_is_not_of_the_log_is_refused_with_a_sentence(
    subject: str,
    data: bytes,
    sentence: str,
    nats: NatsServer,
    where: StoreLogSettings,
    tmp_path: Path,
) -> None:
    async with writing(nats.url, where, tmp_path / "a") as one:
        await one.logged(one.put())
        await one.js.publish(where.subject(subject), data)
    with pytest.raises(StoreFormatError, match=sentence):
        async with opened(nats.url, where, tmp_path / "b"):
            pass


async def test_changes_that_are_none_are_refused_with_a_sentence(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    async with opened(nats.url, where, tmp_path / "a") as (log, _, js):
        data = _store_log.HEAD.pack(_store_log.LAST, log.life, 1) + b"nonsense"
        await js.publish(where.subject("log"), data)
    with pytest.raises(StoreFormatError, match="no changes of a store"):
        async with opened(nats.url, where, tmp_path / "b"):
            pass


@pytest.mark.parametrize("what", ["piece", "content", "entry"])
async def test_a_damaged_snapshot_is_refused_with_a_sentence(
    what: str, nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    async with writing(nats.url, where, tmp_path / "a") as one:
        for _ in range(3):
            await one.logged(one.put())
        await one.written()
        await one.log.make_snapshot(one.store)
        await one.logged(one.put())
        manifest = one.log.manifest
        assert manifest is not None
        if what == "entry":
            await one.js.delete_message(where.stream, manifest.position)
        else:
            await one.js.delete_message(where.stream, manifest.first)
        if what == "content":
            subject = where.subject("snapshot", manifest.ident)
            await one.js.publish(subject, bytes(100))
    sentence = {
        "piece": "0 of 1 pieces of a snapshot",
        "content": "a snapshot that is not what was written",
        "entry": "lacks an entry of the store's log",
    }[what]
    with pytest.raises(StoreFormatError, match=sentence):
        async with opened(nats.url, where, tmp_path / "b"):
            pass


async def test_a_stream_gets_what_is_asked_for_now(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    # Of 1 GB that the server has, its limit is taken once.
    for number, most in enumerate([1_000_000, 5_000_000, 2_000_000, 900 << 20, 900 << 20, None]):
        now = attrs.evolve(where, max_bytes=most)
        async with opened(nats.url, now, tmp_path / f"{number}") as (_, _, js):
            config = (await js.stream_info(where.stream)).config
            assert config.max_bytes == (-1 if most is None else most)


async def test_a_stream_that_is_another_is_left_as_it_is(
    nats: NatsServer, where: StoreLogSettings, tmp_path: Path
) -> None:
    other = StreamConfig(name=where.stream, subjects=(secrets.token_hex(4),))
    async with open_nats(nats.url) as client:
        js = JetStream(client)
        await js.create_stream(other)
        with pytest.raises(StoreFormatError, match="is not the store of relay"):
            async with opened(nats.url, where, tmp_path / "a"):
                pass
        assert (await js.stream_info(where.stream)).config.subjects == other.subjects


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = Manifest("7-ab", 3, 1_000, "00", 12, 9)
    assert Manifest.read(manifest.write()) == manifest
