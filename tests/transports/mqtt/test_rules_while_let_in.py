"""Rules that change while a client is being let in, which is done in steps."""

from __future__ import annotations

from typing import Any

import pytest

from clearfunds.access.acl import Acl, parse_acl
from clearfunds.transports.mqtt import PubAck, Reason
from clearfunds.transports.mqtt.server._shared import SharedGroup
from tests.transports.mqtt.peers5 import connected5
from tests.transports.peers import running, until

ALL = "topic #\n"
SHARED = "$share/g/t/#"


async def test_a_part_in_a_group_that_is_no_longer_allowed_is_not_taken_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acl = Acl(parse_acl(ALL))
    async with running(acl=acl) as relay:
        groups = relay.relay.mqtt.groups
        async with connected5(relay.port, "c", clean=False, session_expiry=100) as client:
            await client.subscribe(SHARED, "v", options=1)
        await until(lambda: not relay.relay.mqtt.open)
        assert len(groups) == 1
        add_session = SharedGroup.add_session

        def change(group: SharedGroup, session: Any, granted: int) -> None:
            add_session(group, session, granted)
            acl.replace(parse_acl("topic write t/#\ntopic v\n"))

        monkeypatch.setattr(SharedGroup, "add_session", change)
        async with connected5(relay.port, "c", clean=False, session_expiry=100) as client:
            assert client.welcome.session_present
            assert len(groups) == 0
            await client.publish("t/a", b"secret", 1)
            await client.expect(PubAck(1, Reason.NO_MATCHING_SUBSCRIBERS))
            await client.publish("v", b"no secret")
            assert (await client.publication()).payload == b"no secret"
            relay.audit()
        async with connected5(relay.port, "c"):
            pass
