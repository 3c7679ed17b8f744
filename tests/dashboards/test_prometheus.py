"""What Prometheus itself says: the rules hold, and every query of every panel has an answer."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest
import trio

from clearfunds.transports.mqtt import Subscribe
from dashboards._files import FOLDER
from dashboards._rules import ALERTS, RECORDINGS
from tests.cli.conftest import RelayUnderTest
from tests.dashboards.queries import panel_queries, rule_queries, selectors
from tests.ports import lasting_port
from tests.programs import needs
from tests.relay.brokers import Broker
from tests.transports.mqtt.users import user_line
from tests.transports.peers import SECONDS, connected, fetch

ANSWERED_SECONDS: Final = 120
"""Some queries have an answer only when the relay has given up on somebody, twice."""
TOLD_SECONDS: Final = 90
DETAILED: Final = "/metrics/detailed?family=account,holder,matrix,blame,queue,tenant"

needs_promtool = needs("promtool")
needs_prometheus = needs("prometheus")


# -- Prometheus's own checker ---------------------------------------------------------------------


def promtool(*argv: str, stdin: str | None = None) -> None:
    """Run promtool, which has to have nothing to say against it."""
    done = subprocess.run(
        ["promtool", *argv], input=stdin, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_configuration_and_its_rules() -> None:
    promtool("check", "config", str(FOLDER / "prometheus.yml"))
    promtool("check", "rules", str(FOLDER / "clearfunds.rules.yml"))


@needs_promtool
def test_the_rules_do_as_they_say() -> None:
    promtool("test", "rules", str(Path(__file__).parent / "rules_test.yml"))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_there_is_a_case_in_which_an_alert_fires(alert: Any) -> None:
    text = (Path(__file__).parent / "rules_test.yml").read_text(encoding="utf-8")
    cases = re.findall(rf"alertname: {alert.name}\n *eval_time: \S+\n *exp_alerts:(.*)\n", text)
    assert "" in cases


# -- a real Prometheus ----------------------------------------------------------------------------


class Prometheus:
    """One that has been scraping since it was made."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.since = time.time()

    async def ask(self, path: str, **fields: object) -> Any:
        """Return the data of an answer."""
        answer = json.loads(await fetch(f"{self.url}/api/v1/{path}?{urlencode(fields)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    async def numbers(self, expr: str) -> list[float]:
        """Return all that a query has given, second by second, but for what is no number."""
        data = await self.ask("query_range", query=expr, start=self.since, end=time.time(), step=1)
        found = [float(value) for series in data["result"] for _, value in series["values"]]
        return [number for number in found if not math.isnan(number)]


@asynccontextmanager
async def prometheus(target: str, folder: Path, login: str = "") -> AsyncGenerator[Prometheus]:
    """Run one on the committed files, but every second, and with rates over less than minutes.

    `login` is what else each of its jobs has.
    """
    for name, changes in (
        (
            "prometheus.yml",
            {
                "127.0.0.1:9100": target,
                "interval: 5s": "interval: 1s",
                "interval: 10s": "interval: 1s",
                "    static_configs:": f"{login}    static_configs:",
            },
        ),
        ("clearfunds.rules.yml", {"[2m]": "[10s]"}),
    ):
        text = (FOLDER / name).read_text(encoding="utf-8")
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")
    address = f"127.0.0.1:{lasting_port()}"
    with (folder / "log").open("wb") as log:
        process = await trio.lowlevel.open_process(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--log.level=warn",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        with trio.fail_after(SECONDS):
            while True:
                assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
                try:
                    await fetch(f"http://{address}/-/ready")
                    break
                except OSError as exc:
                    # It is there, and not ready: that is an answer, with a socket of its own.
                    if isinstance(exc, HTTPError):
                        exc.close()
                    await trio.sleep(0.1)
        yield Prometheus(f"http://{address}")
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def stuck(port: int) -> None:
    """Subscribe and never read; come back each time the relay has given up on it."""
    while True:
        async with connected(port, "archiver", receive_buffer=4096) as client:
            # On a busy machine the first messages may come before the SUBACK [MQTT-3.8.4-3].
            await client.send(Subscribe(9, (("weather/#", 0),)))
            # Until it is full, and then for the relay's patience of 3 s.
            await trio.sleep(6)


async def reader(port: int) -> None:
    """Subscribe to the same and read all of it; come back if the machine was too busy for that."""
    while True:
        async with connected(port, "screen") as client:
            await client.send(Subscribe(9, (("weather/#", 0),)))  # as above
            while await client.receive() is not None:
                pass


async def publisher(port: int, name: str) -> None:
    """Publish as fast as the relay reads, but leave the machine to others as well."""
    async with connected(port, name) as client:
        while True:
            await client.publish(f"weather/{name}", bytes(2000))
            await client.publish("elsewhere")
            await trio.sleep(0.002)


async def kept(port: int) -> None:
    """Subscribe, and go away; let somebody publish what is kept for it then."""
    broker = Broker(port, 20, "kept", lag=0.3)
    async with broker.visit(leave=True) as client:
        await client.subscribe(broker.topic)
    async with broker.publisher() as client:
        while True:
            await client.publish(broker.topic, bytes(500), 1)
            await trio.sleep(0.1)


async def until_all_is_answered(prom: Prometheus) -> None:
    """Wait until each query has given a number; an error that names those that never do."""
    asked = {query.where: query.expr for query in panel_queries()}
    for query in rule_queries():
        # What an alert asks about is there, though it does not compare as the alert wants it to.
        for selected in selectors(query.expr):
            asked[f"{query.where}: {selected.text}"] = selected.text
    for recording in RECORDINGS:
        asked[recording.name] = recording.name
    # `count(ALERTS...) or vector(0)` always has an answer; the mark on a graph only with an alert.
    with trio.move_on_after(ANSWERED_SECONDS):
        while asked:
            await trio.sleep(1)
            for where, expr in list(asked.items()):
                if await prom.numbers(expr):
                    del asked[where]
    assert not asked, "\n".join(f"{where}: {expr}" for where, expr in asked.items())


async def the_panel_names_the_culprit(prom: Prometheus, culprit: str) -> None:
    """See that the number beside its name, on the dashboard that names names, is nearly all."""
    [query] = [query for query in panel_queries() if "Most of it is held by" in query.where]
    data = await prom.ask(
        "query_range", query=query.expr, start=prom.since, end=time.time(), step=1
    )
    shares = {
        series["metric"]["holder"]: max(float(value) for _, value in series["values"])
        for series in data["result"]
    }
    assert query.legend == "{{holder}}"
    assert 0.9 < shares[culprit] <= 1


async def the_alerts_name_the_culprit(prom: Prometheus, names: str) -> None:
    """See that an operator would be told who it is, and of nothing that is not so.

    An alert that has to last is pending until then, with the same text.
    """
    told: defaultdict[str, set[str]] = defaultdict(set)
    publishers = {f"{names}/station-a", f"{names}/station-b"}
    wanted = {
        "ClearfundsReadersThrottled": {f"{names}/archiver"},
        "ClearfundsAccountThrottled": {f"{names}/archiver", *publishers},
        "ClearfundsOneHolderBlocks": {f"{names}/archiver"},
        "ClearfundsPatienceEnding": {f"{names}/archiver"},
        "ClearfundsDebtWrittenOff": set[str](),
    }

    def all_told() -> bool:
        return all(
            all(name in " ".join(told[alert]) for name in who) and told[alert]
            for alert, who in wanted.items()
        )

    with trio.move_on_after(TOLD_SECONDS):
        while not all_told():
            await trio.sleep(0.5)
            for alert in (await prom.ask("alerts"))["alerts"]:
                sentence = (
                    f"{alert['annotations']['summary']}. {alert['annotations']['description']}"
                )
                told[alert["labels"]["alertname"]].add(sentence)
    assert all_told(), dict(told)
    for sentence in (sentence for sentences in told.values() for sentence in sentences):
        assert "<error" not in sentence
        assert "<no value>" not in sentence
    # Somebody waits for the archiver in every sentence about it: the publishers, and nobody else.
    for sentence in told["ClearfundsOneHolderBlocks"]:
        assert any(name in sentence for name in publishers) or "Nobody waits" in sentence, sentence
    faults = "ClearfundsLoansLeaked|ClearfundsBooksDoNotBalance|ClearfundsInternalErrors"
    assert not await prom.numbers(f'ALERTS{{alertname=~"{faults}"}}')
    assert not await prom.numbers('ALERTS{severity="critical",alertstate="firing"}')


@needs_promtool
@needs_prometheus
async def test_every_query_of_every_panel_and_rule_returns_data(tmp_path: Path) -> None:
    relay = RelayUnderTest(
        (
            *("--listen", "mqtt+tcp://127.0.0.1:0", "--http", "127.0.0.1:0"),
            *("--profile", "lossless", "--patience", "3", "--limit-items", "200"),
            *("--store", str(tmp_path / "store"), "--fsync-interval", "0.05"),
            *("--tenant", "weather,client=station-*,items=1000,bytes=100MiB"),
        )
    )
    try:
        lines = await trio.to_thread.run_sync(relay.ready)
        port = int(lines[0]["listening"].rpartition(":")[2])
        target = lines[1]["http"].removeprefix("http://")
        async with (
            prometheus(target, tmp_path) as prom,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(stuck, port)
            nursery.start_soon(reader, port)
            nursery.start_soon(kept, port)
            nursery.start_soon(publisher, port, "station-a")
            nursery.start_soon(publisher, port, "station-b")
            await until_all_is_answered(prom)
            await the_panel_names_the_culprit(prom, f"mqtt:{port}/-/archiver")
            await the_alerts_name_the_culprit(prom, f"mqtt:{port}/-")
            for page in ("/metrics", DETAILED):
                promtool("check", "metrics", stdin=await fetch(f"http://{target}{page}"))
            nursery.cancel_scope.cancel()
    finally:
        await trio.to_thread.run_sync(relay.close)
    assert not [line for line in relay.log if "Traceback" in line or " ERROR " in line]


@needs_prometheus
async def test_it_logs_in_with_a_token_and_with_a_password(tmp_path: Path) -> None:
    token, users = tmp_path / "token", tmp_path / "users"
    token.write_text("0123456789abcdef")
    users.write_text(user_line("scraper", b"secret"))
    for file in (token, users):
        file.chmod(0o600)
    relay = RelayUnderTest(
        (
            *("--listen", "mqtt+tcp://127.0.0.1:0", "--http", "127.0.0.1:0"),
            *("--http-token", str(token), "--http-password", str(users)),
        )
    )
    try:
        target = relay.ready()[-1]["http"].removeprefix("http://")
        for number, (login, up) in enumerate(
            (
                (f"    authorization: {{credentials_file: {token}}}\n", 1),
                ("    basic_auth: {username: scraper, password: secret}\n", 1),
                ("", 0),
            )
        ):
            folder = tmp_path / str(number)
            folder.mkdir()
            async with prometheus(target, folder, login) as prom:
                seen: list[float] = []
                with trio.fail_after(SECONDS):
                    while not seen:
                        await trio.sleep(0.5)
                        seen = await prom.numbers("up")
                assert set(seen) == {up}
    finally:
        relay.close()
