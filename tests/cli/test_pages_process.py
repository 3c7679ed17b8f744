"""The pages of `clearfunds relay` as a process: who may look at them, and those that do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.programs import needs
from tests.transports.certificates import papers_in
from tests.transports.mqtt.users import user_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import RelayUnderTest

    StartRelay = Callable[..., RelayUnderTest]
    Clearfunds = Callable[..., subprocess.CompletedProcess[str]]

TOKEN = "0123456789abcdef"


def secret(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def started(start_relay: StartRelay, *options: str) -> tuple[RelayUnderTest, str]:
    """Return a relay and the URL of its pages."""
    relay = start_relay(
        *("--listen", "mqtt+tcp://127.0.0.1:0", "--log-format", "json", "--grace", "0"), *options
    )
    return relay, relay.ready()[-1]["http"]


def curl(*argv: str) -> tuple[int, str]:
    """Return the status and the page that curl gets."""
    run = subprocess.run(
        ["curl", "-sS", "-w", "\n%{http_code}", *argv],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    page, _, status = run.stdout.rpartition("\n")
    return int(status), page


@needs("curl")
def test_tokens_and_tls_with_curl_top_and_trace(
    start_relay: StartRelay, clearfunds: Clearfunds, complaint: Clearfunds, tmp_path: Path
) -> None:
    papers = papers_in(tmp_path / "papers")
    shown = papers.for_server()
    tokens = secret(tmp_path / "tokens", f"{TOKEN}\n")
    relay, url = started(
        start_relay,
        *("--http", "https://127.0.0.1:0", "--http-token", str(tokens)),
        *("--tls-certificate", str(shown.chain), "--tls-key", str(shown.key)),
    )
    assert url.startswith("https://127.0.0.1:")
    ca = ("--cacert", str(papers.trusted))
    bearer = ("-H", f"Authorization: Bearer {TOKEN}")
    assert curl(*ca, f"{url}/healthz") == (200, "The relay is alive.\n")
    assert curl(*ca, f"{url}/readyz") == (200, "The relay is ready.\n")
    assert curl(*ca, f"{url}/metrics")[0] == 401
    assert curl(*ca, *bearer, f"{url}/metrics")[0] == 200
    assert curl(*ca, "-u", f"x:{TOKEN}", f"{url}/ledger.json")[0] == 200
    assert curl(*ca, *bearer, "-H", "Host: evil.example", f"{url}/ledger.json")[0] == 421

    believes = ("--tls-ca", str(papers.trusted))
    top = clearfunds("top", url, "--once", *believes, "--token-file", str(tokens))
    assert (top.returncode, top.stderr) == (0, "")
    env = {**os.environ, "CLEARFUNDS_HTTP_TOKEN": TOKEN}
    top = clearfunds("top", url, "--once", "--json", *believes, env=env)
    assert (top.returncode, top.stderr) == (0, "")
    assert "totals" in json.loads(top.stdout)
    trace = clearfunds(
        *("trace", "server", "--url", url, "--wait", "0.1", "--token", TOKEN), *believes
    )
    assert trace.stderr == "clearfunds trace: nothing came from server within 0.1 s\n"
    for options, status, said in (
        (believes, 1, "answers 401: This page needs a token or a password."),
        ((*believes, "--token", "wrong"), 1, "answers 401: The token, or the user or the password"),
        (("--token", TOKEN), 1, "by TLS: its certificate is not trusted"),
        ((*believes, "--username", "x", "--token", TOKEN), 2, "give one of them"),
        ((*believes, "--password", "x"), 2, "--password needs --username NAME"),
    ):
        run = complaint("top", url, "--once", *options)
        assert run.returncode == status
        assert said in run.stderr
        assert run.stderr.count("\n") == 1
    plain = complaint("top", url.replace("https", "http"), "--once", *believes)
    assert plain.returncode == 2
    assert "--tls-ca needs TLS" in plain.stderr

    seen = [(each["user"], each["path"], each["status"]) for each in relay.told("looked")]
    assert ("token", "/metrics", 200) in seen
    assert not any(path in ("/healthz", "/readyz") for _, path, _ in seen)
    assert TOKEN not in "".join(relay.log)


@needs("curl")
def test_tokens_and_passwords_are_read_again_at_sighup(
    start_relay: StartRelay, clearfunds: Clearfunds, tmp_path: Path
) -> None:
    tokens = secret(tmp_path / "tokens", TOKEN)
    users = secret(tmp_path / "users", user_line("anna", b"one", 1_000))
    relay, url = started(
        start_relay,
        *("--http", "127.0.0.1:0", "--http-token", str(tokens), "--http-password", str(users)),
    )

    def statuses(token: str, password: str) -> tuple[int, int]:
        by_token = curl("-H", f"Authorization: Bearer {token}", f"{url}/metrics")[0]
        return by_token, curl("-u", f"anna:{password}", f"{url}/metrics")[0]

    assert statuses(TOKEN, "one") == (200, 200)
    top = clearfunds("top", url, "--once", "--username", "anna", "--password", "one")
    assert (top.returncode, top.stderr) == (0, "")
    secret(tokens, "another-" + TOKEN)
    secret(users, user_line("anna", b"two", 1_000))
    relay.process.send_signal(signal.SIGHUP)
    what = {each["what"] for each in relay.told("reloaded", 2)}
    assert what == {"tokens of the pages", "passwords of the pages"}
    assert statuses(TOKEN, "one") == (401, 401)
    assert statuses("another-" + TOKEN, "two") == (200, 200)
    users.chmod(0o644)
    relay.process.send_signal(signal.SIGHUP)
    (told,) = relay.told("not_reloaded")
    assert f"chmod 600 {users}" in told["reason"]
    assert statuses("another-" + TOKEN, "two") == (200, 200)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--http", "0.0.0.0:0", "--http-open"), ""),
        (("--http", "0.0.0.0:0", "--http-token", "FILE"), "cross the network in clear"),
        (("--http", "127.0.0.1:0"), ""),
        (("--http", "localhost:0", "--http-token", "FILE"), ""),
    ],
)
def test_pages_that_others_can_reach_are_told_of_at_the_start(
    start_relay: StartRelay, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    tokens = secret(tmp_path / "tokens", TOKEN)
    relay, _ = started(start_relay, *(each.replace("FILE", str(tokens)) for each in options))
    relay.process.send_signal(signal.SIGTERM)
    assert relay.wait() == 0
    found = [each for each in map(json.loads, relay.log) if each["level"] == "WARNING"]
    assert len(found) == bool(said)
    if said:
        assert found[0]["event"] == "open_pages"
        assert said in found[0]["message"]
