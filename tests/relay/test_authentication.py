"""Clients of MQTT 5 that prove who they are by SCRAM-SHA-256, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from clearfunds.access import Passwords
from clearfunds.access._admission import Refusal
from clearfunds.access._guesses import FREE_OF_ADDRESS
from clearfunds.access._scram import METHOD, ScramKeys
from clearfunds.access.acl import Acl
from clearfunds.transports.mqtt import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    Reason,
    Will,
)
from tests.transports.mqtt.peers5 import Client5, connected5, dial5
from tests.transports.mqtt.users import user_line
from tests.transports.peers import RunningRelay, connected, log_of, running

scramp: Any = pytest.importorskip("scramp", reason="scramp is not installed")

PASSWORDS = Passwords.from_text(
    f"{ScramKeys.of('secret').line('anna')}\n"
    f"{ScramKeys.of('secret').line('carl')}\n{user_line('bert', b'secret')}\n"
)


def said(data: str, method: str = METHOD) -> Properties:
    return Properties(authentication_method=method, authentication_data=data.encode())


def go_on(data: str) -> Auth:
    return Auth(Reason.CONTINUE_AUTHENTICATION, said(data))


class Prover:
    """A client's side of an exchange.

    Args:
        client: Which sends and receives.
        user: Who it says it is.
        password: That it has for it.
    """

    def __init__(self, client: Client5, user: str, password: str) -> None:
        self._client = client
        self.scram = scramp.ScramClient([METHOD], user, password)

    async def prove(self, first: Packet) -> Packet | None:
        """Send what begins it, and go on; return what comes at the end."""
        await self._client.send(first)
        answer = await self._client.next()
        if not isinstance(answer, Auth):
            return answer
        assert answer.reason == Reason.CONTINUE_AUTHENTICATION
        assert answer.properties.authentication_method == METHOD
        assert answer.properties.authentication_data is not None
        self.scram.set_server_first(answer.properties.authentication_data.decode())
        await self._client.send(go_on(self.scram.get_client_final()))
        answer = await self._client.next()
        data = None if not isinstance(answer, ConnAck | Auth) else answer.properties
        if data is not None and data.authentication_data is not None:
            # The server proves that it knows the keys, too.
            self.scram.set_server_final(data.authentication_data.decode())
        return answer


async def connect(
    client: Client5, user: str = "anna", password: str = "secret", **more: Any
) -> Packet | None:
    """Connect; return the answer."""
    prover = Prover(client, user, password)
    properties = said(prover.scram.get_client_first())
    more.setdefault("client_id", "c")
    return await prover.prove(Connect(protocol_level=5, properties=properties, **more))


@asynccontextmanager
async def authenticated(
    relay: RunningRelay, user: str = "anna", **more: Any
) -> AsyncGenerator[Client5]:
    async with dial5(relay.port) as client:
        answer = await connect(client, user, **more)
        assert isinstance(answer, ConnAck)
        assert answer.return_code == 0
        assert answer.properties.authentication_method == METHOD
        assert answer.properties.authentication_data is not None
        yield client


async def test_a_client_proves_who_it_is() -> None:
    acl = Acl.from_text("user anna\ntopic a\n")
    async with running(passwords=PASSWORDS, acl=acl) as relay:
        async with authenticated(relay) as client:
            assert relay.account("c").name == f"mqtt:{relay.port}/anna/c"
            await client.subscribe("a")
            await client.publish("a", b"x")
            assert (await client.publication()).payload == b"x"
            await client.publish("b", b"x", 1)
            answer = await client.next()
            assert isinstance(answer, PubAck)
            assert answer.reason == Reason.NOT_AUTHORIZED
        await relay.deserted()


async def test_who_has_keys_may_send_its_password_as_well() -> None:
    async with (
        running(passwords=PASSWORDS) as relay,
        connected(relay.port, username="anna", password=b"secret"),
        connected5(relay.port, username="bert", password=b"secret"),
    ):
        assert len(relay.relay.mqtt.sessions) == 2


@pytest.mark.parametrize(
    ("user", "password", "more"),
    [
        ("anna", "wrong", {}),
        ("nobody", "secret", {}),
        ("bert", "secret", {}),  # who has a password and no keys
        ("anna", "secret", {"username": "carl"}),
    ],
)
async def test_who_does_not_prove_it_is_refused(
    user: str, password: str, more: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(passwords=PASSWORDS) as relay,
        connected5(relay.port, "w", username="carl", password=b"secret") as watcher,
        dial5(relay.port) as client,
    ):
        await watcher.subscribe("#")
        answer = await connect(client, user, password, will=Will("will"), **more)
        assert isinstance(answer, ConnAck)
        assert answer.return_code == Reason.BAD_USER_NAME_OR_PASSWORD
        assert await client.gone() == []
        assert set(relay.relay.mqtt.sessions) == {"@carl/w"}
        assert relay.relay.mqtt.counters.refused == 1
        assert await watcher.silent()
        assert log_of(caplog, "closed: SCRAM-SHA-256: ")
        relay.audit()


@pytest.mark.parametrize("data", [None, b"", b"n,,n=", b"\xff", b"p=tls-unique,,n=anna,r=abc"])
async def test_a_beginning_that_is_none_is_refused(data: bytes | None) -> None:
    properties = Properties(authentication_method=METHOD, authentication_data=data)
    async with running(passwords=PASSWORDS) as relay, dial5(relay.port) as client:
        await client.send(Connect("c", protocol_level=5, properties=properties))
        (answer,) = await client.gone()
        assert isinstance(answer, ConnAck)
        assert answer.return_code == Reason.BAD_USER_NAME_OR_PASSWORD
        relay.audit()


@pytest.mark.parametrize("packet", [PingReq(), Publish("a"), Connect("d", protocol_level=5)])
async def test_nothing_else_comes_before_it_is_over(packet: Packet) -> None:
    async with running(passwords=PASSWORDS) as relay, dial5(relay.port) as client:
        first = said("n,,n=anna,r=abc")
        await client.send(Connect("c", protocol_level=5, properties=first), packet)
        (answer,) = await client.gone()
        assert isinstance(answer, Auth)
        assert relay.relay.mqtt.counters.protocol_errors == 1
        assert not relay.relay.mqtt.sessions
        relay.audit()


async def test_who_gives_up_may_say_so() -> None:
    async with running(passwords=PASSWORDS) as relay, dial5(relay.port) as client:
        first = said("n,,n=anna,r=abc")
        await client.send(Connect("c", protocol_level=5, properties=first), Disconnect())
        (answer,) = await client.gone()
        assert isinstance(answer, Auth)
        assert relay.relay.mqtt.counters.protocol_errors == 0
        relay.audit()


async def test_it_may_not_begin_anew_before_it_is_over() -> None:
    async with running(passwords=PASSWORDS) as relay, dial5(relay.port) as client:
        first = said("n,,n=anna,r=abc")
        await client.send(
            Connect("c", protocol_level=5, properties=first), Auth(Reason.REAUTHENTICATE, first)
        )
        (answer,) = await client.gone()
        assert isinstance(answer, Auth)
        assert relay.relay.mqtt.counters.protocol_errors == 1


async def test_it_has_as_long_as_a_connect_has() -> None:
    async with (
        running(passwords=PASSWORDS, connect_timeout=0.2) as relay,
        dial5(relay.port) as client,
    ):
        await client.send(Connect("c", protocol_level=5, properties=said("n,,n=anna,r=abc")))
        (answer,) = await client.gone()
        assert isinstance(answer, Auth)
        assert relay.relay.mqtt.counters.timeouts == 1


@pytest.mark.parametrize("passwords", [None, Passwords.from_text(user_line("bert", b"secret"))])
async def test_where_there_are_no_keys_there_is_no_such_method(
    passwords: Passwords | None,
) -> None:
    async with running(passwords=passwords) as relay, dial5(relay.port) as client:
        answer = await connect(client)
        assert isinstance(answer, ConnAck)
        assert answer.return_code == Reason.BAD_AUTHENTICATION_METHOD


# -- once more ------------------------------------------------------------------------------------


async def again(client: Client5, user: str = "anna", password: str = "secret") -> Packet | None:
    prover = Prover(client, user, password)
    first = Auth(Reason.REAUTHENTICATE, said(prover.scram.get_client_first()))
    return await prover.prove(first)


async def test_a_client_may_prove_it_once_more_while_it_goes_on() -> None:
    async with running(passwords=PASSWORDS) as relay, authenticated(relay) as client:
        await client.subscribe("a")
        for _ in range(2):
            answer = await again(client)
            assert isinstance(answer, Auth)
            assert answer.reason == Reason.SUCCESS
            await client.publish("a", b"x")
            await client.publication()
        await client.send(Auth(Reason.REAUTHENTICATE, said("n,,n=anna,r=abc")), PingReq())
        assert isinstance(await client.next(), Auth)
        await client.expect(PingResp())
        relay.audit()


@pytest.mark.parametrize(
    ("user", "password"), [("anna", "wrong"), ("carl", "secret"), ("nobody", "secret")]
)
async def test_who_fails_then_is_disconnected(user: str, password: str) -> None:
    async with running(passwords=PASSWORDS) as relay:
        async with authenticated(relay) as client:
            answer = await again(client, user, password)
            assert isinstance(answer, Disconnect)
            assert answer.reason == Reason.NOT_AUTHORIZED
            assert await client.gone() == []
        await relay.deserted()


@pytest.mark.parametrize(
    "packet", [go_on("c=biws,r=x,p=AA=="), Auth(Reason.REAUTHENTICATE, said("", "OTHER"))]
)
async def test_what_has_no_place_then_is_a_protocol_error(packet: Auth) -> None:
    async with running(passwords=PASSWORDS) as relay, authenticated(relay) as client:
        await client.send(packet)
        (answer,) = await client.gone()
        assert isinstance(answer, Disconnect)
        assert answer.reason == Reason.PROTOCOL_ERROR


async def test_who_has_begun_with_a_password_cannot() -> None:
    async with (
        running(passwords=PASSWORDS) as relay,
        connected5(relay.port, username="anna", password=b"secret") as client,
    ):
        await client.send(Auth(Reason.REAUTHENTICATE, said("n,,n=anna,r=abc")))
        (answer,) = await client.gone()
        assert isinstance(answer, Disconnect)
        assert answer.reason == Reason.PROTOCOL_ERROR


async def test_wrong_proofs_are_guesses_too() -> None:
    """They are answered late, and few of them are looked at; a right one is at once."""
    async with running(passwords=PASSWORDS, wrong_password_delay=0.5) as relay:
        for n in range(FREE_OF_ADDRESS + 1):
            began = trio.current_time()
            async with dial5(relay.port) as client:
                answer = await connect(client, password="wrong")
                assert isinstance(answer, ConnAck)
                assert answer.return_code == Reason.BAD_USER_NAME_OR_PASSWORD
                assert await client.next() is None
            assert (trio.current_time() - began >= 0.5) == (n == FREE_OF_ADDRESS)
        assert relay.relay.mqtt.log_ins.delayed == 1
        async with authenticated(relay):
            assert relay.relay.admission.refused == {Refusal.PASSWORD: FREE_OF_ADDRESS + 1}
