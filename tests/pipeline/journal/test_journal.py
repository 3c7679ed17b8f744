"""What the journal writes is what happened: each outcome, each sum, each moment."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from clearfunds.accounts import DEFAULT_LIMIT_ITEMS, Ledger, Limit, Outcome, commit_run
from clearfunds.pipeline._errors import MissingError, OptionError, PipelineError
from clearfunds.pipeline.journal import TABLES, Journal, JournalSettings, open_journal
from clearfunds.pipeline.journal._snapshot import STEP, snapshot
from tests.pipeline.journal.conftest import Box, Scene, files, hidden, rows, sums

NO_SNAPSHOTS = JournalSettings(snapshot_every=None, rows_per_second=None)


def test_each_column_says_what_it_is() -> None:
    for name, table in TABLES.items():
        assert table.name == name
        assert table.about.endswith(".")
        assert table.columns[0].type == "timestamp"
        assert all(column.doc.endswith(".") for column in table.columns)
        assert [field.name for field in table.schema] == [column.name for column in table.columns]


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.LEAKED])
async def test_every_outcome_gives_its_row(scene: Scene, tmp_path: Path, outcome: Outcome) -> None:
    began = time.time_ns()
    async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS):
        loan = scene.alice.lend([1, 2], items=2, nbytes=30)
        scene.boxes[0].put(loan)
        await trio.sleep(0.01)
        scene.boxes[0].settle_all(outcome)
    (row,) = rows(tmp_path, "settlements")
    moments = [row.pop(name) for name in ("settled", "opened_ns", "settled_ns")]
    assert row == {
        "account": "alice",
        "parent": "server",
        "holder": "box 0",
        "kind": "box",
        "outcome": outcome.label,
        "items": 2,
        "bytes": 30,
        "weight": 1.0,
    }
    settled, opened_ns, settled_ns = moments
    assert began - 1_000_000 < opened_ns < settled_ns - 9_000_000
    assert settled_ns <= time.time_ns() + 1_000_000
    assert settled == datetime.fromtimestamp(settled_ns // 1000 / 1e6, UTC)


async def test_what_has_leaked_gives_its_row(scene: Scene, tmp_path: Path) -> None:
    async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS):
        scene.boxes[0].put(scene.alice.lend([1], nbytes=3))
        scene.boxes[0].queue.clear()
        gc.collect()
        with pytest.warns(ResourceWarning):
            scene.ledger.audit()
    (row,) = rows(tmp_path, "settlements")
    assert (row["holder"], row["kind"], row["outcome"]) == ("box 0", "box", "leaked")


async def test_publications(scene: Scene, tmp_path: Path) -> None:
    long = "x" * 60_000

    def label(about: object) -> str:
        return f"{about}"

    async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS, label=label):
        commit_run(scene.alice, scene.boxes, "news", 5, 50)
        commit_run(scene.bob, [], long, 1, 1)
        with scene.bob.turn(nbytes=2) as turn:
            turn.send(scene.boxes[0], "sent \ud800", nbytes=7)
        for box in scene.boxes:
            box.settle_all(Outcome.DELIVERED)
    keys = ("account", "parent", "topic", "items", "bytes", "copies", "copied_bytes", "weight")
    assert [tuple(row[key] for key in keys) for row in rows(tmp_path, "publications")] == [
        ("alice", "server", "news", 5, 50, 15, 150, 1.0),
        ("bob", "server", "x" * 256, 1, 1, 0, 0, 1.0),
        ("bob", "server", "sent ?", 1, 2, 1, 7, 1.0),
    ]


async def test_limits_and_the_last_of_several(scene: Scene, tmp_path: Path) -> None:
    async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS):
        scene.alice.limit = Limit(items=5)
        scene.bob.limit = Limit(items=None, bytes=None)
        scene.alice.limit = Limit(items=10, bytes=None, low_items=3)
    keys = ("account", "limit_items", "limit_bytes", "low_items", "low_bytes")
    assert [tuple(row[key] for key in keys) for row in rows(tmp_path, "limits")] == [
        ("bob", None, None, None, None),
        ("alice", 10, None, 3, None),
    ]


async def passes(clock: MockClock, seconds: float) -> None:
    """Let time pass, and a thread do what it has to; a clock that jumps does not wait for it."""
    await wait_all_tasks_blocked()
    clock.jump(seconds)
    await wait_all_tasks_blocked()


async def real_time() -> None:
    """Let a thread do what it has to, which takes no time by a clock that stands still."""
    await trio.to_thread.run_sync(time.sleep, 0.02)


async def test_stalls(tmp_path: Path, mock_clock: MockClock) -> None:
    scene = Scene(Ledger(clock=trio.current_time))
    scene.alice.limit = Limit(items=1, low_items=0)
    one, two, _ = scene.boxes
    async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS):
        commit_run(scene.alice, [one, two], "run", 2, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.alice.ensure_clear_funds)
            await passes(mock_clock, 3)
            one.settle_all(Outcome.DELIVERED)
            await passes(mock_clock, 2)
            two.settle_all(Outcome.DELIVERED)
    found = rows(tmp_path, "stalls")
    assert [(row["account"], row["at_account"], row["reason"]) for row in found] == [
        ("alice", "alice", "account")
    ] * 2
    seconds = {row["culprit"]: (row["ended_ns"] - row["began_ns"]) / 1e9 for row in found}
    assert seconds == pytest.approx({"box 0": 3.0, "box 1": 2.0})


async def test_snapshots(tmp_path: Path, mock_clock: MockClock) -> None:
    scene = Scene(Ledger(clock=trio.current_time))
    chosen = attrs.evolve(NO_SNAPSHOTS, snapshot_every=10.0)
    async with open_journal(scene.ledger, tmp_path, chosen) as journal:
        commit_run(scene.alice, scene.boxes[:2], "run", 2, 20)
        await passes(mock_clock, 1)
        commit_run(scene.bob, scene.boxes[:1], "run", 1, 5)
        loose = scene.bob.lend("", nbytes=4)
        for seconds in (9, 10):
            await passes(mock_clock, seconds)
            await journal.flush()
        await passes(mock_clock, 5)
    moments = sorted({row["at_ns"] for row in rows(tmp_path, "open_loans")})
    assert [(at - moments[0]) / 1e9 for at in moments] == pytest.approx([0, 10, 15])
    last = [row for row in rows(tmp_path, "open_loans") if row["at_ns"] == moments[-1]]
    keys = ("account", "holder", "kind", "items", "bytes")
    assert sorted(tuple(row[key] for key in keys) for row in last) == [
        ("alice", "box 0", "box", 2, 20),
        ("alice", "box 1", "box", 2, 20),
        ("bob", "(no holder)", "none", 1, 4),
        ("bob", "box 0", "box", 1, 5),
    ]
    ages = {row["account"]: (row["at_ns"] - row["opened_ns"]) / 1e9 for row in last}
    assert ages == pytest.approx({"alice": 25.0, "bob": 24.0})
    accounts = [row for row in rows(tmp_path, "accounts") if row["at_ns"] == moments[-1]]
    assert {row["account"]: row["parent"] for row in accounts} == {
        "server": None,
        "alice": "server",
        "bob": "server",
    }
    server = next(row for row in accounts if row["account"] == "server")
    assert (server["debt_items"], server["debt_bytes"]) == (6, 49)
    assert (server["limit_items"], server["at_rest"]) == (DEFAULT_LIMIT_ITEMS, None)
    loose.settle()


def test_a_snapshot_is_taken_in_steps_in_which_the_books_change() -> None:
    ledger = Ledger()
    accounts = [ledger.open(f"account {number}") for number in range(2_000)]
    boxes = [Box(ledger, f"box {number}") for number in range(2_000)]
    for box in boxes[:1_000]:
        commit_run(accounts[0], [box], "run", 1, 1)
    for _ in range(1_000):
        boxes[0].put(accounts[0].lend([1]))
    steps = snapshot(ledger)
    count = 0
    try:
        while True:
            next(steps)
            count += 1
            accounts[count].close()
            boxes[-count].put(accounts[-1].lend([1]))
            boxes[count].settle_all(Outcome.DELIVERED)
    except StopIteration as end:
        statements, loans = end.value
    assert count >= (2_000 + 1_000 + 2_000) // STEP
    assert len(statements) == 2_000
    assert [row[4] for row in loans if row[1:3] == ("account 0", "box 0")] == [1_001]
    for box in boxes:
        box.settle_all(Outcome.DELIVERED)


steps = st.lists(
    st.tuples(
        st.sampled_from(["run", "turn", "fail", "lend", "settle", "split", "forward", "close"]),
        st.integers(0, 2),
        st.integers(1, 4),
        st.sampled_from([0, 7, 1_000]),
        st.sampled_from([o for o in Outcome if o is not Outcome.LEAKED]),
    ),
    max_size=40,
)


@pytest.mark.rule(8)
@settings(max_examples=15, deadline=None)
@given(steps=steps)
def test_all_that_was_borrowed_is_in_it(
    steps: list[tuple[str, int, int, int, Outcome]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rule 8, read back: settled + published + still open = borrowed."""
    folder = tmp_path_factory.mktemp("journal")
    ledger = Ledger()
    scene = Scene(ledger)

    async def main() -> None:
        async with open_journal(ledger, folder, NO_SNAPSHOTS):
            for what, where, items, nbytes, outcome in steps:
                act(scene, what, where, items, nbytes, outcome)
                ledger.audit()

    trio.run(main)
    items, settled = sums(folder)
    open_items = sum(row["items"] for row in rows(folder, "open_loans"))
    open_bytes = sum(row["bytes"] for row in rows(folder, "open_loans"))
    assert (items + open_items, settled + open_bytes) == (
        ledger.borrowed_items,
        ledger.borrowed_bytes,
    )
    by_outcome = dict.fromkeys([outcome.label for outcome in Outcome], 0)
    for row in rows(folder, "settlements"):
        by_outcome[row["outcome"]] += row["items"]
    by_outcome["delivered"] += sum(row["items"] for row in rows(folder, "publications"))
    assert by_outcome == ledger.statistics().repaid_items
    accounts = {row["account"]: row for row in rows(folder, "accounts")}
    assert {name: row["debt_items"] for name, row in accounts.items()} == {
        account.name: account.debt_items for account in ledger.accounts.values()
    }
    for box in scene.boxes:
        box.settle_all(Outcome.DELIVERED)
    for loan in list(ledger.loose):
        loan.settle()


