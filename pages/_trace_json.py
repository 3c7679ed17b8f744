"""The JSON of one trace in `/trace.json`.

All times are in seconds since the trace began (`began` is that moment, in seconds since 1970).

    {
      "account": "mqtt:1883/-/pub",   the account charged
      "began": 1790000000.123456,     when its input was charged
      "seconds": 0.25,                how long it was followed
      "complete": true,               whether everything has ended
      "root": TURN,                   the packet's turn
      "waits": [                      when the account's readers had to wait meanwhile
        {"since": 0.1, "until": null, "at": "mqtt:1883/-/pub",
         "blame": {"mqtt:1883/-/slow": 0.15}}],
      "more_waits": 0,                waits beyond the first 32
      "followed": SUM,                all loans that were followed
      "outcomes": {"delivered": 2},   the number of events with each outcome
      "left_items": 0,                the number that have not ended
      "left_bytes": 0,
      "not_shown": SUM,               followed, but not among the loans shown: the quickest ones
      "not_followed": SUM,            beyond the limit, or to holders that were not selected
      "turns_not_followed": 0         turns beyond the limit, with all that they caused
    }

    TURN = {
      "opened": 0.0, "ended": 0.0002, null while it is open
      "items": 1, "bytes": 12,        the input; 0 where a loan covers it
      "outcome": "delivered",         committed; rejected, cancelled: nothing was; null: open
      "labels": ["t"],                of published events: topics, records' labels
      "more_labels": 0,
      "loans": [LOAN, ...]            one for each holder
    }

    LOAN = {
      "holder": "mqtt:1883/-/sub", "kind": "outlet", "label": "t",
      "items": 1, "bytes": 12,        borrowed for it, framing included
      "lent": 0.0001, "ended": 0.0004, null while something is outstanding
      "left_items": 0, "left_bytes": 0,
      "held": [                       the holders of the outstanding part
        {"holder": "mqtt:1883/-/sub", "kind": "outlet", "items": 1, "idle_seconds": 3.2}],
      "moves": [                      changes of the holder, the latest 8
        {"at": 0.1, "holder": "...", "kind": "mailbox"}],
      "settlements": [                the ends, part by part
        {"at": 0.0004, "items": 1, "bytes": 12, "outcome": "delivered",
         "holder": "mqtt:1883/-/sub", "times": 1}],
      "turns": [TURN, ...],           caused by handling it
      "there": [                      what other relays did with it
        {"relay": "relay-2",
         "sent": 0.0002,
         "answered": 0.0031,          when the latest answer came; null: there was none
         "on_the_way": 0.0019,        seconds, there and back
         "trace": TRACE}],            its times are by that relay's clock; null as above
      "more_there": 0                 messages to other relays beyond the first 16 of the trace
    }

    SUM = {"loans": 2, "items": 2, "bytes": 24}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from ._survey import clipped

if TYPE_CHECKING:
    from ..accounts import Trace, TracedLoan, TracedSum, TracedTurn

DIGITS = 6
"""Digits of a second: microseconds."""


class SumRow(TypedDict):
    """A sum of loans."""

    loans: int
    items: int
    bytes: int


class HeldRow(TypedDict):
    """A holder of an outstanding part of a loan."""

    holder: str
    kind: str
    items: int
    idle_seconds: float | None


class MoveRow(TypedDict):
    """A loan's move to another holder."""

    at: float
    holder: str
    kind: str


class SettlementRow(TypedDict):
    """A part of a loan that has ended."""

    at: float
    items: int
    bytes: int
    outcome: str
    holder: str
    times: int


class ThereRow(TypedDict):
    """What another relay did with a loan, or a part of one."""

    relay: str
    sent: float
    answered: float | None
    on_the_way: float | None
    trace: TraceRow | None


class LoanRow(TypedDict):
    """A loan of one turn to one holder."""

    holder: str
    kind: str
    label: str
    items: int
    bytes: int
    lent: float
    ended: float | None
    left_items: int
    left_bytes: int
    held: list[HeldRow]
    moves: list[MoveRow]
    settlements: list[SettlementRow]
    turns: list[TurnRow]
    there: list[ThereRow]
    more_there: int


