"""What waits for a client whose rights have changed."""

from __future__ import annotations

import pytest

from clearfunds.access._tenants import Peer
from clearfunds.access.acl import Acl, Authority, parse_acl
from clearfunds.accounts import Outcome
from clearfunds.dataspace import Publication
from clearfunds.transports.mqtt import Connect
from clearfunds.transports.mqtt.server._filters import Filters
from clearfunds.transports.mqtt.server._framing import Alike, Framing
from clearfunds.transports.mqtt.server._mqtt5 import Mqtt5
from clearfunds.transports.mqtt.server._permissions import Readable

WALL = 1_000.0


@pytest.mark.parametrize(
    "framing", [Framing(lambda: WALL), Mqtt5(Connect(protocol_level=5), Filters(), lambda: WALL)]
)
def test_packets_are_made_of_what_may_be_read(framing: Framing) -> None:
    acl = Acl.from_text("topic read a\n")
    authority = Authority(acl)
    rights = authority.of(Peer("mqtt:1883", "-", "c"))
    readable = Readable.before(framing, rights)
    assert Readable.before(readable, rights) is readable
    publication = Publication("a", b"payload", 1, expires=WALL + 10)
    expired = Publication("a", b"payload", 1, expires=WALL - 10)
    aside = readable.put_aside(publication)
    assert readable.frame(publication, 7) == framing.frame(publication, 7)
    assert readable.take_back(aside, 7) == framing.take_back(aside, 7)
    assert readable.alike(Alike((b"2\x05\0\1a", [b""]), None), False) is None
    assert readable.why_not(expired) is readable.why_not_back(aside) is Outcome.EXPIRED
    assert readable.frame(expired) == b""
    assert authority.denied.queued == 0
    acl.replace(parse_acl("topic read b\n"))
    assert readable.frame(publication, 7) == readable.take_back(aside, 7) == b""
    assert readable.why_not(publication) is readable.why_not_back(aside) is Outcome.DROPPED
    assert authority.denied.queued == 2