def act(scene: Scene, what: str, where: int, items: int, nbytes: int, outcome: Outcome) -> None:
    box, account = scene.boxes[where], scene.alice if where else scene.bob
    if what == "run":
        commit_run(account, scene.boxes[:where], "run", items, nbytes)
    elif what in ("turn", "fail"):
        try:
            with account.turn(items=items, nbytes=nbytes) as turn:
                for number in range(where):
                    turn.send(scene.boxes[number], "event", items=items, nbytes=nbytes)
                if what == "fail":
                    raise LookupError
        except LookupError:
            pass
    elif what == "lend":
        box.put(account.lend(list(range(items)), items=items, nbytes=nbytes))
    elif what == "close":
        box.closed = not box.closed
    elif box.queue:
        loan = box.queue[0]
        if what == "settle":
            loan.settle(min(items, loan.items), outcome)
        elif what == "split" and items < loan.items == len(loan.item):
            scene.boxes[0].put(loan.split(items))
        elif what == "forward":
            box.queue.popleft()
            scene.boxes[1].put(loan)
        if not loan.items and loan in box.queue:
            box.queue.remove(loan)


# -- files --------------------------------------------------------------------------------------


async def until(found: Callable[[], bool]) -> None:
    """Wait until a thread has done what it was to do."""
    with trio.fail_after(20):
        while not found():  # noqa: ASYNC110
            await trio.sleep(0.02)


