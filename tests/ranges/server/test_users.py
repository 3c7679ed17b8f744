"""Readers and writers that have to be who they say: strangers get nothing, users what is theirs."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from clearfunds.access import Passwords, Tenant, Tokens
from clearfunds.access._passwords import QUICK_ITERATIONS
from clearfunds.accounts import Account
from clearfunds.ranges.client import (
    Access,
    AwayError,
    DataLossError,
    NotAuthorizedError,
    RangeReader,
    RefusedError,
    SinkWriter,
    Ticket,
)
from clearfunds.ranges.server._frames import MAX_LOGIN_BYTES
from clearfunds.ranges.server._names import key_of, owner_of
from clearfunds.ranges.wire import (
    AUTH_IS_KNOWN,
    AUTH_IS_WANTED,
    Ack,
    AskHead,
    Attach,
    Auth,
    ErrorCode,
    Hello,
    Kind,
    Ping,
    Request,
    encode_frame,
    encode_request,
)
from clearfunds.sockets import ServerTls
from clearfunds.transports.mqtt import Publish
from tests.ranges.server.relays import blocking
from tests.ranges.server.test_session import Peer
from tests.transports.certificates import Papers, papers_in
from tests.transports.mqtt.users import user_line
from tests.transports.peers import RunningRelay, connected, log_of, running, until

HOST = "127.0.0.1"
LISTEN = ("mqtt+tcp://127.0.0.1:0", "subscribe+tcp://127.0.0.1:0")


def passwords_of(*users: str, iterations: int = 1) -> Passwords:
    """Return the passwords of users, each of whom has `secret`."""
    return Passwords.from_text("\n".join(user_line(user, b"secret", iterations) for user in users))


QUICK = passwords_of("anna", "bert", "a", "a/b")
SLOW = passwords_of("anna", "bert", "a", "a/b", iterations=QUICK_ITERATIONS + 1)


def as_user(user: str, password: str = "secret") -> Access:
    return Access(user=user, password=password)


def port_of(relay: RunningRelay) -> int:
    """Return the port of the listener that was named last."""
    return int(relay.addresses.listening[-1].rpartition(":")[2])


async def attach(relay: RunningRelay, name: str, access: Access, **options: Any) -> RangeReader:
    options.setdefault("filters", ["bank/#"])
    return await blocking(
        RangeReader, HOST, port_of(relay), name, access=access, timeout=10, **options
    )


async def join(relay: RunningRelay, ticket: Ticket, access: Access) -> RangeReader:
    return await blocking(RangeReader.join, HOST, port_of(relay), ticket, access=access, timeout=10)


async def write(relay: RunningRelay, name: str, access: Access, **options: Any) -> SinkWriter:
    return await blocking(
        SinkWriter, HOST, port_of(relay), name, access=access, timeout=10, **options
    )


def names(relay: RunningRelay) -> list[str]:
    readers = relay.relay.readers
    assert readers is not None
    return readers.subscriptions.names()


async def pay(relay: RunningRelay, payload: bytes = b"100") -> None:
    """Publish a payment, as a client that may."""
    async with connected(relay.port, "till", username="anna", password=b"secret") as till:
        await till.send(Publish("bank/payment", payload, 1, packet_id=1))
        await till.next()


async def reaches(reader: RangeReader, number: int) -> None:
    """Wait until messages up to before a number can be fetched."""
    with trio.fail_after(20):
        while (await blocking(reader.head)).next < number:  # noqa: ASYNC110
            await trio.sleep(0.01)


@attrs.frozen
class Answers:
    """A bare connection, for what the blocking client would not say."""

    relay: RunningRelay

    async def of(self, *requests: Request | bytes) -> list[tuple[int, bytes]]:
        """Send requests in one piece; return the kinds and contents of all that is answered."""
        stream = await trio.open_tcp_stream(HOST, port_of(self.relay))
        found: list[tuple[int, bytes]] = []
        async with stream:
            data = [
                each if isinstance(each, bytes) else encode_request(number, each)
                for number, each in enumerate(requests)
            ]
            await stream.send_all(b"".join(data))
            peer = Peer(stream)
            while (frame := await peer.receive()) is not None:
                found.append((frame.kind, frame.payload))
                if frame.kind == Kind.PONG:
                    break
        return found


def refusals(found: Iterable[tuple[int, bytes]]) -> list[int]:
    """Return the codes of errors."""
    return [int.from_bytes(data[:2], "little") for kind, data in found if kind == Kind.ERROR]


@pytest.mark.parametrize("passwords", [QUICK, SLOW], ids=["quick", "slow"])
async def test_a_stranger_gets_nothing_of_a_durable_job(
    passwords: Passwords, tmp_path: Path
) -> None:
    """The attack: to read a job's payments, acknowledge them, and publish a transfer."""
    settings: dict[str, Any] = {"passwords": passwords, "wrong_password_delay": 0}
    async with running(listen=LISTEN, store=str(tmp_path / "s"), **settings) as relay:
        job = await attach(relay, "payments", as_user("anna"), durable=True)
        await pay(relay)
        await reaches(job, 2)
        for stranger in (
            Access(),
            as_user("anna", "guess"),
            as_user("mallory", "secret"),
            as_user("-", "secret"),
        ):
            asks: list[Callable[[], Awaitable[object]]] = [
                partial(attach, relay, "payments", stranger, durable=True),
                partial(attach, relay, "payments", stranger, filters=()),
                partial(join, relay, job.ticket, stranger),
                partial(join, relay, Ticket("payments"), stranger),
                partial(write, relay, "w", stranger),
            ]
            for ask in asks:
                with pytest.raises(NotAuthorizedError):
                    await ask()
        # Nor does a user who is somebody else.
        other = as_user("bert")
        with pytest.raises(RefusedError, match="there is no subscription"):
            await attach(relay, "payments", other, filters=())
        with pytest.raises(DataLossError):
            await join(relay, job.ticket, other)
        with pytest.raises(RefusedError, match="there is no subscription"):
            await join(relay, Ticket("payments"), other)
        own = await attach(relay, "payments", other)
        assert await blocking(own.head) == (1, 1)
        await blocking(own.drop)
        (block,) = await blocking(lambda: list(job.fetch(1, 2)))
        assert [row.value for row in block.rows()] == [b"100"]
        await blocking(job.ack, 2)
        await blocking(job.drop)
        relay.audit()
        assert not names(relay)


