"""Clients whose passwords are JSON Web Tokens, over real sockets."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clearfunds.access import Passwords, Tokens
from clearfunds.access.acl import Acl
from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    ConnectReturnCode,
    Disconnect,
    Publish,
    Reason,
    Will,
)
from tests.transports.mqtt.peers5 import connected5
from tests.transports.mqtt.users import user_line
from tests.transports.peers import BareClient, connected, dial, log_of, running, until

jwt: Any = pytest.importorskip("jwt", reason="PyJWT is not installed")

SECRET = b"0123456789abcdef0123456789abcdef"
TOKENS = Tokens(SECRET)
PASSWORDS = Passwords.from_text(user_line("bert", b"secret"))

BAD = ConnAck(False, ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD)
NOT_AUTHORIZED = ConnAck(False, ConnectReturnCode.NOT_AUTHORIZED)


def token(user: str = "anna", seconds: float = 60.0, key: bytes = SECRET) -> bytes:
    made: str = jwt.encode({"sub": user, "exp": time.time() + seconds}, key, algorithm="HS256")
    return made.encode()


async def attempt(client: BareClient, connect: Connect) -> object:
    client.connection.send(connect)
    await client.send(connect)
    return await client.receive()


async def test_the_token_says_who_a_client_is() -> None:
    acl = Acl.from_text("user anna\ntopic a\n")
    async with running(tokens=TOKENS, acl=acl) as relay:
        async with (
            connected(relay.port, "1", username="anna", password=token()) as one,
            connected5(relay.port, "2", password=token()) as two,
        ):
            for client_id in ("1", "2"):
                assert relay.account(client_id).name == f"mqtt:{relay.port}/anna/{client_id}"
            await one.subscribe("a")
            await two.publish("a", b"x")
            await one.expect(Publish("a", b"x"))
        await relay.deserted()


@pytest.mark.parametrize(
    ("username", "password", "answer"),
    [
        ("anna", token(key=SECRET[::-1]), BAD),
        ("anna", token(seconds=-1), BAD),
        ("bert", token(), BAD),
        ("anna", b"secret", BAD),
        ("bert", b"secret", ConnAck(False, 0)),
        ("bert", b"wrong", BAD),
        ("anna", None, BAD),
        (None, None, NOT_AUTHORIZED),
    ],
)
async def test_who_has_none_that_is_good_is_refused(
    username: str | None, password: bytes | None, answer: ConnAck, caplog: pytest.LogCaptureFixture
) -> None:
    """But passwords are passwords still, where there are some."""
    async with (
        running(tokens=TOKENS, passwords=PASSWORDS) as relay,
        dial(relay.port) as client,
    ):
        connect = Connect("c", username=username, password=password)
        assert await attempt(client, connect) == answer
        if password is not None and password.count(b".") == 2:
            assert log_of(caplog, "its token is")
            assert password.decode() not in caplog.text


@pytest.mark.parametrize("anonymous", [False, True])
async def test_without_other_passwords(anonymous: bool) -> None:
    async with running(tokens=TOKENS, anonymous=anonymous) as relay:
        for connect, answer in (
            (Connect("c", username="bert", password=b"secret"), BAD),
            (Connect("c", username="bert"), BAD),
            (Connect("c"), ConnAck(False, 0) if anonymous else NOT_AUTHORIZED),
        ):
            async with dial(relay.port) as client:
                assert await attempt(client, connect) == answer


async def test_the_connection_ends_when_its_token_does() -> None:
    async with (
        running(tokens=TOKENS) as relay,
        connected(relay.port, "w", username="anna", password=token(seconds=1_000)) as watcher,
        connected(
            relay.port, "1", username="anna", password=token(), will=Will("will", b"1")
        ) as old,
        connected5(relay.port, "2", password=token()) as new,
    ):
        await watcher.subscribe("will")
        now = relay.ledger.clock()
        sessions = [relay.relay.mqtt.sessions[f"@anna/{name}"] for name in ("w", "1", "2")]
        for session in sessions:
            session.check_deadline(now + 58)
        assert len(relay.relay.mqtt.sessions) == 3
        for session in sessions:
            session.check_deadline(now + 61)
        assert await old.gone() == []
        (last,) = await new.gone()
        assert isinstance(last, Disconnect)
        assert last.reason == Reason.MAXIMUM_CONNECT_TIME
        await watcher.expect(Publish("will", b"1"))
        await until(lambda: set(relay.relay.mqtt.sessions) == {"@anna/w"})
        relay.audit()


async def test_each_user_has_identifiers_of_its_own() -> None:
    async with (
        running(tokens=TOKENS) as relay,
        connected(relay.port, "it", username="anna", password=token()),
        dial(relay.port) as client,
    ):
        connect = Connect("it", username="bert", password=token("bert"))
        assert await attempt(client, connect) == ConnAck(False, 0)
        assert set(relay.relay.mqtt.sessions) == {"@anna/it", "@bert/it"}
