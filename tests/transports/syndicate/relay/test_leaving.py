"""Peers that go away while they are not read."""

from __future__ import annotations

import pytest

from clearfunds.transports.syndicate._preserves import canonical
from tests.transports.peers import log_of, until
from tests.transports.syndicate.relay.peers import BIND, observe, rec, relay, wire

SIZE = 8 << 20
"""More than the kernel takes for a peer that does not read."""

SAYS_LARGE = wire('[[0 <M <Says "@">>]]').replace(canonical("@"), canonical("x" * SIZE))


async def test_who_leaves_within_a_packet_need_not_wait_until_it_has_paid(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with (
        relay(limit_bytes=1_000, max_packet_size=2 * SIZE, patience=60) as served,
        served.peer(receive_buffer=4096) as stuck,
        served.peer() as publisher,
    ):
        await stuck.send(observe(rec("Says", BIND)))
        await stuck.sync()
        await publisher.sync()
        account = served.account(publisher)
        await publisher.send_raw(SAYS_LARGE + SAYS_LARGE[:50])
        await until(lambda: account.waiting)
        await publisher.leave()
        await until(lambda: len(served.side.open) == 1)
        assert account.debt_bytes >= 250_000
        assert log_of(caplog, "closed the connection within a packet (50 bytes of it came)")
        served.audit()
