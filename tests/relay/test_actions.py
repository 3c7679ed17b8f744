"""Actions over HTTP: each changes the relay, needs a token, and has a line in the log."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import attrs
import pytest
import trio

from clearfunds.access import BearerTokens, Tenant
from clearfunds.relay import Adjusting, RelaySettings, serve_relay
from clearfunds.transports.mqtt import Disconnect, Publish, encode
from clearfunds.transports.mqtt.codec._reasons import Reason
from tests.pages.test_access import basic
from tests.pages.test_server import Answer, Client
from tests.transports.amqp.clients import AMQP, RawClient
from tests.transports.mqtt.peers5 import connected5
from tests.transports.peers import RunningRelay, connected, running, until
from tests.transports.syndicate.relay.peers import TCP, Peer

TOKEN = "0123456789abcdef-Token"
OTHER = "another-token-0123456789"
MQTT = "mqtt+tcp://127.0.0.1:0"
PRESS = Tenant(name="press", user=("press",), weight=3.0, items=50)


@attrs.frozen
class Operated:
    """A relay with pages, and an operator."""

    relay: RunningRelay

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        """Send a request; with the second token, unless other headers are given."""
        assert self.relay.addresses.http is not None
        port = int(self.relay.addresses.http.rpartition(":")[2])
        sent = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        fields = {"Authorization": f"Bearer {OTHER}"} if headers is None else headers
        fields = {"Host": "localhost", "Content-Length": str(len(sent)), **fields}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            asker = Client(stream)
            await asker.send(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + sent)
            return await asker.answer()

    async def do(self, method: str, path: str, body: object = None) -> Any:
        """Send a request that is done; return what it answers."""
        answer = await self.send(method, path, body)
        assert answer.status == 200, answer.body
        self.relay.audit()
        return json.loads(answer.body)

    async def refused(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        answer = await self.send(method, path, body)
        assert answer.status >= 400
        self.relay.audit()
        return answer.status, answer.body.decode().strip()

    def name(self, client_id: str, user: str = "-") -> str:
        return f"mqtt:{self.relay.port}/{user}/{client_id}"

    async def change(self, name: str, **fields: object) -> Any:
        return await self.do("PATCH", f"/accounts/{quote(name, safe='')}", fields)


@asynccontextmanager
async def operated(*, tokens: bool = True, **settings: Any) -> AsyncGenerator[Operated]:
    settings.setdefault("listen", (MQTT,))
    settings["http"] = "127.0.0.1:0"
    if tokens:
        settings["http_token"] = BearerTokens([TOKEN, OTHER])
    adjusting = Adjusting(RelaySettings(**settings))
    async with running(serve=partial(serve_relay, adjusting=adjusting), **settings) as relay:
        yield Operated(relay)


@contextmanager
def levels_kept() -> Generator[None]:
    logger = logging.getLogger("clearfunds")
    before = logger.level
    try:
        yield
    finally:
        logger.setLevel(before)


# -- clients --------------------------------------------------------------------------------------


async def test_a_client_is_disconnected_and_is_told_why() -> None:
    async with (
        operated() as here,
        connected5(here.relay.port, "archive") as archive,
        connected(here.relay.port, "other") as other,
    ):
        done = await here.do("POST", "/clients/archive/disconnect")
        assert done == {"disconnected": here.name("archive")}
        last = await archive.next()
        assert isinstance(last, Disconnect)
        assert last.reason == Reason.ADMINISTRATIVE_ACTION
        assert last.properties.reason_string == "the operator disconnected it"
        assert await archive.next() is None
        name = quote(here.name("other"), safe="")
        await here.do("POST", f"/clients/{name}/disconnect", {})
        assert await other.next() is None
        await here.relay.deserted()


async def test_what_a_disconnected_client_held_is_settled_and_publishers_go_on() -> None:
    """The way out of an incident: the culprit is known, and is kicked."""
    async with (
        operated(limit_items=10, profile="lossless", patience=1000.0) as here,
        connected(here.relay.port, "stuck", receive_buffer=4096) as stuck,
        connected(here.relay.port, "pub") as publisher,
    ):
        await stuck.subscribe("t")
        account = here.relay.account("pub")
        packet = encode(Publish("t", bytes(50_000)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.stream.send_all, packet * 300)
            await until(lambda: account.waiting)
            await here.do("POST", "/clients/stuck/disconnect")
            await until(lambda: here.relay.relay.mqtt.counters.received == 300)
        await until(lambda: not account.debt_items)


async def test_clients_of_the_other_protocols() -> None:
    async with operated(listen=(MQTT, AMQP, TCP)) as here:
        ports = [int(url.rpartition(":")[2]) for url in here.relay.addresses.listening]
        relay = here.relay.relay
        assert relay.amqp is not None
        assert relay.syndicate is not None
        async with await trio.open_tcp_stream("127.0.0.1", ports[1]) as stream:
            client = RawClient(stream)
            await client.connect()
            (session,) = relay.amqp.open
            await here.do("POST", f"/clients/{quote(session.name, safe='')}/disconnect")
            assert "the operator disconnected it" in await client.closed(320)
        async with await trio.open_tcp_stream("127.0.0.1", ports[2]) as stream:
            peer = Peer(stream)
            await until(lambda: relay.syndicate is not None and relay.syndicate.open)
            (other,) = relay.syndicate.open
            await here.do("POST", f"/clients/{quote(other.name, safe='')}/disconnect")
            await peer.ended()


async def test_a_name_that_nobody_has_or_several() -> None:
    async with (
        operated(listen=(MQTT, MQTT)) as here,
        connected(here.relay.port, "twin"),
    ):
        other = int(here.relay.addresses.listening[1].rpartition(":")[2])
        async with connected(other, "twin2"):
            assert await here.refused("POST", "/clients/nobody/disconnect") == (
                404,
                "No client nobody is connected: `clearfunds top` has those that are.",
            )
            status, why = await here.refused("POST", "/clients//disconnect")
            assert status == 404, why


# -- accounts -------------------------------------------------------------------------------------


async def test_limits_change_at_once_and_stay_for_the_next_connection() -> None:
    async with operated(limit_items=100, limit_bytes=1000) as here:
        async with connected(here.relay.port, "pub"):
            done = await here.change("pub", limit_items=7)
            assert done["account"] == here.name("pub")
            assert (done["limit_items"], done["limit_bytes"]) == (7, 1000)
            await here.change(here.name("pub"), limit_bytes="2KiB")
        await until(lambda: not here.relay.relay.mqtt.open)
        async with connected(here.relay.port, "pub"), connected(here.relay.port, "other"):
            limit = here.relay.account("pub").limit
            assert (limit.items, limit.bytes) == (7, 2048)
            assert here.relay.account("other").limit.items == 100
            done = await here.change("pub", limit_items=None, limit_bytes=None)
            assert (done["limit_items"], done["limit_bytes"]) == (None, None)


async def test_tenants_and_the_server() -> None:
    async with operated(tenant=(PRESS,)) as here:
        assert (await here.change("tenant/press", limit_items=9, weight=2))["weight"] == 2.0
        account = here.relay.ledger.accounts["tenant/press"]
        assert (account.limit.items, account.weight) == (9, 2.0)
        await here.change("server", limit_items=1234)
        assert here.relay.ledger.accounts["server"].limit.items == 1234
        status, why = await here.refused("PATCH", "/accounts/tenant%2Fnobody", {"weight": 2})
        assert status == 404
        assert "tenants: tenant/press" in why


async def test_policies_of_a_client() -> None:
    async with (
        operated(patience=1000.0, profile="lossless") as here,
        connected(here.relay.port, "slow", receive_buffer=4096) as slow,
        connected(here.relay.port, "pub") as publisher,
    ):
        await slow.subscribe("t")
        done = await here.change("slow", policy="drop_oldest", patience=0.2)
        assert (done["policy"], done["patience"]) == ("drop_oldest", 0.2)
        await here.change("pub", limit_items=10)
        packet = encode(Publish("t", bytes(50_000)))
        with trio.fail_after(30):  # With the policy before, it would wait for 1,000 s.
            await publisher.stream.send_all(packet * 300)
        await here.change("pub", over_limit="refuse")
        await until(lambda: here.relay.relay.mqtt.counters.received == 300)


async def test_policies_that_a_protocol_cannot_follow_are_refused() -> None:
    async with operated(listen=(MQTT, AMQP, TCP)) as here:
        ports = [int(url.rpartition(":")[2]) for url in here.relay.addresses.listening]
        relay = here.relay.relay
        async with (
            await trio.open_tcp_stream("127.0.0.1", ports[1]) as stream,
            await trio.open_tcp_stream("127.0.0.1", ports[2]),
        ):
            await RawClient(stream).connect()
            await until(lambda: relay.syndicate is not None and relay.syndicate.open)
            assert relay.amqp is not None
            assert relay.syndicate is not None
            (amqp,) = (session.name for session in relay.amqp.open)
            (syndicate,) = (session.name for session in relay.syndicate.open)
            for name, fields, fits in (
                (amqp, {"policy": "wait"}, False),
                (amqp, {"over_limit": "refuse"}, True),
                (syndicate, {"policy": "drop_oldest"}, True),
                (syndicate, {"policy": "conflate"}, False),
                (syndicate, {"over_limit": "refuse"}, False),
            ):
                answer = await here.send("PATCH", f"/accounts/{quote(name, safe='')}", fields)
                assert answer.status == (200 if fits else 400), (name, fields, answer.body)
                assert fits or b"does not apply" in answer.body


async def test_of_several_changes_none_is_made_if_one_is_refused() -> None:
    async with operated(limit_items=100) as here, connected(here.relay.port, "pub"):
        status, why = await here.refused("PATCH", "/accounts/pub", {"limit_items": 5, "weight": 2})
        assert status == 400
        assert "only these have weights" in why
        assert here.relay.account("pub").limit.items == 100
        assert here.relay.relay.settings.account_limit == ()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "why"),
    [
        ("PATCH", "/accounts/pub", {}, 400, "nothing to change; give one of limit_items"),
        ("PATCH", "/accounts/pub", {"limit": 5}, 400, "no field 'limit'"),
        ("PATCH", "/accounts/pub", {"limit_items": 0}, 400, "at least 1"),
        ("PATCH", "/accounts/pub", {"limit_items": True}, 400, "whole number"),
        ("PATCH", "/accounts/pub", {"limit_items": 1.5}, 400, "whole number"),
        ("PATCH", "/accounts/pub", {"limit_items": 10**400}, 400, "at most 9223372036854775807"),
        ("PATCH", "/accounts/server", {"limit_bytes": 10**400}, 400, "at most 922337203685477"),
        ("PATCH", "/accounts/pub", {"limit_bytes": "many"}, 400, "a size"),
        ("PATCH", "/accounts/pub", {"policy": "hope"}, 400, "one of wait, disconnect"),
        ("PATCH", "/accounts/pub", {"policy": "wait", "patience": -1}, 400, "at least 0"),
        ("PATCH", "/accounts/pub", {"policy": "wait", "patience": 10**400}, 400, "be a number"),
        ("PATCH", "/accounts/pub", {"patience": 3}, 400, "goes with policy"),
        ("PATCH", "/accounts/pub", {"over_limit": "hope"}, 400, "one of wait, refuse, shed"),
        ("PATCH", "/accounts/server", {"policy": "wait"}, 400, "is no client"),
        ("PATCH", "/accounts/nobody", {"policy": "wait"}, 404, "No client nobody"),
        ("PATCH", "/accounts/server", {"weight": 2}, 400, "only these have weights"),
        ("PATCH", "/accounts/server", {"weight": 10**400}, 400, "must be a number"),
        ("PATCH", "/accounts/pub", [1], 400, "not a JSON object"),
        ("POST", "/accounts/pub", {"limit_items": 5}, 405, "takes PATCH, not POST"),
        ("PATCH", "/clients/pub/disconnect", {}, 405, "takes POST, not PATCH"),
        ("POST", "/clients/pub/disconnect", {"why": "x"}, 400, "it takes none"),
        ("POST", "/log-level", {}, 400, "one of debug, info, warning, error"),
        ("POST", "/log-level", {"level": "debug", "seconds": 0}, 400, "above 0"),
        ("POST", "/log-level", {"level": "debug", "seconds": "1"}, 400, "must be a number"),
        ("POST", "/metrics", {}, 404, "There is no such action; there are: POST /clients"),
    ],
)
async def test_refused(method: str, path: str, body: object, status: int, why: str) -> None:
    async with operated() as here, connected(here.relay.port, "pub"):
        found = await here.refused(method, path, body)
        assert found[0] == status
        assert why in found[1]
        assert found[1].endswith(".")


# -- the log --------------------------------------------------------------------------------------


async def test_the_log_level_for_good_and_for_a_time(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("clearfunds")
    with levels_kept():
        logger.setLevel("WARNING")
        async with operated() as here:
            done = await here.do("POST", "/log-level", {"level": "error"})
            assert done == {"level": "error", "before": "warning", "seconds": None}
            done = await here.do("POST", "/log-level", {"level": "debug", "seconds": 0.05})
            assert logger.level == logging.DEBUG
            await until(lambda: logger.level == logging.ERROR)
            # The second replaces the first, which ends nothing any more.
            await here.do("POST", "/log-level", {"level": "debug", "seconds": 0.05})
            await here.do("POST", "/log-level", {"level": "info"})
            await trio.sleep(0.2)
            assert logger.level == logging.INFO


async def test_a_log_level_for_a_time_ends_also_if_it_was_prolonged_or_the_relay_ends() -> None:
    logger = logging.getLogger("clearfunds")
    with levels_kept():
        logger.setLevel("ERROR")
        async with operated() as here:
            await here.do("POST", "/log-level", {"level": "debug", "seconds": 1000})
            done = await here.do("POST", "/log-level", {"level": "debug", "seconds": 0.05})
            assert done["before"] == "debug"
            await until(lambda: logger.level == logging.ERROR)
            await here.do("POST", "/log-level", {"level": "debug", "seconds": 1000})
        assert logger.level == logging.ERROR


async def test_a_log_level_that_is_configured_outlasts_one_for_a_time() -> None:
    logger = logging.getLogger("clearfunds")
    with levels_kept():
        logger.setLevel("ERROR")
        async with operated() as here:
            await here.do("POST", "/log-level", {"level": "debug", "seconds": 0.05})
            logger.setLevel("WARNING")  # as SIGHUP does
            await trio.sleep(0.2)
            assert logger.level == logging.WARNING


async def test_each_has_a_line_whatever_the_level_is(caplog: pytest.LogCaptureFixture) -> None:
    with levels_kept():
        logging.getLogger("clearfunds").setLevel("ERROR")
        async with operated() as here, connected(here.relay.port, "pub"):
            await here.change("pub", limit_items=5)
            await here.refused("POST", "/clients/nobody/disconnect")
        lines = [each for each in caplog.records if each.name == "clearfunds.audit"]
    fields = [
        (each.levelname, each.__dict__["action"], each.__dict__["token"], each.__dict__["status"])
        for each in lines
    ]
    assert fields == [
        ("INFO", "PATCH /accounts/pub", 2, 200),
        ("WARNING", "POST /clients/nobody/disconnect", 2, 404),
    ]
    assert lines[0].__dict__["result"]["limit_items"] == 5
    assert lines[0].__dict__["peer"].startswith("127.0.0.1 port ")
    assert OTHER not in caplog.text


# -- who may --------------------------------------------------------------------------------------


async def test_only_with_a_token_as_bearer() -> None:
    async with operated() as here, connected(here.relay.port, "pub") as client:
        path = "/clients/pub/disconnect"
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong-0123456789abcdef"}, 401),
            # A browser sends this by itself, also for a form on the page of somebody else.
            ({"Authorization": basic("me", TOKEN)}, 403),
        ):
            answer = await here.send("POST", path, {}, headers=headers)
            assert answer.status == status, headers
        assert here.relay.account("pub") is not None
        answer = await here.send("POST", path, headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status == 200
        assert await client.next() is None


async def test_without_tokens_nothing_can_be_changed() -> None:
    async with operated(tokens=False) as here, connected(here.relay.port, "pub"):
        answer = await here.send("POST", "/clients/pub/disconnect", headers={})
        assert answer.status == 403
        assert b"start the relay with --http-token FILE" in answer.body
        answer = await here.send("POST", "/healthz", headers={})
        assert answer.status == 403


async def test_a_host_name_that_is_not_the_relays() -> None:
    async with operated() as here:
        headers = {"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}
        assert (await here.send("POST", "/log-level", {}, headers=headers)).status == 421


async def test_a_body_of_which_two_lengths_are_given_is_refused() -> None:
    async with operated() as here:
        headers = {"Authorization": f"Bearer {TOKEN}", "Transfer-Encoding": "chunked"}
        body = b'10\r\n{"level":"info"}\r\n0\r\n\r\n'
        answer = await here.send("POST", "/log-level", headers=headers, raw=body)
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert b"send one of them" in answer.body


async def test_bodies_have_a_limit_and_other_methods_are_refused() -> None:
    async with operated() as here:
        answer = await here.send("PATCH", "/accounts/server", raw=b"{" + b" " * 20_000)
        assert answer.status == 413
        answer = await here.send("PATCH", "/accounts/server", raw=b"\xff{")
        assert (answer.status, answer.body) == (
            400,
            b'The body is not a JSON object, such as {"limit_items": 500}.\n',
        )
        answer = await here.send("PATCH", "/accounts/server", raw=b"[" * 10_000)
        assert answer.status == 400
        answer = await here.send("DELETE", "/accounts/server")
        assert answer.status == 405
        assert answer.headers["allow"] == "GET, HEAD, POST, PATCH"