async def settle_many(scene: Scene, journal: Journal, count: int) -> None:
    """Settle as many loans of one item, no faster than they can be taken down."""
    sample = journal._settlements  # pyright: ignore[reportPrivateUsage]
    for number in range(count):
        scene.alice.lend("").settle()
        if not number % 10_000:
            await until(lambda: len(sample) < 20_000)


async def test_nothing_can_be_read_before_it_is_complete(scene: Scene, tmp_path: Path) -> None:
    chosen = attrs.evolve(NO_SNAPSHOTS, roll_every=3600)
    async with open_journal(scene.ledger, tmp_path, chosen) as journal:
        await settle_many(scene, journal, 70_000)
        await until(lambda: bool(hidden(tmp_path)))
        assert not files(tmp_path, "settlements")
        await journal.flush()
        assert not hidden(tmp_path)
        assert len(rows(tmp_path, "settlements")) == 70_000
    assert {path.parent.parent.name for path in files(tmp_path, "settlements")} == {
        f"date={datetime.now(UTC):%Y-%m-%d}"
    }


async def test_files_are_rolled_by_size(scene: Scene, tmp_path: Path) -> None:
    async with open_journal(
        scene.ledger, tmp_path, attrs.evolve(NO_SNAPSHOTS, roll_bytes=1)
    ) as journal:
        for _ in range(2):
            await settle_many(scene, journal, 66_000)
            await until(lambda: bool(files(tmp_path, "settlements")))
    assert len(files(tmp_path, "settlements")) >= 2
    assert len(rows(tmp_path, "settlements")) == 132_000


