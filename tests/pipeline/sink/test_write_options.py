"""What a writer can be told, and what it says to what it cannot."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from clearfunds.pipeline._errors import MissingError, OptionError
from clearfunds.pipeline.sink import BatchWriter, StreamWriter, batch_writer, stream_writer
from clearfunds.pipeline.sink._options import WriteOptions, batch_options, stream_options
from clearfunds.ranges.client import Access
from tests.pipeline.sink.tables import schema_of

SCHEMA = schema_of("topic string, value binary")
RELAY = {"relay": "[::1]:7700"}


def test_defaults() -> None:
    options = WriteOptions("::1", 7700)
    assert stream_options(RELAY) == batch_options(RELAY) == options
    assert options.where == "[::1]:7700"
    assert (options.qos, options.retain, options.writer, options.batch) == (1, False, None, None)


def test_everything_that_can_be_said() -> None:
    both = {
        "host": "relay.example",
        "port": "7700",
        "TOPIC": "plant/alarms",
        "qos": "0",
        "Retain": "true",
        "writer": "hourly",
        "timeoutSeconds": "2.5",
    }
    expected = WriteOptions(
        "relay.example", 7700, "plant/alarms", 0, True, "hourly", None, timeout=2.5
    )
    # Spark adds these itself.
    of_spark = {"checkpointlocation": "/tmp/c", "queryname": "means"}
    assert stream_options({**both, **of_spark}) == expected
    assert batch_options({**both, "batch": "0"}).batch == 0


def test_who_writes_and_by_what_way() -> None:
    told = {"relay": "subscribe+tls://[::1]:7701", "user": "press", "password": "s3", "ca": "ca"}
    access = Access(user="press", password="s3", tls=True, ca="ca")
    assert stream_options(told) == WriteOptions("::1", 7701, access=access)
    assert batch_options({**RELAY, "tls": "true"}).access == Access(tls=True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "where is the relay?"),
        ({**RELAY, "user": "press"}, "a user and a password come together"),
        ({**RELAY, "topik": "a"}, "no option 'topik' here; did you mean 'topic'?"),
        ({**RELAY, "topic": ""}, "'topic' is missing"),
        ({**RELAY, "qos": "3"}, "'qos' is a whole number from 0 to 2, not '3'"),
        ({**RELAY, "retain": "perhaps"}, "'retain' is true or false, not 'perhaps'"),
        ({**RELAY, "writer": ""}, "'writer' is missing"),
        ({**RELAY, "timeoutSeconds": "0"}, "'timeoutSeconds' is a number of seconds"),
        ({**RELAY, "batch": "1"}, "Spark numbers the batches of a stream"),
        ({**RELAY, "path": "somewhere"}, "no option 'path'"),
    ],
)
def test_what_a_stream_cannot_be_told(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError) as caught:
        stream_options(given)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({**RELAY, "writer": "hourly"}, "the option 'writer' needs the option 'batch', too"),
        ({**RELAY, "batch": "1"}, "the option 'batch' needs the option 'writer', too"),
        ({**RELAY, "writer": "hourly", "batch": "-1"}, "'batch' is a whole number from 0 on"),
        ({**RELAY, "checkpointLocation": "/tmp/c"}, "no option 'checkpointlocation'"),
    ],
)
def test_what_a_batch_cannot_be_told(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError) as caught:
        batch_options(given)
    assert says in str(caught.value)


def test_nothing_is_overwritten() -> None:
    with pytest.raises(OptionError, match=r'cannot be overwritten: write with .mode\("append"\)'):
        batch_writer(RELAY, SCHEMA, True)
    # A stream's whole result is published again with each batch, as to Kafka.
    assert isinstance(stream_writer(RELAY, SCHEMA, True), StreamWriter)


def test_jobs_have_names_of_their_own_which_travel_with_the_writer() -> None:
    first, second = (batch_writer(RELAY, SCHEMA, False) for _ in range(2))
    assert first.name != second.name
    again = pickle.loads(pickle.dumps(first))
    assert isinstance(again, BatchWriter)
    assert again.name == first.name


def test_no_pyarrow_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for make in stream_writer, batch_writer:
        with pytest.raises(MissingError, match=r"pyarrow is not installed for .*\[pipeline\]"):
            make(RELAY, SCHEMA, False)


def test_workers_need_nothing_of_the_relay() -> None:
    """What is sent to a cluster is the pipeline and the clients; see `pipeline.py_files`."""
    look = (
        "import sys, clearfunds.pipeline.sink as sink; "
        "print({'trio', 'attr', 'attrs', 'clearfunds.transports'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
