"""What the tests of the dataspace share: a ledger that has to balance at the end, and a reader."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import attrs
import pytest

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Turn
from clearfunds.dataspace import Dataspace, Mailbox


@attrs.frozen
class Reading:
    """What a sensor has measured."""

    sensor: str
    celsius: float
    unit: str = "C"


@attrs.frozen
class Alarm:
    """Another class of event, with one field of the same name."""

    sensor: str


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


def is_bare(dataspace: Dataspace) -> bool:
    """Whether nothing of what observers and asserters once put into a dataspace is left in it."""
    numbers = dataspace.statistics()
    return (
        not inside(inside(dataspace, "_index"), "_by_type")
        and not inside(inside(dataspace, "_bag"), "_by_type")
        and not inside(inside(inside(dataspace.routes, "_filters"), "_root"), "children")
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
