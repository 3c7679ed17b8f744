"""`clearfunds ctl`, against a relay as a process, and against workers."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from tests.cli.workers import ANYWHERE, NAME, Workers, until
from tests.nats_servers import needs_nats
from tests.ports import lasting_port
from tests.transports.peers import connected

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import RelayUnderTest

    Clearfunds = Callable[..., subprocess.CompletedProcess[str]]

TOKEN = "0123456789abcdef"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return file


class Operator:
    """Runs `clearfunds ctl` with a token."""

    def __init__(self, clearfunds: Clearfunds, http: str, token_file: Path) -> None:
        self._run = partial(clearfunds, "ctl")
        self._more = ("--url", http, "--token-file", str(token_file))

    async def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return await trio.to_thread.run_sync(partial(self._run, *argv, *self._more))

    async def do(self, *argv: str) -> str:
        done = await self.run(*argv)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    async def refused(self, *argv: str) -> tuple[int, str]:
        done = await self.run(*argv)
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        return done.returncode, line


async def test_each_change(
    start_relay: Callable[..., RelayUnderTest], clearfunds: Clearfunds, token_file: Path
) -> None:
    relay = start_relay(
        *("--listen", ANYWHERE, "--http", "127.0.0.1:0", "--http-token", str(token_file)),
        *("--tenant", "press,user=press", "--log-level", "error", "--log-format", "json"),
    )
    listening, http = relay.ready()
    port = int(listening["listening"].rpartition(":")[2])
    ctl = Operator(clearfunds, http["http"], token_file)
    name = f"mqtt:{port}/-/archive"
    async with connected(port, "archive") as client:
        assert await ctl.do("limit", "archive", "--items", "500", "--bytes", "8MiB") == (
            f"account: {name}\nlimit items: 500\nlimit bytes: 8388608\nweight: 1\n"
        )
        assert "limit bytes: none\n" in await ctl.do("limit", name, "--bytes", "none")
        assert "weight: 2.5\n" in await ctl.do("weight", "tenant/press", "2.5")
        assert "policy: spill\n" in await ctl.do("policy", "archive", "spill", "--patience", "3")
        assert "over limit: shed\n" in await ctl.do("over-limit", "archive", "shed")
        assert await ctl.do("log-level", "debug", "--seconds", "60") == (
            "level: debug\nbefore: error\nseconds: 60\n"
        )
        status, line = await ctl.refused("disconnect", "nobody")
        assert (status, line.partition(" answers ")[2]) == (
            1,
            "404: No client nobody is connected: `clearfunds top` has those that are.",
        )
        assert await ctl.refused("limit", "archive") == (
            2,
            "clearfunds ctl: give --items, --bytes, or both (see clearfunds ctl --help)",
        )
        status, line = await ctl.refused("limit", "archive", "--items", "0")
        assert status == 2
        assert '"0" is not at least 1, nor none for no limit' in line
        assert await ctl.do("disconnect", "archive") == f"disconnected: {name}\n"
        assert await client.next() is None
    lines = [json.loads(each) for each in relay.log if '"clearfunds.audit"' in each]
    assert [(each["action"], each["status"]) for each in lines] == [
        ("PATCH /accounts/archive", 200),
        (f"PATCH /accounts/{name}", 200),
        ("PATCH /accounts/tenant/press", 200),
        ("PATCH /accounts/archive", 200),
        ("PATCH /accounts/archive", 200),
        ("POST /log-level", 200),
        ("POST /clients/nobody/disconnect", 404),
        ("POST /clients/archive/disconnect", 200),
    ]


async def test_where_nobody_listens_and_where_no_token_is_given(
    start_relay: Callable[..., RelayUnderTest], clearfunds: Clearfunds, token_file: Path
) -> None:
    nowhere = f"http://127.0.0.1:{lasting_port()}"
    status, line = await Operator(clearfunds, nowhere, token_file).refused("disconnect", "x")
    assert status == 1
    assert line.startswith(f"clearfunds ctl: cannot reach {nowhere}: ")
    status, line = await Operator(clearfunds, "ftp://somewhere", token_file).refused(
        "disconnect", "x"
    )
    assert status == 2
    assert '"ftp://somewhere" is no URL of a relay\'s pages' in line
    relay = start_relay("--listen", ANYWHERE, "--http", "127.0.0.1:0")
    http = relay.ready()[-1]["http"]
    status, line = await Operator(clearfunds, http, token_file).refused("disconnect", "x")
    assert status == 1
    assert "start the relay with --http-token FILE" in line


@needs_nats
async def test_workers_are_asked_together(
    start_relay: Callable[..., RelayUnderTest], clearfunds: Clearfunds, token_file: Path
) -> None:
    workers = Workers.start(
        start_relay, "--http-token", str(token_file), "--tenant", "press,user=x"
    )
    ctl = Operator(clearfunds, workers.http, token_file)
    name = f"mqtt:{workers.port}/-/archive"
    async with AsyncExitStack() as stack:
        clients = [await workers.connect(stack, f"other-{number}") for number in range(12)]
        archive = await stack.enter_async_context(connected(workers.port, "archive"))
        done = await ctl.do("limit", "archive", "--items", "5")
        (line,) = [each for each in done.splitlines() if "account" in each]
        worker = line.partition(":")[0]
        assert line == f"{worker}: account: {name}"
        assert worker in (f"{NAME}-1", f"{NAME}-2")
        done = await ctl.do("weight", "tenant/press", "2")
        assert done.count("account: tenant/press\n") == 2
        done = await ctl.do("log-level", "info", "--seconds", "1")
        assert done.count("level: info\n") == 2
        status, line = await ctl.refused("disconnect", "nobody")
        assert (status, line.partition(" answers ")[2]) == (
            1,
            "404: No client nobody is connected: `clearfunds top` has those that are.",
        )
        below = Operator(clearfunds, f"{workers.http}/{worker}/", token_file)
        done = await below.do("disconnect", "archive")
        assert done == f"{worker}: disconnected: {name}\n"
        assert await archive.next() is None
        for client in clients:
            await client.publish("still/there", b"", qos=1)
    audit = [each for each in workers.relay.log if "clearfunds.audit" in each]
    assert any(f'PATCH /accounts/archive: {{"done": {{"{worker}"' in each for each in audit)
    await until(lambda: any("the log level is" in each for each in workers.relay.log))
