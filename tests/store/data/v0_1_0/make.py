"""Make the two stores of version 0.1.0 beside this file.

    git worktree add OLD 259e97c
    python -m tests.store.data.v0_1_0.make OLD

`relay.tar.gz` is the store of a relay, which real clients filled: the relay was ended once, so that
there is a snapshot, and killed the second time. `compacted.tar.gz` was written by that version's
store itself, with segments of 4 KiB, so that there are moved messages, removed segments, and shared
bodies. `tests/relay/test_upgrade.py` and `tests/store/test_upgrade.py` say what is in them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

HERE = Path(__file__).parent
NEVER = 0xFFFF_FFFF


def main() -> None:
    """Make both."""
    old = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        fill(old, Path(folder) / "store")
        pack(Path(folder) / "store", HERE / "relay.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(old / "src")}
        store = Path(folder) / "store"
        subprocess.run([sys.executable, "-c", COMPACTED, store], env=environment, check=True)
        pack(store, HERE / "compacted.tar.gz")


def pack(store: Path, archive: Path) -> None:
    """Pack a store; nothing in the archive tells when it was made."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(archive, "w:gz", compresslevel=9) as tar:
        tar.add(store, "store", filter=plain)
    print(f"{archive.name}: {archive.stat().st_size} bytes")


@contextlib.contextmanager
def relay(old: Path, store: Path, how: signal.Signals) -> Generator[tuple[int, int]]:
    """Run that version's relay; yield its ports for MQTT and for ranges."""
    environment = {**os.environ, "PYTHONPATH": str(old / "src")}
    argv = [sys.executable, "-m", "clearfunds", "relay", "--store", str(store)]
    argv += ["--session-expiry", "none", "--fsync-interval", "0"]
    argv += ["--listen", "mqtt+tcp://127.0.0.1:0", "--listen", "subscribe+tcp://127.0.0.1:0"]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ports: list[int] = []
        for line in process.stdout:
            told = json.loads(line)
            if "ready" in told:
                break
            ports.append(int(told["listening"].rpartition(":")[2]))
        yield ports[0], ports[1]
        time.sleep(0.5)
        process.send_signal(how)


