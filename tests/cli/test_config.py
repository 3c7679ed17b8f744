"""`clearfunds config check` and `show`: mistakes in a file, and the origin of each option."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clearfunds._cli import run
from clearfunds._cli._app import COMMANDS
from tests.transports.mqtt.users import user_line

if TYPE_CHECKING:
    from tests.cli.conftest import Settle

RELAY = """\
[relay]
listen = ["mqtt://127.0.0.1:1883"]
limit_items = 500
idle-timeout = "none"

[[relay.tenant]]
name = "press"
user = ["ticker"]

[[relay.subscription_policy]]
client = "dash-*"
filter = "sensors/#"
policy = "conflate"
patience = 2

[[relay.publication_policy]]
client = "sensor-*"
policy = "shed"

[[relay.account_limit]]
pattern = "press/*"
items = 500
bytes = "2MiB"

[[relay.rate]]
pattern = "press/*"
items = "none"
bytes = "1KiB"

[[relay.topic_account]]
client = "bridge-*"
filter = "jobs/#"
"""
MORE = "\n[pub]\nqos = 1\n\n[queues.list]\njson = true\n"


def write(folder: Path, text: str) -> Path:
    file = folder / "relay.toml"
    file.write_text(text)
    return file


def test_a_file_without_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, RELAY + MORE)
    assert run(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: no mistake in [relay], [pub], [queues]\n"


def test_files_that_options_name_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = tmp_path / "users"
    users.write_text(f"{user_line('anna', b'secret')}\nnonsense\n")
    users.chmod(0o600)
    file = write(tmp_path, f'[relay]\nlisten = ["mqtt://127.0.0.1"]\npasswords = "{users}"\n')
    assert run(["config", "check", str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(users) in line
    assert "line 2" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[relay]\nlimit_itms = 5", ["limit_itms", "limit-items", "FILE"]),
        ("[relay]\nlimit_items = 3.5", ["limit_items", "3.5", "FILE"]),
        ("[realy]", ["realy is not a command", "did you mean relay?", "FILE"]),
        ("relay = 3", ["relay must be a table: [relay]", "FILE"]),
        ("[relay", ["FILE", "']'"]),
        ("[relay]\nlisten = []", ["no listener", "FILE"]),
        ("[relay]\nlisten = ['mqtts://127.0.0.1']", ["--tls-certificate", "FILE"]),
        ("[relay]\nacl = 'nowhere'", ["nowhere", "No such file", "FILE"]),
        ("[pub]\nqos = 5", ["qos", '"5"', "0, 1, 2", "FILE"]),
        ("[queues.list]\njsn = true", ["jsn", "FILE"]),
        ("[[relay.tenant]]\nusr = 'x'\nname = 'a'", ["usr", "keys: user", "FILE"]),
        (
            "[[relay.subscription_policy]]\npolicy = 'hope'",
            ['policy = "hope"', "must be one of wait, disconnect", "FILE"],
        ),
        ("[[relay.subscription_policy]]\npatience = 3", ["has no policy", "FILE"]),
        (
            "[[relay.subscription_policy]]\npolicy = 'wait'\npatient = 3",
            ['unknown key "patient"', "keys: client, filter", "FILE"],
        ),
        (
            "[[relay.subscription_policy]]\npolicy = 'wait'\npatience = -3",
            ["at least 0", "-3", "FILE"],
        ),
        (
            "[[relay.subscription_policy]]\npolicy = 'wait'\nfilter = 'a/#/b'",
            ["a/#/b", "# must be alone", "FILE"],
        ),
        ("[[relay.publication_policy]]\nclient = ''\npolicy = 'shed'", ["client", "a text"]),
        ("[[relay.account_limit]]\npattern = 'a'\nitems = true", ["items = true", "whole number"]),
        ("[[relay.account_limit]]\npattern = 'a'\nitems = 0", ["at least 1"]),
        ("[[relay.account_limit]]\npattern = 'a'\nitems = 1\nbytes = 'x'", ["bytes", "a size"]),
        ("[[relay.rate]]\npattern = 'a'\nitems = 'x'", ['items = "x"', "a number"]),
        ("[[relay.topic_account]]\nclient = 'a'", ["a topic account has no filter"]),
    ],
)
def test_mistakes(
    text: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words are those with which the relay would refuse to start, with the file's name."""
    file = write(tmp_path, text)
    assert run(["config", "check", str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("clearfunds config: ")
    for word in words:
        assert word.replace("FILE", str(file)) in line
    assert "Error" not in line


def test_tables_are_what_their_short_forms_are(settle: Settle) -> None:
    tables = settle(toml=RELAY)
    short = settle(
        *("--listen", "mqtt://127.0.0.1:1883", "--limit-items", "500", "--idle-timeout", "none"),
        *("--tenant", "press,user=ticker"),
        *("--subscription-policy", "dash-* sensors/#=conflate,2"),
        *("--publication-policy", "sensor-* #=shed", "--account-limit", "press/*=500,2MiB"),
        *("--rate", "press/*=none,1KiB", "--topic-account", "bridge-* jobs/#"),
    )
    assert tables == short


# -- show -----------------------------------------------------------------------------------------


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert run(["config", "show", *argv]) == 0
    return capsys.readouterr().out


def test_each_value_has_its_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, RELAY)
    monkeypatch.setenv("CLEARFUNDS_RELAY_LIMIT_BYTES", "3MiB")
    out = shown(capsys, "--config", str(file), "--patience", "7")
    lines = out.splitlines()
    assert lines[0] == "[relay]"
    assert f'listen = ["mqtt://127.0.0.1:1883"]  # {file}' in lines
    assert "limit_bytes = 3145728  # CLEARFUNDS_RELAY_LIMIT_BYTES" in lines
    assert "patience = 7  # command line" in lines
    assert f'idle_timeout = "none"  # {file}' in lines
    assert '# profile = "balanced"' in lines
    policy = '{client = "dash-*", filter = "sensors/#", policy = "conflate", patience = 2}'
    assert f"subscription_policy = [{policy}]  # {file}" in lines
    assert "# Patience" in lines


def test_what_is_shown_is_a_file_of_the_same_options(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    settle: Settle,
) -> None:
    file = write(tmp_path, RELAY)
    out = shown(capsys, "--config", str(file), "--reuse-port", "--server-limit-items", "5000")
    assert tomllib.loads(out)["relay"]["reuse_port"] is True
    given = settle(toml=out)
    assert given == settle("--reuse-port", "--server-limit-items", "5000", toml=RELAY)
    # So is the file with all comments taken for options: nothing is missing in it.
    whole = "\n".join(
        line.removeprefix("# ")
        for line in out.splitlines()
        if " = " in line and not line.endswith('= "none"')
    )
    assert settle(toml=f"[relay]\n{whole}\n") == given


def test_no_digits_are_lost(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "--patience", "1234567.25", "--grace", "7654321")
    assert {"patience = 1234567.25  # command line", "grace = 7654321  # command line"} <= set(
        out.splitlines()
    )


def test_passwords_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "--cluster", "nats://me:secret@host,nats://you:hidden@there")
    assert "secret" not in out
    assert "hidden" not in out
    assert 'cluster = "nats://me:***@host,nats://you:***@there"  # command line' in out
    # One with an @ in it, and a token in place of user and password.
    out = shown(capsys, "--cluster", "nats://me:sec@ret@host,nats://hidden@there")
    assert 'cluster = "nats://me:***@host,nats://***@there"  # command line' in out


def test_passwords_and_tokens_of_options_are_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEARFUNDS_PUB_PASSWORD", "hidden")
    assert 'password = "***"  # CLEARFUNDS_PUB_PASSWORD' in shown(capsys, "pub")
    monkeypatch.setenv("CLEARFUNDS_HTTP_TOKEN", "hidden-0123456789")
    assert 'token = "***"  # CLEARFUNDS_HTTP_TOKEN' in shown(capsys, "top")
    assert '# password = "none"' in shown(capsys, "top")


def test_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "[pub]\nqos = 1\n")
    out = shown(capsys, "pub", "--config", str(file))
    assert out.startswith("[pub]\n")
    assert f"qos = 1  # {file}\n" in out
    assert "# topic: must be given\n" in out
    assert {"config", "ctl"} < set(COMMANDS)
