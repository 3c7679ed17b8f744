"""A relay with the store of one of version 0.1.0, and real clients; docs/upgrade.md."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.properties import Properties

from clearfunds.ranges.client import RangeReader, SinkWriter
from clearfunds.store._directory import MARK
from tests.programs import needs
from tests.store.data.v0_1_0.make import NEVER, Client, Raw

if TYPE_CHECKING:
    from tests.cli.conftest import RelayUnderTest

    StartRelay = Callable[..., RelayUnderTest]

ROOT = Path(__file__).parents[2]
STORE = ROOT / "tests" / "store" / "data" / "v0_1_0" / "relay.tar.gz"
PAGE = (ROOT / "docs" / "upgrade.md").read_text("utf-8")

PLAIN = [
    *((f"plain/{n % 3}", b"first %d" % n, 1 + n % 2) for n in range(30)),
    ("plain/large", b"large" * 1500, 1),
    ("plain/sender", b"once", 2),
    ("plain/mean", b"20.5", 1),
    *(("plain/last", b"second %d" % n, 2) for n in range(20)),
]


Plain = tuple[str, bytes, int]


def in_order(messages: Iterable[Plain]) -> list[list[Plain]]:
    """Return messages by QoS: a client shows one of QoS 2 when its handshake is over."""
    listed = list(messages)
    return [[message for message in listed if message[2] == qos] for qos in (1, 2)]


def as_dict(properties: Properties) -> dict[str, Any]:
    """Return properties by their names."""
    told: dict[str, Any] = properties.json()  # type: ignore[no-untyped-call]
    return told


def commands(section: str) -> list[str]:
    """Return the commands of a section of the page."""
    (text,) = re.findall(rf"^#+ {section}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"^    (.+)$", text, re.MULTILINE)


class Service:
    """What the page's commands are for: a store, and a relay with it."""

    def __init__(self, folder: Path, start_relay: StartRelay) -> None:
        with tarfile.open(STORE) as tar:
            tar.extractall(folder, filter="data")
        self.store = folder / "relay-store"
        (folder / "store").rename(self.store)
        self._start_relay = start_relay
        self.relay: RelayUnderTest | None = None
        self.mqtt = self.ranges = 0

    def run(self, commands: list[str], *, starts: bool = True) -> None:
        """Run commands of the page; what is installed here is what is tested."""
        for command in commands:
            if "/pip install " in command:
                continue
            if command == "systemctl stop clearfunds":
                if self.relay is not None:
                    self.stop()
            elif command == "systemctl start clearfunds":
                if starts:
                    self.start()
            else:
                here = command.replace("/var/lib/clearfunds/store", str(self.store))
                subprocess.run(["bash", "-ec", here], check=True)

    def start(self) -> None:
        self.relay = self._start_relay(
            *("--store", str(self.store), "--session-expiry", "none", "--log-format", "json"),
            *("--listen", "mqtt+tcp://127.0.0.1:0", "--listen", "subscribe+tcp://127.0.0.1:0"),
        )
        listening = [line["listening"] for line in self.relay.ready() if "listening" in line]
        self.mqtt, self.ranges = (int(url.rpartition(":")[2]) for url in listening)

    def stop(self) -> None:
        assert self.relay is not None
        self.relay.process.terminate()
        assert self.relay.wait() == 0, self.relay.log
        self.relay = None


@pytest.fixture
def service(tmp_path: Path, start_relay: StartRelay) -> Service:
    return Service(tmp_path, start_relay)


def upgraded(service: Service) -> Service:
    service.run(commands("Upgrade, and go back"))
    return service


def check_plain(service: Service, name: str) -> None:
    client = Client(service.mqtt, name)
    client.take(len(PLAIN))
    client.leave()
    assert in_order((m.topic, bytes(m.payload), m.qos) for m in client.messages) == in_order(PLAIN)
    assert not any(message.dup or message.retain for message in client.messages)


def test_the_page_upgrades_a_store_and_goes_back(service: Service) -> None:
    before = {path.name: path.read_bytes() for path in service.store.iterdir()}
    upgraded(service)
    copy = service.store.with_name("relay-store.before")
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    check_plain(service, "away")
    assert service.relay is not None
    log = [json.loads(line) for line in service.relay.log]
    told = [line for line in log if line.get("event", "").startswith("store_upgrad")]
    assert [line["event"] for line in told] == ["store_upgrading", "store_upgraded"]
    assert (told[1]["queues"], told[1]["messages"], told[1]["damages"]) == (10, 119, 0)

    # Version 0.1.0 compares this file with its own words, and says those of the page.
    assert (service.store / "clearfunds-store").read_bytes() == MARK
    assert f"clearfunds-store says {MARK!r}, not " in PAGE
    service.run(commands("Back to 0.1.0"), starts=False)
    assert {path.name: path.read_bytes() for path in service.store.iterdir()} == before
    # It is upgraded again as it was: what has been taken since is there once more.
    service.start()
    check_plain(service, "away")
    service.run(commands("From 0.1.0"))
    service.stop()
    assert {path.name for path in service.store.iterdir()} == {"clearfunds-store", "messages.db"}
    service.start()
    check_plain(service, "away-too")


