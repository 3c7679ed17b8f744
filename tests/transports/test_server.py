"""What the servers of all protocols share."""

from __future__ import annotations

import pytest

from clearfunds.accounts._cooperative import run_to_end
from clearfunds.transports.mqtt import ConnAck, Connect
from tests.transports.peers import connected, dial, running, until


async def test_a_deadline_is_watched_when_it_is_near() -> None:
    """Ten thousand idle connections are not looked at twice a second."""
    async with running() as relay, connected(relay.port, "quiet", keep_alive=30) as quiet:
        server = relay.relay.mqtt
        (session,) = server.open
        await until(lambda: not server.watched)
        assert 43 < session.quiet_until - relay.ledger.clock() <= 45
        began = relay.ledger.clock()
        run_to_end(server.look_at_deadlines(began + 20))
        assert not server.watched
        run_to_end(server.look_at_deadlines(began + 40))
        assert server.watched == {session}
        assert not session.quiet_until <= began + 40
        run_to_end(server.look_at_deadlines(began + 46))
        await quiet.gone()
        await until(lambda: not server.watched)


async def test_who_is_let_in_is_watched_again() -> None:
    """Its deadline may be nearer than that of its CONNECT was."""
    async with running(connect_timeout=60) as relay, dial(relay.port) as brief:
        server = relay.relay.mqtt
        await until(lambda: server.open and not server.watched)
        await brief.stream.send_all(
            brief.connection.send(Connect("brief", clean_session=True, keep_alive=1))
        )
        await brief.expect(ConnAck(session_present=False, return_code=0))
        assert server.watched == server.open
        await brief.gone()


async def test_who_leaves_during_a_look_at_all_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearfunds.transports._server.STEP", 1)
    async with running() as relay:
        server = relay.relay.mqtt
        async with (
            connected(relay.port, "one", keep_alive=20),
            connected(relay.port, "other", keep_alive=20),
        ):
            await until(lambda: not server.watched)
            look = server.look_at_deadlines(relay.ledger.clock() + 20)
            next(look)
        await until(lambda: not server.open)
        run_to_end(look)
        assert not server.watched
