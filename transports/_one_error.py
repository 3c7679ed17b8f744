"""Groups of exceptions, as nurseries raise them, unwrapped."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import cast

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


def first_of(
    exc: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]
) -> BaseException | None:
    """Return an exception, or the first one in the nest of groups that it is.

    None: it is not, or not all of them are, of these kinds.
    """
    if not isinstance(exc, BaseExceptionGroup):
        return exc if isinstance(exc, kinds) else None
    group = cast("BaseExceptionGroup[BaseException]", exc)
    return first_of(group.exceptions[0], kinds) if group.split(kinds)[1] is None else None