class Client:
    """A client of paho's, in its own thread."""

    def __init__(self, port: int, name: str, *, five: bool = False, acks: bool = True) -> None:
        self.messages: list[paho.MQTTMessage] = []
        self._came = threading.Semaphore(0)
        how = {} if five else {"clean_session": False}
        self.mqtt = paho.Client(
            CallbackAPIVersion.VERSION2,
            name,
            protocol=paho.MQTTv5 if five else paho.MQTTv311,
            manual_ack=not acks,
            **how,  # type: ignore[arg-type]
        )
        self.mqtt.on_message = self._take
        ready = threading.Event()

        def answered(*_: object) -> None:
            ready.set()

        self.mqtt.on_connect = self.mqtt.on_subscribe = answered
        if five:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = NEVER
            self.mqtt.connect("127.0.0.1", port, clean_start=False, properties=properties)
        else:
            self.mqtt.connect("127.0.0.1", port)
        self.mqtt.loop_start()
        self._ready = ready
        assert ready.wait(10)

    def _take(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.messages.append(message)
        self._came.release()

    def subscribe(self, *arguments: object, **more: object) -> None:
        """Subscribe, and wait for the answer."""
        self._ready.clear()
        self.mqtt.subscribe(*arguments, **more)  # type: ignore[arg-type]
        assert self._ready.wait(10)

    def take(self, count: int) -> None:
        """Wait for so many messages."""
        for _ in range(count):
            assert self._came.acquire(timeout=10)

    def publish(self, topic: str, payload: bytes, qos: int, **more: object) -> None:
        """Publish, and wait until it is acknowledged."""
        self.mqtt.publish(topic, payload, qos, **more).wait_for_publish(10)  # type: ignore

    def leave(self) -> None:
        """Disconnect; the session stays."""
        self.mqtt.disconnect()
        self.mqtt.loop_stop()


class Raw:
    """A client that can stop in the middle of a QoS 2 exchange."""

    def __init__(self, port: int, name: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        body = b"\0\4MQTT\4\0\0\0" + len(name).to_bytes(2, "big") + name.encode()
        self.send(0x10, body)
        self.expect(0x20)

    def send(self, kind: int, body: bytes) -> None:
        """Send a packet."""
        self._socket.sendall(bytes((kind, len(body))) + body)

    def packet(self) -> tuple[int, bytes]:
        """Return the first byte of the next packet, and its body."""
        head = self._socket.recv(2, socket.MSG_WAITALL)
        return head[0], self._socket.recv(head[1], socket.MSG_WAITALL)

    def expect(self, kind: int) -> bytes:
        """Return the body of the next packet, which is of this kind."""
        found, body = self.packet()
        assert found & 0xF0 == kind & 0xF0, hex(found)
        return body

    def close(self) -> None:
        """Disconnect."""
        self.send(0xE0, b"")
        self._socket.close()


def fill(old: Path, store: Path) -> None:
    """Let clients fill the store of a relay."""
    sys.path.insert(0, str(old / "src"))
    reader_of = importlib.import_module("clearfunds.range_client").RangeReader
    writer_of = importlib.import_module("clearfunds.sink_client").SinkWriter

    with relay(old, store, signal.SIGTERM) as (port, ranges):
        for name in ("away", "away-too"):
            client = Client(port, name)
            client.subscribe("plain/#", 2)
            client.leave()
        worker = Client(port, "worker")
        worker.subscribe("work/#", 1)
        publisher = Client(port, "publisher")
        for n in range(200):
            publisher.publish("work/done", b"%03d" % n + bytes(100), 1)
        worker.take(200)
        worker.leave()
        for n in range(30):
            publisher.publish(f"plain/{n % 3}", b"first %d" % n, 1 + n % 2)
        publisher.publish("plain/large", b"large" * 1500, 1)
        publisher.publish("retained/one", b"one", 1, retain=True)
        publisher.publish("retained/gone", b"gone", 1, retain=True)
        publisher.publish("retained/gone", b"", 1, retain=True)

        unacknowledged = Client(port, "inflight", acks=False)
        unacknowledged.subscribe("inflight/#", 1)
        for n in range(4):
            publisher.publish("inflight/a", b"%d" % n, 1)
        unacknowledged.take(4)
        unacknowledged.mqtt.ack(unacknowledged.messages[0].mid, 1)
        unacknowledged.leave()

        half = Raw(port, "half")
        half.send(0x82, b"\0\1\0\6half/#\2")
        half.expect(0x90)
        for n in range(3):
            publisher.publish("half/a", b"%d" % n, 2)
        first, _, _ = (half.expect(0x30)[8:10] for _ in range(3))
        half.send(0x50, first)
        assert half.expect(0x60) == first  # The PUBCOMP for it is never sent.
        half.close()

        sender = Raw(port, "sender")
        sender.send(0x34, b"\0\x0cplain/sender\0\x4donce")
        assert sender.expect(0x50) == b"\0\x4d"  # The PUBREL for it is never sent.
        sender.close()

        five = Client(port, "five", five=True)
        identified = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
        identified.SubscriptionIdentifier = 7
        options = SubscribeOptions(qos=2, retainAsPublished=True, noLocal=True)
        five.subscribe("five/#", options=options, properties=identified)
        five.leave()
        publisher5 = Client(port, "publisher-5", five=True)
        for topic, retain in (("five/a", False), ("five/b", True), ("retained/five", True)):
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.ContentType = "text/plain"
            properties.ResponseTopic = "answers"
            properties.CorrelationData = b"\0\1"
            properties.PayloadFormatIndicator = 1
            properties.UserProperty = [("a", "1"), ("a", "2")]
            properties.MessageExpiryInterval = NEVER - 1
            publisher5.publish(topic, topic.encode(), 2, retain=retain, properties=properties)
        publisher5.leave()

        with reader_of(
            "127.0.0.1", ranges, "readings", filters=["range/#"], start="earliest", durable=True
        ) as reader:
            for n in range(10):
                publisher.publish("range/a", b"%d" % n, 1)
            reader.ack(reader.start + 4)
        with writer_of("127.0.0.1", ranges, "means") as writer:
            parts = [writer.stage(7, 0, 1, [("plain/mean", b"20.5")])]
            writer.commit(7, parts)
        publisher.leave()

    with relay(old, store, signal.SIGKILL) as (port, _):
        publish = ["mosquitto_pub", "-p", str(port), "-t", "plain/last", "-q", "2", "-l"]
        lines = "".join(f"second {n}\n" for n in range(20))
        subprocess.run(publish, input=lines, text=True, check=True)
        worker = Client(port, "worker")
        publisher = Client(port, "publisher")
        for n in range(20):
            publisher.publish("work/done", b"%03d" % n, 1)
        worker.take(20)
        worker.leave()
        publisher.leave()


COMPACTED = """
import sys
from clearfunds.store import Store, StoreSettings

settings = StoreSettings(segment_bytes=4096, fsync_interval=0, embed_below=64, compact_below=0.9)
store = Store.open(sys.argv[1], settings)


def commit(changes):
    store.commit(changes)
    store.flush(sync=True)


changes = store.begin()
queues = [changes.declare(name, name.encode()) for name in ("a", "b", "empty", "dropped")]
a, b, empty, dropped = queues
changes.set("kept", b"1")
changes.set("deleted", b"2")
changes.set("odd \\udcff", b"")
commit(changes)
for n in range(1, 201):
    changes = store.begin()
    body = changes.share(b"shared %03d " % n * 10)
    changes.put(a, n, b"a%d" % n, body)
    changes.put(b, 2 * n, b"b%d" % n, body, size=7)
    changes.put(b, 2 * n + 1, b"own", b"own body %d" % n)
    changes.put(dropped, n, b"", b"dropped")
    changes.put(empty, n, b"", b"soon done")
    commit(changes)
    changes = store.begin()
    # Of "a" every fifth stays, of "b" every third number.
    if n % 5:
        changes.done(a, n)
    for seq in (2 * n, 2 * n + 1):
        if seq % 3:
            changes.done(b, seq)
    changes.done(empty, n)
    commit(changes)
    if n == 150:
        store.compact()
changes = store.begin()
changes.delete("deleted")
changes.drop(dropped)
changes.declare("a", b"another")
commit(changes)
store.compact()
changes = store.begin()
changes.put(a, 300, b"after", b"a gap")
changes.done(a, 5)
changes.set("kept", b"3")
commit(changes)
sys.stdout.flush()
import os
os._exit(0)  # Killed: the last batch is in the log alone.
"""


if __name__ == "__main__":
    main()
