"""benchmarks/web.py: what a client counts, by hand; and short runs of the program it starts."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
pytest.importorskip("broadcaster")

from benchmarks.web import (
    BARE,
    COLUMNS,
    FIRST,
    GROWTH_COLUMNS,
    OURS,
    Client,
    Found,
    Pair,
    Terms,
    fate,
    growth_row,
    judge,
    judge_growth,
    ratios,
    row,
    run,
    slower,
)

WEB = Path(__file__).parents[2] / "benchmarks" / "web.py"
TERMS = Terms("ws", clients=4, rate=10.0, seconds=1.0)


def found(**changes: Any) -> Found:
    one = Found(
        variant=BARE, terms=attrs.evolve(TERMS, asleep=3), due=10, published=10, p50=0.001,
        p99=0.002, cpu=20.0, server=0.1, driver=0.1, came=1.0, lost=0, held_up=0.0, memory=1.0,
        cut=0, kept=126, missed=0, told=0, named=(), log=(),
    )  # fmt: skip
    return attrs.evolve(one, **changes)


def client_of(pieces: list[bytes]) -> tuple[Client, bytes]:
    """Return a client that has read these, each by itself, and what it has sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        port: int = listener.getsockname()[1]

        def answer() -> None:
            server, _ = listener.accept()
            ends.append(server)
            server.recv(4096)
            server.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")

        ends: list[socket.socket] = []
        thread = threading.Thread(target=answer)
        thread.start()
        client = Client("ws", port, "one", asleep=False)
        thread.join()
    server = ends[0]
    with server, client.sock:
        client.sock.setblocking(True)
        for piece in pieces:
            server.sendall(piece)
            client.read()
        server.settimeout(0.1)
        try:
            said = server.recv(100)
        except TimeoutError:
            said = b""
    return client, said


@pytest.mark.parametrize("cut", [1, 7, 33, 64, 1_000])
def test_messages_and_what_was_missed_are_counted_however_they_are_cut(cut: int) -> None:
    frame = b"\x81\x7e\0\xc8"
    due = b"%019d" % 5
    message = frame + b"." * 168 + b"@%010d " % FIRST + due + b";"
    before = frame + b"." * 168 + b"@%010d " % 3 + due + b";"
    missed = b'\x81\x0d{"missed": 12}'
    event = b"event: missed\ndata: 3\n\n"
    stream = before + message + missed + message + event + message
    client, _ = client_of([stream[at : at + cut] for at in range(0, len(stream), cut)])
    assert (client.got, client.told, len(client.delays)) == (4, 15, 3)


def test_a_ping_is_answered() -> None:
    client, said = client_of([b"\x89\x04abcd"])
    assert said == b"\x8a\x84\0\0\0\0abcd"
    assert not client.closed


def test_what_became_of_those_asleep_is_said_in_a_few_words() -> None:
    assert fate(found()) == "all kept"
    assert fate(found(kept=100, missed=26)) == "100 kept, 26 lost, untold"
    assert fate(found(kept=100, missed=26, told=26)) == "100 kept, 26 lost (26 told)"
    assert fate(found(cut=3, missed=26)) == "3 of 3 cut off"


def test_claims_are_judged_by_medians_over_passes() -> None:
    bare = [Pair(found(cpu=cpu), found()) for cpu in (10.0, 20.0, 30.0)]
    ours = [
        Pair(found(variant=OURS[0], cpu=cpu), found(variant=OURS[0], p99=p99))
        for cpu, p99 in ((20.0, 0.002), (24.0, 0.0022), (30.0, 0.2))
    ]
    assert ratios(ours, bare) == [2.0, 1.2, 1.0]
    assert [slower(each) for each in ours] == pytest.approx([1.0, 1.1, 100.0])
    verdicts = judge("here", {BARE: bare, OURS[0]: ours})
    assert [(each.variant, round(each.value, 6), each.holds) for each in verdicts] == [
        (OURS[0], 1.1, True), (OURS[0], 1.2, True)
    ]  # fmt: skip
    assert len(row(ours, bare)) == len(row(ours, [])) == len(COLUMNS)
    never = [Pair(found(), found(variant=OURS[0], p99=math.nan))]
    assert not judge("here", {OURS[0]: never})[0].holds


def test_memory_is_judged_for_the_hub_alone() -> None:
    runs = [found(memory=500.0), found(variant=OURS[1], memory=500.0)]
    assert [(each.variant, each.holds) for each in judge_growth("here", runs)] == [(OURS[1], False)]
    assert len(growth_row(runs[0])) == len(GROWTH_COLUMNS)


@pytest.mark.parametrize("kind", ["ws", "sse"])
def test_a_run_says_what_became_of_everybody(kind: str, tmp_path: Path) -> None:
    terms = Terms(kind, clients=6, rate=400.0, seconds=1.5, asleep=2, size=8_192)
    one = run("clearfunds-live", terms, tmp_path)
    assert one.published == one.due == 600
    assert (one.lost, one.came, one.cut) == (0, 1.0, 0)
    assert one.p99 >= one.p50 > 0
    assert one.cpu > 0
    assert one.kept + one.missed == 2 * (600 + 32)
    assert one.missed == one.told
    assert set(one.named) <= {"asleep-3", "asleep-4"}


@pytest.mark.long
def test_a_tiny_run_of_the_command_has_a_row_for_each_way(tmp_path: Path) -> None:
    result = tmp_path / "web.json"
    command = [
        sys.executable, str(WEB), "--kinds=ws", "--clients=5", "--passes=1", "--seconds=1",
        "--growth=0", "--rate=50", "--cores=", f"--json={result}", "--only=unbounded,live",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "| unbounded | " in done.stdout
    made = json.loads(result.read_text())
    assert [each["variant"] for each in made["runs"]] == [
        "unbounded", "unbounded", "clearfunds-live", "clearfunds-live"
    ]  # fmt: skip
    assert all(each["lost"] == 0 for each in made["runs"])
    assert len(made["verdicts"]) == 2
