"""What can go wrong in the pipeline: each message is one sentence of what, where and what to do.

Rule: whoever runs a query, a report or the journal sees such a sentence, and never only the error
of what lies below. Spark shows no more of an exception than its text.
"""


class PipelineError(Exception):
    """Something that the pipeline was asked for could not be had."""


class MissingError(PipelineError):
    """Something it needs is not installed here, or is too old: Java, PySpark, pyarrow."""


class OptionError(PipelineError, ValueError):
    """An option is not there, or cannot be what it was given; nothing was asked for then."""


class RelayError(PipelineError):
    """The relay could not do what it was asked for."""


class AwayError(RelayError):
    """The relay cannot be reached, or did not answer in time; or what answers there is none."""


class RefusedError(RelayError):
    """The relay does not allow it, or does not know it."""


class FencedError(RelayError):
    """Another query reads from the same subscription now, or writes under the same name."""


class DataLossError(RelayError):
    """Messages that were to be read are not there any more."""
