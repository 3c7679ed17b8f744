"""`clearfunds pub` and `clearfunds sub` as processes, over TLS."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from clearfunds.sockets import ServerTls
from tests import forks
from tests.transports.certificates import Papers, papers_in
from tests.transports.conftest import SecureMosquitto, mosquitto_tls
from tests.transports.peers import SECONDS, running

__all__ = ["mosquitto_tls"]

Clearfunds = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.usefixtures("server_of_forks")


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return papers_in(tmp_path)


@asynccontextmanager
async def relay(papers: Papers, *, asks: bool = False) -> AsyncGenerator[str]:
    """Run a relay with TLS; gives its URL."""
    tls = ServerTls(papers.for_server(asks=asks).for_server)
    async with running(tls=tls, listen=("mqtt+tls://127.0.0.1:0",)) as running_relay:
        yield f"mqtt+tls://localhost:{running_relay.port}"


async def command(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    run = partial(forks.clearfunds, *argv, timeout=SECONDS, env={**os.environ, **environment})
    return await trio.to_thread.run_sync(run)


async def there_and_back(url: str, *options: str) -> None:
    """Publish what is kept, and get it."""
    sent = await command(
        "pub", "-u", url, "-t", "state", "-m", "grüß dich", "-r", "-q", "2", *options
    )
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, "", "")
    came = await command("sub", "-u", url, "state", "--count", "1", *options)
    assert (came.returncode, came.stdout) == (0, "grüß dich\n")


async def test_a_message(papers: Papers) -> None:
    async with relay(papers) as url:
        await there_and_back(url, "--tls-ca", str(papers.trusted))
        await there_and_back(url.replace("mqtt+tls", "mqtts"), "--tls-insecure")


async def test_a_message_by_mosquitto(mosquitto_tls: SecureMosquitto) -> None:
    papers = mosquitto_tls.papers
    known = papers.for_client("press")
    await there_and_back(
        f"mqtts://localhost:{mosquitto_tls.asking}", "--tls-ca", str(papers.trusted),
        "--tls-certificate", str(known.chain), "--tls-key", str(known.key),
    )  # fmt: skip


async def test_who_one_is_can_stand_in_a_file_and_in_the_environment(papers: Papers) -> None:
    known = papers.for_client("press")
    async with relay(papers, asks=True) as url:
        file = papers.folder / "clearfunds.toml"
        file.write_text(
            f'[pub]\nurl = "{url}"\ntls_ca = "{papers.trusted}"\n'
            f'tls_certificate = "{known.chain}"\ntls_key = "{known.key}"\n'
        )
        argv = ("pub", "--config", str(file), "-t", "t", "-m", "x")
        assert (await command(*argv)).returncode == 0
        refused = await command(*argv, CLEARFUNDS_PUB_TLS_CA=str(papers.folder / "no.pem"))
    assert refused.returncode == 2
    assert "no.pem: No such file" in refused.stderr


@pytest.mark.parametrize("argv", [["pub", "-t", "t", "-m", "x"], ["sub", "t"]])
async def test_whom_one_does_not_believe_is_status_1_and_one_line(
    papers: Papers, argv: list[str]
) -> None:
    async with relay(papers, asks=True) as url:
        stranger = await command(*argv, "-u", url)
        nobody = await command(*argv, "-u", url, "--tls-ca", str(papers.trusted))
    for run, said in ((stranger, "its certificate is not trusted"), (nobody, "certificate")):
        assert run.returncode == 1
        assert run.stderr.count("\n") == 1
        assert said in run.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tls-ca", "x"], "--tls-ca needs TLS, and mqtt://127.0.0.1:1883 does not use it"),
        (["--tls-insecure", "-u", "mqtt://h"], "--tls-insecure needs TLS, and mqtt://h does"),
        (["--tls-key", "k", "-u", "mqtt+unix:///x"], "mqtts://HOST or mqtt+tls://HOST:PORT"),
        (["--tls-key", "k", "-u", "mqtts://h"], "k is a certificate's key"),
        (["--tls-certificate", "no/such", "-u", "mqtts://h"], "cannot read no/such"),
        (["-u", "mqtts://"], "is no address of an MQTT server: write mqtt://HOST:PORT"),
    ],
)
def test_wrong_use_is_status_2_and_one_line(
    complaint: Clearfunds, options: list[str], said: str
) -> None:
    run = complaint("sub", "t", *options)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert said in run.stderr