class TurnRow(TypedDict):
    """A turn: the effects of handling one event."""

    opened: float
    ended: float | None
    items: int
    bytes: int
    outcome: str | None
    labels: list[str]
    more_labels: int
    loans: list[LoanRow]


class TracedWaitRow(TypedDict):
    """A wait of one of the account's readers during the trace."""

    since: float
    until: float | None
    at: str | None
    blame: dict[str, float]


class TraceRow(TypedDict):
    """One event, and everything that it caused."""

    account: str
    began: float
    seconds: float
    complete: bool
    root: TurnRow
    waits: list[TracedWaitRow]
    more_waits: int
    followed: SumRow
    outcomes: dict[str, int]
    left_items: int
    left_bytes: int
    not_shown: SumRow
    not_followed: SumRow
    turns_not_followed: int


def trace_row(trace: Trace) -> TraceRow:
    """Return the JSON row of a trace."""
    return {
        "account": clipped(trace.account),
        "began": round(trace.began, DIGITS),
        "seconds": round(trace.seconds, DIGITS),
        "complete": trace.complete,
        "root": _turn_row(trace.root),
        "waits": [
            {
                "since": round(wait.since, DIGITS),
                "until": _time(wait.until),
                "at": None if wait.at is None else clipped(wait.at),
                "blame": {clipped(n): round(s, DIGITS) for n, s in wait.blame.items()},
            }
            for wait in trace.waits
        ],
        "more_waits": trace.more_waits,
        "followed": _sum_row(trace.followed),
        "outcomes": {outcome.label: items for outcome, items in trace.outcomes.items()},
        "left_items": trace.left_items,
        "left_bytes": trace.left_bytes,
        "not_shown": _sum_row(trace.not_shown),
        "not_followed": _sum_row(trace.not_followed),
        "turns_not_followed": trace.turns_not_followed,
    }


def _sum_row(found: TracedSum) -> SumRow:
    return {"loans": found.loans, "items": found.items, "bytes": found.bytes}


def _time(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, DIGITS)


def _turn_row(turn: TracedTurn) -> TurnRow:
    return {
        "opened": round(turn.opened, DIGITS),
        "ended": _time(turn.ended),
        "items": turn.items,
        "bytes": turn.bytes,
        "outcome": None if turn.outcome is None else turn.outcome.label,
        "labels": list(turn.labels),
        "more_labels": turn.more_labels,
        "loans": [_loan_row(loan) for loan in turn.loans],
    }


def _loan_row(loan: TracedLoan) -> LoanRow:
    return {
        "holder": clipped(loan.holder),
        "kind": loan.kind,
        "label": loan.label,
        "items": loan.items,
        "bytes": loan.bytes,
        "lent": round(loan.lent, DIGITS),
        "ended": _time(loan.ended),
        "left_items": loan.left_items,
        "left_bytes": loan.left_bytes,
        "held": [
            {
                "holder": clipped(each.holder),
                "kind": each.kind,
                "items": each.items,
                "idle_seconds": _time(each.idle_seconds),
            }
            for each in loan.held
        ],
        "moves": [
            {"at": round(each.at, DIGITS), "holder": clipped(each.holder), "kind": each.kind}
            for each in loan.moves
        ],
        "settlements": [
            {
                "at": round(each.at, DIGITS),
                "items": each.items,
                "bytes": each.bytes,
                "outcome": each.outcome.label,
                "holder": clipped(each.holder),
                "times": each.times,
            }
            for each in loan.settlements
        ],
        "turns": [_turn_row(turn) for turn in loan.turns],
        "there": [
            {
                "relay": each.relay,
                "sent": round(each.sent, DIGITS),
                "answered": _time(each.answered),
                "on_the_way": _time(each.on_the_way),
                "trace": None if each.trace is None else trace_row(each.trace),
            }
            for each in loan.there
        ],
        "more_there": loan.more_there,
    }
