"""Clients that have to be who they say: and that nothing comes of those that are not."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from clearfunds.access import Authenticator, Passwords, Tenant
from clearfunds.access._passwords import QUICK_ITERATIONS
from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    ConnectReturnCode,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Will,
    encode,
)
from clearfunds.transports.mqtt.server._log_ins import CONCURRENT_CHECKS
from tests.programs import needs
from tests.relay.test_websocket import BOTH, opened
from tests.transports.mqtt.users import user_line
from tests.transports.peers import (
    SECONDS,
    RunningRelay,
    connected,
    dial,
    hear_of_each_other,
    kill,
    log_of,
    running,
    until,
)

if TYPE_CHECKING:
    from tests.transports.peers import BareClient

BAD = ConnAck(False, ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD)
NOT_AUTHORIZED = ConnAck(False, ConnectReturnCode.NOT_AUTHORIZED)


def passwords_of(*users: str, iterations: int = 1) -> Passwords:
    """Return the passwords of users, each of whom has `secret`."""
    return Passwords.from_text("\n".join(user_line(user, b"secret", iterations) for user in users))


QUICK = passwords_of("anna", "bert")
SLOW = passwords_of("anna", "bert", iterations=QUICK_ITERATIONS + 1)

both_ways = pytest.mark.parametrize("passwords", [QUICK, SLOW], ids=["at once", "in a thread"])
"""Where a password is looked at."""


async def attempt(client: BareClient, connect: Connect, *more: Packet) -> Packet | None:
    """Send CONNECT, and more with it; return the answer."""
    client.connection.send(connect)
    await client.send(connect, *more)
    with trio.fail_after(SECONDS):
        return await client.receive()


class Slow:
    """Takes as long for each check as a test likes."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.asked: list[str] = []
        self.ended = 0

    def check(self, user: str, password: bytes) -> bool:
        self.asked.append(user)
        assert self.go_on.wait(SECONDS)
        self.ended += 1
        return password == b"secret"


@contextmanager
def slow() -> Generator[Slow]:
    """Let threads go on at the end, whatever happens."""
    passwords = Slow()
    try:
        yield passwords
    finally:
        passwords.go_on.set()


# -- whose a client identifier is -----------------------------------------------------------------


async def test_each_user_has_identifiers_of_its_own() -> None:
    """So nobody takes over another user's connection, and nobody keeps an identifier from it."""
    async with (
        running(passwords=QUICK, anonymous=True) as relay,
        connected(relay.port, "it") as nobody,
        connected(relay.port, "it", username="anna", password=b"secret") as anna,
        connected(relay.port, "it", username="bert", password=b"secret") as bert,
        # What looks like anna's and is not.
        connected(relay.port, "@anna/it") as like_anna,
    ):
        await hear_of_each_other(nobody, anna, bert, like_anna)
        names = {account for account in relay.ledger.accounts if "it" in account}
        port = relay.port
        assert names == {
            f"mqtt:{port}/-/it",
            f"mqtt:{port}/anna/it",
            f"mqtt:{port}/bert/it",
            f"mqtt:{port}/-/@anna/it",
        }
        # Its own user may.
        async with connected(relay.port, "it", username="anna", password=b"secret"):
            assert await anna.gone() == []
        assert relay.relay.mqtt.counters.refused == 0
        await bert.publish("t", b"still here")
        await nobody.expect(Publish("t", b"still here"))
        relay.audit()


@pytest.mark.parametrize("clean", [True, False])
async def test_nobody_takes_up_another_users_session(tmp_path: Path, clean: bool) -> None:
    """Nor ends it, nor keeps its identifier; not after the relay was started again, either."""
    store = str(tmp_path / "store")
    kept = Connect("it", False, username="anna", password=b"secret")
    other = Connect("it", clean, username="bert", password=b"secret")
    for again in (False, True):
        async with running(passwords=QUICK, store=store) as relay:
            async with dial(relay.port) as client:
                assert await attempt(client, other) == ConnAck(again and not clean, 0)
            async with dial(relay.port) as client:
                assert await attempt(client, kept) == ConnAck(again, 0)
                await client.subscribe("t", qos=1)
                if again:
                    await client.publish("t", b"anna's", 1)
                    assert {type(await client.next()) for _ in "12"} == {PubAck, Publish}
                await client.send(Disconnect())
                await client.gone()
            async with dial(relay.port) as client:
                assert await attempt(client, other) == ConnAck(not clean, 0)
                assert await client.silent()
    async with running(passwords=QUICK, store=store) as relay, dial(relay.port) as client:
        assert await attempt(client, kept) == ConnAck(True, 0)
        assert (await client.publication()).payload == b"anna's"