async def test_who_is_not_let_in_may_say_hello_and_who_he_is_and_nothing_else() -> None:
    hello = Hello(1, 1)
    async with running(listen=LISTEN, passwords=QUICK) as relay:
        ask = Answers(relay)
        welcome, *_ = await ask.of(hello, Attach(name="s", filters=("#",)))
        assert welcome[1][2] == AUTH_IS_KNOWN | AUTH_IS_WANTED
        wanted = [ErrorCode.NOT_AUTHORIZED]
        for request in (
            Attach(name="s", filters=("#",)), Ping(), AskHead(1), Ack(1, 1),
            encode_frame(64, 1, bytes(32)),
        ):  # fmt: skip
            found = await ask.of(hello, request)
            assert refusals(found) in (wanted, [ErrorCode.PROTOCOL]), request
            assert len(found) == 2, "and the connection ends"
        # An older client is told in words what it lacks.
        found = await ask.of(hello, Attach(name="s", filters=("#",)))
        assert b"give a user and a password" in found[-1][1]
        protocol = [ErrorCode.PROTOCOL]
        assert refusals(await ask.of(hello, hello)) == protocol
        assert refusals(await ask.of(Auth("anna", b"secret"))) == protocol
        twice = hello, Auth("anna", b"secret"), Auth("anna", b"secret")
        assert refusals(await ask.of(*twice)) == protocol
        too_large = Auth("anna", bytes(MAX_LOGIN_BYTES))
        assert refusals(await ask.of(hello, too_large)) == protocol
        assert refusals(await ask.of(hello, Auth("anna", b"guess"))) == wanted
        assert refusals(await ask.of(hello, encode_frame(Kind.AUTH, 1, b"\5\0ab"))) == protocol
        found = await ask.of(hello, Auth("anna", b"secret"), Ping())
        assert [kind for kind, _ in found] == [Kind.WELCOME, Kind.AUTHENTICATED, Kind.PONG]
        readers = relay.relay.readers
        assert readers is not None
        assert readers.counters.refused == 7
        assert not names(relay)


