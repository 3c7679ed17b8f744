"""`clearfunds pub` and `clearfunds sub` as processes, with each other and with mosquitto's."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
import uuid
from contextlib import suppress
from datetime import datetime
from shutil import which
from typing import TYPE_CHECKING

import pytest

from tests import forks
from tests.cli.conftest import SECONDS
from tests.transports import conftest as servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import RelayUnderTest

    Clearfunds = Callable[..., subprocess.CompletedProcess[str]]
    Subscribe = Callable[..., "Subscriber"]

mosquitto = servers.mosquitto  # a fixture


class Subscriber:
    """`clearfunds sub` as a process that has subscribed."""

    def __init__(self, url: str, options: tuple[str, ...], stdout: int = subprocess.PIPE) -> None:
        self.process = forks.start(
            *("sub", "--url", url, "--log-level", "info", *options),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        # A test that waits for a subscriber that never is one ends with it.
        guard = threading.Timer(SECONDS, self.process.kill)
        guard.start()
        line = self.process.stderr.readline()
        guard.cancel()
        assert b"subscribed to" in line, line

    def output(self) -> bytes:
        """Wait for its end and return what it wrote."""
        output: bytes = self.process.communicate(timeout=SECONDS)[0]
        return output


@pytest.fixture
def url(start_relay: Callable[..., RelayUnderTest]) -> str:
    return f"mqtt+tcp://127.0.0.1:{start_relay('--listen', 'mqtt+tcp://127.0.0.1:0').mqtt_port()}"


@pytest.fixture
def subscribe(url: str) -> Iterator[Subscribe]:
    subscribers: list[Subscriber] = []

    def start(*options: str) -> Subscriber:
        subscribers.append(Subscriber(url, options))
        return subscribers[-1]

    yield start
    for subscriber in subscribers:
        subscriber.process.kill()
        subscriber.process.communicate()


@pytest.mark.parametrize("qos", ["0", "1"])
def test_a_message(url: str, subscribe: Subscribe, clearfunds: Clearfunds, qos: str) -> None:
    subscriber = subscribe("news/+", "--count", "2", "--qos", qos)
    sent = clearfunds("pub", "--url", url, "-t", "news/today", "-m", "grüß dich", "--qos", qos)
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, "", "")
    assert clearfunds("pub", "-u", url, "-t", "elsewhere", "-m", "no", "-q", qos).returncode == 0
    assert clearfunds("pub", "-u", url, "-t", "news/x", "-m", "", "-q", qos).returncode == 0
    assert subscriber.output() == "grüß dich\n\n".encode()
    assert subscriber.process.returncode == 0


def test_lines_of_stdin_are_messages(
    url: str, subscribe: Subscribe, clearfunds: Clearfunds
) -> None:
    subscriber = subscribe("lines", "--count", "5000")
    text = "".join(f"line {number}\n" for number in range(4_999)) + "last, without an end"
    assert clearfunds("pub", "--url", url, "--topic", "lines", stdin=text).returncode == 0
    assert subscriber.output().decode() == text + "\n"


def test_a_file_of_any_bytes_many_times(
    url: str, subscribe: Subscribe, clearfunds: Clearfunds, tmp_path: Path
) -> None:
    content = bytes(range(256)) * 400
    (tmp_path / "file").write_bytes(content)
    subscriber = subscribe("file", "--count", "3", "--format", "raw")
    file = str(tmp_path / "file")
    sent = clearfunds("pub", "--url", url, "-t", "file", "--file", file, "--count", "3", "-q", "2")
    assert sent.returncode == 0
    assert subscriber.output() == content * 3


def test_json_says_all_there_is_to_say(
    url: str, subscribe: Subscribe, clearfunds: Clearfunds, tmp_path: Path
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    subscriber = subscribe(
        "a/#", "--topic", "ignored", "--count", "2", "--format", "json", "-q", "1"
    )
    clearfunds("pub", "--url", url, "-t", "a/text", "-m", "zwölf\n", "-q", "1")
    clearfunds("pub", "--url", url, "-t", "a/binary", "-f", str(tmp_path / "binary"))
    text, binary = (json.loads(line) for line in subscriber.output().splitlines())
    assert datetime.fromisoformat(text.pop("time")).utcoffset() is not None
    del binary["time"]
    assert text == {"topic": "a/text", "qos": 1, "retain": False, "payload": "zwölf\n"}
    assert binary == {"topic": "a/binary", "qos": 0, "retain": False, "payload_base64": "/wA="}


EVIL = "\x1b]0;title\x07\x1b[2J\u202etxt.exe\x9b31m\ta\r\nline"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ((), "\\x1b]0;title\\x07\\x1b[2J\\u202etxt.exe\\x9b31m\ta\\r\r\nline\r\n\\xff\r\n"),
        (
            ("--show-topic",),
            "a/\\x1b[1m \\x1b]0;title\\x07\\x1b[2J\\u202etxt.exe\\x9b31m\\ta\\r\\nline\r\n"
            "a/\\x1b[1m \\\\xff\r\n".replace("\\\\", "\\"),
        ),
        (("--format", "raw"), None),
    ],
)
def test_a_terminal_is_not_driven_by_whoever_publishes(
    url: str, clearfunds: Clearfunds, tmp_path: Path, options: tuple[str, ...], shown: str | None
) -> None:
    (tmp_path / "evil").write_bytes(EVIL.encode())
    (tmp_path / "binary").write_bytes(b"\xff")
    master, slave = pty.openpty()
    try:
        subscriber = Subscriber(url, ("a/#", "--count", "2", *options), slave)
        for name in ("evil", "binary"):
            file = str(tmp_path / name)
            run = clearfunds("pub", "--url", url, "-t", "a/\x1b[1m", "--file", file)
            assert run.returncode == 0, run.stderr
        subscriber.output()
        os.close(slave)
        seen = b""
        with suppress(OSError):  # its end
            while piece := os.read(master, 65536):
                seen += piece
    finally:
        os.close(master)
    if shown is None:
        assert b"\x1b[2J" in seen
    else:
        assert seen.decode() == shown


def test_what_a_server_says_does_not_drive_it_either(
    clearfunds: Clearfunds, capsys: pytest.CaptureFixture[str]
) -> None:
    run = clearfunds("pub", "--url", "\x1b[2J://x", "-t", "t", "-m", "x")
    assert run.returncode == 2
    assert "\x1b" not in run.stderr
    assert "\\x1b[2J" in run.stderr


def test_topics_before_texts_and_bytes_that_are_no_text(
    url: str, subscribe: Subscribe, clearfunds: Clearfunds, tmp_path: Path
) -> None:
    (tmp_path / "binary").write_bytes(b"ok \xff")
    subscriber = subscribe("b/+", "c", "--count", "2", "--show-topic")
    clearfunds("pub", "--url", url, "-t", "b/1", "-f", str(tmp_path / "binary"))
    clearfunds("pub", "--url", url, "-t", "c", "-m", "two words")
    assert subscriber.output() == b"b/1 ok \\xff\nc two words\n"


@pytest.mark.usefixtures("as_a_user")
def test_a_retained_message_is_there_for_those_who_come_later(
    url: str, clearfunds: Clearfunds
) -> None:
    clearfunds("pub", "--url", url, "-t", "state", "-m", "open", "--retain", "-q", "1")
    came = clearfunds("sub", "--url", url, "state", "--count", "1", "--format", "json")
    line = json.loads(came.stdout)
    assert (line["payload"], line["retain"]) == ("open", True)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_subscriber(subscribe: Subscribe, number: signal.Signals) -> None:
    subscriber = subscribe("x")
    subscriber.process.send_signal(number)
    assert subscriber.output() == b""
    assert subscriber.process.returncode == 0


@pytest.mark.usefixtures("as_a_user")
def test_a_signal_before_the_last_message_is_a_failure(subscribe: Subscribe) -> None:
    subscriber = subscribe("x", "--count", "2")
    subscriber.process.terminate()
    _, said = subscriber.process.communicate(timeout=SECONDS)
    assert subscriber.process.returncode == 1
    assert b"0 of 2 messages" in said


@pytest.mark.usefixtures("as_a_user")
def test_a_closed_pipe_ends_a_subscriber_without_a_word(
    url: str, subscribe: Subscribe, clearfunds: Clearfunds
) -> None:
    subscriber = subscribe("x")
    assert subscriber.process.stdout is not None
    subscriber.process.stdout.close()
    clearfunds("pub", "--url", url, "-t", "x", "-m", "nobody reads this")
    assert subscriber.process.wait(timeout=SECONDS) == 1
    assert subscriber.process.stderr is not None
    assert subscriber.process.stderr.read() == b""
    subscriber.process.stdout = None


@pytest.mark.usefixtures("as_a_user")
def test_over_a_unix_socket(
    start_relay: Callable[..., RelayUnderTest], clearfunds: Clearfunds, tmp_path: Path
) -> None:
    unix = f"mqtt+unix://{tmp_path}/mqtt"
    start_relay("--listen", unix).ready()
    assert clearfunds("pub", "--url", unix, "-t", "t", "-m", "m", "-r", "-q", "1").returncode == 0
    assert clearfunds("sub", "--url", unix, "t", "--count", "1").stdout == "m\n"


def test_options_from_environment_and_file(
    url: str, clearfunds: Clearfunds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "clearfunds.toml"
    file.write_text(
        f'[pub]\nurl = "{url}"\nretain = true\nqos = 1\ntopic = "from/file"\n'
        f'[sub]\nurl = "{url}"\ntopic = ["from/file", "from/environment"]\ncount = 1\n'
        "show_topic = true\n",
        "utf-8",
    )
    monkeypatch.setenv("CLEARFUNDS_CONFIG", str(file))
    assert clearfunds("pub", "-m", "1").returncode == 0
    assert clearfunds("sub").stdout == "from/file 1\n"
    monkeypatch.setenv("CLEARFUNDS_PUB_TOPIC", "from/environment")
    assert clearfunds("pub", "-m", "2").returncode == 0
    assert sorted(clearfunds("sub", "--count", "2").stdout.splitlines()) == [
        "from/environment 2",
        "from/file 1",
    ]
    assert clearfunds("pub", "-m", "3", "-t", "from/line").returncode == 0
    assert clearfunds("sub", "from/line").stdout == "from/line 3\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["pub", "-m", "x"], "--topic"),
        (["pub", "-t", "t", "-m", "x", "-f", "y"], "exclude each other"),
        (["pub", "-t", "t", "--count", "2"], "--count"),
        (["pub", "-t", "t", "-f", "no/such/file"], "no/such/file"),
        (["pub", "-t", "t", "-m", "x", "--qos", "3"], "--qos"),
        (["pub", "-t", "t", "-m", "x", "--url", "ftp://somewhere"], "ftp://somewhere"),
        (["pub", "-t", "t", "-m", "x", "--url", "somewhere:port"], "somewhere:port"),
        (["sub"], "no topic"),
        (["sub", "t", "--show-topic", "--format", "raw"], "--show-topic"),
        (["sub", "t", "--count", "0"], "--count"),
        (["sub", "t", "--persistent"], "--client-id"),
        (["sub", "t", "--session-expiry", "9"], "--persistent"),
        (["sub", "t", "--retained", "at times"], "--retained"),
        (["sub", "t", "--mqtt", "3.1.1", "--no-local"], "--no-local needs MQTT 5"),
        (["pub", "-t", "t", "-m", "x", "--user-property", "x"], "NAME=VALUE"),
        (["pub", "-t", "t", "-m", "x", "--mqtt", "4"], "--mqtt"),
    ],
)
def test_wrong_use_is_status_2_and_one_line(
    complaint: Clearfunds, argv: list[str], said: str
) -> None:
    run = complaint(*argv)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith(f"clearfunds {argv[0]}: ")
    assert said in run.stderr


@pytest.mark.parametrize(
    "argv", [["pub", "-m", "x", "-t", "not/#/a topic"], ["sub", "not/#/a filter"]]
)
def test_a_topic_that_is_none_is_wrong_use(
    url: str, clearfunds: Clearfunds, argv: list[str]
) -> None:
    run = clearfunds(*argv, "--url", url)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "not/#/a" in run.stderr


@pytest.mark.parametrize("argv", [["pub", "-t", "t", "-m", "x"], ["sub", "t"]])
@pytest.mark.parametrize("where", ["127.0.0.1:1", "mqtt+unix:///no/such/socket"])
def test_nobody_there_is_status_1_and_one_line(
    clearfunds: Clearfunds, argv: list[str], where: str
) -> None:
    run = clearfunds(*argv, "--url", where)
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert "127.0.0.1" in run.stderr or "/no/such/socket" in run.stderr


def test_a_relay_that_ends_is_one_line(
    start_relay: Callable[..., RelayUnderTest],
) -> None:
    relay = start_relay("--listen", "mqtt+tcp://127.0.0.1:0")
    subscriber = Subscriber(f"mqtt://127.0.0.1:{relay.mqtt_port()}", ("t",))
    relay.process.terminate()
    output, said = subscriber.process.communicate(timeout=SECONDS)
    assert subscriber.process.returncode == 1
    assert output == b""
    assert said.count(b"\n") == 1


@pytest.mark.parametrize("server", ["url", "mosquitto"])
def test_a_persistent_subscriber_misses_nothing_while_it_is_away(
    server: str, request: pytest.FixtureRequest, clearfunds: Clearfunds
) -> None:
    where = request.getfixturevalue(server)
    url = where if server == "url" else f"mqtt://127.0.0.1:{where}"
    topic = f"cli/{uuid.uuid4().hex}"
    options = (topic, "--persistent", "--client-id", topic, "--qos", "2")
    subscriber = Subscriber(url, options)
    assert subscriber.process.stderr is not None
    assert b"the session is a new one" in subscriber.process.stderr.readline()
    subscriber.process.terminate()
    assert subscriber.output() == b""
    lines = "".join(f"{number}\n" for number in range(100))
    assert clearfunds("pub", "--url", url, "-t", topic, "-q", "2", stdin=lines).returncode == 0
    # What is not written is not acknowledged, though it has come.
    some = clearfunds("sub", "--url", url, *options, "--count", "30", "--log-level", "info")
    assert "the session was kept" in some.stderr
    rest = clearfunds("sub", "--url", url, *options, "--count", "70")
    assert some.stdout + rest.stdout == lines
    assert some.stdout.count("\n") == 30


@pytest.mark.skipif(which("mosquitto_pub") is None, reason="mosquitto's clients are not installed")
def test_with_the_clients_of_mosquitto(
    url: str, subscribe: Subscribe, clearfunds: Clearfunds
) -> None:
    port = url.rsplit(":", 1)[1]
    subscriber = subscribe("m/+", "--count", "1", "--show-topic", "-q", "1")
    subprocess.run(
        ["mosquitto_pub", "-p", port, "-q", "1", "-t", "m/1", "-m", "from mosquitto", "-r"],
        check=True,
        timeout=SECONDS,
    )
    assert subscriber.output() == b"m/1 from mosquitto\n"
    clearfunds("pub", "--url", url, "-t", "m/2", "-m", "to mosquitto", "-r", "-q", "1")
    came = subprocess.run(
        ["mosquitto_sub", "-p", port, "-t", "m/2", "-C", "1", "-W", "10"],
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )
    assert came.stdout == b"to mosquitto\n"


MQTT_5 = [
    "--content-type", "text/plain", "--response-topic", "answers", "--correlation-data", "n1",
    "--message-expiry", "60", "--user-property", "a=1", "--user-property", "a=2=3",
]  # fmt: skip


@pytest.mark.parametrize("server", ["url", "mosquitto"])
def test_what_mqtt_5_says_of_a_message(
    server: str, request: pytest.FixtureRequest, clearfunds: Clearfunds
) -> None:
    where = request.getfixturevalue(server)
    url = where if server == "url" else f"mqtt://127.0.0.1:{where}"
    topic = f"cli/{uuid.uuid4().hex}"
    subscriber = Subscriber(
        url,
        (topic, "--mqtt", "5", "--count", "1", "--format", "json", "-q", "1", "--retained", "new"),
    )
    sent = clearfunds("pub", "--url", url, "-t", topic, "-m", "x", "-q", "1", *MQTT_5)
    assert (sent.returncode, sent.stderr) == (0, "")
    line = json.loads(subscriber.output())
    assert 0 < line.pop("message_expiry") <= 60
    del line["time"]
    assert line == {
        "topic": topic,
        "qos": 1,
        "retain": False,
        "payload": "x",
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data": "n1",
        "user_properties": [["a", "1"], ["a", "2=3"]],
    }


def test_what_the_relay_refuses_is_an_error_with_its_reason(
    url: str, clearfunds: Clearfunds
) -> None:
    run = clearfunds("pub", "--url", url, "-t", "$SYS/x", "-m", "x", "-q", "1", "--mqtt", "5")
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert "not authorized" in run.stderr
    # With 3.1.1 there is no way to say so.
    assert clearfunds("pub", "-u", url, "-t", "$SYS/x", "-m", "x", "-q", "1").returncode == 0