async def test_a_session_that_was_kept_for_nobody_is_whose_it_becomes(tmp_path: Path) -> None:
    """As they all are when passwords are asked for from now on; but not while some are not."""
    store = str(tmp_path / "store")
    async with running(store=store) as relay, dial(relay.port) as client:
        assert await attempt(client, Connect("it", False)) == ConnAck(False, 0)
    bert, anna = (Connect("it", True, username=u, password=b"secret") for u in ("bert", "anna"))
    async with running(passwords=QUICK, anonymous=True, store=store) as relay:
        async with dial(relay.port) as client:
            assert await attempt(client, bert) == ConnAck(False, 0)
        async with dial(relay.port) as client:
            assert await attempt(client, Connect("it", False)) == ConnAck(True, 0)
    bert, anna = (attrs.evolve(each, clean_session=False) for each in (bert, anna))
    for first in (True, False):
        async with running(passwords=QUICK, store=store) as relay:
            for connect, present in ((bert, True), (anna, not first), (bert, True)):
                async with dial(relay.port) as client:
                    assert await attempt(client, connect) == ConnAck(present, 0)


async def test_a_user_with_a_slash_is_not_taken_for_another_one(tmp_path: Path) -> None:
    """Also on a Unix socket, whose path has slashes: `bob` is not `team/bob`."""
    path, store = str(tmp_path / "mqtt"), str(tmp_path / "store")
    users = passwords_of("bob", "team/bob")
    mine = Connect("c", False, username="team/bob", password=b"secret")
    listen = (f"mqtt+unix://{path}",)
    for again in (False, True):
        async with running(listen=listen, passwords=users, store=store):
            async with dial(path) as client:
                assert await attempt(client, mine) == ConnAck(again, 0)
                await client.subscribe("t", qos=1)
                await client.send(Disconnect())
                await client.gone()
            async with dial(path) as client:
                bob = Connect("c", True, username="bob", password=b"secret")
                assert await attempt(client, bob) == ConnAck(False, 0)
                await client.publish("t", b"for the team", 1)
                assert await client.next() == PubAck(1)
            async with dial(path) as client:
                assert await attempt(client, mine) == ConnAck(True, 0)
                found = await client.publication()
                assert found.payload == b"for the team"
                await client.send(PubAck(found.packet_id), Disconnect())
                await client.gone()


async def test_no_two_clients_share_an_account() -> None:
    users = passwords_of("a", "a/b")
    async with (
        running(passwords=users) as relay,
        connected(relay.port, "c", username="a/b", password=b"secret") as one,
        connected(relay.port, "b/c", username="a", password=b"secret") as other,
        connected(relay.port, "x\ny", username="a", password=b"secret"),
        connected(relay.port, "x\\ny", username="a", password=b"secret"),
    ):
        assert relay.account("c").name == f"mqtt:{relay.port}/a%2Fb/c"
        assert relay.account("b/c").name == f"mqtt:{relay.port}/a/b/c"
        assert relay.account("x\ny") is not relay.account("x\\ny")
        await hear_of_each_other(one, other)


# -- who is let in --------------------------------------------------------------------------------


@both_ways
async def test_who_gives_the_right_password_is_let_in(passwords: Passwords) -> None:
    async with (
        running(passwords=passwords) as relay,
        connected(relay.port, "a", username="anna", password=b"secret") as anna,
        connected(relay.port, "b", username="bert", password=b"secret") as bert,
    ):
        assert relay.account("a").name == f"mqtt:{relay.port}/anna/a"
        await anna.subscribe("t")
        await bert.publish("t", b"1")
        await anna.expect(Publish("t", b"1"))
        assert relay.relay.mqtt.counters.refused == 0


