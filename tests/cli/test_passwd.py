"""`clearfunds passwd`: what it writes, and what it leaves."""

from __future__ import annotations

import io
import stat
from typing import TYPE_CHECKING

import pytest

from clearfunds._cli import run
from clearfunds.access import Passwords
from tests.transports.mqtt.users import user_line

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("scramp", reason="scramp is not installed")


def said(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_a_user_is_added_changed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users"
    for password in ("one", "two"):
        said(monkeypatch, f"{password}\nmore\n")
        assert run(["passwd", str(file), "anna"]) == 0
        passwords = Passwords.from_file(file)
        assert passwords.check("anna", password.encode())
        assert passwords.knows_scram
        assert len(passwords) == 1
        assert mode(file) == 0o600
    said(monkeypatch, "three")
    assert run(["passwd", str(file), "bert", "--iterations", "5000"]) == 0
    assert Passwords.from_file(file).scram_keys("bert").iterations == 5_000
    assert run(["passwd", str(file), "anna", "--delete"]) == 0
    passwords = Passwords.from_file(file)
    assert passwords.check("bert", b"three")
    assert len(passwords) == 1
    assert list(tmp_path.iterdir()) == [file]


def test_other_lines_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "users"
    before = f"# ours\n\n{user_line('anna', b'old')}\n{user_line('bert', b'old')}"
    file.write_text(before)
    file.chmod(0o640)
    said(monkeypatch, "new\n")
    assert run(["passwd", str(file), "anna"]) == 0
    lines = file.read_text().split("\n")
    assert lines[:2] == ["# ours", ""]
    assert lines[2].startswith("anna:SCRAM-SHA-256$4096:")
    assert lines[3:] == [user_line("bert", b"old"), ""]
    assert mode(file) == 0o640


def test_in_a_terminal_it_is_asked_for_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users"
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    typed = iter(["one", "one", "two", "three"])

    def ask(_: str) -> str:
        return next(typed)

    monkeypatch.setattr("getpass.getpass", ask)
    assert run(["passwd", str(file), "anna"]) == 0
    assert run(["passwd", str(file), "anna"]) == 2
    assert "are not the same: try again; nothing was written" in capsys.readouterr().err
    assert Passwords.from_file(file).check("anna", b"one")


@pytest.mark.parametrize(
    ("arguments", "stdin", "error"),
    [
        (("anna",), "\n", "the password is empty"),
        (("anna",), "a\0", "this password cannot be used"),
        (("a:b",), "x", "'a:b' cannot be a user"),
        (("",), "x", "'' cannot be a user"),
        (("#a",), "x", "'#a' cannot be a user"),
        (("anna", "--iterations", "100"), "x", "iterations"),
        (("carl", "--delete"), "", "has no user 'carl'"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    stdin: str,
    error: str,
) -> None:
    file = tmp_path / "users"
    file.write_text("# nobody\n")
    said(monkeypatch, stdin)
    assert run(["passwd", str(file), *arguments]) == 2
    told = capsys.readouterr().err
    assert error in told
    assert told.count("\n") == 1
    assert file.read_text() == "# nobody\n"


def test_a_file_that_is_none_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users"
    for content in (b"anna:secret\n", b"\xff\n"):
        file.write_bytes(content)
        said(monkeypatch, "x")
        assert run(["passwd", str(file), "anna"]) == 2
        assert str(file) in capsys.readouterr().err
        assert file.read_bytes() == content
    said(monkeypatch, "x")
    assert run(["passwd", str(tmp_path / "none" / "users"), "anna"]) == 1
    assert "cannot write " in capsys.readouterr().err
    assert run(["passwd", str(tmp_path), "anna"]) == 2
    assert "Is a directory" in capsys.readouterr().err
