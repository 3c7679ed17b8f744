"""Servers that are built or unpacked: each by itself, and one that cannot be had stops no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import fetch
from benchmarks.servers import BUILT, TODAY, Server


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "BUILT", tmp_path)


def test_what_cannot_be_had_is_said_and_the_next_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> str:
        fetch.run("false")
        return "never"

    def is_absent() -> str:
        fetch.run("no-such-program")
        return "never"

    peers = {"fails": fails, "absent": is_absent, "good": lambda: "good 1.2"}
    monkeypatch.setattr(fetch, "PEERS", peers)
    monkeypatch.setattr(sys, "argv", ["fetch"])
    assert fetch.main() == 1
    said = capsys.readouterr().err
    assert "fetch: fails could not be had: Command '['false']' returned" in said
    assert "fetch: absent could not be had: " in said
    assert (tmp_path / "good.version").read_text() == "good 1.2\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["good.version"]
    monkeypatch.setattr(sys, "argv", ["fetch", "good"])
    assert fetch.main() == 0


def test_a_name_that_is_not_known_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(Path(fetch.__file__)), "nobody"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "nobody is not one of mochi, mosquitto-new" in done.stderr


def test_each_server_that_is_fetched_is_said_to_be_when_it_is_missing() -> None:
    by_name = {server.name: server for server in TODAY}
    for name in fetch.PEERS:
        server = by_name[name]
        assert isinstance(server, Server)
        assert f"fetch.py {name})" in server.remedy
    assert BUILT.name == "peers"
