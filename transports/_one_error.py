"""Nurseries of clients: their exceptions come out unwrapped."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import trio


@contextlib.contextmanager
def one_error() -> Generator[None, None, None]:
    """Unwrap the single exception that a nursery wraps into a group.

    A client's tasks raise no expected exceptions. So its nursery almost always raises the exception
    of its block, and callers want to catch that by its own type.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        errors = [error for error in group.exceptions if not isinstance(error, trio.Cancelled)]
        if len(errors) != 1:
            raise
        error = errors[0]
    else:
        return
    # Raising sets the context to the group; the old context is more useful.
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context
