"""Addresses: every command takes `--url`, and one spelling holds for all of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pika
import pytest

from tests import forks
from tests.transports.certificates import papers_in

from .conftest import RelayUnderTest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    Clearfunds = Callable[..., subprocess.CompletedProcess[str]]

LOGIN: Final = "anna:secret@"
TOKEN: Final = "let-me-in-let-me-in"

MQTT: Final = {
    "mqtt": f"mqtt://{LOGIN}127.0.0.1:{{mqtt}}",
    "mqtt+tcp": f"mqtt+tcp://{LOGIN}127.0.0.1:{{mqtt}}",
    "host and port": f"{LOGIN}127.0.0.1:{{mqtt}}",
    "mqtts": f"mqtts://{LOGIN}127.0.0.1:{{mqtts}}",
    "mqtt+tls": f"mqtt+tls://{LOGIN}127.0.0.1:{{mqtts}}",
}
AMQP: Final = {
    "amqp": f"amqp://{LOGIN}127.0.0.1:{{amqp}}",
    "amqp+tcp": f"amqp+tcp://{LOGIN}127.0.0.1:{{amqp}}",
    "host and port": f"{LOGIN}127.0.0.1:{{amqp}}",
    "amqps": f"amqps://{LOGIN}127.0.0.1:{{amqps}}",
    "amqp+tls": f"amqp+tls://{LOGIN}127.0.0.1:{{amqps}}",
}
PAGES: Final = {
    "http": "http://127.0.0.1:{http}",
    "host and port": "127.0.0.1:{http}",
    "https": "https://127.0.0.1:{https}",
}

MQTT_COMMANDS: Final = {
    "pub": ("pub", "-t", "a", "-m", "x", "-q", "1", "--url"),
    "sub": ("sub", "held", "--count", "1", "--url"),
    "perf": ("perf", "--seconds", "0.2", "--rate", "50", "--drain", "5", "--quiet", "--url"),
}
OLDER: Final = {
    "perf --uri": ("perf", "--seconds", "0.2", "--rate", "50", "--quiet", "--uri"),
    "pub -u": ("pub", "-t", "a", "-m", "x", "-q", "1", "-u"),
}
AMQP_COMMANDS: Final = {
    "purge": ("queues", "purge", "jobs", "--url"),
    "move": ("queues", "move", "jobs", "more", "--url"),
    "purge --amqp": ("queues", "purge", "jobs", "--amqp"),
}
PAGES_COMMANDS: Final = {
    "ctl": ("ctl", "limit", "server", "--items", "5000", "--url"),
    "top": ("top", "--once", "--url"),
    "top URL": ("top", "--once"),
    "trace": ("trace", "--wait", "0.1", "--account", "server", "--url"),
    "audit": ("audit", "--url"),
    "audit URL": ("audit",),
    "queues list": ("queues", "list", "--url"),
    "queues list URL": ("queues", "list"),
    "queues show": ("queues", "show", "jobs", "--url"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run a relay that listens for everything, with a queue; return its ports, and files."""
    folder = tmp_path_factory.mktemp("addresses")
    papers = papers_in(folder / "papers")
    shown = papers.for_server()
    tls = ("--tls-certificate", str(shown.chain), "--tls-key", str(shown.key))
    users, token = str(folder / "users"), folder / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    pages = ("--http-token", str(token))
    assert not forks.clearfunds("passwd", users, "anna", stdin="secret\n").returncode
    schemes = ("mqtt", "mqtts", "amqp", "amqps")
    relay = RelayUnderTest(
        (
            *(f"--listen={scheme}://127.0.0.1:0" for scheme in schemes),
            *("--listen", f"mqtt+unix://{folder}/socket", "--http", "127.0.0.1:0"),
            *pages,
            *("--passwords", users, *tls),
        )
    )
    secure = RelayUnderTest(
        ("--listen", "amqp://127.0.0.1:0", "--http", "https://127.0.0.1:0", *pages, *tls)
    )
    try:
        ports = [_port(line) for line in relay.ready() if "unix" not in str(line)]
        found: dict[str, str] = dict(zip((*schemes, "http"), ports, strict=True))
        _declare(int(found["amqp"]), "jobs", "more")
        amqp, https = (_port(line) for line in secure.ready())
        _declare(int(amqp), "jobs")
        retained = ("-t", "held", "-m", "x", "-q", "1", "-r")
        url = MQTT["mqtt"].format_map(found)
        assert not forks.clearfunds("pub", *retained, "--url", url).returncode
        yield {
            **found,
            "https": https,
            "ca": str(papers.trusted),
            "socket": f"{folder}/socket",
        }
    finally:
        relay.close()
        secure.close()


