"""A finished trace as spans.

The packet's turn is the root span. Below a turn, each loan that it made has a span, from the
handover until the last of it was settled; below a loan, each turn that its handling caused has one.
Waits of the account's readers meanwhile are spans below the root. What went to another relay has a
span `hop` below its loan, and below that the spans of what that relay did.

A trace begins here: neither an MQTT 3.1.1 packet nor a Syndicate turn has a place for a W3C
`traceparent`, so spans of the publishing program cannot be the parents of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from ...accounts import Outcome

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer
    from opentelemetry.util.types import AttributeValue

    from ...accounts import Trace, TracedLoan, TracedThere, TracedTurn, TracedWait

FAULTS: Final = frozenset(
    (Outcome.REJECTED, Outcome.EXPIRED, Outcome.DROPPED, Outcome.WRITTEN_OFF, Outcome.LEAKED)
)
"""Outcomes that make a span's status an error: the loan did not reach its destination."""

OUTSTANDING: Final = "outstanding"
"""The outcome of loans that had not ended when the trace did."""


def record_trace(trace: Trace, tracer: Tracer) -> Span:
    """Make spans of a trace, with the times of its events, and return the root.

    Args:
        trace: From a `clearfunds.accounts.Tracer`. Parts that it does not show have no span; their
            number is among the root's attributes.
        tracer: Makes the spans. They are made as new roots, whatever the current span is.
    """
    return _Recorder(trace, tracer, trace.began).record(Context())


def _root_attributes(trace: Trace) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "clearfunds.trace.complete": trace.complete,
        "clearfunds.trace.loans": trace.followed.loans,
        "clearfunds.trace.not_shown_loans": trace.not_shown.loans,
        "clearfunds.trace.not_followed_loans": trace.not_followed.loans,
        "clearfunds.trace.not_followed_turns": trace.turns_not_followed,
    }
    for outcome, items in trace.outcomes.items():
        found[f"clearfunds.trace.items.{outcome.label}"] = items
    if trace.left_items:
        found[f"clearfunds.trace.items.{OUTSTANDING}"] = trace.left_items
    return found


