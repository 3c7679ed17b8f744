"""Traces as spans: parents, times, attributes, status; with the SDK, in memory."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio
from opentelemetry import trace as global_trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from clearfunds import testing
from clearfunds.accounts import Ledger, Outcome, Trace, TracedThere, TracedWait, Tracer, commit_run
from clearfunds.pages.otel import record_trace, sample_traces
from tests.transports.peers import connected, running, until


class Box(testing.Box):
    kind = "mailbox"


class Memory:
    """A provider of tracers that keeps every span that has ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")

    def spans(self, name: str = "") -> list[ReadableSpan]:
        every: Sequence[ReadableSpan] = self.exporter.get_finished_spans()
        return [span for span in every if name in ("", span.name)]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def number_of(span: ReadableSpan) -> int:
    assert span.context is not None
    number: int = span.context.span_id
    return number


class Scene:
    """Somebody publishes to two, one of whom answers."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ledger = Ledger(clock=lambda: self.now)
        self.account = self.ledger.open("pub")
        self.boxes = [Box(self.ledger, name) for name in ("in", "out", "lost")]

    def traced(self) -> Trace:
        inbox, outbox, lost = self.boxes
        with Tracer(self.ledger) as tracer:
            commit_run(self.account, [inbox, lost], b"", 3, 30)
            self.now += 1
            loan = inbox.queue.popleft()
            loan.settle(1, Outcome.ACKED)
            with loan.turn() as turn:
                turn.send(outbox, b"answer")
            self.now += 1
            loan.settle(outcome=Outcome.REJECTED)
            self.now += 1
            outbox.settle_all(Outcome.DELIVERED)
            self.now += 1
            (trace,) = tracer.rest()
        lost.settle_all(Outcome.DROPPED)
        return trace


def test_a_trace_is_a_tree_of_spans_at_the_times_at_which_it_was() -> None:
    trace, memory = Scene().traced(), Memory()
    outer = memory.tracer.start_span("something else that goes on")
    with global_trace.use_span(outer):
        root = record_trace(trace, memory.tracer)
    turns = memory.spans("turn")
    loans = memory.spans("loan mailbox")
    assert len(memory.spans()) == len(turns) + len(loans) == 5
    by_holder = {attributes(span)["clearfunds.holder"]: span for span in loans}
    (first,) = [span for span in turns if span.parent is None]
    (caused,) = [span for span in turns if span.parent is not None]
    assert root.get_span_context().span_id == number_of(first)
    assert parent_of(by_holder["in"]) == parent_of(by_holder["lost"]) == number_of(first)
    assert parent_of(caused) == number_of(by_holder["in"])
    assert parent_of(by_holder["out"]) == number_of(caused)
    assert len({span.context.trace_id for span in memory.spans() if span.context}) == 1
    assert outer.get_span_context().trace_id != root.get_span_context().trace_id
    assert (first.kind, caused.kind) == (SpanKind.CONSUMER, SpanKind.INTERNAL)

    base = first.start_time
    assert base is not None
    assert abs(base - trace.began * 1e9) < 1000

    def when(span: ReadableSpan) -> tuple[float, float]:
        assert span.start_time is not None
        assert span.end_time is not None
        return (span.start_time - base) / 1e9, (span.end_time - base) / 1e9

    assert when(first) == (0, 0)
    assert when(by_holder["in"]) == (0, 2)
    assert when(caused) == (1, 1)
    assert when(by_holder["out"]) == (1, 3)
    assert when(by_holder["lost"]) == (0, 4)


def test_the_part_of_another_relay_is_in_the_middle_of_its_round_trip() -> None:
    memory = Memory()
    trace = Scene().traced()
    part = attrs.evolve(trace, account="via/r1/pub", began=12.0)  # its clock differs
    first, *others = trace.root.loans
    crossed = (TracedThere("r2", 0.5, 6.5, part), TracedThere("r3", 0.5, None, None))
    loans = (attrs.evolve(first, there=crossed), *others)
    record_trace(attrs.evolve(trace, root=attrs.evolve(trace.root, loans=loans)), memory.tracer)
    answered, silent = sorted(memory.spans("hop"), key=lambda span: str(span.attributes))
    assert attributes(answered) == {
        "clearfunds.relay": "r2",
        "clearfunds.on_the_way.seconds": 2.0,
    }
    assert attributes(silent) == {"clearfunds.relay": "r3"}
    (there,) = [span for span in memory.spans("turn") if parent_of(span) == number_of(answered)]
    assert attributes(there)["clearfunds.account"] == "via/r1/pub"
    assert there.start_time is not None
    assert abs(there.start_time - (trace.began + 1.5) * 1e9) < 1000
    assert answered.end_time is not None
    assert abs(answered.end_time - (trace.began + 6.5) * 1e9) < 1000
    assert len({span.context.trace_id for span in memory.spans() if span.context}) == 1


def test_what_a_span_says() -> None:
    trace, memory = Scene().traced(), Memory()
    record_trace(trace, memory.tracer)
    loans = {attributes(span)["clearfunds.holder"]: span for span in memory.spans("loan mailbox")}
    inbox = attributes(loans["in"])
    assert inbox["clearfunds.account"] == "pub"
    assert inbox["clearfunds.holder.kind"] == "mailbox"
    assert (inbox["clearfunds.items"], inbox["clearfunds.bytes"]) == (3, 30)
    assert inbox["clearfunds.outcome"] == "mixed"
    assert inbox["clearfunds.outcomes"] == ("acked", "rejected")
    assert loans["in"].status.status_code is StatusCode.ERROR
    assert loans["in"].status.description == "2 rejected"
    settled = [dict(event.attributes or {}) for event in loans["in"].events]
    assert [each["clearfunds.outcome"] for each in settled] == ["acked", "rejected"]
    assert sum(int(str(each["clearfunds.items"])) for each in settled) == 3
    out = attributes(loans["out"])
    assert out["clearfunds.outcome"] == "delivered"
    assert loans["out"].status.status_code is StatusCode.UNSET
    assert loans["out"].events == ()
    lost = attributes(loans["lost"])
    assert (lost["clearfunds.outcome"], lost["clearfunds.left_items"]) == ("outstanding", 3)
    assert [event.name for event in loans["lost"].events] == ["still held"]
    (root,) = [span for span in memory.spans("turn") if span.parent is None]
    said = attributes(root)
    assert said["clearfunds.trace.complete"] is False
    assert said["clearfunds.trace.items.outstanding"] == 3
    assert said["clearfunds.labels"] == ("bytes",)
    assert said["clearfunds.trace.items.rejected"] == 2


def test_a_turn_that_was_undone_is_an_error() -> None:
    ledger, memory = Ledger(), Memory()
    account = ledger.open("pub")
    with Tracer(ledger) as tracer:
        turn = account.turn(nbytes=4)
        turn.__enter__()
        turn.__exit__(ValueError, ValueError(), None)
        (trace,) = tracer.rest()
    record_trace(trace, memory.tracer)
    span = memory.one("turn")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["clearfunds.outcome"] == "rejected"
    assert attributes(span)["clearfunds.bytes"] == 4


def test_waits_are_spans_of_their_own() -> None:
    trace, memory = Scene().traced(), Memory()
    waits = (
        TracedWait(-1.0, 2.0, None, {"a": 0.5, "b": 2.5}),
        TracedWait(3.0, None, "server", {}),
    )
    record_trace(attrs.evolve(trace, waits=waits), memory.tracer)
    over, going = memory.spans("wait for clear funds")
    assert attributes(over)["clearfunds.waited_on"] == ("b", "a")
    assert attributes(over)["clearfunds.waited_on.seconds"] == (2.5, 0.5)
    assert over.start_time is not None
    assert over.end_time is not None
    assert over.end_time - over.start_time == 3_000_000_000
    assert attributes(going)["clearfunds.waits_at"] == "server"
    assert going.end_time is not None
    assert going.start_time is not None
    assert going.end_time - going.start_time == 1_000_000_000


async def test_samples_of_a_relay_under_way() -> None:
    memory = Memory()
    async with (
        running(http=None) as relay,
        connected(relay.port, "sub") as sub,
        connected(relay.port, "pub") as pub,
        trio.open_nursery() as nursery,
    ):
        await sub.subscribe("#")
        before = global_trace.get_tracer_provider()

        async def sample() -> None:
            await sample_traces(relay.ledger, memory.tracer, every=0.01, follow=1.0)

        nursery.start_soon(sample)
        while len(memory.spans("turn")) < 3:
            await pub.publish("a/b", b"x")
            await sub.publication()
            await trio.sleep(0.002)
        relay.audit()
        nursery.cancel_scope.cancel()
    assert relay.ledger.tracers == []
    assert relay.ledger.traces == []
    for turn in memory.spans("turn"):
        assert attributes(turn)["clearfunds.labels"] == ("a/b",)
    for loan in memory.spans("loan outlet"):
        assert str(attributes(loan)["clearfunds.holder"]).endswith("/sub")
        assert loan.kind is SpanKind.PRODUCER
    assert global_trace.get_tracer_provider() is before


async def test_what_does_not_end_is_recorded_as_it_stands() -> None:
    books, memory = Ledger(), Memory()
    account = books.open("pub")
    box = Box(books, "box")
    async with trio.open_nursery() as nursery:

        async def sample() -> None:
            await sample_traces(books, memory.tracer, every=60, follow=0.05)

        nursery.start_soon(sample)
        await until(lambda: account.tracers)
        commit_run(account, [box], b"", 1, 0)
        await until(lambda: memory.spans("turn"))
        nursery.cancel_scope.cancel()
    assert attributes(memory.one("loan mailbox"))["clearfunds.outcome"] == "outstanding"
    box.settle_all(Outcome.DELIVERED)
    books.audit()
