"""Traces as JSON values, for receipts.

Each is a list of its fields in the order of their class in `accounts.trace._trace`; an outcome is
its value in `Outcome`.
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from ..accounts import (
    Move,
    Outcome,
    Settlement,
    StillHeld,
    Trace,
    TracedLoan,
    TracedSum,
    TracedThere,
    TracedTurn,
    TracedWait,
)

MAX_TRACE_BYTES: Final = 64 << 10
"""Bytes of one trace: a hundred loans with long names. A receipt with twenty of them is two
messages of NATS."""


def trace_values(trace: Trace) -> list[Any]:
    """Return a trace as JSON values: without its loans and waits if it would be too long."""
    values = _trace(trace)
    if len(json.dumps(values, separators=(",", ":"))) <= MAX_TRACE_BYTES:
        return values
    root = attrs.evolve(trace.root, loans=(), labels=())
    more = trace.more_waits + len(trace.waits)
    return _trace(
        attrs.evolve(trace, root=root, not_shown=trace.followed, waits=(), more_waits=more)
    )


def _trace(trace: Trace) -> list[Any]:
    return [
        trace.account,
        trace.began,
        trace.seconds,
        trace.complete,
        _turn(trace.root),
        [[wait.since, wait.until, wait.at, wait.blame] for wait in trace.waits],
        trace.more_waits,
        _sum(trace.followed),
        [[int(outcome), items] for outcome, items in trace.outcomes.items()],
        trace.left_items,
        trace.left_bytes,
        _sum(trace.not_shown),
        _sum(trace.not_followed),
        trace.turns_not_followed,
    ]


def _sum(found: TracedSum) -> list[int]:
    return [found.loans, found.items, found.bytes]


def _turn(turn: TracedTurn) -> list[Any]:
    return [
        turn.opened,
        turn.ended,
        turn.items,
        turn.bytes,
        None if turn.outcome is None else int(turn.outcome),
        turn.labels,
        turn.more_labels,
        [_loan(loan) for loan in turn.loans],
    ]


def _loan(loan: TracedLoan) -> list[Any]:
    return [
        loan.holder,
        loan.kind,
        loan.label,
        loan.items,
        loan.bytes,
        loan.lent,
        loan.ended,
        loan.left_items,
        loan.left_bytes,
        [[each.holder, each.kind, each.items, each.idle_seconds] for each in loan.held],
        [[each.at, each.holder, each.kind] for each in loan.moves],
        [
            [
                *(each.at, each.items, each.bytes, int(each.outcome)),
                *(each.holder, each.times),
            ]
            for each in loan.settlements
        ],
        [_turn(turn) for turn in loan.turns],
        [_there(there) for there in loan.there],
        loan.more_there,
    ]


def _there(there: TracedThere) -> list[Any]:
    trace = there.trace
    return [there.relay, there.sent, there.answered, None if trace is None else _trace(trace)]


def read_trace(values: Any) -> Trace:
    """Return the trace that such values are.

    Raises:
        ValueError, TypeError, LookupError, RecursionError: They are none.
    """
    (
        account, began, seconds, complete, root, waits, more_waits, followed, outcomes,
        left_items, left_bytes, not_shown, not_followed, turns_not_followed,
    ) = values  # fmt: skip
    return Trace(
        account=read_text(account),
        began=_seconds(began),
        seconds=_seconds(seconds),
        complete=bool(complete),
        root=_read_turn(root),
        waits=tuple(
            TracedWait(
                _seconds(since),
                None if until is None else _seconds(until),
                None if at is None else read_text(at),
                {read_text(name): _seconds(each) for name, each in blame.items()},
            )
            for since, until, at, blame in waits
        ),
        more_waits=read_number(more_waits),
        followed=_read_sum(followed),
        outcomes={_outcome(each): read_number(items) for each, items in outcomes},
        left_items=read_number(left_items),
        left_bytes=read_number(left_bytes),
        not_shown=_read_sum(not_shown),
        not_followed=_read_sum(not_followed),
        turns_not_followed=read_number(turns_not_followed),
    )


def _read_sum(values: Any) -> TracedSum:
    loans, items, nbytes = values
    return TracedSum(read_number(loans), read_number(items), read_number(nbytes))


def _read_turn(values: Any) -> TracedTurn:
    opened, ended, items, nbytes, outcome, labels, more_labels, loans = values
    return TracedTurn(
        _seconds(opened),
        None if ended is None else _seconds(ended),
        read_number(items),
        read_number(nbytes),
        None if outcome is None else _outcome(outcome),
        tuple(read_text(label) for label in labels),
        read_number(more_labels),
        tuple(_read_loan(loan) for loan in loans),
    )


def _read_loan(values: Any) -> TracedLoan:
    (
        holder, kind, label, items, nbytes, lent, ended, left_items, left_bytes,
        held, moves, settlements, turns, there, more_there,
    ) = values  # fmt: skip
    return TracedLoan(
        read_text(holder),
        read_text(kind),
        read_text(label),
        read_number(items),
        read_number(nbytes),
        _seconds(lent),
        None if ended is None else _seconds(ended),
        read_number(left_items),
        read_number(left_bytes),
        tuple(
            StillHeld(
                read_text(who),
                read_text(its),
                read_number(has),
                None if idle is None else _seconds(idle),
            )
            for who, its, has, idle in held
        ),
        tuple(Move(_seconds(at), read_text(who), read_text(its)) for at, who, its in moves),
        tuple(
            Settlement(
                _seconds(at),
                read_number(some),
                read_number(size),
                _outcome(end),
                read_text(who),
                read_number(times),
            )
            for at, some, size, end, who, times in settlements
        ),
        tuple(_read_turn(turn) for turn in turns),
        tuple(
            TracedThere(
                read_text(relay),
                _seconds(sent),
                None if answered is None else _seconds(answered),
                None if trace is None else read_trace(trace),
            )
            for relay, sent, answered, trace in there
        ),
        read_number(more_there),
    )


def _outcome(value: Any) -> Outcome:
    return Outcome(read_number(value))


def _seconds(value: object) -> float:
    if type(value) is not float and type(value) is not int:
        msg = f"{value!r} is no time"
        raise ValueError(msg)
    return float(value)


def read_number(value: object) -> int:
    """Return a number of something.

    Raises:
        ValueError: It is none.
    """
    if type(value) is not int or value < 0:
        msg = f"{value!r} is no number of anything"
        raise ValueError(msg)
    return value


def read_text(value: object) -> str:
    """Return a name.

    Raises:
        ValueError: It is none.
    """
    if type(value) is not str:
        msg = f"{value!r} is no name"
        raise ValueError(msg)
    return value
