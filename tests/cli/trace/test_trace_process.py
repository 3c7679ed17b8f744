"""`clearfunds trace` as a process, with a real relay and real MQTT clients, one of them stalled."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests import forks
from tests.cli.conftest import SECONDS
from tests.cli.peers import connect, publish_until_it_waits, subscribe_to_all

if TYPE_CHECKING:
    from tests.cli.conftest import RelayUnderTest

    StartRelay = Callable[..., RelayUnderTest]
    Clearfunds = Callable[..., subprocess.CompletedProcess[str]]

RELAY = (
    *("--listen", "mqtt+tcp://127.0.0.1:0", "--http", "127.0.0.1:0"),
    *("--patience", "600", "--grace", "0"),
)


class Scene:
    """A relay, and where it is."""

    def __init__(self, relay: RelayUnderTest) -> None:
        mqtt, http = relay.ready()
        self.port = int(mqtt["listening"].rpartition(":")[2])
        self.http: str = http["http"]

    def name(self, client: str) -> str:
        return f"mqtt:{self.port}/-/{client}"

    @contextmanager
    def client(self, client_id: str, *topics: str, qos: int = 0) -> Generator[paho.Client]:
        """Run a real client, which reads what it subscribes to."""
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id)
        ready = threading.Event()

        def subscribed(*_: object) -> None:
            ready.set()

        client.on_subscribe = subscribed
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        try:
            for topic in topics:
                client.subscribe(topic, qos)
            assert not topics or ready.wait(SECONDS)
            yield client
        finally:
            client.disconnect()
            client.loop_stop()

    def trace(self, *options: str, publish: Callable[[], object]) -> tuple[int, str, str]:
        """Run the command, and do something once it waits for that."""
        process = forks.start(
            *("trace", "--url", self.http, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        done = threading.Event()

        def go_on() -> None:
            # When it waits, only the relay knows.
            while not done.wait(0.2):
                publish()

        publisher = threading.Thread(target=go_on)
        publisher.start()
        try:
            out, err = process.communicate(timeout=SECONDS)
        finally:
            done.set()
            publisher.join()
        return process.returncode, out, err


@pytest.fixture
def scene(start_relay: StartRelay) -> Scene:
    return Scene(start_relay(*RELAY))


@pytest.mark.usefixtures("as_a_user")
def test_a_packet_through_its_loans_to_its_outcomes(scene: Scene) -> None:
    with (
        scene.client("fast", "#"),
        scene.client("acks", "#", qos=1),
        scene.client("pub") as pub,
    ):
        status, out, err = scene.trace(
            scene.name("pub"), publish=lambda: pub.publish("a/b", b"x", qos=1)
        )
        assert (status, err) == (0, "")
        first, turn, *loans, last = out.splitlines()
        assert first.startswith(f"{scene.name('pub')}  1 item, 4 B came in at 20")
        assert re.search(r"turn about a/b: committed in [0-9.]+ (µs|ms), to 2", turn)
        assert len(loans) == 2
        by_holder = {name: line for line in loans for name in ("fast", "acks") if name in line}
        assert re.search(r"outlet .*fast  1 item.*delivered \+", by_holder["fast"])
        assert re.search(r"inflight .*acks  1 item.*acked \+.* ← slowest", by_holder["acks"])
        assert re.search(r"All of it ended within .*acks: 1 delivered, 1 acked\.", last)


def test_who_still_holds_it_is_named(scene: Scene) -> None:
    stalled = connect(scene.port, b"slo")
    with stalled, scene.client("fast", "#"), scene.client("pub") as pub:
        subscribe_to_all(stalled)
        for _ in range(70):
            pub.publish("big", b"x" * 100_000).wait_for_publish(SECONDS)
        # Acknowledged, so all before it have come in, and none of them is traced.
        pub.publish("big", b"", qos=1).wait_for_publish(SECONDS)
        status, out, err = scene.trace(
            scene.name("pub"), "--wait", "3", publish=lambda: pub.publish("late", b"y")
        )
        assert (status, err) == (0, "")
        assert "turn about late" in out
        assert re.search(r"outlet .*/slo  1 item, 9 B, late .* ← outstanding", out)
        assert re.search(r"1 item still held by outlet .*/slo after .*, has taken nothing", out)
        assert re.search(rf"outstanding after .*held by {scene.name('slo')}", out.splitlines()[-1])
        assert re.search(r"fast  1 item.*delivered \+", out)

        status, out, _ = scene.trace(
            scene.name("pub"),
            *("--wait", "2", "--json", "--holder", "*/slo", "--loans", "1"),
            publish=lambda: pub.publish("late", b"y"),
        )
        assert status == 0
        page: dict[str, Any] = json.loads(out)
        (trace,) = page["traces"]
        (loan,) = trace["root"]["loans"]
        assert loan["held"][0]["holder"] == scene.name("slo")
        assert trace["not_followed"]["loans"] == 1


def test_who_is_throttled_sends_nothing_and_it_says_on_whom_he_waits(
    start_relay: StartRelay, clearfunds: Clearfunds
) -> None:
    scene = Scene(start_relay(*RELAY, "--limit-items", "1000"))
    stalled, pub = connect(scene.port, b"slo"), connect(scene.port, b"pub")
    with stalled, pub:
        subscribe_to_all(stalled)
        publish_until_it_waits(pub)
        options = (scene.name("pub"), "--url", scene.http, "--wait", "0.2")
        done = clearfunds("trace", *options)
        assert done.returncode == 1
        assert re.search(
            rf"^{scene.name('pub')} waits, for .* held by {scene.name('slo')} \(outlet, ",
            done.stdout,
        )
        assert done.stderr == (
            f"clearfunds trace: nothing came from {scene.name('pub')} within 0.2 s: it waits "
            "itself, see above\n"
        )
        done = clearfunds("trace", *options, "--json")
        assert done.returncode == 1
        assert json.loads(done.stdout)["waits"][0]["on"][0]["holder"] == scene.name("slo")


def test_what_cannot_be_followed(scene: Scene, complaint: Clearfunds) -> None:
    with scene.client("pub") as pub:
        while not pub.is_connected():
            time.sleep(0.01)
        here = ("--url", scene.http)
        done = complaint("trace", "pab", *here)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(
            f"clearfunds trace: {scene.http}: No account is called 'pab', or matches that. The "
            "most like it, of "
        )
        assert scene.name("pub") in done.stderr
        done = complaint("trace", scene.name("pub"), *here, "--wait", "0.1")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"clearfunds trace: nothing came from {scene.name('pub')} within 0.1 s\n"
        )
        done = complaint("trace", "*" * 201, *here)
        assert done.returncode == 1
        assert "The pattern has 201 characters" in done.stderr
    done = complaint("trace", "pub", "--url", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("clearfunds trace: cannot reach http://127.0.0.1:1: ")
    for wrong in (("--wait", "61"), ("--wait", "0"), ("--events", "0"), ("--url", "ftp://x")):
        done = complaint("trace", "pub", *wrong)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
