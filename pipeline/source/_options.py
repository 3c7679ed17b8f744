"""The options of a reader, all checked before the relay is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from ...ranges.client import DEFAULT_TIMEOUT, NOBODY, Access
from .._errors import OptionError
from .._options import ADDRESS, Options
from ._offset import Position

Word: TypeAlias = Literal["earliest", "latest"]
"""A place given as a word."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

MAX_TRIGGER_DELAY: Final = 900.0
"""Default of `maxTriggerDelay`, as of Spark's Kafka source: 15 minutes."""


class Moment(NamedTuple):
    """A place given as a time: the first message that came then, or later."""

    time_us: int
    """Microseconds since 1970."""
    latest: bool
    """Whether, if no message came so late, it is the place of the next one; else an error."""


class Chosen(NamedTuple):
    """The columns that rows may have, or not."""

    account: bool = True
    """`account`."""
    incarnation: bool = False
    """`incarnation`."""
    headers: bool = False
    """`qos`, `retain`, `content_type` and `headers`."""


USUAL: Final = Chosen()
"""Those that rows have without options."""

_BOTH = (
    *ADDRESS, "subscription", "startingOffsets", "failOnDataLoss", "minPartitions",
    "includeAccount", "includeHeaders", "includeIncarnation", "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
)  # fmt: skip
STREAM_OPTIONS = (
    *_BOTH, "subscribe", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "durable", "graceSeconds",
    "afterGrace", "ackMode", "minOffsetsPerTrigger", "maxTriggerDelay",
)  # fmt: skip
BATCH_OPTIONS = (*_BOTH, "endingOffsets", "endingTimestamp", "repayBelowStart")

_WORDS: dict[str, Word] = {EARLIEST: EARLIEST, LATEST: LATEST}
_AFTER_GRACE = {"hold": "hold", "drop": "drop", "write_off": "write_off", "writeOff": "write_off"}
_ACK_MODES = {"eager": "eager", "commit": "commit"}


@dataclass(frozen=True)
class ReadOptions:
    """The options for batch and streaming reads. They are pickled and sent to Spark's workers.

    Attributes:
        host: The relay's host.
        port: The port of its listener for range readers.
        subscription: The subscription's name.
        start: The place to begin: a word, a position, or a time.
        fail_on_data_loss: Whether a gap ends the query; else it is logged and skipped.
        min_partitions: The number of ranges in a batch; None: depends on its size.
        columns: The columns that rows may have, or not.
        timeout: Seconds within which the relay must answer, reconnecting included.
        access: Credentials and TLS settings.
    """

    host: str
    port: int
    subscription: str
    start: Position | Word | Moment = EARLIEST
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    columns: Chosen = USUAL
    timeout: float = DEFAULT_TIMEOUT
    access: Access = field(default=NOBODY, kw_only=True)

    @property
    def where(self) -> str:
        """The relay's address, for sentences."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class StreamOptions(ReadOptions):
    """The further options of a stream.

    Attributes:
        filters: The topic filters of the subscription; empty: it exists already.
        max_rows: Most messages of one batch.
        max_bytes: Most bytes of one batch: topics, values, and 20 for each message.
        min_rows: Fewest messages of one batch, unless `max_delay` is over.
        max_delay: Most seconds between two batches that `min_rows` may cause, if there is any
            message; None: `MAX_TRIGGER_DELAY`.
        durable: Whether a new subscription is kept on the relay's disk.
        grace: Seconds that it waits for the query to come back; None: the relay's default.
        after_grace: The subscription's policy after that.
        eager: Whether to repay when Spark plans the next batch, not when it calls `commit`.
    """

    filters: tuple[str, ...] = ()
    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    max_delay: float | None = None
    durable: bool = False
    grace: float | None = None
    after_grace: Literal["hold", "drop", "write_off"] | None = None
    eager: bool = True


@dataclass(frozen=True)
class BatchOptions(ReadOptions):
    """The further options of a batch.

    Attributes:
        end: The place to end: a position, a time, or the latest message.
        repay: Whether to repay everything below the start.
    """

    end: Position | Word | Moment = LATEST
    repay: bool = False


def chosen_columns(given: Mapping[str, str]) -> Chosen:
    """Return which columns rows have; the schema depends on nothing else.

    Spark asks for the schema before it is known whether the read is a stream. So this refuses only
    names that are options of neither.
    """
    options = Options(given, {*STREAM_OPTIONS, *BATCH_OPTIONS})
    return _chosen(options)


def _chosen(options: Options) -> Chosen:
    return Chosen(
        options.boolean("includeAccount", True),
        options.boolean("includeIncarnation", False),
        options.boolean("includeHeaders", False),
    )


def stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Check the options of a stream.

    Raises:
        OptionError: If an option is missing, unknown or invalid.
    """
    _turn_away(given, BATCH_OPTIONS, STREAM_OPTIONS, "read", "a stream")
    options = Options(given, STREAM_OPTIONS)
    after_grace = options.one_of("afterGrace", _AFTER_GRACE, "")
    return StreamOptions(
        **_common(options),
        filters=options.names("subscribe"),
        max_rows=options.integer("maxOffsetsPerTrigger"),
        max_bytes=options.size("maxBytesPerTrigger"),
        min_rows=_least_rows(options),
        max_delay=options.duration("maxTriggerDelay"),
        durable=options.boolean("durable", False),
        grace=options.seconds("graceSeconds"),
        after_grace=cast("Literal['hold', 'drop', 'write_off'] | None", after_grace or None),
        eager=options.one_of("ackMode", _ACK_MODES, "eager") == "eager",
    )