@pytest.mark.parametrize("passwords", [QUICK, SLOW], ids=["quick", "slow"])
async def test_all_at_once_or_in_pieces_it_is_the_same(passwords: Passwords) -> None:
    own = Attach(name="s", filters=("a",))
    good = Hello(1, 1), Auth("anna", b"secret"), own, AskHead(1), Ping()
    kinds = [Kind.WELCOME, Kind.AUTHENTICATED, Kind.ATTACHED, Kind.HEAD_IS, Kind.PONG]
    async with running(listen=LISTEN, passwords=passwords) as relay:
        ask = Answers(relay)
        assert [kind for kind, _ in await ask.of(*good)] == kinds
        bad = Hello(1, 1), Auth("anna", b"guess"), own, AskHead(1), Ping()
        found = await ask.of(*bad)
        assert [kind for kind, _ in found] == [Kind.WELCOME, Kind.ERROR]
        assert names(relay) == ["@anna/s"]


async def test_no_order_of_frames_lets_anybody_in_without_a_password() -> None:
    """Whatever comes in whatever order, cut anywhere: nothing is made, and nothing breaks."""
    frames: list[Request | bytes] = [
        Hello(1, 1), Hello(1, 1), Hello(2, 9), Auth("anna", b"guess"), Auth("", b""),
        Auth("-", b"secret"), Auth("bert\n", b"secret"), Ping(), Attach(name="s", filters=("#",)),
        Attach(name="@anna/s", filters=("#",)), Ack(1, 1), AskHead(1),
        encode_frame(64, 1, bytes(40)), encode_frame(66, 1, bytes(60)), encode_frame(7, 0),
        encode_frame(255, 0, bytes(9)), bytes(7),
    ]  # fmt: skip
    dice = random.Random(7)
    async with running(listen=LISTEN, passwords=QUICK) as relay:
        readers = relay.relay.readers
        assert readers is not None
        for _ in range(150):
            some = [Hello(1, 1), *dice.choices(frames, k=dice.randint(0, 5))][dice.randint(0, 1) :]
            data = b"".join(
                each if isinstance(each, bytes) else encode_request(number, each)
                for number, each in enumerate(some)
            )
            place = dice.randint(0, len(data))
            stream = await trio.open_tcp_stream(HOST, port_of(relay))
            async with stream:
                for piece in (data[:place], data[place:]):
                    with contextlib.suppress(trio.BrokenResourceError):
                        await stream.send_all(piece)
                    await trio.lowlevel.checkpoint()
        await until(lambda: not readers.open)
        assert not names(relay)
        assert not len(readers.writing.sinks)
        assert readers.counters.internal_errors == 0
        relay.audit()


async def test_a_log_in_has_its_time() -> None:
    async with running(listen=LISTEN, passwords=QUICK, connect_timeout=0.3) as relay:
        found = await Answers(relay).of(Hello(1, 1))
        assert [kind for kind, _ in found] == [Kind.WELCOME]
        readers = relay.relay.readers
        assert readers is not None
        assert readers.counters.timeouts == 1


async def test_without_passwords_all_is_as_before(tmp_path: Path) -> None:
    async with running(listen=LISTEN) as relay:
        welcome, _ = await Answers(relay).of(Hello(1, 1), Ping())
        assert welcome[1][2] == AUTH_IS_KNOWN
        async with connected(relay.port, "till") as till:
            one = await attach(relay, "s", Access())
            await till.send(Publish("bank/a", b"1", 0))
            await reaches(one, 2)
            # What somebody says who cannot prove it counts for nothing.
            other = await attach(relay, "s", as_user("anna"), filters=())
            assert await blocking(other.head) == (1, 2)
            assert names(relay) == ["s"]
            with pytest.raises(RefusedError, match="may not begin with @"):
                await attach(relay, "@anna/s", Access())
            with pytest.raises(RefusedError, match="may not begin with @"):
                await write(relay, "@anna/w", Access())
            await blocking(other.drop)
            one.close()


