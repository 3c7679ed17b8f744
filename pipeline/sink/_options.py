"""The options of a writer, all checked before the relay is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...ranges.client import DEFAULT_SILENCE, NOBODY, Access
from .._errors import OptionError
from .._options import ADDRESS, Options

_BOTH = (*ADDRESS, "topic", "qos", "retain", "writer")
BATCH_OPTIONS = (*_BOTH, "batch")
STREAM_OPTIONS = (*_BOTH, "checkpointLocation", "queryName")
"""The last two are Spark's own, which it passes along."""


@dataclass(frozen=True)
class WriteOptions:
    """The options for writing. They are pickled and sent to Spark's workers.

    Attributes:
        host: The relay's host.
        port: The port of its listener for range readers and writers.
        topic: The topic of all rows; None: they have a column for it.
        qos: The QoS of rows without that column.
        retain: The retain flag of rows without that column.
        writer: The writer's name at the relay. A stream's name is its query's id, after this one if
            given: a query that starts without a checkpoint is another writer, whose batches begin
            at 0 again. None for a job: a unique name.
        batch: The number of a job's batch.
        timeout: Seconds without a sign of life after which the relay counts as away.
        access: Credentials and TLS settings.
    """

    host: str
    port: int
    topic: str | None = None
    qos: int = 1
    retain: bool = False
    writer: str | None = None
    batch: int | None = None
    timeout: float = DEFAULT_SILENCE
    access: Access = field(default=NOBODY, kw_only=True)

    @property
    def where(self) -> str:
        """The relay's address, for sentences."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def stream_options(given: Mapping[str, str]) -> WriteOptions:
    """Check the options of a stream.

    Raises:
        OptionError: If an option is missing, unknown or invalid.
    """
    if any(name.lower() == "batch" for name in given):
        raise OptionError(
            "the option 'batch' is one of df.write; Spark numbers the batches of a stream"
        )
    return _common(Options(given, STREAM_OPTIONS))


def batch_options(given: Mapping[str, str]) -> WriteOptions:
    """Check the options of a job.

    Raises:
        OptionError: If an option is missing, unknown or invalid.
    """
    options = Options(given, BATCH_OPTIONS)
    if options.has("writer") != options.has("batch"):
        there, missing = ("writer", "batch") if options.has("writer") else ("batch", "writer")
        msg = (
            f"the option {there!r} needs the option {missing!r}, too: both together identify this "
            "job, so that the relay takes it once, however often it runs"
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
        timeout=DEFAULT_SILENCE if timeout is None else timeout,
        access=access,
    )
