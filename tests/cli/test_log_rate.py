"""A storm of events is a few lines and their number; nothing is left out in silence."""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds._cli._log_rate import KINDS, LINES_A_SECOND, LimitedHandler
from clearfunds.accounts import Ledger, Limit, StuckPolicy
from clearfunds.dataspace import Mailbox
from tests.cli.peers import connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import RelayUnderTest

    StartRelay = Callable[..., RelayUnderTest]

STORM = 10_000


class Kept(logging.Handler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]


class Log:
    """A limited log with a clock that a test moves."""

    def __init__(self, lines: int = LINES_A_SECOND) -> None:
        self.now = 0.0
        self.kept = Kept()
        self.handler = LimitedHandler(self.kept, lines, lambda: self.now)

    def add(self, event: str | None, text: str = "%s", *args: object, level: int = 30) -> None:
        """Log one line."""
        values: dict[str, Any] = {"name": "clearfunds.x", "levelno": level, "msg": text}
        if event is not None:
            values["event"] = event
        self.handler.handle(logging.makeLogRecord({**values, "args": args}))


@pytest.fixture
def limited() -> Log:
    return Log()


def test_ten_thousand_drops_in_a_second_are_a_few_lines(
    limited: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the counts of the metrics are exact."""
    logger = logging.getLogger("clearfunds.accounts")
    monkeypatch.setattr(logger, "handlers", [limited.handler])
    monkeypatch.setattr(logger, "propagate", False)
    ledger = Ledger()
    account = ledger.open("publisher", limit=Limit(items=1))
    for number in range(STORM):
        limited.now = number / STORM
        mailbox = Mailbox(
            ledger, f"m{number}", policy=StuckPolicy.DROP_OLDEST, retain_limit=Limit(items=1)
        )
        with account.turn() as turn:
            turn.send(mailbox, "dropped")
            turn.send(mailbox, "kept")
        mailbox.relieve(f"mailbox m{number} made no progress")
        mailbox.close()
    limited.now = 1.0
    limited.handler.sum_up()
    begun = [m for m in limited.kept.messages if "it is behind now" in m]
    assert len(begun) == LINES_A_SECOND + 1
    assert begun[-1].startswith(
        f"and {STORM - LINES_A_SECOND:,} more like this in the last second: mailbox m{STORM - 1} "
    )
    last = [r for r in limited.kept.records if vars(r).get("of") == "behind"][-1]
    assert (vars(last)["event"], vars(last)["lines"]) == ("more_like_it", STORM - LINES_A_SECOND)
    assert last.levelno == logging.WARNING
    # There were as many lines about their ends, which are another kind.
    assert len(limited.kept.records) == 2 * (LINES_A_SECOND + 1)
    relief = ledger.relief[StuckPolicy.DROP_OLDEST]
    assert (relief.spells, relief.dropped_items) == (STORM, STORM)
    ledger.audit()


def test_each_second_begins_anew(limited: Log) -> None:
    for number in range(LINES_A_SECOND + 3):
        limited.add("left", "%s left", number)
    limited.now = 1.0
    limited.add("left", "%s left", "another")
    assert limited.kept.messages[-2:] == [
        f"and 3 more like this in the last second: {LINES_A_SECOND + 2} left",
        "another left",
    ]
    limited.now = 1.9
    limited.handler.sum_up()
    limited.now = 5.0
    limited.handler.sum_up()
    assert limited.kept.messages[-1] == "another left"  # nothing more to tell


def test_a_storm_of_one_kind_hides_no_other(limited: Log) -> None:
    for _ in range(2 * LINES_A_SECOND):
        limited.add("left", "one left")
    limited.add("alarm", "memory is short")
    limited.add("left", "a fault", level=logging.ERROR)
    limited.add(None, "a line without an event")
    assert limited.kept.messages[-3:] == ["memory is short", "a fault", "a line without an event"]


def test_what_is_left_at_the_end_is_told(limited: Log) -> None:
    for _ in range(LINES_A_SECOND + 1):
        limited.add("left", "one left")
    limited.now = 0.3
    limited.handler.flush()
    assert limited.kept.messages[-1] == "and 1 more like this in the last 0.3 s: one left"
    limited.handler.flush()
    assert len(limited.kept.records) == LINES_A_SECOND + 1


def test_kinds_without_number_are_counted_together(limited: Log) -> None:
    """As texts of peers that some package logs."""
    for number in range(KINDS + 3 * LINES_A_SECOND):
        limited.add(None, f"text {number}")
    assert len(limited.kept.records) == KINDS + LINES_A_SECOND
    limited.handler.flush()
    assert vars(limited.kept.records[-1])["of"] == "other events"
    assert vars(limited.kept.records[-1])["lines"] == 2 * LINES_A_SECOND


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.1, 0.9])), max_size=40),
)
def test_every_line_is_there_or_counted(lines: int, said: list[tuple[str, float]]) -> None:
    log = Log(lines)
    for event, pause in said:
        log.now += pause
        log.add(event)
    log.handler.flush()
    counted: Counter[str] = Counter()
    for record in log.kept.records:
        fields = vars(record)
        if fields["event"] == "more_like_it":
            counted[fields["of"]] += fields["lines"]
        else:
            counted[fields["event"]] += 1
    assert counted == Counter(event for event, _ in said)


def test_the_relay_limits_its_log(start_relay: StartRelay) -> None:
    clients = 40
    relay = start_relay(
        *("--listen", "mqtt+tcp://127.0.0.1:0", "--log-format", "json", "--log-rate", "2")
    )
    port = relay.mqtt_port()
    for number in range(clients):
        connect(port, b"c%02d" % number).close()
    relay.process.terminate()
    assert relay.wait() == 0
    lines = [json.loads(line) for line in relay.log]
    for event in ("connected", "left"):
        shown = [line for line in lines if line.get("event") == event]
        more = [line["lines"] for line in lines if line.get("of") == event]
        assert len(shown) < clients
        assert len(shown) + sum(more) == clients