@needs("mosquitto_sub")
def test_mosquitto_s_client_gets_what_was_queued(service: Service) -> None:
    upgraded(service)
    argv = ["mosquitto_sub", "-p", str(service.mqtt), "-i", "away", "-c", "-q", "2"]
    argv += ["-t", "plain/#", "-C", str(len(PLAIN)), "-F", "%t %q %p"]
    got = subprocess.run(argv, capture_output=True, check=True, timeout=30).stdout
    fields = [line.split(b" ", 2) for line in got.splitlines()]
    came = [(topic.decode(), body, int(qos)) for topic, qos, body in fields]
    assert in_order(came) == in_order(PLAIN)


def test_messages_in_flight_come_again(service: Service) -> None:
    upgraded(service)
    client = Client(service.mqtt, "inflight")
    client.take(3)
    client.leave()
    assert [(m.payload, m.qos, m.dup) for m in client.messages] == [
        (b"1", 1, True),
        (b"2", 1, True),
        (b"3", 1, True),
    ]


def test_qos_2_goes_on_where_it_was(service: Service) -> None:
    upgraded(service)
    half = Raw(service.mqtt, "half")
    # For the first message there was a PUBREC: its PUBREL comes again, the message does not.
    packets: list[tuple[int, bytes]] = [half.packet() for _ in range(3)]
    (release,) = [body for kind, body in packets if kind == 0x62]
    sent = [(kind, body) for kind, body in packets if kind != 0x62]
    assert [(kind, body[:8], body[10:]) for kind, body in sent] == [
        (0x3C, b"\0\6half/a", b"1"),
        (0x3C, b"\0\6half/a", b"2"),
    ]
    half.send(0x70, release)
    for _, body in sent:
        half.send(0x50, body[8:10])
        assert half.expect(0x60) == body[8:10]
        half.send(0x70, body[8:10])
    half.close()

    sender = Raw(service.mqtt, "sender")
    sender.send(0x3C, b"\0\x0cplain/sender\0\x4donce")  # Sent again, with DUP: it is not new.
    assert sender.expect(0x50) == b"\0\x4d"
    sender.send(0x62, b"\0\x4d")
    assert sender.expect(0x70) == b"\0\x4d"
    sender.close()
    check_plain(service, "away")


def test_properties_of_mqtt_5_are_there(service: Service) -> None:
    upgraded(service)
    client = Client(service.mqtt, "five", five=True)
    client.take(2)
    client.leave()
    assert [(m.topic, m.payload, m.qos, m.retain) for m in client.messages] == [
        ("five/a", b"five/a", 2, False),
        ("five/b", b"five/b", 2, True),
    ]
    for message in client.messages:
        properties = message.properties
        assert properties is not None
        told = as_dict(properties)
        # The time in the store counts.
        assert told.pop("MessageExpiryInterval") < NEVER - 1
        assert told == {
            "ContentType": "text/plain",
            "ResponseTopic": "answers",
            "CorrelationData": "0001",
            "PayloadFormatIndicator": 1,
            "UserProperty": [("a", "1"), ("a", "2")],
            "SubscriptionIdentifier": [7],
        }


def test_retained_messages_are_there(service: Service) -> None:
    upgraded(service)
    client = Client(service.mqtt, "new", five=True)
    client.subscribe("#", 1)
    client.take(3)
    client.publish("retained/end", b"", 1)
    client.take(1)
    client.leave()
    retained = {m.topic: m for m in client.messages if m.retain}
    assert sorted(retained) == ["five/b", "retained/five", "retained/one"]
    assert retained["retained/one"].payload == b"one"
    properties = retained["retained/five"].properties
    assert properties is not None
    assert as_dict(properties)["UserProperty"] == [("a", "1"), ("a", "2")]


def test_subscriptions_are_live(service: Service) -> None:
    upgraded(service)
    publisher = Client(service.mqtt, "publisher")
    assert publisher.mqtt.protocol == MQTTProtocolVersion.MQTTv311
    for topic in ("work/new", "inflight/new", "plain/new"):
        publisher.publish(topic, topic.encode(), 1)
    publisher.leave()
    worker = Client(service.mqtt, "worker")
    worker.take(1)
    worker.leave()
    assert [m.payload for m in worker.messages] == [b"work/new"]
    inflight = Client(service.mqtt, "inflight")
    inflight.take(4)
    inflight.leave()
    assert [m.payload for m in inflight.messages] == [b"1", b"2", b"3", b"inflight/new"]


def test_readers_and_writers_go_on(service: Service) -> None:
    upgraded(service)
    with RangeReader("127.0.0.1", service.ranges, "readings") as reader:
        first, end = reader.head()
        assert (first, end) == (5, 11)
        rows = [row for block in reader.fetch(first, end) for row in block.rows()]
        assert [(row.number, row.key, row.value) for row in rows] == [
            (n, b"range/a", b"%d" % (n - 1)) for n in range(5, 11)
        ]
        reader.ack(end)
    with SinkWriter("127.0.0.1", service.ranges, "means") as writer:
        assert writer.last_committed() == 7
