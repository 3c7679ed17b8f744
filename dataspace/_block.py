"""Blocks: what holds for as long as a `with` block lasts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)


class Block(AbstractContextManager[T_co], Generic[T_co]):
    """Something that begins with a `with` block and ends with it.

    One that is never entered does nothing, which is never meant: it warns when it is forgotten.
    """

    __slots__ = ("_block", "_entered", "_name")

    def __init__(self, name: str, block: AbstractContextManager[T_co]) -> None:
        self._name = name
        self._block = block
        self._entered = False

    def __enter__(self) -> T_co:
        self._entered = True
        return self._block.__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._block.__exit__(exc_type, exc, traceback)

    def __del__(self) -> None:
        if not self._entered:
            msg = f"`{self._name}(...)` does nothing by itself; write `with {self._name}(...):`"
            warnings.warn(msg, RuntimeWarning, stacklevel=2)


def block(function: Callable[P, Generator[T_co]]) -> Callable[P, Block[T_co]]:
    """Make a function that yields once a function that returns a `Block`."""
    make = contextmanager(function)

    def begin(*args: P.args, **kwargs: P.kwargs) -> Block[T_co]:
        return Block(function.__name__.lstrip("_"), make(*args, **kwargs))

    begin.__doc__ = function.__doc__
    begin.__name__ = function.__name__
    return begin
