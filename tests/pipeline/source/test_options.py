"""What a reader may be told, and what is said about what it may not."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("pyspark")

from clearfunds.pipeline._errors import OptionError, PipelineError
from clearfunds.pipeline.source import Offset
from clearfunds.pipeline.source._offset import Position
from clearfunds.pipeline.source._options import (
    BatchOptions,
    Chosen,
    StreamOptions,
    batch_options,
    chosen_columns,
    stream_options,
)
from clearfunds.ranges.client import Access

LEAST = {"relay": "10.0.0.7:7700", "subscription": "readings"}


def test_the_least_that_has_to_be_said() -> None:
    assert stream_options(LEAST) == StreamOptions("10.0.0.7", 7700, "readings")
    assert batch_options(LEAST) == BatchOptions("10.0.0.7", 7700, "readings")


def test_all_that_can_be_said_in_any_case() -> None:
    told = {
        "HOST": "::1", "port": "7700", "subscription": "s", "subscribe": "a/#, b/+",
        "startingoffsets": "Latest", "maxOffsetsPerTrigger": "10", "maxBytesPerTrigger": "64 KB",
        "failOnDataLoss": "FALSE", "minPartitions": "3", "includeAccount": "no", "durable": "true",
        "graceSeconds": "2.5", "afterGrace": "writeOff", "ackMode": "commit",
        "timeoutSeconds": "5", "includeHeaders": "true", "includeIncarnation": "true",
        "minOffsetsPerTrigger": "4", "maxTriggerDelay": "2m",
    }  # fmt: skip
    options = stream_options(told)
    assert options == StreamOptions(
        "::1", 7700, "s", "latest", False, 3, Chosen(False, True, True), 5.0, ("a/#", "b/+"), 10,
        65_536, 4, 120.0, True, 2.5, "write_off", False,
    )  # fmt: skip
    assert options.where == "[::1]:7700"
    assert pickle.loads(pickle.dumps(options)) == options
    assert chosen_columns(told) == Chosen(False, True, True)
    batch = batch_options(
        {
            **LEAST,
            "relay": "subscribe+tcp://[::1]:1",
            "endingOffsets": "17",
            "repayBelowStart": "1",
            "startingOffsets": '{"incarnation": "ab", "subscription": "readings", "number": 3}',
        }
    )
    assert (batch.host, batch.port, batch.repay) == ("::1", 1, True)
    assert (batch.start, batch.end) == (Position(3, "ab"), Position(17, None))


def test_who_reads_and_by_what_way() -> None:
    told = {
        **LEAST, "relay": "subscribe+tls://relay.example:7701", "user": "press", "password": "s3",
        "ca": "ca.pem", "certificate": "c.pem", "key": "k.pem",
    }  # fmt: skip
    access = Access(
        user="press", password="s3", tls=True, ca="ca.pem", certificate="c.pem", key="k.pem"
    )
    options = stream_options(told)
    assert (options.host, options.port, options.access) == ("relay.example", 7701, access)
    assert "s3" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    assert batch_options({**LEAST, "tls": "true"}).access == Access(tls=True)
    apart = {"host": "h", "port": "1", "tls": "yes", "subscription": "s"}
    assert stream_options(apart).access == Access(tls=True)


@pytest.mark.parametrize("text", ["relay.example:7700", "subscribe+tcp://relay.example:7700"])
@pytest.mark.parametrize("name", ["url", "URL", "relay"])
def test_the_relay_by_its_url(name: str, text: str) -> None:
    options = stream_options({name: text, "subscription": "s"})
    assert (options.host, options.port) == ("relay.example", 7700)


def test_filters_with_commas() -> None:
    assert stream_options({**LEAST, "subscribe": ' ["a,b", "c"]'}).filters == ("a,b", "c")


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"relay": None}, "where is the relay?"),
        ({"relay": "7700"}, "the option 'relay' is HOST:PORT"),
        ({"relay": None, "url": "7700"}, "the option 'url' is HOST:PORT"),
        ({"url": "a:1"}, "the options 'url' and 'relay' are the same"),
        ({"relay": "http://a:1"}, "the option 'relay' is HOST:PORT"),
        ({"relay": "a:99999"}, "the option 'relay' is HOST:PORT"),
        ({"relay": "a:1/x"}, "the option 'relay' is HOST:PORT"),
        ({"relay": "subscribe+tcp://a:1", "tls": "true"}, "and 'tls' says otherwise"),
        ({"user": "press"}, "'key': a user and a password come together"),
        ({"ca": "ca.pem"}, "'key': certificates need TLS"),
        ({"tls": "true", "key": "k"}, "'key': a key belongs to a certificate: give"),
        ({"port": "1"}, "not both"),
        ({"relay": None, "port": "0"}, "'port' is a whole number from 1 to 65535, not '0'"),
        ({"subscription": None}, "'subscription' is missing: a name"),
        ({"subscription": ""}, "'subscription' is missing: a name"),
        ({"subscribe": "a,,b"}, "'subscribe' is names separated by commas"),
        ({"subscribe": '["a", 1]'}, "'subscribe' is names separated by commas"),
        ({"subscribe": "["}, "'subscribe' is names separated by commas"),
        ({"startingOffsets": "first"}, "'startingOffsets' is 'earliest', 'latest', a number"),
        ({"startingOffsets": "0"}, "'startingOffsets' is 'earliest', 'latest', a number"),
        ({"startingOffsets": "true"}, "'startingOffsets' is 'earliest', 'latest', a number"),
        ({"startingOffsets": "[1]"}, "'startingOffsets' is 'earliest', 'latest', a number"),
        ({"startingOffsets": '{"number": 1, "incarnation": 2}'}, "'startingOffsets' is"),
        ({"startingOffsets": '{"number": 1, "subscription": "t"}'}, "'t', not of 'readings'"),
        ({"maxOffsetsPerTrigger": "many"}, "'maxOffsetsPerTrigger' is a whole number from 1 on"),
        ({"maxBytesPerTrigger": "0"}, "'maxBytesPerTrigger' is a number of bytes"),
        ({"maxBytesPerTrigger": "1 mile"}, "'maxBytesPerTrigger' is a number of bytes"),
        ({"failOnDataLoss": "perhaps"}, "'failOnDataLoss' is true or false, not 'perhaps'"),
        ({"graceSeconds": "nan"}, "'graceSeconds' is a number of seconds from 0 on, not 'nan'"),
        ({"timeoutSeconds": "0"}, "'timeoutSeconds' is a number of seconds from 0.1 on, not '0'"),
        ({"afterGrace": "forget"}, "'afterGrace' is 'hold' or 'drop' or 'write_off'"),
        ({"ackMode": "lazy"}, "'ackMode' is 'eager' or 'commit', not 'lazy'"),
        ({"startingOffset": "1"}, "no option 'startingoffset' here; did you mean 'startingOff"),
        ({"colour": "red"}, "there is no option 'colour' here. There are: ackMode, afterGrace"),
        ({"endingOffsets": "1"}, "'endingOffsets' is one of spark.read; a stream has no such"),
    ],
)
def test_what_is_wrong_with_a_stream(told: dict[str, str | None], why: str) -> None:
    given = {name: text for name, text in {**LEAST, **told}.items() if text is not None}
    with pytest.raises(OptionError, match=_literally(why)):
        stream_options(given)


def _literally(why: str) -> str:
    return why.replace("?", r"\?").replace("(", r"\(")


def test_a_batch_makes_no_subscription() -> None:
    with pytest.raises(OptionError, match=r"'subscribe' is one of spark.readStream; a batch has"):
        batch_options({**LEAST, "subscribe": "a/#"})


def test_offsets_are_what_spark_wrote_down() -> None:
    offset = Offset("ab", "readings", 7)
    assert Offset.of(offset.to_json()) == offset
    assert list(offset.to_json()) == ["incarnation", "subscription", "number"]
    for other in ({}, {"seq": 3}, {**offset.to_json(), "number": "7"}):
        with pytest.raises(PipelineError, match="an offset that this source has not written"):
            Offset.of(other)