REFUSED = {
    "wrong password": (Connect("c", username="anna", password=b"Secret"), BAD),
    "empty password": (Connect("c", username="anna", password=b""), BAD),
    "no password": (Connect("c", username="anna"), BAD),
    "any bytes": (Connect("c", username="anna", password=b"\0\xff" * 8_000), BAD),
    "nobody of that name": (Connect("c", username="nobody", password=b"secret"), BAD),
    "a name without letters": (Connect("c", username="", password=b"secret"), BAD),
    "what stands for no name": (Connect("c", username="-", password=b"secret"), BAD),
    "no name": (Connect("c"), NOT_AUTHORIZED),
}


@both_ways
@pytest.mark.parametrize("how", REFUSED)
async def test_others_are_not(
    passwords: Passwords, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    connect, answer = REFUSED[how]
    async with running(passwords=passwords) as relay, dial(relay.port) as client:
        assert await attempt(client, connect, Publish("t", b"1", retain=True)) == answer
        await client.expect(None)
        await relay.deserted()
        assert len(relay.relay.dataspace.retained) == 0
        assert relay.relay.mqtt.counters.refused == 1
        assert relay.relay.counts()["mqtt"].refused_connections_total == 1
    (said,) = log_of(caplog, " closed: ")
    assert "it named no user" in said or "the user name or the password is wrong" in said
    assert "ecret" not in caplog.text


@both_ways
async def test_with_anonymous_who_names_no_user_is_let_in(passwords: Passwords) -> None:
    async with (
        running(passwords=passwords, anonymous=True, wrong_password_delay=0) as relay,
        AsyncExitStack() as stack,
    ):
        await stack.enter_async_context(connected(relay.port, "a"))
        assert relay.account("a").name == f"mqtt:{relay.port}/-/a"
        await stack.enter_async_context(
            connected(relay.port, "b", username="anna", password=b"secret")
        )
        for how, (connect, answer) in REFUSED.items():
            if how != "no name":
                client = await stack.enter_async_context(dial(relay.port))
                assert await attempt(client, connect) == answer
        assert relay.relay.mqtt.sessions.keys() == {"a", "@anna/b"}


async def test_without_passwords_everybody_is_believed() -> None:
    async with running(anonymous=False) as relay, connected(relay.port, "a", username="anna"):
        assert relay.account("a").name == f"mqtt:{relay.port}/anna/a"


@both_ways
async def test_they_are_asked_for_on_unix_sockets(passwords: Passwords, tmp_path: Path) -> None:
    path = str(tmp_path / "mqtt")
    async with running(listen=(f"mqtt+unix://{path}",), passwords=passwords) as relay:
        async with dial(path) as client:
            assert await attempt(client, Connect("a", username="anna", password=b"x")) == BAD
            await client.expect(None)
        async with connected(path, "a", username="anna", password=b"secret"):
            assert relay.relay.mqtt.sessions.keys() == {"@anna/a"}


@both_ways
async def test_they_are_asked_for_over_websocket(passwords: Passwords) -> None:
    async with running(listen=BOTH, passwords=passwords) as relay:
        async with opened(relay) as client:
            assert await attempt(client, Connect("a", username="anna", password=b"x")) == BAD
            await client.expect(None)
        async with opened(relay) as client:
            connect = Connect("a", username="anna", password=b"secret")
            assert await attempt(client, connect) == ConnAck(False, 0)
            assert relay.relay.mqtt.sessions.keys() == {"@anna/a"}


async def test_a_name_with_odd_characters_stays_within_its_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(passwords=QUICK) as relay, dial(relay.port) as client:
        connect = Connect("a", username="\n\x1b[31m" + "x" * 15_000, password=b"y")
        assert await attempt(client, connect) == BAD
    (said,) = log_of(caplog, r"(user \n\x1b[31mxxx")
    assert len(said) < 300


# -- nothing comes of who is refused --------------------------------------------------------------


@both_ways
async def test_who_is_refused_takes_over_nobodys_connection(passwords: Passwords) -> None:
    async with (
        running(
            passwords=passwords,
            wrong_password_delay=0,
            tenant=(Tenant(name="t", user=("*",), users=True),),
        ) as relay,
        connected(relay.port, "watcher", username="anna", password=b"secret") as watcher,
        connected(
            relay.port, "twin", username="bert", password=b"secret", will=Will("will", b"old")
        ) as old,
    ):
        await watcher.subscribe("#")
        await old.subscribe("t")
        accounts = set(relay.ledger.accounts)
        holders = {holder.name for holder in relay.ledger.holders}
        for connect, answer in REFUSED.values():
            bad = Connect("twin", True, 0, connect.username, connect.password, Will("will", b"new"))
            async with dial(relay.port) as client:
                follows = (Subscribe(1, (("#", 0),)), Publish("t", b"bad"), PingReq())
                assert await attempt(client, bad, *follows) == answer
                await client.expect(None)
            relay.audit()
        await until(lambda: len(relay.relay.mqtt.open) == 2)
        assert set(relay.ledger.accounts) == accounts
        assert {holder.name for holder in relay.ledger.holders} == holders
        assert relay.relay.mqtt.sessions.keys() == {"@anna/watcher", "@bert/twin"}
        await old.publish("t", b"still there")
        for client in (old, watcher):
            assert await client.publication() == Publish("t", b"still there")
            assert await client.silent()


@both_ways
async def test_who_is_refused_does_not_touch_a_kept_session(passwords: Passwords) -> None:
    async with running(passwords=passwords) as relay:
        kept = Connect("c", False, username="anna", password=b"secret")
        async with dial(relay.port) as client:
            assert await attempt(client, kept) == ConnAck(False, 0)
            await client.subscribe("t", qos=1)
        await until(lambda: not relay.relay.mqtt.open)
        async with connected(relay.port, "p", username="bert", password=b"secret") as publisher:
            await publisher.publish("t", b"waits", 1)
        for clean in (True, False):
            async with dial(relay.port) as client:
                bad = Connect("c", clean, username="anna", password=b"Secret")
                assert await attempt(client, bad) == BAD
                await client.expect(None)
            async with dial(relay.port) as client:
                bad = Connect("new", clean, username="anna", password=b"Secret")
                assert await attempt(client, bad) == BAD
        assert relay.relay.mqtt.persistent_sessions is not None
        assert relay.relay.mqtt.persistent_sessions.by_id.keys() == {"@anna/c"}
        relay.audit()
        async with dial(relay.port) as client:
            assert await attempt(client, kept) == ConnAck(True, 0)
            assert (await client.publication()).payload == b"waits"


# -- a check that takes its time ------------------------------------------------------------------


async def test_nobody_else_waits_for_a_check() -> None:
    with slow() as passwords:
        async with (
            running(passwords=passwords, anonymous=True) as relay,
            connected(relay.port, "other") as other,
            dial(relay.port) as client,
        ):
            connect = Connect("a", username="anna", password=b"secret")
            client.connection.send(connect)
            await client.send(connect, Subscribe(1, (("t", 0),)), PingReq())
            await until(lambda: passwords.asked)
            await other.subscribe("t")
            await other.publish("t", b"1")
            await other.expect(Publish("t", b"1"))
            async with connected(relay.port, "third"):
                pass
            assert await client.silent()
            assert relay.relay.mqtt.sessions.keys() == {"other"}
            passwords.go_on.set()
            await client.expect(ConnAck(False, 0))
            await client.expect(SubAck(1, (0,)))
            await client.expect(PingResp())
            await other.publish("t", b"2")
            await client.expect(Publish("t", b"2"))
            relay.audit()


async def test_what_comes_during_a_check_waits_for_it() -> None:
    with slow() as passwords:
        async with running(passwords=passwords) as relay, dial(relay.port) as client:
            await client.stream.send_all(
                client.connection.send(Connect("a", username="anna", password=b"secret"))
            )
            await until(lambda: passwords.asked)
            packets: list[Packet] = [Subscribe(1, (("t", 0),)), PingReq(), Publish("t", b"1")]
            for piece in b"".join(map(encode, packets)):
                await client.stream.send_all(bytes([piece]))
            assert await client.silent()
            assert len(relay.ledger.accounts) == 2
            passwords.go_on.set()
            await client.expect(ConnAck(False, 0))
            await client.expect(SubAck(1, (0,)))
            assert [await client.receive() for _ in range(2)] == [PingResp(), Publish("t", b"1")]


async def test_so_many_are_checked_at_a_time_and_the_others_wait() -> None:
    count = CONCURRENT_CHECKS + 5
    with slow() as passwords:
        async with running(passwords=passwords) as relay, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(dial(relay.port)) for _ in range(count)]
            for number, client in enumerate(clients):
                connect = Connect(f"c{number}", username=f"u{number}", password=b"secret")
                await client.stream.send_all(client.connection.send(connect))
            turns = relay.relay.mqtt.log_ins.turns
            await until(lambda: turns.waiting == count - CONCURRENT_CHECKS)
            await until(lambda: len(passwords.asked) == CONCURRENT_CHECKS)
            passwords.go_on.set()
            for client in clients:
                await client.expect(ConnAck(False, 0))
            assert len(passwords.asked) == count


