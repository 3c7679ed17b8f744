"""Running a command's asynchronous part, and its lines on stdout."""

import json
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple, cast

import trio

from clearfunds.sockets import trouble_with_file

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def run_async(function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    """Run `function` under Trio; if a group has a single error, raise that error.

    Nurseries wrap all errors; the caller of a command wants the sentence inside.
    """
    try:
        return trio.run(function, *args)
    except BaseExceptionGroup as group:
        error = alone(group)
        if error is None:
            raise
        raise error from group


def alone(error: BaseException) -> BaseException | None:
    """Return the one error in a nest of groups, None if there are more."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)
    return alone(group.exceptions[0]) if len(group.exceptions) == 1 else None


def sentence_of(error: Exception) -> str:
    """Return the sentence about an error; the system's own have numbers and quotes in them."""
    if isinstance(error, OSError) and error.filename is not None:
        return trouble_with_file(os.fsdecode(error.filename), error)
    return str(error)


def tell(**line: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(line), flush=True)
