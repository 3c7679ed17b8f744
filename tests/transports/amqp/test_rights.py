"""Who may come in by a certificate, and who may do what at amq.topic."""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any

import pika
import pika.exceptions
import pytest
from pamqp.commands import Basic, Exchange, Queue
from pika.credentials import ExternalCredentials

from clearfunds.access._passwords import Passwords
from clearfunds.access._tenants import Tenant
from clearfunds.access.acl import Acl
from clearfunds.sockets import ServerTls
from tests.transports.amqp.clients import AMQP, client, in_thread, serving, session, side
from tests.transports.certificates import papers_in
from tests.transports.mqtt.users import user_line
from tests.transports.peers import RunningRelay, connected, until

RULES = """
user alice
topic readwrite press/#
user bob
topic read press/sport
"""

USERS = Passwords.from_text("\n".join(user_line(name, b"secret") for name in ("alice", "bob")))


def knowing() -> dict[str, Any]:
    """Settings of a relay with users and rights."""
    return {"acl": Acl.from_text(RULES), "passwords": USERS}


async def test_external_is_for_who_shows_a_certificate(tmp_path_factory: Any) -> None:
    papers = papers_in(tmp_path_factory.mktemp("papers"))
    tls = ServerTls(papers.for_server(asks=True).for_server)

    def talk(relay: RunningRelay) -> None:
        context = papers.for_client("alice").for_client()
        parameters = pika.ConnectionParameters(
            "127.0.0.1",
            relay.port,
            ssl_options=pika.SSLOptions(context, "localhost"),
            credentials=ExternalCredentials(),
        )
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x", pika.BasicProperties(user_id="alice"))
        for _ in range(20):
            channel.basic_publish("", "q", bytes(50_000))
        channel.basic_qos(prefetch_count=3)
        sizes: list[int] = []
        for method, _, body in channel.consume("q", inactivity_timeout=10):
            assert method is not None
            assert body is not None
            sizes.append(len(body))
            channel.basic_ack(method.delivery_tag or 0)
            if len(sizes) == 21:
                break
        assert sizes == [1] + [50_000] * 20
        connection.close()
        # Whatever else a client says, it is who its certificate says.
        parameters.credentials = pika.PlainCredentials("bob", "secret")
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.basic_publish("", "q", b"x", pika.BasicProperties(user_id="bob"))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel.queue_declare("q", passive=True)
        connection.close()

    async with serving(listen=("amqp+tls://127.0.0.1:0",), tls=tls) as relay:
        await in_thread(partial(talk, relay))
        await until(lambda: not side(relay).open)
        assert isinstance(tls, ServerTls)
        assert ssl.HAS_TLSv1_3


async def test_who_may_publish_to_topics() -> None:
    async with serving(**knowing()) as relay:
        async with client(relay, "alice", "secret") as raw:
            await raw.publish("press.sport", b"goal", "amq.topic")
            await raw.sync()
            await raw.publish("else.where", b"x", "amq.topic")
            assert await raw.closed(403, 1) == (
                "ACCESS_REFUSED - access to topic 'else.where' in exchange 'amq.topic' in vhost "
                "'/' refused for user 'alice'"
            )
            # Other exchanges are no topics of MQTT's.
            await raw.open(2)
            await raw.publish("else.where", b"x", "amq.direct", channel=2)
            await raw.sync(2)
            assert side(relay).counters.rejected == 1
        async with client(relay, "bob", "secret") as raw:
            await raw.publish("press.sport", b"goal", "amq.topic")
            await raw.closed(403, 1)


@pytest.mark.parametrize(("key", "may"), [("press.sport", True), ("press.#", False), ("#", False)])
async def test_who_may_bind_to_topics(key: str, may: bool) -> None:
    async with serving(**knowing()) as relay, client(relay, "bob", "secret") as raw:
        queue = await raw.declare()
        await raw.send(1, Queue.Bind(queue=queue, exchange="amq.topic", routing_key=key))
        if may:
            await raw.expect(Queue.BindOk)
            async with client(relay, "alice", "secret") as other:
                await other.publish(key, b"goal", "amq.topic")
                await other.sync()
            got = await raw.get(queue)
            assert got is not None
            assert got.body == b"goal"
        else:
            assert f"access to topic '{key}'" in await raw.closed(403, 1)


async def test_nothing_leads_to_topics_by_the_back_door() -> None:
    async with serving(**knowing()) as relay:
        for method in (
            Exchange.Bind(destination="amq.topic", source="amq.fanout"),
            Exchange.Declare(exchange="e", arguments={"alternate-exchange": "amq.topic"}),
            Queue.Declare(queue="q", arguments={"x-dead-letter-exchange": "amq.topic"}),
            Queue.Declare(
                queue="q",
                arguments={
                    "x-dead-letter-exchange": "amq.topic",
                    "x-dead-letter-routing-key": "else.where",
                },
            ),
            Exchange.Bind(destination="amq.fanout", source="amq.topic", routing_key="#"),
        ):
            async with client(relay, "alice", "secret") as raw:
                await raw.send(1, method)
                assert "ACCESS_REFUSED" in await raw.closed(403, 1)
        async with client(relay, "alice", "secret") as raw:
            await raw.declare(
                "q",
                arguments={
                    "x-dead-letter-exchange": "amq.topic",
                    "x-dead-letter-routing-key": "press.dead",
                },
            )


async def test_where_nobody_has_rights_everything_leads_everywhere() -> None:
    async with serving() as relay, client(relay) as raw:
        await raw.send(1, Exchange.Bind(destination="amq.topic", source="amq.fanout"))
        await raw.expect(Exchange.BindOk)
        queue = await raw.declare(arguments={"x-dead-letter-exchange": "amq.topic"})
        await raw.send(1, Queue.Bind(queue=queue, exchange="amq.topic", routing_key="a.#"))
        await raw.expect(Queue.BindOk)
        await raw.publish("a.b", b"x", "amq.fanout")
        got = await raw.get(queue)
        assert got is not None
        assert isinstance(got.method, Basic.GetOk)
        assert (got.method.exchange, got.method.routing_key) == ("amq.fanout", "a.b")


async def test_topics_of_other_tenants() -> None:
    tenants = (
        Tenant(name="press", user=("alice",), topic=("press/#",)),
        Tenant(name="press", user=("alice",)),
        Tenant(name="ops", user=("bob",)),
    )
    listen = (AMQP, "mqtt+tcp://127.0.0.1:0")
    settings: dict[str, Any] = {"tenant": tenants, "acl_default": "tenant", "listen": listen}
    async with serving(**settings) as relay:
        async with client(relay, "bob") as raw:
            await raw.publish("press.sport", b"x", "amq.topic")
            await raw.closed(403, 1)
        port = int(relay.addresses.listening[1].rpartition(":")[2])
        async with client(relay, "alice") as raw, connected(port, "m", username="alice") as mqtt:
            assert session(relay).host.name == "press"
            await mqtt.subscribe("press/#")
            await raw.publish("press.sport", b"goal", "amq.topic")
            assert (await mqtt.publication()).payload == b"goal"
