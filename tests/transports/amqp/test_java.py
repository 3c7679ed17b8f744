"""RabbitMQ's Java client, as it comes: its load generator, PerfTest, counts what it sends and gets.

Needs Java and Maven, which fetches PerfTest.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import trio

from benchmarks.perftest import PerfTestError, class_path
from tests.ports import lasting_port
from tests.relay.relay_process import relay_process
from tests.transports.certificates import papers_in

MESSAGES = 3_000
COUNTS = ("--pmessages", str(MESSAGES), "--cmessages", str(MESSAGES))
"""It ends by itself when it has sent and got so many."""
SECONDS = 90
"""Java takes five to begin, and the machine may be busy."""

SENT = re.compile(r"sending rate avg: (\d+)")
RECEIVED = re.compile(r"receiving rate avg: (\d+)")
COMPLAINT = re.compile("exception|error|closed|nacked: [1-9]", re.IGNORECASE)

LOADS = {
    "confirms": ("-c", "100", "-q", "100"),
    "confirms one by one": ("-c", "1", "-q", "1"),
    "no acknowledgements": ("-a",),
    "many acknowledged at once": ("-c", "500", "-q", "500", "-A", "100"),
    "persistent": ("-f", "persistent", "-c", "100", "-q", "100"),
    "mandatory": ("-f", "mandatory", "-c", "100", "-q", "100"),
    "prefetch of the channel": ("-c", "100", "-Q", "50"),
    "a topic exchange": ("-t", "topic", "-e", "prices", "-k", "eu.de", "-c", "100"),
    "a fanout exchange": ("-t", "fanout", "-e", "all", "-c", "100"),
    "frames in pieces": ("-s", "300000", "-c", "10", "-q", "10", "-M", "8192"),
    "properties and headers": (
        "-c", "100",
        "-mp", "priority=5,contentType=text/plain,timestamp=2026-01-01T00:00:00Z,x-region=eu",
    ),
    "polling": ("-po", "-c", "100"),
    "a durable queue with arguments": (
        "-c", "100", "-ad", "false", "-u", "kept",
        "-qa", "x-max-length=1000000,x-message-ttl=60000",
    ),
    "exclusive queues": ("-E", "-c", "100"),
    "nacked": ("-c", "100", "-q", "100", "-na", "-re", "false"),
    "two channels for each": ("-X", "2", "-Y", "2", "-c", "50", "-q", "50"),
}  # fmt: skip


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    try:
        return class_path(tmp_path_factory.mktemp("maven"))
    except PerfTestError as exc:
        pytest.skip(str(exc))


def play(classes: str, uri: str, options: tuple[str, ...]) -> str:
    """Run it; return what it says."""
    command = ["java", "-cp", classes, "com.rabbitmq.perf.PerfTest", "-h", uri, "-z", "60"]
    done = subprocess.run(
        [*command, *COUNTS, *options], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def is_well(said: str) -> bool:
    """Whether it has sent and got messages, and complains of nothing."""
    rates = [rate.search(said) for rate in (SENT, RECEIVED)]
    return not COMPLAINT.search(said) and all(rate and int(rate[1]) for rate in rates)


@pytest.mark.long
async def test_perftest_sends_and_gets_everything(classes: str, tmp_path: Path) -> None:
    shown = papers_in(tmp_path).for_server()
    port, tls_port = lasting_port(), lasting_port()
    plain = f"amqp://guest:guest@127.0.0.1:{port}"
    loads = [(name, plain, options) for name, options in LOADS.items()]
    # By itself the Java client trusts every certificate.
    loads.append(("TLS", f"amqps://guest:guest@127.0.0.1:{tls_port}", LOADS["confirms"]))
    failed: list[str] = []
    listen = (
        *("--listen", f"amqp+tcp://127.0.0.1:{port}"),
        *("--listen", f"amqp+tls://127.0.0.1:{tls_port}"),
        *("--tls-certificate", str(shown.chain), "--tls-key", str(shown.key)),
    )
    async with relay_process(tmp_path, *listen) as relay:
        for name, uri, options in loads:
            said = await trio.to_thread.run_sync(play, classes, uri, options)
            print(f"{name}: {SENT.findall(said)} sent, {RECEIVED.findall(said)} received a second")
            if not is_well(said):
                failed.append(f"{name}:\n{said}")
            await relay.audit()
    assert not failed, "\n\n".join(failed)
