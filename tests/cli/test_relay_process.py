"""`clearfunds relay` as a process: its lines, its pages, how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

from clearfunds._cli import run as command
from clearfunds.accounts import DEFAULT_LIMIT_BYTES
from clearfunds.transports.mqtt import (
    Connect,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    encode,
)
from tests.cli.peers import PUBLISH, connect, publish_until_it_waits, subscribe_to_all
from tests.signals import heard
from tests.transports.certificates import papers_in
from tests.transports.mqtt.users import user_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import RelayUnderTest

    StartRelay = Callable[..., RelayUnderTest]
    Clearfunds = Callable[..., subprocess.CompletedProcess[str]]

LOG_LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) clearfunds[.a-z_]*: .+\n"
)


@pytest.mark.usefixtures("as_a_user")
def test_each_address_is_a_line_then_ready(start_relay: StartRelay, tmp_path: Path) -> None:
    path = tmp_path / "mqtt.socket"
    relay = start_relay(
        *("--listen", "mqtt+tcp://127.0.0.1:0", "--listen", f"mqtt+unix://{path}"),
        *("--listen", "mqtt+tcp://127.0.0.1:0", "--http", "127.0.0.1:0"),
    )
    first, unix, second, pages = relay.ready()
    ports: list[int] = []
    for line in (first, second):
        match = re.fullmatch(r"mqtt\+tcp://127\.0\.0\.1:(\d+)", line["listening"])
        assert match is not None
        ports.append(int(match[1]))
        with socket.create_connection(("127.0.0.1", ports[-1]), timeout=60):
            pass
    assert 0 not in ports
    assert ports[0] != ports[1]
    assert unix == {"listening": f"mqtt+unix://{path}"}
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    with urlopen(f"{pages['http']}/readyz", timeout=60) as page:
        assert page.status == 200
    with urlopen(f"{pages['http']}/ledger.json", timeout=60) as page:
        assert page.headers["Content-Type"].startswith("application/json")


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0(start_relay: StartRelay, number: signal.Signals) -> None:
    relay = start_relay("--listen", "mqtt+tcp://127.0.0.1:0")
    port = relay.mqtt_port()
    relay.process.send_signal(number)
    assert relay.wait() == 0
    assert relay.rest() == ""
    assert any(number.name in line for line in relay.log)
    assert all(LOG_LINE.fullmatch(line) for line in relay.log), relay.log
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)


def test_what_is_owed_is_delivered_before_the_end(start_relay: StartRelay) -> None:
    relay = start_relay("--listen", "mqtt+tcp://127.0.0.1:0", "--grace", "600", "--stuck", "wait")
    port = relay.mqtt_port()
    with connect(port, b"sub") as subscriber, connect(port, b"pub") as publisher:
        subscribe_to_all(subscriber)
        publish_until_it_waits(publisher)
        relay.process.terminate()
        came = 0
        while piece := subscriber.recv(1 << 20):
            came += len(piece)
        assert relay.wait() == 0
    # As many bytes as the limit allows were owed when the publisher had to wait, and the kernel had
    # taken some, too: together more than 8,500 messages.
    assert came > 8_500 * len(PUBLISH) > DEFAULT_LIMIT_BYTES
    assert came % len(PUBLISH) == 0
    assert not any("not delivered" in line for line in relay.log)


@pytest.mark.usefixtures("as_a_user")
def test_what_cannot_be_delivered_is_said(start_relay: StartRelay) -> None:
    relay = start_relay("--listen", "mqtt+tcp://127.0.0.1:0", "--grace", "0.5", "--stuck", "wait")
    port = relay.mqtt_port()
    with connect(port, b"sub") as subscriber, connect(port, b"pub") as publisher:
        subscribe_to_all(subscriber)
        publish_until_it_waits(publisher)
        started = time.monotonic()
        relay.process.terminate()
        assert relay.wait() == 0
        assert time.monotonic() - started >= 0.5
    told = [line for line in relay.log if "not delivered" in line]
    assert told
    assert "sub" in told[0]
    assert all(LOG_LINE.fullmatch(line) for line in relay.log), relay.log


@pytest.mark.usefixtures("as_a_user")
def test_a_second_signal_ends_it_at_once(start_relay: StartRelay) -> None:
    relay = start_relay("--listen", "mqtt+tcp://127.0.0.1:0", "--grace", "600", "--stuck", "wait")
    port = relay.mqtt_port()
    with connect(port, b"sub") as subscriber, connect(port, b"pub") as publisher:
        subscribe_to_all(subscriber)
        publish_until_it_waits(publisher)
        relay.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            relay.process.wait(timeout=2)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=60)
        relay.process.send_signal(signal.SIGINT)
        assert relay.wait() == 1
    assert any("SIGINT" in line for line in relay.log)


def test_an_address_in_use_is_one_line(clearfunds: Clearfunds) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = clearfunds("relay", "--listen", f"mqtt+tcp://127.0.0.1:{port}")
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert str(port) in run.stderr


GATEKEEPER = "syndicate+tcp://127.0.0.1:0?gatekeeper"


@pytest.mark.parametrize("answer", ["ok", "accepted"])
def test_a_minted_reference_passes_the_gatekeeper(
    start_relay: StartRelay, clearfunds: Clearfunds, tmp_path: Path, answer: str
) -> None:
    key = ("--key-file", str(tmp_path / "relay.key"))
    ref = clearfunds("mint", *key, "--oid", "here", "--new-key").stdout.strip()
    elsewhere = clearfunds("mint", *key, "--oid", "elsewhere").stdout.strip()
    relay = start_relay(
        *("--listen", GATEKEEPER, "--sturdy-key-file", key[1], "--sturdy-oid", "here"),
        *("--resolve-answer", answer),
    )
    port = relay.port(GATEKEEPER)
    with socket.create_connection(("127.0.0.1", port), 10) as client, client.makefile("rw") as text:
        # It answers in the text that it is spoken to in.
        text.write(f"[[0 <A <resolve {elsewhere} #:[0 0]> 1>]]\n")
        text.flush()
        refusal = "rejected" if answer == "accepted" else "error"
        assert re.fullmatch(rf"\[\[0 <A <{refusal} .+> \d+>\]\]\n", text.readline())
        text.write(f"[[0 <A <resolve {ref} #:[0 1]> 2>]]\n")
        text.flush()
        assert re.fullmatch(rf"\[\[1 <A <{answer} #:\[0 1\]> \d+>\]\]\n", text.readline())
        # What it was given is the dataspace.
        text.write("[[1 <A <Observe <bind <group <rec Says> {}>> #:[0 2]> 3>]]\n")
        text.write("[[1 <M <Says hello>>]]\n")
        text.flush()
        assert text.readline() == "[[2 <M [<Says hello>]>]]\n"
    relay.process.terminate()
    assert relay.wait() == 0
    key_text = (tmp_path / "relay.key").read_text().strip()
    assert not any(key_text in line for line in relay.log)


def test_a_gatekeeper_without_a_key_is_a_usage_error(clearfunds: Clearfunds) -> None:
    run = clearfunds("relay", "--listen", GATEKEEPER)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert "--sturdy-key-file" in run.stderr
    assert "clearfunds mint" in run.stderr


def hung_up(relay: RelayUnderTest, event: str) -> str:
    """Send SIGHUP; return the line of log that comes of it."""
    before = len(relay.log)
    relay.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for logged in relay.log[before:]:
            if json.loads(logged).get("event") == event:
                return logged
        time.sleep(0.01)
    raise AssertionError(relay.log)


def test_passwords_are_read_again_at_sighup(start_relay: StartRelay, tmp_path: Path) -> None:
    file = tmp_path / "users"

    def write(text: str) -> None:
        file.write_text(text)
        file.chmod(0o600)

    def said(password: bytes) -> int:
        """Connect as anna; return what the relay says to that."""
        packet = encode(Connect("other", username="anna", password=password))
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(packet)
            return client.recv(4)[3]

    write(user_line("anna", b"one"))
    relay = start_relay(
        *("--listen", "mqtt+tcp://127.0.0.1:0", "--passwords", str(file)),
        *("--log-format", "json"),
    )
    port = relay.mqtt_port()
    assert (said(b"one"), said(b"two")) == (0, 4)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stays:
        stays.sendall(encode(Connect("stays", username="anna", password=b"one")))
        assert stays.recv(4) == b"\x20\x02\x00\x00"
        write(user_line("anna", b"two"))
        hung_up(relay, "reloaded")
        assert (said(b"one"), said(b"two")) == (4, 0)
        write("anna:geheim")
        told = json.loads(hung_up(relay, "not_reloaded"))
        assert told["level"] == "ERROR"
        assert told["reason"].startswith(f"{file}, line 1: the password is not hashed")
        file.unlink()
        assert "No such file or directory" in hung_up(relay, "not_reloaded")
        assert (said(b"one"), said(b"two")) == (4, 0)
        write(user_line("anna", b"three"))
        hung_up(relay, "reloaded")
        assert (said(b"two"), said(b"three")) == (4, 0)
        stays.sendall(encode(PingReq()))
        assert stays.recv(2) == encode(PingResp())
    relay.process.terminate()
    assert relay.wait() == 0
    assert not any(secret in "".join(relay.log) for secret in ("geheim", "three"))


def test_the_access_control_list_is_read_again_at_sighup(
    start_relay: StartRelay, tmp_path: Path
) -> None:
    file = tmp_path / "acl"
    file.write_text("user anna\ntopic readwrite a/#\n")
    relay = start_relay(
        *("--listen", "mqtt+tcp://127.0.0.1:0", "--acl", str(file)),
        *("--log-format", "json"),
    )
    port = relay.mqtt_port()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:

        def echoed(*topics: str) -> bytes:
            """Publish, and ping; return what comes until the answer."""
            client.sendall(b"".join(encode(Publish(topic)) for topic in topics))
            client.sendall(encode(PingReq()))
            got = b""
            while not got.endswith(encode(PingResp())):
                got += client.recv(100)
            return got.removesuffix(encode(PingResp()))

        client.sendall(encode(Connect("it", username="anna")))
        assert client.recv(4) == b"\x20\x02\x00\x00"
        client.sendall(encode(Subscribe(9, (("#", 0),))))
        assert client.recv(5) == encode(SubAck(9, (0,)))
        assert echoed("a/1", "b") == encode(Publish("a/1"))
        file.write_text("user anna\ntopic write a/#\ntopic b\n")
        assert json.loads(hung_up(relay, "reloaded"))["what"] == "access control list"
        assert echoed("a/1", "b") == encode(Publish("b"))
        file.write_text("user anna\ntopic a/#\ntopics b\n")
        told = json.loads(hung_up(relay, "not_reloaded"))
        assert told["level"] == "ERROR"
        assert told["reason"].startswith(f"{file}, line 3: 'topics b' does not begin with")
        file.unlink()
        assert "No such file or directory" in hung_up(relay, "not_reloaded")
        assert echoed("a/1", "b") == encode(Publish("b"))
    relay.process.terminate()
    assert relay.wait() == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--acl", "{}/none"), "{}/none: No such file or directory"),
        (("--acl", "{}/acl"), "{}/acl, line 1: 'bert' does not begin with user, topic or pattern"),
        (("--acl-default", "deny"), "give --acl FILE"),
    ],
)
def test_a_list_that_is_wrong_is_a_usage_error(
    complaint: Clearfunds, tmp_path: Path, options: tuple[str, str], error: str
) -> None:
    (tmp_path / "acl").write_text("bert\n")
    name, value = options
    run = complaint("relay", "--listen", "mqtt+tcp://127.0.0.1:0", name, value.format(tmp_path))
    assert run.returncode in (1, 2)
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert error.format(tmp_path) in run.stderr


def test_certificates_are_read_again_at_sighup(start_relay: StartRelay, tmp_path: Path) -> None:
    papers = papers_in(tmp_path / "papers")
    shown = papers.for_server()
    files = ("--tls-certificate", str(shown.chain), "--tls-key", str(shown.key))
    relay = start_relay(
        *("--listen", "mqtt+tls://127.0.0.1:0", *files),
        *("--log-format", "json"),
    )
    port = relay.port("mqtt+tls://127.0.0.1:0")
    context = papers.for_client().for_client()

    def serial() -> object:
        """Connect; return the number of the certificate that the relay shows."""
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as below,
            context.wrap_socket(below, server_hostname="localhost") as client,
        ):
            client.sendall(encode(Connect("other")))
            assert client.recv(4) == b"\x20\x02\x00\x00"
            certificate = client.getpeercert()
            assert certificate is not None
            return certificate["serialNumber"]

    first = serial()
    assert serial() == first
    papers.for_server()
    told = json.loads(hung_up(relay, "reloaded"))
    assert (told["what"], told["message"]) == (
        "certificates",
        "SIGHUP: the certificates were read again",
    )
    assert serial() != first
    relay.process.terminate()
    assert relay.wait() == 0


def test_a_certificate_that_nobody_is_shown_is_a_warning(
    start_relay: StartRelay, tmp_path: Path
) -> None:
    shown = papers_in(tmp_path / "papers").for_server()
    files = ("--tls-certificate", str(shown.chain), "--tls-key", str(shown.key))
    for listen, warned in (("mqtt+tcp://127.0.0.1:0", True), ("mqtt+wss://127.0.0.1:0", False)):
        relay = start_relay("--listen", listen, *files)
        relay.ready()
        relay.process.terminate()
        assert relay.wait() == 0
        assert any("no listener uses the certificate" in line for line in relay.log) is warned


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--listen", "mqtt+tls://127.0.0.1:0"), "--tls-certificate"),
        (("--tls-key", "nowhere.key"), "--tls-key needs --tls-certificate"),
        (("--tls-client-ca", "nowhere.pem"), "--tls-client-ca needs --tls-certificate"),
        (("--tls-certificate", "nowhere.pem"), "cannot read nowhere.pem: No such file"),
    ],
)
def test_certificates_that_are_not_there_are_a_usage_error(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert command(["relay", *options]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert message in told.err


def test_without_files_to_read_again_sighup_changes_nothing(start_relay: StartRelay) -> None:
    with heard(signal.SIGHUP):
        relay = start_relay("--listen", "mqtt+tcp://127.0.0.1:0", "--log-format", "json")
    port = relay.mqtt_port()
    assert "there is no file to read again" in hung_up(relay, "nothing_to_reload")
    connect(port, b"abc").close()


def test_passwords_that_are_none_are_a_usage_error(clearfunds: Clearfunds, tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("anna:geheim\n")
    file.chmod(0o600)
    run = clearfunds("relay", "--passwords", str(file))
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert f"{file}, line 1: the password is not hashed" in run.stderr
    assert "geheim" not in run.stderr


def test_a_websocket_listener_shakes_hands(start_relay: StartRelay) -> None:
    relay = start_relay("--listen", "syndicate+ws://127.0.0.1:0")
    port = relay.port("syndicate+ws://127.0.0.1:0")
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(
            b"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert client.recv(1024).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    "address", ["gopher://127.0.0.1:70", "mqtt+tcp://127.0.0.1:x", "mqtt+wss://127.0.0.1:1", "here"]
)
def test_an_address_that_is_none_is_a_usage_error(complaint: Clearfunds, address: str) -> None:
    run = complaint("relay", "--listen", address)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert address in run.stderr


@pytest.mark.usefixtures("as_a_user")
def test_options_reach_the_process_from_a_file(start_relay: StartRelay, tmp_path: Path) -> None:
    file = tmp_path / "clearfunds.toml"
    file.write_text('[relay]\nlisten = ["mqtt+tcp://127.0.0.1:0"]\nlog_level = "error"\n', "utf-8")
    relay = start_relay("--config", str(file))
    assert len(relay.ready()) == 1
    relay.process.terminate()
    assert relay.wait() == 0
    assert relay.log == []


def test_without_the_extra_it_says_what_to_install() -> None:
    code = (
        "import runpy, sys\n"
        "sys.modules['cyclopts'] = None\n"
        "runpy.run_module('clearfunds', run_name='__main__')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert 'pip install "clearfunds[relay]"' in run.stderr
