"""Long work as a generator: it yields where others may go on, and returns what it has found."""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

T = TypeVar("T")

STEP: Final = 256
"""How many of the little things are looked at before others may go on."""


def at_once(steps: Generator[None, None, T]) -> T:
    """Do all of the work without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def in_steps(things: Iterable[T]) -> Generator[None, None, list[T]]:
    """Make a list of what is made one by one."""
    made: list[T] = []
    for number, thing in enumerate(things, 1):
        made.append(thing)
        if not number % STEP:
            yield
    return made


def sorted_in_steps(things: Iterable[T], key: Callable[[T], Any]) -> Generator[None, None, list[T]]:
    """Return what `sorted` does."""
    every = list(things)
    parts: list[list[T]] = []
    for start in range(0, len(every), STEP):
        if start:
            yield
        parts.append(sorted(every[start : start + STEP], key=key))
    if len(parts) < 2:
        return parts[0] if parts else []
    made = yield from in_steps(merge(*parts, key=key))
    return made
