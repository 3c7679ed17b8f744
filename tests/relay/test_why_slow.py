"""Why a slow consumer is slow, found with real processes, real loss and real acknowledgements."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from clearfunds.accounts import CauseKind, Holder
from clearfunds.transports.mqtt import ConnAck, Connect
from tests.relay.why_slow import CULPRITS, blocked, causes_of, reading, stopped
from tests.transports.peers import RunningRelay, dial, fetch, running, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux counts what TCP does")

TRIES: Final = 20

SENTENCES: Final = {
    CauseKind.DOES_NOT_READ: r"archive's program does not read \(window shut \d+ % of \d.* s\)",
    CauseKind.READS_SLOWLY: r"archive's program reads too slowly \(window shut \d+ % of \d.* s\)",
    CauseKind.LOSS: r"archive's network loses \d+(\.\d)? %",
    CauseKind.NO_ANSWER: r"archive's network or machine does not answer \(nothing for .+\)",
    CauseKind.SLOW_NETWORK: r"archive's network is slow \(.+ KiB/s, round trip \d+ ms\)",
    CauseKind.DOES_NOT_ACKNOWLEDGE: (
        r"archive does not acknowledge \(\d+ outstanding, none for \d.* s\)"
    ),
    CauseKind.ACKNOWLEDGES_SLOWLY: (
        r"archive acknowledges too slowly \(never fewer than \d+ outstanding in \d s\)"
    ),
}

OPTIONS: Final[dict[str, Any]] = {"stuck": "wait", "limit_items": 20, "slow_wait": None}


@pytest.mark.parametrize("kind", CauseKind)
async def test_the_cause_is_found(kind: CauseKind) -> None:
    async with running(**OPTIONS) as relay:
        found = await causes_of(relay, CULPRITS[kind])
        assert list(found) == [kind], found
        assert re.fullmatch(SENTENCES[kind], found[kind]), found


@pytest.mark.long
@pytest.mark.parametrize("kind", CauseKind)
async def test_the_cause_is_found_each_time(kind: CauseKind) -> None:
    async with running(**OPTIONS) as relay:
        found = [await causes_of(relay, CULPRITS[kind]) for _ in range(TRIES)]
    assert [list(each) for each in found] == [[kind]] * TRIES, found


@pytest.mark.long
def test_loss_is_found_on_a_real_link_each_time() -> None:
    """3 % on a link of 20 ms, through a device; where one may have a network of one's own."""
    unshare = shutil.which("unshare")
    if unshare is None or not Path("/dev/net/tun").exists() or shutil.which("ip") is None:
        pytest.skip("needs unshare, ip and /dev/net/tun")
    if subprocess.run([unshare, "-rn", "true"], check=False, capture_output=True).returncode:
        pytest.skip("may not have a network of its own")
    link = [unshare, "-rn", sys.executable, "-m", "tests.relay.lossy_link", "0.03", "0.01"]
    tries = [sys.executable, "-m", "tests.relay.why_slow", "link", str(TRIES)]
    run = subprocess.run([*link, *tries], check=True, capture_output=True, text=True, timeout=600)
    lines = run.stdout.splitlines()
    assert len(lines) == TRIES
    for line in lines:
        causes = json.loads(line)
        assert list(causes) == ["loss"], lines
        found = re.fullmatch(r"archive's network loses (\d+(?:\.\d)?) %", causes["loss"])
        assert found is not None, lines
        assert 1 <= float(found[1]) <= 8


async def test_log_and_pages_say_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    options: dict[str, Any] = {**OPTIONS, "patience": 1.5, "http": "127.0.0.1:0"}
    async with running(**options) as relay:
        async with blocked(relay, stopped):
            await until(lambda: lines_of(caplog))
            url = relay.addresses.http
            top = json.loads(await fetch(f"{url}/ledger.json?top=5"))
            page = json.loads(await fetch(f"{url}/ledger.json"))
        line = lines_of(caplog)[0]
        (wait,) = top["waits"]
        rows = [row for row in page["holders"] if row["name"].endswith("/archive")]
    why = SENTENCES[CauseKind.DOES_NOT_READ]
    assert re.search(rf" that mqtt:\d+/-/newsroom waits for: {why}; its policy", line.getMessage())
    fields = vars(line)
    for each in (fields, wait["on"][0], top["holders"][0], *rows):
        assert each["cause"] == "does_not_read"
        assert re.fullmatch(why, each["why"])


async def test_who_falls_behind_is_told_of_with_the_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its backlog is spilled after a second, which is enough to know."""
    caplog.set_level(logging.WARNING)
    async with (
        running(
            http="127.0.0.1:0", limit_items=20, slow_wait=None, stuck="spill", patience=1.0
        ) as relay,
        blocked(relay, stopped),
    ):
        await until(lambda: lines_of(caplog, "behind"))
        top = json.loads(await fetch(f"{relay.addresses.http}/ledger.json?top=5"))
    why = SENTENCES[CauseKind.DOES_NOT_READ]
    fields = vars(lines_of(caplog, "behind")[0])
    assert fields["cause"] == "does_not_read"
    assert re.fullmatch(why, fields["why"])
    (incident,) = [each for each in top["incidents"] if each["relieved"]]
    assert re.fullmatch(why, incident["why"])


def lines_of(caplog: pytest.LogCaptureFixture, event: str = "stuck") -> list[logging.LogRecord]:
    return [each for each in caplog.records if getattr(each, "event", None) == event]


async def test_a_persistent_session_whose_client_acknowledges_nothing() -> None:
    """Its messages are its queue's, which asks the connection."""
    queues: list[Holder] = []

    @asynccontextmanager
    async def in_a_persistent_session(relay: RunningRelay) -> AsyncGenerator[int]:
        async with dial(relay.port) as archive:
            connect = archive.connection.send(Connect("archive", False, 0))
            await archive.stream.send_all(connect)
            await archive.expect(ConnAck(False, 0))
            queues.extend(each for each in relay.ledger.holders if each.kind == "queue")
            async with reading(archive, qos=1) as qos:
                yield qos

    # When its client has left, and its patience is over, the session ends.
    async with running(limit_items=5, kept_limit=5_000, max_queued=None, patience=4.0) as relay:
        found = await causes_of(relay, in_a_persistent_session)
        assert list(found) == [CauseKind.DOES_NOT_ACKNOWLEDGE], found
        (queue,) = queues
        assert queue.symptoms() is None  # nobody is there who could be slow