def batch_options(given: Mapping[str, str]) -> BatchOptions:
    """Check the options of a batch.

    Raises:
        OptionError: If an option is missing, unknown or invalid.
    """
    _turn_away(given, STREAM_OPTIONS, BATCH_OPTIONS, "readStream", "a batch")
    options = Options(given, BATCH_OPTIONS)
    common = _common(options)
    return BatchOptions(
        **common,
        end=_place(options, "ending", common["subscription"], LATEST),
        repay=options.boolean("repayBelowStart", False),
    )


def _turn_away(
    given: Mapping[str, str],
    others: tuple[str, ...],
    own: tuple[str, ...],
    method: str,
    this: str,
) -> None:
    """Refuse options of the other kind of read."""
    told = {name.lower() for name in given}
    for name in others:
        if name.lower() in told and name not in own:
            raise OptionError(
                f"the option {name!r} is one of spark.{method}; {this} has no such option"
            )


def _common(options: Options) -> dict[str, Any]:
    host, port, access = options.reach()
    name = options.required(
        "subscription",
        "a name for the subscription that the relay keeps for this query alone; give the same name "
        "when the query starts again from its checkpoint",
    )
    timeout = options.seconds("timeoutSeconds", 0.1)
    return {
        "host": host,
        "port": port,
        "subscription": name,
        "start": _place(options, "starting", name, EARLIEST),
        "fail_on_data_loss": options.boolean("failOnDataLoss", True),
        "min_partitions": options.integer("minPartitions"),
        "columns": _chosen(options),
        "timeout": DEFAULT_TIMEOUT if timeout is None else timeout,
        "access": access,
    }


def _least_rows(options: Options) -> int | None:
    least = options.integer("minOffsetsPerTrigger")
    most = options.integer("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"the option 'minOffsetsPerTrigger' is {least}, above 'maxOffsetsPerTrigger', {most}"
        )
    if least is None and options.has("maxTriggerDelay"):
        raise OptionError(
            "the option 'maxTriggerDelay' says how long 'minOffsetsPerTrigger' may delay a batch: "
            "give that one, too"
        )
    return least


def _place(
    options: Options, which: str, subscription: str, default: Word
) -> Position | Word | Moment:
    """Return where to begin or to end; a time takes precedence over an offset, as for Kafka."""
    millis = options.integer(f"{which}Timestamp", 0)
    if millis is not None:
        words = {"error": "error", LATEST: LATEST}
        late = options.one_of("startingOffsetsByTimestampStrategy", words, "error")
        return Moment(1000 * millis, which == "ending" or late == LATEST)
    name = f"{which}Offsets"
    text = options.text(name)
    if text is None:
        return default
    word = _WORDS.get(text.strip().lower())
    if word is not None:
        return word
    return Position.parse(name, text, subscription, f"'{EARLIEST}', '{LATEST}'")
