"""`clearfunds store verify|repair|dump`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clearfunds._cli import run
from clearfunds.store import Damage, Store, StoreSettings

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
    store = Store.open(place, StoreSettings(segment_bytes=8192))
    changes = store.begin()
    news, other = changes.declare("news"), changes.declare("other\n")
    store.commit(changes)
    for seq in range(30):
        changes = store.begin()
        changes.put(news, seq, b"topic/%d" % seq, BODY + b" %d" % seq)
        changes.put(other, seq, b"\xff", "ü".encode() * 500, size=seq)
        store.commit(changes)
        store.flush(sync=True)
    changes = store.begin()
    changes.done(news, 0, 9)
    changes.set("session", b"\x00\xff")
    store.commit(changes)
    store.close()
    return place


def spoil(directory: Path, what: bytes) -> None:
    """Change a byte of a message on the disk."""
    for file in directory.glob("segment-*"):
        data = file.read_bytes()
        at = data.find(what)
        if at >= 0:
            file.write_bytes(data[:at] + b"?" + data[at + 1 :])
            return
    raise AssertionError(what)


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
    assert capsys.readouterr().out == "1 queue, 1 message, 1 byte in 1 segment: all is well\n"
    (place / "segment-0000000002.log").write_bytes(b"c")  # killed in the middle of its header
    assert run(["store", "verify", str(place)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 byte at the end was never confirmed; it is cut off at the next start")
    assert run(["store", "repair", str(place)]) == 0
    assert capsys.readouterr().out.startswith("1 byte was cut off that was never confirmed\n1 que")
    damage = Damage("segment", 7, 9, "it is bad", 1, "q", 3, 3, 1)
    assert str(damage) == "segment, byte 7: it is bad; queue 'q': 1 message of 3..3 is lost"


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
    assert " lost; put aside as quarantine/segment-" in out
    assert out.endswith("; repaired\n")
    assert list((directory / "quarantine").iterdir())
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


def test_what_was_never_confirmed_is_said_and_is_no_damage(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for snapshot in directory.glob("snapshot-*"):
        snapshot.unlink()
    last = max(directory.glob("segment-*"))
    last.write_bytes(last.read_bytes() + b"half a batch")
    assert run(["store", "verify", str(directory)]) == 0
    assert "12 bytes at the end were never confirmed" in capsys.readouterr().out
    assert run(["store", "repair", str(directory)]) == 0
    assert "12 bytes were cut off that were never confirmed" in capsys.readouterr().out
    assert run(["store", "verify", str(directory)]) == 0
    assert "confirmed" not in capsys.readouterr().out


def test_as_a_process(directory: Path) -> None:
    command = [sys.executable, "-m", "clearfunds", "store"]
    done = subprocess.run(
        [*command, "dump", str(directory), "--json"], capture_output=True, check=True, timeout=60
    )
    assert len(done.stdout.splitlines()) == 50
    assert done.stderr == b""
    done = subprocess.run([*command, "--help"], capture_output=True, check=True, timeout=60)
    assert b"The relay must not be" in done.stdout
