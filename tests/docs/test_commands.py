"""Commands in the how-to pages work: each block is copied from the page and run, in its order.

A block that ends with `clearfunds relay` starts that relay; on pages without one there is a relay
at 127.0.0.1:9100, with MQTT and AMQP. The ports are others here.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import tomllib
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.docs.blocks import DOCS
from tests.docs.shell import LOG, SECONDS, blocks_of, other_ports, relay, run, until_logged
from tests.programs import needs

if TYPE_CHECKING:
    from collections.abc import Generator


STANDARD: Final = (
    "clearfunds relay --listen mqtt://127.0.0.1:1884 --listen amqp+tcp://127.0.0.1:0 "
    "--http 127.0.0.1:9100 --store store\n"
)


@contextmanager
def page_run(page: str, folder: Path, environment: dict[str, str]) -> Generator[list[str]]:
    """Run the blocks of a page; return what they printed; its relay runs until the end."""
    text = other_ports("\0".join([STANDARD, *blocks_of(page)]))
    standard, *blocks = text.split("\0")
    if not any("clearfunds relay" in block for block in blocks):
        blocks.insert(0, standard)
    printed: list[str] = []
    with ExitStack() as stack:
        for block in blocks:
            before, starts, command = block.rpartition("clearfunds relay")
            if starts:
                printed.append(run(before, folder, environment))
                running = stack.enter_context(relay(starts + command, folder, environment))
                environment = {**environment, "RELAY": str(running)}
            else:
                printed.append(run(block, folder, environment))
        yield printed


@needs("bash", "curl")
@pytest.mark.parametrize("page", ["alerts.md", "health.md", "http.md"])
def test_the_commands_of_a_page_work(
    page: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    with page_run(page, tmp_path, environment) as printed:
        assert len(printed) > 1


@needs("bash", "mosquitto_passwd", "mosquitto_pub", "mosquitto_sub")
def test_a_move_from_mosquitto(tmp_path: Path, environment: dict[str, str]) -> None:
    with page_run("mosquitto.md", tmp_path, environment) as printed:
        _, there, copied = printed
    assert there.splitlines()[0] == "hello"
    assert copied == "news/today hello\n"


@needs("bash")
def test_the_files_of_a_relay(tmp_path: Path, environment: dict[str, str]) -> None:
    blocks = blocks_of("files.md")
    run(blocks[0], tmp_path, environment)
    assert (tmp_path / "users").read_text("utf-8").startswith("newsroom:SCRAM-SHA-256$")
    # A store that a relay has written.
    with relay(other_ports(STANDARD), tmp_path, environment):
        pass
    assert (tmp_path / "store/clearfunds-store").is_file()
    run(blocks[1], tmp_path, environment)


@needs("bash", "curl", "openssl")
def test_a_relay_with_tls_passwords_and_an_acl(tmp_path: Path, environment: dict[str, str]) -> None:
    with page_run("secure-relay.md", tmp_path, environment) as printed:
        until_logged("the configuration was read again; changed: --limit-items", tmp_path)
        until_logged("the passwords were read again", tmp_path)
    assert "hello" in "".join(printed)
    assert "forged" not in "".join(printed)
    assert "may not publish to 'news/today'" in (tmp_path / LOG).read_text("utf-8")


OPERATED: Final = """
[relay]
listen = ["mqtt://127.0.0.1:1884"]
http = "127.0.0.1:9100"
http-token = "token"

[[relay.tenant]]
name = "press"
user = ["press"]
"""


@contextmanager
def client(port: int, name: str) -> Generator[queue.SimpleQueue[None]]:
    """Run an MQTT client that comes back; each time that it is connected is in the queue."""
    comes: queue.SimpleQueue[None] = queue.SimpleQueue()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, name)
    client.on_connect = lambda *_: comes.put(None)  # pyright: ignore[reportUnknownLambdaType]
    client.reconnect_delay_set(1, 1)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        comes.get(timeout=SECONDS)
        yield comes
    finally:
        client.disconnect()
        client.loop_stop()


@needs("bash", "curl", "openssl")
def test_a_running_relay_is_changed(tmp_path: Path, environment: dict[str, str]) -> None:
    configuration, *blocks = other_ports("\0".join([OPERATED, *blocks_of("operate.md")])).split(
        "\0"
    )
    makes_token, acts, patches, checks = blocks
    run(makes_token, tmp_path, environment)
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0
    (tmp_path / "relay.toml").write_text(configuration, "utf-8")
    port = int(tomllib.loads(configuration)["relay"]["listen"][0].rpartition(":")[2])
    name = f"mqtt:{port}/-/archive"
    with (
        relay("clearfunds relay --config relay.toml", tmp_path, environment),
        client(port, "archive") as comes,
    ):
        done = run(acts, tmp_path, environment)
        comes.get(timeout=SECONDS)  # again
        patched = json.loads(run(patches, tmp_path, environment))
    assert done.count(f"account: {name}\n") == 3
    assert "policy: drop_oldest\n" in done
    assert "over limit: refuse\n" in done
    assert "weight: 2\n" in done
    assert done.endswith(f"disconnected: {name}\n")
    assert (patched["limit_items"], patched["limit_bytes"]) == (500, 8 << 20)
    # Beside these there is a line when the log level that was for a time is over.
    audited = len(
        re.findall(r" clearfunds\.audit: .* \(token 1\): ", (tmp_path / LOG).read_text("utf-8"))
    )
    assert audited == acts.count("clearfunds ctl ") + 1
    assert "no mistake in [relay]" in run(checks, tmp_path, environment)


@needs("bash")
@pytest.mark.parametrize("page", ["fastapi.md", "trio.md"])
def test_a_page_installs_what_there_is(
    page: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    (block,) = blocks_of(page)
    told = run(f"exec 2>&1\n{block}", tmp_path, environment)
    assert "WARNING" not in told  # as for an extra that is not there
    assert "already satisfied: clearfunds[" in told


@needs("bash", "install")
def test_the_commands_that_make_a_service(tmp_path: Path, environment: dict[str, str]) -> None:
    """Below a folder: no user is made, and the environment that is made is this one."""
    (block,) = blocks_of("service.md")
    for place in ("/opt/", "/usr/lib/sysusers.d/", "/etc/systemd/system/"):
        (tmp_path / place[1:]).mkdir(parents=True)
    for place in ("/opt/", "/usr/", "/etc/"):
        assert f" {place}" in block or f"\n{place}" in block
        block = re.sub(rf"(?m)(?<= ){place}|^{place}", f"{tmp_path}{place}", block)
    assert "-g clearfunds " in block
    block = block.replace("-g clearfunds ", f"-g {os.getgid()} ")
    (tmp_path / "systemd").symlink_to(DOCS.parent / "systemd")
    stands_in = f'python3() {{ ln -s {sys.prefix} "$3"; }}\nsystemd-sysusers() {{ :; }}\n'
    told = run(f"exec 2>&1\n{stands_in}{block}", tmp_path, environment)
    assert "WARNING" not in told
    unit = (tmp_path / "etc/systemd/system/clearfunds.service").read_text("utf-8")
    assert "ExecStart=/opt/clearfunds/bin/clearfunds relay" in unit
    assert (tmp_path / "opt/clearfunds/bin/pip").exists()
    assert (tmp_path / "usr/lib/sysusers.d/clearfunds.conf").read_text("utf-8").startswith("u")
    assert (tmp_path / "etc/clearfunds").stat().st_mode & 0o777 == 0o750