class _Recorder:
    """Makes the spans of one trace."""

    def __init__(self, trace: Trace, tracer: Tracer, began: float) -> None:
        self.trace = trace
        self.tracer = tracer
        self.began = int(began * 1e9)

    def record(self, parent: Context) -> Span:
        """Make the spans of the trace, and return the one of its packet's turn."""
        root = self.turn(self.trace.root, parent, _root_attributes(self.trace))
        context = set_span_in_context(root, parent)
        for wait in self.trace.waits:
            self.wait(wait, context)
        return root

    def at(self, seconds: float | None) -> int:
        """Return a time of the trace in nanoseconds since 1970; None is its end."""
        return self.began + round((self.trace.seconds if seconds is None else seconds) * 1e9)

    def turn(
        self, turn: TracedTurn, parent: Context, more: dict[str, AttributeValue] | None = None
    ) -> Span:
        """Make the span of a turn and all below it."""
        attributes: dict[str, AttributeValue] = {
            "clearfunds.account": self.trace.account,
            "clearfunds.items": turn.items,
            "clearfunds.bytes": turn.bytes,
            "clearfunds.outcome": OUTSTANDING if turn.outcome is None else turn.outcome.label,
            **(more or {}),
        }
        if turn.labels:
            attributes["clearfunds.labels"] = turn.labels
        span = self.tracer.start_span(
            "turn",
            parent,
            # An event from outside is consumed; a turn that a loan caused happens here.
            SpanKind.CONSUMER if turn is self.trace.root else SpanKind.INTERNAL,
            attributes,
            start_time=self.at(turn.opened),
        )
        if turn.outcome in FAULTS:
            span.set_status(Status(StatusCode.ERROR, "nothing of it was committed"))
        context = set_span_in_context(span, parent)
        for loan in turn.loans:
            self.loan(loan, context)
        span.end(self.at(turn.ended))
        return span

    def loan(self, loan: TracedLoan, parent: Context) -> None:
        """Make the span of a loan and all below it."""
        outcomes = loan.outcomes()
        labels = [outcome.label for outcome in outcomes]
        if loan.ended is None:
            labels.append(OUTSTANDING)
        span = self.tracer.start_span(
            f"loan {loan.kind}".rstrip(),
            parent,
            SpanKind.PRODUCER if loan.kind in OUTWARDS else SpanKind.INTERNAL,
            {
                "clearfunds.account": self.trace.account,
                "clearfunds.holder": loan.holder,
                "clearfunds.holder.kind": loan.kind,
                "clearfunds.label": loan.label,
                "clearfunds.items": loan.items,
                "clearfunds.bytes": loan.bytes,
                "clearfunds.left_items": loan.left_items,
                "clearfunds.outcome": labels[0] if len(labels) == 1 else "mixed",
                "clearfunds.outcomes": labels,
            },
            start_time=self.at(loan.lent),
        )
        for move in loan.moves:
            span.add_event(
                "moved",
                {"clearfunds.holder": move.holder, "clearfunds.holder.kind": move.kind},
                self.at(move.at),
            )
        if len(loan.settlements) > 1 or loan.ended is None:
            for settlement in loan.settlements:
                span.add_event(
                    "settled",
                    {
                        "clearfunds.items": settlement.items,
                        "clearfunds.bytes": settlement.bytes,
                        "clearfunds.outcome": settlement.outcome.label,
                        "clearfunds.holder": settlement.holder,
                    },
                    self.at(settlement.at),
                )
        for held in loan.held:
            span.add_event(
                "still held",
                {"clearfunds.holder": held.holder, "clearfunds.items": held.items},
                self.at(None),
            )
        faults = sorted(FAULTS.intersection(outcomes))
        if faults:
            said = ", ".join(f"{outcomes[fault]} {fault.label}" for fault in faults)
            span.set_status(Status(StatusCode.ERROR, said))
        context = set_span_in_context(span, parent)
        for turn in loan.turns:
            self.turn(turn, context)
        for there in loan.there:
            self.there(there, context)
        span.end(self.at(loan.ended))

    def there(self, there: TracedThere, parent: Context) -> None:
        """Make the span of a message to another relay, and below it what that did."""
        attributes: dict[str, AttributeValue] = {"clearfunds.relay": there.relay}
        trace, on_the_way = there.trace, there.on_the_way
        if on_the_way is not None:
            attributes["clearfunds.on_the_way.seconds"] = on_the_way
        span = self.tracer.start_span(
            "hop", parent, SpanKind.CLIENT, attributes, start_time=self.at(there.sent)
        )
        if trace is not None and on_the_way is not None:
            # Its clock may differ. So its part is put in the middle of the round trip, as Jaeger's
            # clock skew adjustment does.
            began = self.began / 1e9 + there.sent + on_the_way / 2
            _Recorder(trace, self.tracer, began).record(set_span_in_context(span, parent))
        span.end(self.at(there.answered))

    def wait(self, wait: TracedWait, parent: Context) -> None:
        """Make the span of a reader's wait."""
        attributes: dict[str, AttributeValue] = {"clearfunds.account": self.trace.account}
        if wait.at is not None:
            attributes["clearfunds.waits_at"] = wait.at
        if wait.blame:
            most = sorted(wait.blame, key=lambda name: wait.blame[name], reverse=True)
            attributes["clearfunds.waited_on"] = most
            attributes["clearfunds.waited_on.seconds"] = [wait.blame[name] for name in most]
        span = self.tracer.start_span(
            "wait for clear funds", parent, attributes=attributes, start_time=self.at(wait.since)
        )
        span.end(self.at(wait.until))


OUTWARDS: Final = frozenset(("outlet", "inflight", "credited"))
"""Kinds of holders whose loans leave this process."""
