"""What the tests of the dataspace share: a ledger that has to balance at the end, and a reader."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NoReturn

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Turn
from clearfunds.dataspace import (
    ANY,
    Capture,
    Dataspace,
    FilterIndex,
    Group,
    Literal,
    Mailbox,
    Pattern,
    capture,
    compile_pattern,
    match,
)
from clearfunds.dataspace._bag import identity
from tests.loops import (
    loop_of_the_test,
    pytest_collection_modifyitems,
    pytest_generate_tests,
    pytest_pyfunc_call,
)

__all__ = [
    "loop_of_the_test",
    "pytest_collection_modifyitems",
    "pytest_generate_tests",
    "pytest_pyfunc_call",
]

STEADY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For property tests: a busy machine makes none fail."""


@attrs.frozen
class Reading:
    """What a sensor has measured."""

    sensor: str
    celsius: float
    unit: str = "C"


@attrs.frozen
class Pair:
    """A compound of whatever."""

    left: object
    right: object = None


@attrs.frozen
class Alarm:
    """Another class of event, with one field of the same name."""

    sensor: str


class FrozenMap(Mapping[object, object]):
    """A mapping that can be asserted."""

    def __init__(self, pairs: Mapping[object, object]) -> None:
        self._pairs = dict(pairs)

    def __getitem__(self, key: object) -> object:
        return self._pairs[key]

    def __iter__(self) -> Iterator[object]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __hash__(self) -> int:
        return hash(frozenset(self._pairs))

    def __repr__(self) -> str:
        return f"FrozenMap({self._pairs})"


def by_brute_force(pattern: Pattern, value: object) -> list[object] | None:
    """Return what `pattern` captures of `value`, or None if it does not match.

    It says the same as shapes, skeletons and paths do, by plain recursion.
    """
    if isinstance(pattern, Capture):
        inner = by_brute_force(pattern.pattern, value)
        return None if inner is None else [value, *inner]
    if isinstance(pattern, Literal):
        return [] if type(value) is pattern.type and value == pattern.value else None
    if isinstance(pattern, Group):
        is_map = isinstance(value, Mapping)
        if not (is_map if pattern.kind is dict else type(value) is pattern.kind):
            return None
        found: list[object] = []
        for key, part in pattern.entries:
            try:
                at = inside(value, str(key)) if attrs.has(type(value)) else item(value, key)
            except (LookupError, AttributeError):
                return None
            inner = by_brute_force(part, at)
            if inner is None:
                return None
            found += inner
        return found
    return []


def shown_of(pattern: Pattern, value: object) -> tuple[Hashable] | None:
    """Return (the identity of) what an observer of `pattern` is shown of `value`, or None."""
    found = by_brute_force(pattern, value)
    if found is None:
        return None
    return (identity(tuple(found) if has_captures(pattern) else value),)


def has_captures(pattern: Pattern) -> bool:
    """Whether some part of a pattern is captured."""
    if isinstance(pattern, Group):
        return any(has_captures(part) for _, part in pattern.entries)
    return isinstance(pattern, Capture)


ATOMS = st.sampled_from((0, 1, 2, True, False, 1.0, "a", "b", b"a", "", None))
KEYS: st.SearchStrategy[object] = st.sampled_from(("a", "b", "", 1, 10, 2, b"a", None, ("k",)))


def _compounds(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(parts, max_size=3).map(tuple)
        | st.builds(Pair, parts, parts)
        | st.builds(Reading, parts, parts)
        | st.dictionaries(KEYS, parts, max_size=2).map(FrozenMap)
    )


VALUES: st.SearchStrategy[Any] = st.recursive(ATOMS, _compounds, max_leaves=6)
"""What can be asserted."""


def _patterns(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(KEYS, parts, max_size=2)
        | st.dictionaries(st.sampled_from(("left", "right")), parts).map(lambda f: match(Pair, **f))
        | st.builds(capture, parts)
        | st.builds(Pair, parts)
    )


PATTERNS: st.SearchStrategy[Pattern] = st.recursive(
    ATOMS | st.sampled_from((ANY, capture(), Pair, Reading, ())), _patterns, max_leaves=6
).map(compile_pattern)


class RefusedError(Exception):
    """What a test's own action raises, so that the turn it is in fails at its commit."""


def refuse(turn: Turn) -> NoReturn:
    """Make the commit fail: `turn.act(refuse)`."""
    raise RefusedError


def commit(account: Account, *notes: Callable[[Turn], object]) -> None:
    """Do a turn of `account` that notes these things."""
    with account.turn() as turn:
        for note in notes:
            note(turn)


def told(mailbox: Mailbox) -> list[Any]:
    """Take everything out of a mailbox, and finish it."""
    events: list[Any] = []
    while mailbox.queue:
        with mailbox.receive_nowait() as some:
            events += some
    return events


def balance(ledger: Ledger) -> None:
    """Audit a ledger whose leaked loans are not what the test is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        ledger.audit()


def inside(thing: object, name: str) -> Any:
    """Look at what is nobody's business but a test's."""
    return getattr(thing, name)


def item(thing: Any, key: Any) -> object:
    """Return an entry of a tuple or of a mapping."""
    return thing[key]


def is_empty(index: FilterIndex[Any]) -> bool:
    """Whether nothing of what filters once put into an index is left in it."""
    return not any(inside(index, name) for name in ("_exact", "_whole", "_rest"))


def is_bare(dataspace: Dataspace) -> bool:
    """Whether nothing of what observers and asserters once put into a dataspace is left in it."""
    numbers = dataspace.statistics()
    return (
        not inside(inside(dataspace, "_index"), "_by_kind")
        and not inside(dataspace.changes.bag, "_by_kind")
        and is_empty(inside(dataspace.routes, "_filters"))
        and (numbers.assertions, numbers.observations, numbers.shapes, numbers.subscriptions)
        == (0, 0, 0, 0)
    )


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """A ledger on the loop-independent clock; it has to balance when the test is over (rule 8)."""
    ledger = Ledger()
    yield ledger
    balance(ledger)


@pytest.fixture
def dataspace(ledger: Ledger) -> Dataspace:
    """An empty dataspace."""
    return Dataspace(ledger)


@pytest.fixture
def account(ledger: Ledger) -> Account:
    """Somebody's account."""
    return ledger.open("somebody", limit=NO_LIMIT)


@pytest.fixture
def mailbox(ledger: Ledger) -> Mailbox:
    """Somebody's mailbox."""
    return Mailbox(ledger, "inbox")


@pytest.fixture
def other(ledger: Ledger) -> Mailbox:
    """Somebody else's."""
    return Mailbox(ledger, "another")