@pytest.mark.parametrize("password", [b"secret", b"wrong"])
async def test_who_leaves_during_its_check_leaves_nothing(password: bytes) -> None:
    with slow() as passwords:
        async with running(passwords=passwords) as relay:
            async with dial(relay.port) as client:
                connect = Connect("a", username="anna", password=password, will=Will("w", b"1"))
                await client.stream.send_all(client.connection.send(connect))
                await until(lambda: passwords.asked)
                if password == b"wrong":
                    await client.reset()
            relay.audit()
            passwords.go_on.set()
            await relay.deserted()
            await until(lambda: passwords.ended == 1)


async def test_who_has_left_is_not_checked_when_it_is_its_turn() -> None:
    """Otherwise those who come back before their turn would keep all threads busy for nobody."""
    with slow() as passwords:
        async with running(passwords=passwords) as relay:
            connect = Connect("", username="anna", password=b"secret")
            async with AsyncExitStack() as stack:
                for _ in range(10 + CONCURRENT_CHECKS):
                    client = await stack.enter_async_context(dial(relay.port))
                    await client.stream.send_all(client.connection.send(connect))
                await until(lambda: len(relay.relay.mqtt.open) == 10 + CONCURRENT_CHECKS)
                await until(lambda: len(passwords.asked) == CONCURRENT_CHECKS)
            await until(lambda: not relay.relay.mqtt.open)
            passwords.go_on.set()
            await relay.deserted()
            assert len(passwords.asked) == CONCURRENT_CHECKS