async def test_files_are_rolled_by_time(tmp_path: Path, mock_clock: MockClock) -> None:
    scene = Scene(Ledger(clock=trio.current_time))
    async with open_journal(scene.ledger, tmp_path, attrs.evolve(NO_SNAPSHOTS, roll_every=60)):
        scene.alice.lend("").settle()
        for _ in range(59):
            await passes(mock_clock, 1)
            await real_time()
        assert not files(tmp_path, "settlements")
        for _ in range(3):
            await passes(mock_clock, 1)
            await real_time()
        for _ in range(500):
            if files(tmp_path, "settlements"):
                break
            await real_time()  # The thread that writes has to wait for a core.
        assert len(files(tmp_path, "settlements")) == 1
        scene.alice.lend("").settle()
    assert len(files(tmp_path, "settlements")) == 2


async def test_each_hour_has_its_folder(tmp_path: Path, mock_clock: MockClock) -> None:
    scene = Scene(Ledger(clock=trio.current_time))
    async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS) as journal:
        for _ in range(4):
            scene.alice.lend("").settle()
            mock_clock.jump(1800)
        sample = journal._settlements  # pyright: ignore[reportPrivateUsage]
        assert len(sample) == 4
    for path in files(tmp_path, "settlements"):
        found: Any = pytest.importorskip("pyarrow.parquet").ParquetFile(path).read().to_pylist()
        for row in found:
            assert f"date={row['settled']:%Y-%m-%d}" == path.parent.parent.name
            assert f"hour={row['settled']:%H}" == path.parent.name
    assert len({path.parent for path in files(tmp_path, "settlements")}) >= 2
    assert len(rows(tmp_path, "settlements")) == 4


async def test_leftovers_are_removed_and_told_of(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = tmp_path / "settlements" / "date=2026-01-01" / "hour=07" / ".part-x.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"PAR1")
    mine = left.with_name("notes.txt")
    mine.write_text("kept")
    async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS):
        pass
    assert not left.exists()
    assert mine.exists()
    assert "its unfinished file is removed, and the rows in it are lost" in caplog.text


