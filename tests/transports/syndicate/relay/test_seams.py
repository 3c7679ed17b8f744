"""Faults of our own, injected where others' tasks run code of one Syndicate peer's connection."""

from __future__ import annotations

from typing import Any

import pytest

from clearfunds.transports._outlet import Outlet
from clearfunds.transports.syndicate._membrane import Membrane
from clearfunds.transports.syndicate._port import Port
from clearfunds.transports.syndicate._sender import Sender
from clearfunds.transports.syndicate._session import SyndicateSession
from tests.relay.test_seams import Seam, seam
from tests.transports.peers import until
from tests.transports.syndicate.relay.peers import WHOLE_SAYS, observe, relay, says

__all__ = ["seam"]


def outlet_of(each: Any) -> Any:
    """The outlet of what belongs to a peer's connection."""
    if isinstance(each, Port):
        each = each.sender
    return getattr(each, "outlet", each)


@pytest.mark.parametrize(
    ("cls", "method"),
    [
        (Port, "hold"),
        (Sender, "put_turn"),
        (Sender, "put_run"),
        (Sender, "_packet"),
        (Outlet, "hold"),
        (Outlet, "flush"),
        (SyndicateSession, "check_deadline"),
        (Membrane, "disconnect"),
    ],
)
async def test_a_fault_of_one_peers_ends_its_connection_and_no_other(
    seam: Seam, cls: type, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    victims: list[Any] = []
    seam.at(cls, method, of=lambda each: any(outlet_of(each) is it for it in victims))
    async with (
        relay() as served,
        served.peer() as victim,
        served.peer() as other,
        served.peer() as pub,
    ):
        for peer in (victim, other):
            await peer.send(observe(WHOLE_SAYS))
            await peer.sync()
        port = victim.sock.getsockname()[1]
        session: Any
        (session,) = [each for each in served.side.open if each.name.endswith(f":{port}")]
        victims += [session.outlet, session._membrane]
        seam.armed = True
        if method == "disconnect":
            await victim.leave()
        elif method == "put_run":
            # Messages one after the other, which are told as runs.
            await pub.send(*(says('"x"', str(n)) for n in range(50)))
            for n in range(50):
                assert await other.told() == [f'1 ! [<Says "x" {n}>]']
        else:
            # In one turn with something else: this is no run.
            await pub.send("[[0 <A <Other> 7>] [0 <M <Says 1>>]]")
            assert await other.told() == ["1 ! [<Says 1>]"]
        await until(lambda: session not in served.side.open)
        assert seam.hits
        seam.armed = False
        await pub.send(says("2"))
        assert await other.told() == ["1 ! [<Says 2>]"]
        assert served.running.relay.internal_errors
        assert any(each.exc_info for each in caplog.records)
        served.side.counters.internal_errors = 0
        served.ledger.faults.unowned = 0