async def test_anonymous_peers_have_names_of_their_own() -> None:
    async with running(listen=LISTEN, passwords=QUICK, anonymous=True) as relay:
        nobody = await attach(relay, "s", Access())
        anna = await attach(relay, "s", as_user("anna"))
        assert names(relay) == ["@-/s", "@anna/s"]
        with pytest.raises(NotAuthorizedError):
            await attach(relay, "s", as_user("anna", "guess"))
        again = await join(relay, Ticket("s"), Access())
        assert again.ticket == nobody.ticket != anna.ticket
        for each in (again, anna, nobody):
            each.close()
        late = Hello(1, 1), Attach(name="t", filters=("#",)), Auth("anna", b"secret")
        assert b"AUTH comes once" in (await Answers(relay).of(*late))[-1][1]


def test_names_of_users_cannot_be_taken_for_each_other() -> None:
    pairs = [
        ("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c"), ("a", "b%2Fc"), ("", "a/b"), ("@a", "b"),
        ("a", "@b"), ("a\n", "b"), ("a\\n", "b"), ("a%0A", "b"), ("-", "a"), ("ä", "b"),
        ("a ", "b"),
    ]  # fmt: skip
    keys = [key_of(user, name) for user, name in pairs if user]
    assert len(set(keys)) == len(keys)
    assert [owner_of(key) for key in keys] == [pair for pair in pairs if pair[0]]
    assert all(key.isprintable() for key in keys)
    assert owner_of("plain/name") == ("-", "plain/name")
    assert owner_of("@odd") == ("-", "@odd")


async def test_users_whose_names_have_a_slash_have_accounts_of_their_own() -> None:
    async with running(listen=LISTEN, passwords=QUICK) as relay:
        one = await attach(relay, "b/c", as_user("a"))
        other = await attach(relay, "c", as_user("a/b"))
        writers: list[SinkWriter] = [
            await write(relay, "b/c", as_user("a")),
            await write(relay, "c", as_user("a/b")),
        ]
        accounts = {name for name in relay.ledger.accounts if "subscription/" in name}
        assert accounts == {"subscription/@a/b/c", "subscription/@a%2Fb/c"}
        accounts = {name for name in relay.ledger.accounts if name.startswith("sink/")}
        assert accounts == {"sink/@a/b/c", "sink/@a%2Fb/c"}
        one.close()
        other.close()
        for each in writers:
            each.close()


@pytest.mark.parametrize("passwords", [QUICK, SLOW], ids=["quick", "slow"])
async def test_writers_are_their_users_too(passwords: Passwords, tmp_path: Path) -> None:
    async with running(listen=LISTEN, passwords=passwords, store=str(tmp_path / "s")) as relay:
        anna = await write(relay, "job", as_user("anna"))
        staged = await blocking(anna.stage, 0, 0, 1, [("bank/transfer", b"1")])
        bert = await write(relay, "job", as_user("bert"), take_over=True)
        assert await blocking(bert.last_committed) is None
        with pytest.raises(RefusedError):
            await blocking(bert.commit, 0, [staged])
        with pytest.raises(NotAuthorizedError):
            await write(relay, "job", as_user("bert", "guess"), take_over=True)
        assert await blocking(anna.commit, 0, [staged]), "it was not fenced"
        assert await blocking(anna.last_committed) == 0
        assert await blocking(bert.last_committed) is None
        anna.close()
        bert.close()
        relay.audit()


