"""`clearfunds store verify|repair|dump`."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clearfunds._cli import run
from clearfunds.store import Damage, Store, StoreDiskError
from clearfunds.store._database import PAGE_BYTES

if TYPE_CHECKING:
    from pathlib import Path

BODY = b"a body that is long enough to be found in its file"


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CLEARFUNDS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a store with two queues and a key."""
    place = tmp_path / "store"
    store = Store.open(place)
    changes = store.begin()
    news, other = changes.declare("news"), changes.declare("other\n")
    store.commit(changes)
    for seq in range(30):
        changes = store.begin()
        changes.put(news, seq, b"topic/%d" % seq, BODY + b" %d" % seq)
        changes.put(other, seq, b"\xff", "ü".encode() * 500, size=seq)
        store.commit(changes)
        store.flush()
    changes = store.begin()
    changes.done(news, 0, 9)
    changes.set("session", b"\x00\xff")
    store.commit(changes)
    store.close()
    return place


def spoil(directory: Path, what: bytes) -> None:
    """Change a byte of a message on the disk."""
    file = directory / "messages.db"
    data = file.read_bytes()
    at = data.index(what)
    file.write_bytes(data[:at] + b"?" + data[at + 1 :])


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in directory.rglob("*")
        if file.is_file()
    }


def test_a_store_that_is_well(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(directory)
    assert run(["store", "verify", str(directory)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("2 queues, 50 messages, ")
    assert captured.out.endswith(": all is well\n")
    assert captured.err == ""
    assert contents(directory) == before


def test_one_of_a_kind_is_said_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "store"
    store = Store.open(place)
    changes = store.begin()
    changes.put(changes.declare("q"), 1, b"", b"!")
    store.commit(changes)
    store.close()
    assert run(["store", "verify", str(place)]) == 0
    assert capsys.readouterr().out == "1 queue, 1 message, 1 byte: all is well\n"
    damage = Damage("run 7", "it is bad", 1, "q", 3, 3, 1)
    assert str(damage) == "run 7: it is bad; queue 'q': 1 message of 3..3 is lost"


@pytest.mark.parametrize(("place", "why"), [("file", "that is a file"), ("file/x", "is a file")])
def test_a_file_is_no_directory(
    place: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("something else")
    assert run(["relay", "--listen", "mqtt+tcp://127.0.0.1:0", "--store", str(tmp_path / place)])
    err = capsys.readouterr().err
    assert f"{why}: give a directory" in err
    assert (tmp_path / "file").read_text() == "something else"


def test_damage_is_said_repaired_and_then_gone(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(directory, BODY + b" 17")
    before = contents(directory)
    assert run(["store", "verify", str(directory)]) == 1
    out = capsys.readouterr().out
    assert "queue 'news'" in out
    assert out.endswith(": 1 damage (clearfunds store repair)\n")
    assert contents(directory) == before
    assert run(["store", "dump", str(directory)]) == 1
    assert "queue 'news'" in capsys.readouterr().err
    assert contents(directory) == before
    assert run(["store", "repair", str(directory)]) == 0
    out = capsys.readouterr().out
    assert "queue 'news'" in out
    assert out.endswith("; repaired\n")
    database = sqlite3.connect(directory / "messages.db")
    assert database.execute("SELECT count(*) FROM damaged").fetchone()[0] == 1
    database.close()
    assert run(["store", "verify", str(directory)]) == 0
    out = capsys.readouterr().out
    # Messages that lie in one record stand and fall together.
    assert out.endswith("all is well\n")
    assert 30 <= int(out.split()[2]) < 50
    assert run(["store", "repair", str(directory)]) == 0
    assert capsys.readouterr().out.endswith("; nothing was damaged\n")


def test_a_dump_for_programs(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["store", "dump", str(directory), "--json", "--values", "--max-body", "9"]
    assert run(argv) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 51
    assert lines[0] == {
        "queue": "news",
        "seq": 10,
        "bytes": len(BODY) + 11,
        "header": "topic/10",
        "body": "a body th",
        "body_bytes": len(BODY) + 3,
    }
    assert lines[20] == {
        "queue": "other\n",
        "seq": 0,
        "bytes": 0,
        "header_base64": "/w==",
        "body": "üüüü",
        "body_bytes": 1000,
    }
    assert lines[-1] == {"key": "session", "value_base64": "AP8="}


def test_a_dump_for_people(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "dump", str(directory), "--queue", "news"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20
    assert lines[-1] == f"news 29 bytes={len(BODY) + 11} header=topic/29 body={BODY.decode()} 29"
    assert run(["store", "dump", str(directory), "--queue", "other\n"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 30
    assert lines[0].startswith("other\\n 0 bytes=0 header_base64=/w== body=üüü")


@pytest.mark.parametrize("command", ["verify", "repair", "dump"])
def test_what_is_no_store_is_refused_and_left_alone(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["store", command, str(tmp_path / "nowhere")]) == 1
    assert "is no directory" in capsys.readouterr().err
    assert run(["store", command, str(tmp_path)]) == 1
    assert "is not a store" in capsys.readouterr().err
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("command", ["verify", "repair", "dump"])
def test_a_store_that_is_in_use_is_left_alone(
    command: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(directory)
    assert run(["store", command, str(directory)]) == 1
    assert "in use" in capsys.readouterr().err
    store.close()


def test_a_queue_that_is_not_there(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "dump", str(directory), "--queue", "nws"]) == 2
    assert "no queue 'nws'; queues: 'news', 'other\\n'" in capsys.readouterr().err


def test_a_database_that_is_no_database_is_put_aside_and_its_rows_are_copied(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = directory / "messages.db"
    database = sqlite3.connect(file)
    (root,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'run'").fetchone()
    database.close()
    data = bytearray(file.read_bytes())
    place = (root - 1) * PAGE_BYTES
    data[place : place + 8] = b"\xff" * 8  # The head of the first page of the messages.
    file.write_bytes(data)
    assert run(["store", "verify", str(directory)]) == 1
    assert "clearfunds store repair" in "".join(capsys.readouterr())
    with pytest.raises(StoreDiskError, match=r"malformed.*clearfunds store repair"):
        Store.open(directory)
    assert run(["store", "repair", str(directory)]) == 0
    out = capsys.readouterr().out
    assert "table run: " in out
    assert out.endswith("2 queues, 0 messages, 0 bytes; repaired\n")
    aside = (directory / "messages.db.damaged-1").read_bytes()
    assert aside[place : place + 8] == b"\xff" * 8
    store = Store.open(directory)
    assert store.values() == {"session": b"\x00\xff"}
    assert {queue.name: queue.next_seq for queue in store.queues.values()} == {
        "news": 30,
        "other\n": 30,
    }
    store.close()


def test_as_a_process(directory: Path) -> None:
    command = [sys.executable, "-m", "clearfunds", "store"]
    done = subprocess.run(
        [*command, "dump", str(directory), "--json"], capture_output=True, check=True, timeout=60
    )
    assert len(done.stdout.splitlines()) == 50
    assert done.stderr == b""
    done = subprocess.run([*command, "--help"], capture_output=True, check=True, timeout=60)
    assert b"The relay must not be" in done.stdout