async def test_what_somebody_has_said_before_it_left_is_heard() -> None:
    """A client need not wait for CONNACK [MQTT-3.1.4-5, not normative]."""
    with slow() as passwords:
        async with (
            running(passwords=passwords) as relay,
            connected_later(relay, passwords) as subscriber,
        ):
            passwords.go_on.clear()
            async with dial(relay.port) as client:
                connect = Connect("hasty", username="anna", password=b"secret")
                client.connection.send(connect)
                await client.send(connect, Publish("t", b"heard"), Disconnect())
            await until(lambda: len(passwords.asked) == 2)
            passwords.go_on.set()
            await subscriber.expect(Publish("t", b"heard"))


@asynccontextmanager
async def connected_later(relay: RunningRelay, passwords: Slow) -> AsyncGenerator[BareClient]:
    """Connect a client that has subscribed to everything; its check takes no time."""
    passwords.go_on.set()
    async with connected(relay.port, "s", username="anna", password=b"secret") as client:
        await client.subscribe("#")
        yield client


async def test_the_time_to_connect_goes_on_during_a_check(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with slow() as passwords:
        async with (
            running(passwords=passwords, connect_timeout=2.0) as relay,
            AsyncExitStack() as stack,
        ):
            began = trio.current_time()
            clients = [
                await stack.enter_async_context(dial(relay.port))
                for _ in range(CONCURRENT_CHECKS + 1)
            ]
            await trio.sleep(1.5)
            for client in clients:
                connect = Connect("a", username="anna", password=b"secret")
                await client.stream.send_all(client.connection.send(connect))
            for client in clients:
                await client.expect(None)
            # Counted from CONNECT on it would be 3.5 s at the least.
            assert trio.current_time() - began < 3.4
            await relay.deserted()
            assert relay.relay.mqtt.counters.timeouts == CONCURRENT_CHECKS + 1
            # Its thread is one of those that there may be until it ends; who waited for it is not.
            turns = relay.relay.mqtt.log_ins.turns
            checks = relay.relay.mqtt.log_ins.threads
            assert checks.borrowed_tokens == CONCURRENT_CHECKS
            assert turns.waiting == 0
            passwords.go_on.set()
            await until(lambda: not checks.borrowed_tokens)
            await relay.deserted()
            assert len(passwords.asked) == passwords.ended == CONCURRENT_CHECKS
    assert len(log_of(caplog, "its password was not checked within 2 s")) == CONCURRENT_CHECKS + 1


async def test_who_has_been_let_in_has_all_the_time_again() -> None:
    with slow() as passwords:
        async with (
            running(passwords=passwords, connect_timeout=2.0, idle_timeout=2.0) as relay,
            dial(relay.port) as client,
        ):
            await trio.sleep(1.2)
            connect = Connect("a", username="anna", password=b"secret")
            await client.stream.send_all(client.connection.send(connect))
            await until(lambda: passwords.asked)
            passwords.go_on.set()
            await client.expect(ConnAck(False, 0))
            await trio.sleep(1.5)
            await client.send(PingReq())
            await client.expect(PingResp())


async def test_a_relay_that_stops_waits_for_no_check() -> None:
    with slow() as passwords:
        async with running(passwords=passwords, grace=600.0) as relay, dial(relay.port) as client:
            connect = Connect("a", username="anna", password=b"secret", will=Will("w", b"1"))
            await client.stream.send_all(client.connection.send(connect))
            await until(lambda: passwords.asked)
            relay.stop.set()
            await client.expect(None)
        assert relay.report is not None
        assert relay.report.unflushed == ()


@pytest.mark.parametrize("trouble", [LookupError("anna"), ConnectionRefusedError(111, "refused")])
async def test_an_error_of_ones_own_authenticator_lets_nobody_in(
    trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def check(self, user: str, password: bytes) -> bool:
            raise trouble

    broken: Authenticator = Broken()
    async with running(passwords=broken) as relay, dial(relay.port) as client:
        connect = Connect("a", username="anna", password=b"secret")
        unavailable = ConnAck(False, ConnectReturnCode.SERVER_UNAVAILABLE)
        assert await attempt(client, connect) == unavailable
        assert await client.gone() == []
        assert relay.relay.mqtt.counters.refused == 1
        await relay.deserted()
    assert log_of(caplog, f"its password could not be checked: {trouble!r}")


# -- files ----------------------------------------------------------------------------------------


async def test_who_is_connected_stays_when_the_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(user_line("anna", b"secret"))
    passwords = Passwords.from_file(file)
    async with (
        running(passwords=passwords) as relay,
        connected(relay.port, "a", username="anna", password=b"secret") as anna,
    ):
        file.write_text(user_line("anna", b"changed", QUICK_ITERATIONS + 1))
        passwords.reload()
        async with dial(relay.port) as client:
            assert await attempt(client, Connect("b", username="anna", password=b"secret")) == BAD
        async with connected(relay.port, "b", username="anna", password=b"changed") as again:
            await again.subscribe("t")
            await anna.publish("t", b"1")
            await again.expect(Publish("t", b"1"))


needs_mosquitto = needs("mosquitto_passwd", "mosquitto_pub", "mosquitto_sub")


def sub(relay: RunningRelay, *options: str) -> list[str]:
    return ["mosquitto_sub", "-p", str(relay.port), "-t", "t", "-C", "1", *options]


@needs_mosquitto
@pytest.mark.parametrize("kind", ["sha512", "sha512-pbkdf2"])
async def test_mosquittos_clients_with_a_file_of_mosquittos(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "users"
    await trio.run_process(
        ["mosquitto_passwd", "-H", kind, "-b", "-c", str(file), "anna", "süß $7"]
    )
    password = ("-u", "anna", "-P", "süß $7")

    async def run(argv: list[str]) -> subprocess.CompletedProcess[bytes]:
        with trio.fail_after(SECONDS):
            return await trio.run_process(
                argv, capture_stdout=True, capture_stderr=True, check=False, deliver_cancel=kill
            )

    async with running(passwords=Passwords.from_file(file)) as relay:
        pub = ["mosquitto_pub", "-p", str(relay.port), "-t", "t", "-m", "1", "-r"]
        done = await run([*pub, *password])
        assert done.returncode == 0, done.stderr
        done = await run(sub(relay, *password))
        assert (done.returncode, done.stdout) == (0, b"1\n")
        for options, said in (
            (("-u", "anna", "-P", "wrong"), b"bad user name or password"),
            (("-u", "anna"), b"bad user name or password"),
            (("-u", "bert", "-P", "süß $7"), b"bad user name or password"),
            ((), b"not authorised"),
        ):
            for argv in ([*pub, *options], sub(relay, *options)):
                done = await run(argv)
                assert done.returncode != 0
                assert said in done.stderr + done.stdout
        assert relay.relay.mqtt.counters.refused == 8