async def test_what_a_user_has_is_his_after_a_restart(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    async with running(listen=LISTEN, passwords=QUICK, store=store) as relay:
        job = await attach(relay, "payments", as_user("anna"), durable=True)
        await pay(relay)
        await reaches(job, 2)
        job.close()
    async with running(listen=LISTEN, passwords=QUICK, store=store) as relay:
        with pytest.raises(RefusedError, match="there is no subscription"):
            await attach(relay, "payments", as_user("bert"), filters=())
        again = await join(relay, job.ticket, as_user("anna"))
        assert await blocking(again.head) == (1, 2)
        await blocking(again.ack, 2)
        again.close()


async def test_what_is_nobodys_is_for_the_operator_to_give(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    async with running(listen=LISTEN, store=store) as relay:
        job = await attach(relay, "payments", Access(), durable=True)
        (await write(relay, "job", Access())).close()
        job.close()
    refused = "made before this relay authenticated .*--range-owner"
    async with running(listen=LISTEN, passwords=QUICK, store=store) as relay:
        for user in ("anna", "bert"):
            with pytest.raises(RefusedError, match=refused):
                await attach(relay, "payments", as_user(user), durable=True)
            with pytest.raises(RefusedError, match=refused):
                await write(relay, "job", as_user(user))
    async with running(listen=LISTEN, passwords=QUICK, store=store, range_owner="anna") as relay:
        with pytest.raises(RefusedError, match=refused):
            await join(relay, job.ticket, as_user("bert"))
        found = await join(relay, job.ticket, as_user("anna"))
        assert found.ticket == job.ticket
        await blocking(found.drop)
        (await write(relay, "job", as_user("anna"))).close()


async def test_one_user_has_so_many_names_and_leaves_the_others_theirs() -> None:
    async with running(listen=LISTEN, passwords=QUICK, max_range_names=2) as relay:
        anna, bert = as_user("anna"), as_user("bert")
        there = [await attach(relay, name, anna) for name in "ab"]
        with pytest.raises(RefusedError, match=r"user anna has 2 of these .*--max-range-names"):
            await attach(relay, "c", anna)
        there += [await attach(relay, "c", bert), await attach(relay, "a", anna)]
        there_too = [await write(relay, name, anna) for name in "ab"]
        with pytest.raises(RefusedError, match="drop a writer that is no longer needed"):
            await write(relay, "c", anna)
        for reader in there:
            reader.close()
        for writer in there_too:
            writer.close()


async def test_they_stand_below_their_users_tenant(tmp_path: Path) -> None:
    tenants = (
        Tenant(name="press", user=("anna",), users=True, kept=1 << 20),
        Tenant(name="bank", user=("bert",)),
    )

    def above(account: Account) -> list[str]:
        return [each.name for each in account.chain][1:]

    async with running(
        listen=LISTEN, passwords=QUICK, store=str(tmp_path / "s"), tenant=tenants
    ) as relay:
        anna, bert = as_user("anna"), as_user("bert")
        there: list[RangeReader | SinkWriter] = [
            await attach(relay, "ram", anna),
            await attach(relay, "disk", anna, durable=True),
            await attach(relay, "ram", bert),
            await write(relay, "w", anna),
        ]
        accounts = relay.ledger.accounts
        users = ["tenant/press/anna", "tenant/press", "server"]
        assert above(accounts["subscription/@anna/ram"]) == users
        assert above(accounts["sink/@anna/w"]) == users
        assert above(accounts["subscription/@bert/ram"]) == ["tenant/bank", "server"]
        own = ["disk/press/users/@anna", "disk/press", "disk"]
        assert above(accounts["subscription/@anna/disk"]) == own
        assert above(accounts["staged/@anna/w"]) == own
        for each in there:
            each.close()


async def test_who_leaves_while_his_password_is_looked_at_is_not_waited_for() -> None:
    begun, go_on = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    class Directory:
        def check(self, user: str, password: bytes) -> bool:
            trio.from_thread.run_sync(begun.set, trio_token=token)
            go_on.wait(20)
            return True

    async with running(listen=LISTEN, passwords=Directory()) as relay:
        readers = relay.relay.readers
        assert readers is not None
        stream = await trio.open_tcp_stream(HOST, port_of(relay))
        await stream.send_all(encode_request(0, Hello(1, 1)) + encode_request(1, Auth("a", b"b")))
        await begun.wait()
        await stream.aclose()
        await until(lambda: not readers.open)
        go_on.set()


async def test_a_directory_that_fails_lets_nobody_in(caplog: pytest.LogCaptureFixture) -> None:
    class Directory:
        def check(self, user: str, password: bytes) -> bool:
            raise OSError("it is down")

    async with running(listen=LISTEN, passwords=Directory()) as relay:
        with pytest.raises(NotAuthorizedError, match="could not be checked"):
            await attach(relay, "s", as_user("anna"))
    assert log_of(caplog, "it is down")


async def test_a_token_says_who_its_user_is_and_for_how_long() -> None:
    jwt = pytest.importorskip("jwt", reason="PyJWT is not installed")
    secret = b"0123456789abcdef0123456789abcdef"

    def token(seconds: float, key: bytes = secret) -> str:
        claims = {"sub": "anna", "exp": time.time() + seconds}
        made: str = jwt.encode(claims, key, algorithm="HS256")
        return made

    async with running(listen=LISTEN, tokens=Tokens(secret)) as relay:
        for stranger in (
            Access(),
            as_user("anna", "secret"),
            as_user("anna", token(-5)),
            as_user("anna", token(60, b"another key of thirty-two bytes!")),
            as_user("bert", token(60)),
        ):
            with pytest.raises(NotAuthorizedError):
                await attach(relay, "s", stranger)
        anna = await attach(relay, "s", as_user("anna", token(60)))
        short = await attach(relay, "t", as_user("", token(1)))
        assert names(relay) == ["@anna/s", "@anna/t"]
        readers = relay.relay.readers
        assert readers is not None
        await until(lambda: len(readers.open) == 1)
        with pytest.raises(NotAuthorizedError, match="its token is not good: it has expired"):
            await blocking(short.head)
        anna.close()
        short.close()


# -- TLS -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers_in(tmp_path_factory.mktemp("papers"))


def shown(papers: Papers, name: str | None, **more: Any) -> Access:
    """Return what a client shows and believes."""
    files = papers.for_client(name)
    chain = {} if name is None else {"certificate": str(files.chain), "key": str(files.key)}
    return Access(tls=True, ca=str(files.trusted), **chain, **more)


SECURE = ("mqtt+tcp://127.0.0.1:0", "subscribe+tls://127.0.0.1:0")


async def test_reading_and_writing_with_tls_and_a_password(papers: Papers) -> None:
    tls = ServerTls(papers.for_server().for_server)
    async with running(listen=SECURE, passwords=QUICK, tls=tls) as relay:
        anna = shown(papers, None, user="anna", password="secret")
        url = f"subscribe+tls://127.0.0.1:{port_of(relay)}"
        reader = await blocking(
            RangeReader, url, None, "s", filters=["bank/#"], access=anna, fetch_bytes=100_000
        )
        writer = await blocking(SinkWriter, url, None, "w", access=anna)
        rows = [("bank/a", b"%07d" % number * 100) for number in range(5_000)]
        staged = await blocking(writer.stage, 0, 0, 1, rows)
        assert await blocking(writer.commit, 0, [staged])
        blocks = await blocking(lambda: list(reader.fetch(1, 5_001)))
        assert [row.value for block in blocks for row in block.rows()] == [row[1] for row in rows]
        # A pickled writer has what it needs.
        make, arguments = writer.__reduce__()
        along: Any = await blocking(make, *arguments)
        assert await blocking(along.last_committed) == 0
        along.close()
        reader.close()
        with pytest.raises(NotAuthorizedError):
            await attach(relay, "s", shown(papers, None))
        writer.close()


async def test_a_certificate_says_who_its_user_is(papers: Papers) -> None:
    tls = ServerTls(papers.for_server(asks=True).for_server)
    listen = (*SECURE[:1], "subscribe+tcp://127.0.0.1:0", SECURE[1])
    async with running(listen=listen, passwords=QUICK, tls=tls) as relay:
        anna = await attach(relay, "s", shown(papers, "anna"))
        # Whatever it says itself.
        bert = await attach(
            relay, "s", shown(papers, "bert", user="anna", password="guess"), filters=["bank/#"]
        )
        assert names(relay) == ["@anna/s", "@bert/s"]
        with pytest.raises((NotAuthorizedError, AwayError)):
            await blocking(
                RangeReader, HOST, port_of(relay), "s", access=shown(papers, None), timeout=2
            )
        anna.close()
        bert.close()


async def test_beside_certificates_who_has_none_reaches_nothing_of_a_users(papers: Papers) -> None:
    """On a listener without TLS, and without passwords, nobody is anybody's user."""
    tls = ServerTls(papers.for_server(asks=True).for_server)
    listen = (SECURE[1], "subscribe+tcp://127.0.0.1:0")
    async with running(listen=listen, tls=tls) as relay:
        port = int(relay.addresses.listening[0].rpartition(":")[2])
        access = shown(papers, "anna")
        anna = await blocking(
            RangeReader, HOST, port, "s", filters=["bank/#"], access=access, timeout=10
        )
        nobody = await attach(relay, "s", as_user("anna"))
        assert names(relay) == ["@anna/s", "@-/s"]
        with pytest.raises(RefusedError, match="there is no subscription '@-/@anna/s'"):
            await attach(relay, "@anna/s", Access(), filters=())
        anna.close()
        nobody.close()


async def test_what_is_wrong_with_tls_is_said_at_once(papers: Papers, tmp_path: Path) -> None:
    tls = ServerTls(papers.for_server().for_server)
    stranger = papers_in(tmp_path / "stranger")
    plain = Access(tls=True, ca=str(papers.trusted))
    makers: list[Callable[..., Any]] = [attach, write]
    async with running(listen=SECURE, tls=tls) as relay:
        for make in makers:
            with pytest.raises(NotAuthorizedError, match="its certificate is not trusted"):
                await make(relay, "s", shown(stranger, None))
        with pytest.raises(AwayError):
            await blocking(RangeReader, HOST, port_of(relay), "s", timeout=0.5)
    async with running(listen=LISTEN) as relay:
        for make in makers:
            with pytest.raises(NotAuthorizedError, match="TLS failed: wrong version"):
                await make(relay, "s", plain)


def test_what_cannot_be_is_said_before_anything_is_asked(papers: Papers, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a user and a password come together"):
        Access(user="anna")
    with pytest.raises(ValueError, match="65535 bytes at the most"):
        Access(user="anna", password="a" * 70_000)
    with pytest.raises(ValueError, match="give the certificate, too"):
        Access(tls=True, key="k")
    with pytest.raises(ValueError, match="certificates need TLS"):
        RangeReader(HOST, 1, "s", access=Access(ca="c"))
    with pytest.raises(ValueError, match="certificates need TLS"):
        SinkWriter("subscribe+tcp://127.0.0.1:1", None, "s", access=Access(tls=True, ca="c"))
    with pytest.raises(ValueError, match="'mqtt://h:1' is not subscribe"):
        RangeReader("mqtt://h:1", None, "s")
    with pytest.raises(ValueError, match=r"cannot read certificates from .*nowhere: No such file"):
        RangeReader(HOST, 1, "s", access=Access(tls=True, ca=str(tmp_path / "nowhere")))
    odd = tmp_path / "odd.pem"
    odd.write_text("no certificate")
    with pytest.raises(ValueError, match="must have certificates, in PEM"):
        RangeReader(HOST, 1, "s", access=Access(tls=True, ca=str(odd)))
    with pytest.raises(ValueError, match=r"must have a certificate, and .* its private key"):
        RangeReader(HOST, 1, "s", access=Access(tls=True, certificate=str(odd)))
    assert "secret" not in repr(as_user("anna"))
