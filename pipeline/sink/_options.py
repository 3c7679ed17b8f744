"""What a writer was told: all of it looked at before anything is asked of a relay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clearfunds.relay_client import NOBODY, Access
from clearfunds.sink_client import DEFAULT_TIMEOUT

from .._errors import OptionError
from .._options import ADDRESS, Options

_BOTH = (*ADDRESS, "topic", "qos", "retain", "writer")
BATCH_OPTIONS = (*_BOTH, "batch")
STREAM_OPTIONS = (*_BOTH, "checkpointLocation", "queryName")
"""The last two are Spark's own, which it hands over with the rest."""


@dataclass(frozen=True)
class WriteOptions:
    """What holds for writing. It is pickled and sent to Spark's workers.

    Attributes:
        host: Where the relay is.
        port: Where it listens for readers of ranges and for writers.
        topic: The topic of all rows; None: they have a column for it.
        qos: Of rows that do not say so themselves.
        retain: Of rows that do not say so themselves.
        writer: The name by which the relay knows who writes. A stream's is its query's id, after
            this if it was given: one that is begun anew, from no checkpoint, is another writer,
            whose batches begin at 0 again. None for a job: a name of its own.
        batch: The number of a batch that is no stream's.
        timeout: Seconds without a sign of life after which the relay is taken to be away.
        access: Who writes, and what the connections are encrypted with.
    """

    host: str
    port: int
    topic: str | None = None
    qos: int = 1
    retain: bool = False
    writer: str | None = None
    batch: int | None = None
    timeout: float = DEFAULT_TIMEOUT
    access: Access = field(default=NOBODY, kw_only=True)

    @property
    def where(self) -> str:
        """The relay's address, for sentences."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def stream_options(given: Mapping[str, str]) -> WriteOptions:
    """Look at what a stream was told.

    Raises:
        OptionError: If something is missing, is not known, or cannot be so.
    """
    if any(name.lower() == "batch" for name in given):
        raise OptionError(
            "the option 'batch' is one of df.write; the batches of a stream are numbered by Spark"
        )
    return _common(Options(given, STREAM_OPTIONS))


def batch_options(given: Mapping[str, str]) -> WriteOptions:
    """Look at what a batch was told.

    Raises:
        OptionError: If something is missing, is not known, or cannot be so.
    """
    options = Options(given, BATCH_OPTIONS)
    if options.has("writer") != options.has("batch"):
        there, missing = ("writer", "batch") if options.has("writer") else ("batch", "writer")
        msg = (
            f"the option {there!r} takes the option {missing!r}, too: both together say which job "
            "this is, so that the relay takes it once, however often it is run"
        )
        raise OptionError(msg)
    return _common(options, options.integer("batch", 0))


def _common(options: Options, batch: int | None = None) -> WriteOptions:
    host, port, access = options.reach()
    timeout = options.seconds("timeoutSeconds", 0.1)
    qos = options.integer("qos", 0, 2)
    return WriteOptions(
        host=host,
        port=port,
        topic=options.required("topic", "a topic's name") if options.has("topic") else None,
        qos=1 if qos is None else qos,
        retain=options.boolean("retain", False),
        writer=options.required("writer", "a name") if options.has("writer") else None,
        batch=batch,
        timeout=DEFAULT_TIMEOUT if timeout is None else timeout,
        access=access,
    )
