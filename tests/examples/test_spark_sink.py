"""The example that publishes alarms by way of Spark, run as a process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from clearfunds.ranges.client import RangeReader
from tests.pipeline.conftest import needs_spark
from tests.pipeline.publishers import until
from tests.pipeline.relays import RelayProcess
from tests.pipeline.sink.subscribers import Subscribers
from tests.pipeline.source.queries import publish

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_sink.py"
SECONDS = 300

pytestmark = [
    pytest.mark.long,
    needs_spark,
]


def run(relay: RelayProcess, folder: Path) -> None:
    where = (f"127.0.0.1:{relay.ranges}", "--checkpoint", str(folder / "checkpoint"), "--once")
    command = [sys.executable, str(EXAMPLE), *where]
    subprocess.run(command, check=True, timeout=SECONDS, cwd=folder)


def test_an_alarm_for_each_reading_that_is_too_hot(tmp_path: Path) -> None:
    with RelayProcess() as relay, Subscribers(relay, "alarms/#") as subscribers:
        RangeReader("127.0.0.1", relay.ranges, "hot-readings", filters=["readings/#"]).close()
        readings = [b'{"celsius": %d}' % celsius for celsius in (20, 95, 90, 91)]
        publish(relay.mqtt, [*readings, b"not JSON"], "readings/kiln")
        run(relay, tmp_path)
        until(lambda: len(subscribers.by_mqtt()) == 2)
        publish(relay.mqtt, [b'{"celsius": 100.5}'], "readings/press")
        run(relay, tmp_path)
        until(lambda: len(subscribers.by_mqtt()) == 3)
        found = [(topic, json.loads(value)["celsius"]) for topic, value in subscribers.by_mqtt()]
        assert found == [("alarms/kiln", 95.0), ("alarms/kiln", 91.0), ("alarms/press", 100.5)]
        assert subscribers.by_ranges() == subscribers.by_mqtt()
