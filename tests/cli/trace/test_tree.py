"""How a trace is written down."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
from rich.console import Console

from clearfunds import testing
from clearfunds._cli._trace._tree import after, moment, trace_tree, waiting_lines
from clearfunds.accounts import Ledger, Outcome, TracedThere, Tracer, commit_run
from clearfunds.pages._trace_json import TraceRow, trace_row

if TYPE_CHECKING:
    from clearfunds.pages._trace_waits import WaitingRow


class Box(testing.Box):
    kind = "mailbox"


class Scene:
    """Somebody who publishes to two, by a clock that stands still between steps."""

    def __init__(self, *names: str) -> None:
        self.now = 100.0
        self.ledger = Ledger(clock=lambda: self.now)
        self.account = self.ledger.open("pub")
        self.boxes = [Box(self.ledger, name) for name in names]

    def settle(self, box: Box, seconds: float, outcome: Outcome = Outcome.DELIVERED) -> None:
        self.now += seconds
        box.queue.popleft().settle(outcome=outcome)


def row(tracer: Tracer) -> TraceRow:
    (trace,) = tracer.rest()
    return trace_row(trace)


def lines(trace: TraceRow) -> list[str]:
    """Return the tree, without the line that says when it was."""
    out = io.StringIO()
    Console(file=out, width=500, color_system=None).print(trace_tree(trace))
    return out.getvalue().splitlines()[1:]


def test_causes_and_what_they_caused() -> None:
    scene = Scene("in", "out")
    inbox, outbox = scene.boxes
    with Tracer(scene.ledger) as tracer:
        commit_run(scene.account, [inbox], b"", 3, 30)
        scene.now += 0.002
        loan = inbox.queue.popleft()
        loan.settle(1, Outcome.ACKED)
        with loan.turn() as turn:
            turn.send(outbox, b"answer")
        scene.now += 1.5
        loan.settle(outcome=Outcome.REJECTED)
        scene.settle(outbox, 0.0005)
        found = row(tracer)
    assert lines(found) == [
        "└── +0 µs turn about bytes: committed in 0 µs, to 1",
        "    └── mailbox in  3 items, 30 B, bytes  lent +0 µs  ← slowest",
        "        ├── 1 item acked +2.0 ms",
        "        ├── 2 items rejected +1.50 s",
        "        └── +2.0 ms turn: committed in 0 µs, to 1",
        "            └── mailbox out  1 item, 6 B, bytes  lent +2.0 ms, delivered +1.50 s",
        "All of it ended within 1.50 s, the last of it by out: 1 acked, 2 rejected, 1 delivered.",
    ]


def test_what_other_relays_did_is_below_what_went_there_with_its_own_times() -> None:
    here, other = Scene("relay-2"), Scene("archive", "search")
    with Tracer(other.ledger) as tracer:
        commit_run(other.account, other.boxes, b"", 1, 9)
        other.settle(other.boxes[0], 0.002)
        other.settle(other.boxes[1], 0.001)
        (part,) = tracer.rest()
        done = attrs.evolve(part, account="via/relay-1/pub", began=0.0)
    with Tracer(other.ledger) as tracer:
        commit_run(other.account, other.boxes[:1], b"", 1, 9)
        other.now += 3
        (stuck,) = tracer.rest()
    other.settle(other.boxes[0], 0)
    with Tracer(here.ledger) as tracer:
        commit_run(here.account, here.boxes, b"", 1, 9)
        here.settle(here.boxes[0], 0.005)
        (trace,) = tracer.rest()
    (loan,) = trace.root.loans
    loan = attrs.evolve(
        loan,
        there=(
            TracedThere("relay-2", 0.0005, 0.0045, done),
            TracedThere("relay-2", 0.0, 3.5, stuck),
            TracedThere("relay-2", 0.001, None, None),
        ),
        more_there=1_000,
    )
    found = trace_row(attrs.evolve(trace, root=attrs.evolve(trace.root, loans=(loan,))))
    json.dumps(found)
    assert lines(found) == [
        "└── +0 µs turn about bytes: committed in 0 µs, to 1",
        "    └── mailbox relay-2  1 item, 9 B, bytes  lent +0 µs, delivered +5.0 ms",
        (
            "        ├── on relay-2  sent +500 µs, 1.0 ms on the way there and back, "
            "done there in 3.0 ms"
        ),
        "        │   └── +0 µs turn about bytes: committed in 0 µs, to 2",
        "        │       ├── mailbox archive  1 item, 9 B, bytes  lent +0 µs, delivered +2.0 ms",
        (
            "        │       └── mailbox search  1 item, 9 B, bytes  lent +0 µs, delivered +3.0 ms"
            "  ← slowest"
        ),
        (
            "        ├── on relay-2  sent +0 µs, 500.0 ms on the way there and back, "
            "not done there after 3.00 s"
        ),
        "        │   └── +0 µs turn about bytes: committed in 0 µs, to 1",
        "        │       └── mailbox archive  1 item, 9 B, bytes  lent +0 µs",
        (
            "        │           └── 1 item still held by mailbox archive after 3.00 s, "
            "has taken nothing for 3.0 s"
        ),
        "        ├── on relay-2  sent +1.0 ms, nothing has come back about it",
        "        └── 1,000 more messages to other relays are not followed",
        "All of it ended within 5.0 ms: 1 delivered.",
    ]


def test_what_is_outstanding_is_marked_and_named() -> None:
    scene = Scene("a", "b", "c")
    with Tracer(scene.ledger, shown=2) as tracer:
        commit_run(scene.account, scene.boxes, b"", 1, 0)
        scene.settle(scene.boxes[0], 0.0)
        scene.settle(scene.boxes[1], 1.0)
        scene.now += 4
        found = row(tracer)
    assert lines(found) == [
        "├── +0 µs turn about bytes: committed in 0 µs",
        "│   ├── mailbox b  1 item, 0 B, bytes  lent +0 µs, delivered +1.00 s",
        "│   └── mailbox c  1 item, 0 B, bytes  lent +0 µs  ← outstanding",
        "│       └── 1 item still held by mailbox c after 5.00 s, has taken nothing for 5.0 s",
        "└── 1 more loan (1 item) not shown: they were quicker",
        "1 item outstanding after 5.00 s, held by c; 2 delivered.",
    ]
    scene.boxes[2].settle_all(Outcome.DELIVERED)


def test_what_went_to_nobody_and_what_was_undone() -> None:
    scene = Scene()
    with Tracer(scene.ledger, events=2) as tracer:
        commit_run(scene.account, [], b"", 1, 1)
        turn = scene.account.turn()
        turn.__enter__()
        turn.__exit__(ValueError, ValueError(), None)
        nobody, undone = map(trace_row, tracer.rest())
    assert lines(nobody) == [
        "└── +0 µs turn about bytes: committed in 0 µs, to nobody",
        "It went to nobody; done after 0 µs.",
    ]
    assert lines(undone)[0] == "└── +0 µs turn: rejected in 0 µs, undone"


def test_a_turn_that_is_open() -> None:
    scene = Scene()
    with Tracer(scene.ledger) as tracer, scene.account.turn():
        scene.now += 2
        found = row(tracer)
    assert lines(found) == [
        "└── +0 µs turn: open for 2.00 s",
        "It is not over after 2.00 s: a turn is open.",
    ]


def test_waits_and_moves_and_names_that_would_drive_a_terminal() -> None:
    scene = Scene("bad\x1b[2J", "next")
    with Tracer(scene.ledger) as tracer:
        commit_run(scene.account, scene.boxes[:1], b"", 1, 0)
        scene.boxes[1].put(scene.boxes[0].queue.popleft())
        scene.settle(scene.boxes[1], 0.5)
        found = row(tracer)
    found["waits"] = [
        {"since": -2.0, "until": 0.5, "at": None, "blame": {"x": 0.25, "y": 2.0}},
        {"since": 0.1, "until": None, "at": "server", "blame": {}},
    ]
    found["more_waits"] = 3
    said = "\n".join(lines(found))
    assert "\x1b" not in said
    assert "mailbox bad\\x1b[2J" in said
    assert "+0 µs given to mailbox next" in said
    assert "1 item delivered +500.0 ms by next" in said
    assert "-2.00 s the account's reader waits, 2.50 s, on y 2.00 s, x 250.0 ms" in said
    assert "+100.0 ms the account's reader waits at server, so far 400.0 ms" in said
    assert "and 3 more waits" in said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((0.0, "0 µs"), (0.0000123, "12 µs"), (0.0123, "12.3 ms"), (1.234, "1.23 s")),
        *((75.0, "75.0 s"), (720.0, "12 min")),
    ],
)
def test_lengths_of_time(seconds: float, said: str) -> None:
    assert moment(seconds) == said
    assert after(seconds) == f"+{said}"


def test_who_waits_on_whom() -> None:
    wait: dict[str, Any] = {
        "account": "a",
        "at": "server",
        "seconds": 2.5,
        "debt_items": 10,
        "debt_bytes": 100,
        "on": [
            {"holder": "x", "kind": "outlet", "items": 9, "bytes": 90, "idle_seconds": 2.0},
            {"holder": "router", "kind": "router", "items": 1, "bytes": 10, "idle_seconds": 0.0},
        ],
        "on_more": 4,
    }
    nobody: dict[str, Any] = {**wait, "at": "a", "on": [], "on_more": 0}
    rows = cast("list[WaitingRow]", [wait, nobody])
    assert [text.plain for text in waiting_lines(rows, 7)] == [
        (
            "a waits at server, for 2.5 s: 10 items, 100 B are owed there, held by x (outlet, 9 "
            "items, has taken nothing for 2.0 s), router (1 item) and 4 more."
        ),
        "a waits, for 2.5 s: 10 items, 100 B are owed there; nobody holds it any more.",
        "and 7 more accounts wait",
    ]