async def test_a_second_journal_is_refused(scene: Scene, tmp_path: Path) -> None:
    other = Ledger()
    async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS):
        with pytest.raises(PipelineError, match="another relay keeps its journal in"):
            async with open_journal(other, tmp_path, NO_SNAPSHOTS):
                pass
        with pytest.raises(PipelineError, match="has a recorder already"):
            async with open_journal(scene.ledger, tmp_path / "other", NO_SNAPSHOTS):
                pass
        assert isinstance(scene.ledger.recorder, Journal)
    assert scene.ledger.recorder is None
    async with open_journal(other, tmp_path, NO_SNAPSHOTS):
        pass


async def test_what_is_no_directory(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match=r"there can be no journal in .*file"):
        async with open_journal(scene.ledger, tmp_path / "file", NO_SNAPSHOTS):
            pass
    assert scene.ledger.recorder is None


async def test_without_pyarrow(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name in [each for each in sys.modules if each.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingError, match=r"pip install 'clearfunds\[pipeline\]'"):
        async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS):
            pass


def test_settings_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="roll_every is more than 0, not 0"):
        JournalSettings(roll_every=0)


async def test_an_error_in_the_block_is_what_comes_out(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
        async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS):
            scene.alice.lend("").settle()
            raise LookupError
    assert caught.group_contains(LookupError)
    assert len(rows(tmp_path, "settlements")) == 1


async def test_a_cancelled_block_is_written_too(scene: Scene, tmp_path: Path) -> None:
    with trio.move_on_after(0.1):
        async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS):
            box = Box(scene.ledger, "another")
            box.put(scene.alice.lend([1]))
            box.settle_all(Outcome.ACKED)
            await trio.sleep_forever()
    assert [row["holder"] for row in rows(tmp_path, "settlements")] == ["another"]
    assert scene.ledger.recorder is None


async def test_strings_that_come_again_later_or_not_at_all(scene: Scene, tmp_path: Path) -> None:
    """Each lot of rows has its own, whatever the one before it had."""
    box, other, third = scene.boxes
    lots = [[box, other, box], [other, third, other], [third] * 3, [box, third], [box, other, box]]
    async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS) as journal:
        for lot in lots:
            for number, each in enumerate(lot):
                (scene.alice, scene.server)[number % 2].lend("").settle()
                each.put(scene.bob.lend([1], nbytes=number))
                each.settle_all(Outcome.DELIVERED)
            await journal.flush()
        # A file has those of its lot, and no other.
        for path, lot in zip(files(tmp_path, "settlements"), lots, strict=True):
            parquet: Any = pytest.importorskip("pyarrow.parquet")
            read = parquet.read_table(path, read_dictionary=["holder"])
            names = set(read["holder"].combine_chunks().dictionary.to_pylist())
            assert names == {"(no holder)", *(each.name for each in lot)}
    found = rows(tmp_path, "settlements")
    assert [row["holder"] for row in found if row["account"] == "bob"] == [
        each.name for lot in lots for each in lot
    ]
    assert [row["parent"] for row in found if row["holder"] == "(no holder)"] == [
        (each.parent and each.parent.name)
        for lot in lots
        for each in ([scene.alice, scene.server] * 2)[: len(lot)]
    ]


async def test_columns_that_say_the_same_and_those_that_do_not(
    scene: Scene, tmp_path: Path
) -> None:
    outcomes = [Outcome.ACKED, Outcome.DELIVERED, Outcome.ACKED, Outcome.DROPPED, Outcome.ACKED]
    async with open_journal(scene.ledger, tmp_path, NO_SNAPSHOTS) as journal:
        for outcome in outcomes:
            scene.alice.lend("").settle(outcome=outcome)
        await journal.flush()
        for _ in range(3):
            scene.server.lend("", nbytes=7).settle(outcome=Outcome.EXPIRED)
    found = rows(tmp_path, "settlements")
    assert [(row["account"], row["parent"], row["outcome"], row["bytes"]) for row in found] == [
        *[("alice", "server", outcome.label, 0) for outcome in outcomes],
        *[("server", None, "expired", 7)] * 3,
    ]
