"""Options: one precedence for every kind of them, and mistakes that are told in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from clearfunds._cli import run
from clearfunds._cli._relay_options import Debt, Patience, Peers
from clearfunds.transports import RelaySettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Settle = Callable[..., RelaySettings]

DEFAULTS = RelaySettings()


@pytest.fixture
def settle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settle:
    """Return what turns a command line, an environment and a file into settings."""
    found: list[RelaySettings] = []

    def instead(_: object, settings: RelaySettings) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr("clearfunds._cli._relay.run_async", instead)

    def settle(*options: str, env: dict[str, str] | None = None, toml: str = "") -> RelaySettings:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        file = tmp_path / "clearfunds.toml"
        file.write_text(toml, "utf-8")
        assert run(["relay", "--config", str(file), *options]) == 0
        return found.pop()

    return settle


# field: (command line, environment, TOML), then the three values in that order. One or more of
# each kind: list, optional text, count, optional count, size, optional size, seconds, choice.
KINDS = {
    "listen": (
        ["--listen", "mqtt+tcp://127.0.0.1:1", "--listen", "mqtt+tcp://127.0.0.1:2"],
        "mqtt+tcp://127.0.0.1:3 mqtt+tcp://127.0.0.1:4",
        '["mqtt+tcp://127.0.0.1:5", "mqtt+unix:///tmp/with space"]',
        ("mqtt+tcp://127.0.0.1:1", "mqtt+tcp://127.0.0.1:2"),
        ("mqtt+tcp://127.0.0.1:3", "mqtt+tcp://127.0.0.1:4"),
        ("mqtt+tcp://127.0.0.1:5", "mqtt+unix:///tmp/with space"),
    ),
    "http": (
        *(["--http", "none"], "127.0.0.1:2", '"127.0.0.1:3"'),
        *(None, "127.0.0.1:2", "127.0.0.1:3"),
    ),
    "idle_timeout": (["--idle-timeout", "1.5"], "none", '"60"', 1.5, None, 60.0),
    "limit_items": (["--limit-items", "11"], "12", "13", 11, 12, 13),
    "limit_bytes": (["--limit-bytes", "1MiB"], "2_000", '"3 KiB"', 1 << 20, 2_000, 3_072),
    "server_limit_items": (["--server-limit-items", "none"], "21", "22", None, 21, 22),
    "server_limit_bytes": (["--server-limit-bytes", "31"], "None", "32", 31, None, 32),
    "grace": (["--grace", "1.5"], "0", "2", 1.5, 0.0, 2.0),
    "patience": (["--patience", "4"], "5.5", "6.5", 4.0, 5.5, 6.5),
    "stuck": (["--stuck", "wait"], "disconnect", '"wait"', "wait", "disconnect", "wait"),
    "max_connections": (["--max-connections", "41"], "42", "43", 41, 42, 43),
    "connect_timeout": (["--connect-timeout", "7"], "8", "9", 7.0, 8.0, 9.0),
}


@pytest.mark.parametrize("field", KINDS)
def test_command_line_over_environment_over_file_over_default(field: str, settle: Settle) -> None:
    line, variable, toml, of_line, of_environment, of_file = KINDS[field]
    file = f"[relay]\n{field} = {toml}\n"
    env = {f"CLEARFUNDS_RELAY_{field.upper()}": variable}
    assert getattr(settle(), field) == getattr(DEFAULTS, field)
    assert getattr(settle(toml=file), field) == of_file
    assert getattr(settle(toml=file.replace("_", "-")), field) == of_file
    assert getattr(settle(toml=file, env=env), field) == of_environment
    assert getattr(settle(*line, toml=file, env=env), field) == of_line


def test_sources_mix_option_by_option(settle: Settle) -> None:
    settings = settle(
        *("--limit-items", "1"),
        env={"CLEARFUNDS_RELAY_LIMIT_ITEMS": "2", "CLEARFUNDS_RELAY_LIMIT_BYTES": "2"},
        toml="[relay]\nlimit_items = 3\nlimit_bytes = 3\npatience = 3\n\n[pub]\nurl = 'x'\n",
    )
    assert settings == attrs.evolve(DEFAULTS, limit_items=1, limit_bytes=2, patience=3.0)


def test_the_file_can_be_named_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settle: Settle
) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[relay]\nlimit_items = 99\n", "utf-8")
    monkeypatch.setenv("CLEARFUNDS_CONFIG", str(other))
    assert settle(toml="[relay]\nlimit_items = 98").limit_items == 98
    found: list[RelaySettings] = []

    def keep(_: object, settings: RelaySettings) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr("clearfunds._cli._relay.run_async", keep)
    assert run(["relay"]) == 0
    assert found[0].limit_items == 99


def test_every_setting_has_an_option() -> None:
    groups = {field.name for group in (Debt, Patience, Peers) for field in attrs.fields(group)}
    ungrouped = {"listen", "http", "grace"}
    assert groups | ungrouped == {field.name for field in attrs.fields(RelaySettings)}


@pytest.mark.parametrize(
    ("options", "toml", "said"),
    [
        (["--limit-itms", "5"], "", ["--limit-itms", "--limit-items"]),
        (["--limit-items", "3.5"], "", ["--limit-items", "3.5", "whole number"]),
        (["--limit-items", "0"], "", ["--limit-items", "0"]),
        (["--limit-items"], "", ["--limit-items"]),
        (["--limit-bytes", "8MB"], "", ["--limit-bytes", "8MB", "MiB"]),
        (["--patience", "-1"], "", ["--patience", "-1"]),
        (["--patience", "nan"], "", ["--patience", "nan"]),
        (["--stuck", "panic"], "", ["--stuck", "panic", "wait", "disconnect"]),
        (["somewhere"], "", ["somewhere"]),
        ([], "[relay]\nlimit_itms = 5", ["limit_itms", "FILE", "limit-items"]),
        ([], "[relay]\nlimit_items = 3.5", ["limit_items", "FILE", "3.5"]),
        ([], "[relay]\nlimit_items = [1, 2]", ["limit_items", "FILE"]),
        ([], "[relay]\nlimit_items = {high = 2}", ["limit_items", "high", "FILE"]),
        ([], "[relay]\nlimit_bytes = '8MB'", ["limit_bytes", "FILE", "8MB"]),
        ([], "[relay]\nstuck = 'panic'", ["stuck", "FILE", "panic"]),
        ([], "[rely]\nlimit_items = 5", ["rely", "FILE", "relay"]),
        ([], "limit_items = 5", ["limit_items", "FILE", "[relay]"]),
        ([], "relay = 5", ["relay", "FILE"]),
        ([], "[relay\n", ["FILE", "line 1"]),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    options: list[str],
    toml: str,
    said: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "mistaken.toml"
    file.write_text(toml, "utf-8")
    assert run(["relay", "--config", str(file), *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("clearfunds relay: ")
    for word in said:
        assert word.replace("FILE", str(file)) in captured.err


def test_a_mistake_in_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLEARFUNDS_RELAY_LIMIT_ITEMS", "many")
    assert run(["relay"]) == 2
    said = capsys.readouterr().err
    assert "CLEARFUNDS_RELAY_LIMIT_ITEMS" in said
    assert "many" in said


def test_a_variable_that_is_no_option_is_told_and_ignored(
    settle: Settle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert settle(env={"CLEARFUNDS_RELAY_LIMIT_ITMES": "5"}) == DEFAULTS
    said = capsys.readouterr().err
    assert "CLEARFUNDS_RELAY_LIMIT_ITMES" in said
    assert "did you mean CLEARFUNDS_RELAY_LIMIT_ITEMS?" in said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["rely"], ["rely", "relay"]),
        (["--limit-items", "5"], ["limit-items"]),
        (["relay", "--config", "nowhere.toml"], ["nowhere.toml", "No such file"]),
    ],
)
def test_a_mistake_before_any_option(
    argv: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    for word in said:
        assert word in captured.err


def test_help_has_every_option_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["relay", "--help"]) == 0
    text = capsys.readouterr().out
    positions = [text.index(f" {group} ─") for group in ("Listeners", "Debt", "Patience", "Peers")]
    assert positions == sorted(positions)
    for field in attrs.fields(RelaySettings):
        assert f"--{field.name.replace('_', '-')} " in text
