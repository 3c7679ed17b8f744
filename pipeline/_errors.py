"""Errors of the pipeline. Each message is one sentence: the problem, the place and the remedy.

Rule: the user of a query, a report or the journal always sees such a sentence, never only an error
of a lower layer. Spark shows only the text of an exception.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar


class PipelineError(Exception):
    """The pipeline could not do what it was asked to do."""


class MissingError(PipelineError):
    """A requirement is not installed here, or too old: Java, PySpark, pyarrow."""


class OptionError(PipelineError, ValueError):
    """An option is missing, unknown or invalid. The relay has not been asked yet."""


class RelayError(PipelineError):
    """The relay could not fulfil a request."""


class RelayAwayError(RelayError):
    """The relay is unreachable or did not answer in time, or another program answered."""


class RelayRefusedError(RelayError):
    """The relay refuses the request, or does not know the object of it."""


class QueryFencedError(RelayError):
    """Another query reads from the same subscription now, or writes under the same name."""


class MessagesLostError(RelayError):
    """Messages were discarded before the query could read them."""


P = ParamSpec("P")
T = TypeVar("T")


def plain(error: PipelineError) -> PipelineError:
    """Return an error without the exceptions that led to it; to be raised `from None`.

    Spark shows the whole trace of an exception, twice, before its message: fifty lines, which say
    nothing more than the sentence does.
    """
    error.__cause__ = None
    return error.with_traceback(None)


def plainly(method: Callable[P, T]) -> Callable[P, T]:
    """Let a method that Spark calls raise its errors without their history; see `plain`."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except PipelineError as error:
            raise plain(error) from None

    return call