def _port(line: dict[str, str]) -> str:
    (url,) = line.values()
    match = re.search(r":(\d+)$", url)
    assert match is not None, line
    return match[1]


def _declare(port: int, *queues: str) -> None:
    credentials = pika.PlainCredentials("anna", "secret")
    parameters = pika.ConnectionParameters("127.0.0.1", port, credentials=credentials)
    connection = pika.BlockingConnection(parameters)
    for queue in queues:
        connection.channel().queue_declare(queue)
    connection.close()


@pytest.mark.parametrize("spelling", MQTT)
@pytest.mark.parametrize("command", MQTT_COMMANDS)
def test_a_server_of_mqtt(
    command: str, spelling: str, places: dict[str, str], clearfunds: Clearfunds
) -> None:
    ca = ("--tls-ca", places["ca"]) if spelling in ("mqtts", "mqtt+tls") else ()
    done = clearfunds(*MQTT_COMMANDS[command], MQTT[spelling].format_map(places), *ca)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == {"pub": "", "sub": "x\n"}.get(command, done.stdout)


@pytest.mark.parametrize("command", ["pub", "sub"])
def test_a_socket(command: str, places: dict[str, str], clearfunds: Clearfunds) -> None:
    login = ("--username", "anna", "--password", "secret")
    url = f"mqtt+unix://{places['socket']}"
    done = clearfunds(*MQTT_COMMANDS[command], url, *login)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", OLDER)
def test_an_older_spelling(command: str, places: dict[str, str], clearfunds: Clearfunds) -> None:
    done = clearfunds(*OLDER[command], MQTT["mqtt"].format_map(places))
    assert (done.returncode, done.stderr) == (0, "")


def test_options_go_before_the_login_in_a_url(
    places: dict[str, str], clearfunds: Clearfunds
) -> None:
    url = f"mqtt://bert:other@127.0.0.1:{places['mqtt']}"
    login = ("--username", "anna", "--password", "secret")
    assert clearfunds(*MQTT_COMMANDS["pub"], url, *login).returncode == 0
    refused = clearfunds(*MQTT_COMMANDS["pub"], url)
    assert refused.returncode == 1
    wrong = clearfunds(*MQTT_COMMANDS["pub"], "ftp://anna:secret@127.0.0.1")
    assert wrong.returncode == 2
    assert '"ftp://anna:...@127.0.0.1" is no address of an MQTT server' in wrong.stderr


@pytest.mark.parametrize("spelling", AMQP)
@pytest.mark.parametrize("command", AMQP_COMMANDS)
def test_a_broker(
    command: str, spelling: str, places: dict[str, str], clearfunds: Clearfunds
) -> None:
    ca = ("--tls-ca", places["ca"]) if spelling in ("amqps", "amqp+tls") else ()
    done = clearfunds(*AMQP_COMMANDS[command], AMQP[spelling].format_map(places), *ca)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "0\n")


@pytest.mark.parametrize("spelling", PAGES)
@pytest.mark.parametrize("command", PAGES_COMMANDS)
def test_pages(
    command: str,
    spelling: str,
    places: dict[str, str],
    clearfunds: Clearfunds,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLEARFUNDS_HTTP_TOKEN", TOKEN)
    ca = ("--tls-ca", places["ca"]) if spelling == "https" else ()
    done = clearfunds(*PAGES_COMMANDS[command], PAGES[spelling].format_map(places), *ca)
    if command == "trace":  # An account that sends nothing.
        assert done.stderr == "clearfunds trace: nothing came from server within 0.1 s\n"
        return
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_a_queue_behind_the_url_of_its_relay(
    places: dict[str, str], clearfunds: Clearfunds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEARFUNDS_HTTP_TOKEN", TOKEN)
    done = clearfunds("queues", "show", PAGES["http"].format_map(places), "jobs")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("queue      jobs\n")
    for wrong in ((), ("a", "b", "c"), ("--url", "h", "a", "b")):
        done = clearfunds("queues", "show", *wrong)
        assert done.returncode == 2
        assert "give the name of one queue" in done.stderr
