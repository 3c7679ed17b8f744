"""The journal of a real relay, under real MQTT clients: what it says is what they sent and got."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.pipeline.journal.conftest import files, hidden, rows
from tests.pipeline.relays import SECONDS, RelayProcess

PAYLOAD = b"x" * 50


class Client:
    """An MQTT client that counts what it gets."""

    def __init__(self, relay: RelayProcess, name: str, *filters: str, qos: int = 0) -> None:
        self.got = 0
        self.bytes = 0
        ready = threading.Event()
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name)

        def subscribed(*_: Any) -> None:
            ready.set()

        def connected(*_: Any) -> None:
            for each in filters:
                self.client.subscribe(each, qos=qos)
            if not filters:
                ready.set()

        self.client.on_connect = connected
        self.client.on_subscribe = subscribed
        self.client.on_message = self._message
        self.client.connect("127.0.0.1", relay.mqtt)
        self.client.loop_start()
        assert ready.wait(SECONDS)

    def _message(self, *given: Any) -> None:
        message = given[2]
        self.got += 1
        self.bytes += len(message.topic.encode()) + len(message.payload)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_its_sums_are_what_was_sent_and_delivered(tmp_path: Path) -> None:
    with RelayProcess("--journal", str(tmp_path), "--journal-snapshot-every=0.2") as relay:
        plain = [Client(relay, f"plain {number}", "a/#") for number in range(2)]
        acked = Client(relay, "acked", "a/b", qos=1)
        publisher = Client(relay, "publisher")
        for number in range(600):
            publisher.client.publish("a/b" if number % 3 else "a/c", PAYLOAD)
        for _ in range(100):
            publisher.client.publish("a/b", PAYLOAD, qos=1).wait_for_publish(SECONDS)
        until(lambda: all(each.got == 700 for each in plain) and acked.got == 500)
        shown = relay.page("/metrics").decode()
        assert "clearfunds_journal_one_in_rows 1.0" in shown
        for client in (*plain, acked, publisher):
            client.close()
        until(lambda: sum(" left: " in line for line in relay.log) == 4)
        totals = relay.ledger()["totals"]
        time.sleep(0.5)  # time for two snapshots
        assert relay.stop() == 0
    assert any("keeping a journal in" in line for line in relay.log)
    assert not hidden(tmp_path)
    settled = [row for row in rows(tmp_path, "settlements") if row["account"].endswith("publisher")]
    assert {row["parent"] for row in settled} == {"server"}
    delivered = [0] * 4
    for row in settled:
        assert row["weight"] == 1.0
        assert row["settled_ns"] >= row["opened_ns"] > time.time_ns() - 120 * 10**9
        if row["kind"] in ("outlet", "inflight"):
            for number, name in enumerate(("plain 0", "plain 1", "acked", "publisher")):
                if row["holder"].endswith(name):
                    delivered[number] += row["items"]
    # The publisher gets its CONNACK and its acknowledgements, at its own expense.
    assert delivered == [700, 700, 500, 101]
    acks = sum(row["items"] for row in settled if row["outcome"] == "acked")
    assert acks == 100
    published = rows(tmp_path, "publications")
    assert sum(row["items"] for row in published) == 700
    assert sum(row["copies"] for row in published) == sum(delivered[:3])
    assert {row["topic"] for row in published} <= {"a/b", "a/c"}
    assert totals["debt"] == {"items": 0, "bytes": 0}
    every = [*rows(tmp_path, "settlements"), *published]
    assert sum(row["items"] for row in every) == totals["borrowed"]["items"]
    assert sum(row["bytes"] for row in every) == totals["borrowed"]["bytes"]
    accounts = rows(tmp_path, "accounts")
    assert len({row["at_ns"] for row in accounts}) >= 2
    last = max(row["at_ns"] for row in accounts)
    assert all(row["debt_items"] == 0 for row in accounts if row["at_ns"] == last)


def test_what_can_be_read_is_whole_after_a_kill(tmp_path: Path) -> None:
    options = ("--journal", str(tmp_path), "--journal-roll-every=0.2")
    with RelayProcess(*options) as relay:
        subscriber, publisher = Client(relay, "subscriber", "a/#"), Client(relay, "publisher")

        def busy() -> bool:
            for _ in range(50):
                publisher.client.publish("a/b", PAYLOAD)
            return bool(files(tmp_path, "settlements"))

        until(busy)
        relay.kill()
        subscriber.close()
        publisher.close()
    before = files(tmp_path, "settlements")
    found = rows(tmp_path, "settlements")
    assert sum(row["items"] for row in found) > 0
    # A file that was begun when it was killed; there need not have been one.
    left = tmp_path / "settlements" / "date=2026-01-01" / "hour=00" / ".part-x.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"PAR1 and no more")
    with RelayProcess(*options) as relay:
        pass
    assert not hidden(tmp_path)
    assert any("did not end in an orderly way" in line for line in relay.log)
    assert files(tmp_path, "settlements")[: len(before)] == before


def test_what_is_no_directory_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AssertionError, match=r"there can be no journal in .*/file \(File exists\)"):
        RelayProcess("--journal", str(tmp_path / "file"))


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None; from clearfunds.__main__ import main; "
        "sys.exit(main())"
    )
    ended = subprocess.run(
        [
            *(sys.executable, "-c", program, "relay", "--listen", "mqtt+tcp://127.0.0.1:0"),
            *("--journal", str(tmp_path / "journal")),
        ],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "the journal needs pyarrow" in ended.stderr
    assert "pip install 'clearfunds[pipeline]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_options_that_cannot_be(tmp_path: Path) -> None:
    for option in ("--journal-rows-per-second=0", "--journal-roll-every=0"):
        with pytest.raises(AssertionError, match="journal"):
            RelayProcess("--journal", str(tmp_path), option)
