"""Random lists and cases, decided as mosquitto decides them: by `Authority`, and by a relay."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clearfunds.access._tenants import NO_USER, Peer
from clearfunds.access.acl import Acl, Authority
from clearfunds.transports.mqtt import Will
from tests.access.acl.cases import (
    ROOT,
    ROOTS_RULES,
    Case,
    Questions,
    answers,
    questions,
)
from tests.ports import lasting_port
from tests.programs import needs
from tests.transports.mqtt.peers5 import connected5
from tests.transports.peers import SECONDS, running

pytestmark = needs("mosquitto")

RANDOM_CASES = [(seed, 12) for seed in range(4)]
ALL_CASES = [(seed, 25) for seed in range(100, 120)]


@contextmanager
def mosquitto_with(folder: Path, acl: str, more: str = "allow_anonymous true\n") -> Generator[int]:
    """Run mosquitto with an access control list; gives the port.

    It believes user names, unless `more` of its configuration says otherwise.
    """
    program = shutil.which("mosquitto")
    assert program is not None
    (folder / "acl").write_text(acl)
    (folder / "acl").chmod(0o644)
    port = lasting_port()
    (folder / "conf").write_text(
        f"user {getpass.getuser()}\nacl_file {folder / 'acl'}\nlistener {port} 127.0.0.1\n{more}"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "-c", str(folder / "conf")], stdout=log, stderr=log)
    try:
        # It says so when all of its listeners are open.
        until = time.monotonic() + SECONDS
        while " running\n" not in (log_text := (folder / "log").read_text()):
            assert process.poll() is None, log_text
            assert time.monotonic() < until, log_text
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def decided(authority: Authority, case: Case) -> bool:
    """Decide a case ourselves."""
    rights = authority.of(Peer("mqtt:1883", case.user or NO_USER, case.client))
    return rights.may_write(case.topic) if case.writes else rights.may_read(case.topic)


async def compare(folder: Path, asked: Questions) -> None:
    """Compare what mosquitto says with what we say."""
    authority = Authority(Acl.from_text(asked.text))
    with mosquitto_with(folder, asked.text) as port:
        expected = await answers(port, asked.cases)
    async with running(acl=Acl.from_text(asked.text)) as relay:
        assert await answers(relay.port, asked.cases) == expected
        relay.audit()
    wrong = [
        (case, right)
        for case, right in zip(asked.cases, expected, strict=True)
        if decided(authority, case) is not right
    ]
    assert not wrong, asked.text


WILLS = ROOTS_RULES + "user anna\ntopic write may\n"


async def wills_of(port: int) -> list[str]:
    """Return where wills are published of those that somebody may have, or may not."""
    async with connected5(port, "the root", username=ROOT) as root:
        await root.subscribe("#")
        for topic in ("must not", "may"):
            async with connected5(port, "w", username="anna", will=Will(topic, b"gone")):
                pass
        await root.publication()
        await root.publish("end")
        return [(await root.publication()).topic for _ in range(1)]


async def test_a_will_that_is_not_allowed_is_dropped_when_it_is_published(tmp_path: Path) -> None:
    """Its client is let in all the same."""
    with mosquitto_with(tmp_path, WILLS) as port:
        assert await wills_of(port) == ["end"]
    async with running(acl=Acl.from_text(WILLS)) as relay:
        assert await wills_of(relay.port) == ["end"]
        relay.audit()


@pytest.mark.parametrize(("seed", "count"), RANDOM_CASES)
async def test_random_cases_are_decided_as_mosquitto_does(
    tmp_path: Path, seed: int, count: int
) -> None:
    await compare(tmp_path, questions(seed, count))


@pytest.mark.long
@pytest.mark.parametrize(("seed", "count"), ALL_CASES)
async def test_500_random_cases_are_decided_as_mosquitto_does(
    tmp_path: Path, seed: int, count: int
) -> None:
    await compare(tmp_path, questions(seed, count))
