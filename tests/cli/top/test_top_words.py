"""What `clearfunds top` makes of a look at the books, with the look made by a real ledger."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import trio
from rich.console import Console
from trio.testing import wait_all_tasks_blocked

from clearfunds import testing
from clearfunds._cli._top._choice import Choice
from clearfunds._cli._top._outputs import View
from clearfunds._cli._top._screen import Room, screen
from clearfunds._cli._top._top_words import (
    first_line,
    incident_sentence,
    ring_sentence,
    size,
    what_next,
)
from clearfunds.accounts import (
    NO_LIMIT,
    Forecast,
    Ledger,
    Limit,
    Outcome,
    RateLimit,
    StuckPolicy,
)
from clearfunds.accounts._gate import gate_of
from clearfunds.accounts.watch._durations import about, duration
from clearfunds.accounts.watch._incidents import GivenUp
from clearfunds.pages import Pages, Request


class Box(testing.Box):
    kind = "outlet"


class Scene:
    """A publisher that has sent too much to a subscriber."""

    def __init__(self, limit: Limit, policy: StuckPolicy = StuckPolicy.DISCONNECT) -> None:
        self.now = 100.0
        self.ledger = Ledger(clock=lambda: self.now)
        self.pages = Pages(self.ledger)
        self.server = self.ledger.open("server", limit=NO_LIMIT)
        self.publisher = self.ledger.open("pub", limit=limit, parent=self.server)
        self.box = Box(self.ledger, "sub", patience=20.0, policy=policy)
        self.boxes: list[Box] = []

    def send(self, items: int, nbytes: int = 0, box: Box | None = None) -> None:
        with self.publisher.turn(nbytes=0) as turn:
            turn.send(self.box if box is None else box, b"", items=items, nbytes=nbytes)

    async def look(self, top: int = 20) -> Any:
        request = Request.parse("GET", f"/ledger.json?top={top}")
        response = await self.pages.handlers()["/ledger.json"](request)
        assert not isinstance(response.body, bytes)
        try:
            return json.loads(b"".join([piece async for piece in response.body]))
        finally:
            await response.body.aclose()  # type: ignore[attr-defined]

    async def look_while_waiting(self, seconds: float, progress_at: float | None = None) -> Any:
        """Look when the publisher has waited for `seconds`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.publisher.ensure_clear_funds)
            await wait_all_tasks_blocked()
            if progress_at is not None:
                self.now += progress_at
                self.box.queue[0].settle(1)
                seconds -= progress_at
            self.now += seconds
            page = await self.look()
            nursery.cancel_scope.cancel()
        return page


def printed(page: Any, room: Room, *, holders_first: bool = False) -> str:
    console = Console(file=io.StringIO(), width=room.width or 1000, color_system=None, markup=False)
    console.print(screen(page, "here", room, holders_first=holders_first))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_who_waits_for_whom_how_much_of_what_how_long_and_what_next() -> None:
    scene = Scene(Limit(items=1000, bytes=None))
    scene.send(1234)
    page = await scene.look_while_waiting(3.25)
    assert first_line(page) == (
        "pub waits for sub, for 3.2 s: it owes 1,234 of 1,000 items; outlet sub holds 1,234 items "
        "and has made no progress for 3.2 s; it is cut off in 16.8 s unless it "
        "reads, and pub goes on then."
    )
    assert what_next(page["holders"][0]) == "cut off in 16.8 s"


async def test_why_it_is_slow() -> None:
    scene = Scene(Limit(items=1000, bytes=None))
    scene.send(1234)
    page = await scene.look_while_waiting(3.25)
    page["waits"][0]["on"][0]["why"] = "sub\x1b's program does not read (window shut 98 % of 3 s)"
    assert first_line(page).endswith(
        " and pub goes on then. sub\\x1b's program does not read (window shut 98 % of 3 s)."
    )
    del page["waits"][0]["on"][0]["why"]  # a relay of an older version
    assert first_line(page).endswith(" and pub goes on then.")


async def test_one_that_makes_progress_is_only_slow() -> None:
    scene = Scene(Limit(items=1000, bytes=None, low_items=400))
    scene.send(1234)
    page = await scene.look_while_waiting(3.2, progress_at=3.0)
    assert first_line(page) == (
        "pub waits for sub, for 3.2 s: it owes 1,233 of 1,000 items; outlet sub holds 1,233 items "
        "and makes progress; at 400 items it goes on."
    )
    assert what_next(page["holders"][0]) == "makes progress"


async def test_one_that_waits_for_its_share() -> None:
    scene = Scene(NO_LIMIT)
    scene.server.limit = Limit(items=1000, bytes=None)
    scene.server.shared = True
    scene.send(1234)
    page = await scene.look_while_waiting(3.2)
    assert first_line(page).startswith(
        "pub waits for sub, for 3.2 s: it owes 1,234 of its share of 1,000 items; outlet sub holds"
    )


async def test_one_that_waits_for_its_rate() -> None:
    scene = Scene(NO_LIMIT)
    scene.publisher.rate = RateLimit(items_per_s=1)
    for _ in range(100):
        scene.send(1)
    page = await scene.look_while_waiting(3.2)
    assert first_line(page) == (
        "pub waits, for 3.2 s: more came in than it may bring, 1 items a second."
    )


async def test_one_that_is_never_given_up() -> None:
    scene = Scene(Limit(items=0, bytes=None), StuckPolicy.WAIT)
    scene.send(1)
    page = await scene.look_while_waiting(700)
    assert first_line(page) == (
        "pub waits for sub, for 11 min 40 s: it owes 1 of 0 items; outlet sub holds 1 item and has "
        "made no progress for 11 min 40 s; it is waited for, however long it takes."
    )
    assert what_next(page["holders"][0]) == "is waited for"


@pytest.mark.parametrize(
    ("policy", "soon", "then"),
    [
        (StuckPolicy.DROP_OLDEST, "drops in 16.8 s", "drops what is old"),
        (StuckPolicy.DROP_NEWEST, "drops in 16.8 s", "drops what comes"),
        (StuckPolicy.CONFLATE, "drops in 16.8 s", "keeps the latest of each topic alone"),
        (StuckPolicy.SPILL, "spills in 16.8 s", "has its backlog put aside"),
    ],
)
async def test_one_that_is_relieved(policy: StuckPolicy, soon: str, then: str) -> None:
    scene = Scene(Limit(items=1000, bytes=None), policy)
    scene.send(1234)
    page = await scene.look_while_waiting(3.25)
    assert first_line(page).endswith(
        f"has made no progress for 3.2 s; it {then} in 16.8 s unless it reads, and pub goes on "
        "then."
    )
    assert what_next(page["holders"][0]) == soon


async def test_one_that_is_behind_and_what_it_has_lost() -> None:
    scene = Scene(Limit(items=1000, bytes=None), StuckPolicy.DROP_OLDEST)
    for _ in range(1_234):
        scene.send(1)
    scene.box.relieve("it is stuck")
    scene.now += 5.0
    page = await scene.look()
    (row,) = [row for row in page["holders"] if row["name"] == "sub"]
    assert (row["behind_seconds"], row["dropped_items"], row["stored_items"]) == (5.0, 234, 0)
    assert what_next(row) == "lost 234"
    scene.box.settle_all(Outcome.DELIVERED)
    scene.box.caught_up()
    scene.send(1)
    (row,) = [row for row in (await scene.look())["holders"] if row["name"] == "sub"]
    assert (row["behind_seconds"], row["dropped_items"]) == (None, 234)
    assert what_next(row) == ""


async def test_it_is_bytes_where_bytes_are_too_many() -> None:
    scene = Scene(Limit(items=1000, bytes=1 << 20))
    scene.send(900, 3 << 20)
    page = await scene.look_while_waiting(20)
    assert first_line(page) == (
        "pub waits for sub, for 20.0 s: it owes 3.0 MiB of 1.0 MiB; outlet sub holds 3.0 MiB and "
        "has made no progress for 20.0 s; it is cut off now unless it "
        "reads, and pub goes on then."
    )


async def test_several_that_wait_at_the_servers_limit_for_several() -> None:
    scene = Scene(NO_LIMIT)
    scene.server.limit = Limit(items=10, bytes=None)
    other = Box(scene.ledger, "b\x1b[2J", policy=StuckPolicy.WAIT)
    scene.send(9)
    scene.send(3, box=other)
    accounts = [scene.ledger.open(f"p{n}", limit=NO_LIMIT, parent=scene.server) for n in range(7)]
    async with trio.open_nursery() as nursery:
        for account in accounts:
            nursery.start_soon(account.ensure_clear_funds)
            await wait_all_tasks_blocked()
        scene.now += 2
        page = await scene.look()
        nursery.cancel_scope.cancel()
    assert first_line(page) == (
        "p0, p1, p2, p3 and 3 more wait for sub and 1 more, for 2.0 s: server owes 12 of 10 items; "
        "outlet sub holds 9 items and has made no progress for 2.0 s; it is cut off in 18.0 s "
        "unless it reads, and they go on then."
    )
    text = printed(page, Room(20))
    assert text.startswith(first_line(page))
    # What peers are called does nothing to a terminal.
    assert "\x1b" not in text
    assert r"b\x1b[2J" in text


async def test_nobody_waits() -> None:
    scene = Scene(Limit(items=10))
    assert first_line(await scene.look()) == "Nobody waits."
    scene.send(3)
    page = await scene.look()
    assert what_next(page["holders"][0]) == ""
    text = printed(page, Room(20))
    assert text.startswith("Nobody waits.\nhere: 2 accounts, 3 items, 0 B owed; 0 readers wait")
    assert "Who waits on whom" not in text


async def test_who_will_have_to_wait_is_named() -> None:
    scene = Scene(Limit(items=10))
    scene.ledger.forecasts.latest = (Forecast("b\x1b", "box", 25.0, "pub", False, 31.0),)
    page = await scene.look()
    said = "b\\x1b has taken nothing for 25 s; pub will wait in about 30 s."
    assert said in printed(page, Room(20))
    del page["forecasts"]  # a relay of an older version
    assert "will wait" not in printed(page, Room(20))


async def test_a_ring_is_named() -> None:
    scene = Scene(Limit(items=2, bytes=None))
    scene.box.owner = scene.publisher
    scene.send(3)
    page = await scene.look_while_waiting(4)
    (ring,) = page["rings"]
    assert ring["members"] == ["pub"]
    said = ring_sentence(ring)
    assert said == "A ring of one: pub waits for what it does not take itself, for 4.0 s."
    assert said in printed(page, Room(20))
    assert ring_sentence({"members": ["a", "b"], "count": 2, "seconds": 4.0}) == (
        "A ring: a and b wait on each other; nothing has moved for 4.0 s."
    )


async def test_being_given_up_may_not_be_enough() -> None:
    scene = Scene(Limit(items=1000, bytes=None))
    other = Box(scene.ledger, "other")
    scene.send(800)
    scene.send(700, box=other)
    page = await scene.look_while_waiting(3)
    assert first_line(page).endswith(
        "it is cut off in 17.0 s unless it reads; pub has to wait for others then."
    )


async def test_what_has_happened_is_said_when_it_is_over() -> None:
    scene = Scene(Limit(items=1000, bytes=None))
    scene.now = 500.0
    why = "sub\x1b's network loses 3 %"
    what = GivenUp("outlet", 1024, 9, ("pub", "b\x1b[2J"), 0, 20.1, 0, why)
    incidents = scene.ledger.incidents
    incidents.add_given_up(scene.box, what, 490.0)
    incidents.add_wait("pub", "sub", 20.0, 490.0, clear=True)
    incidents.add_wait("pub", "slow", 3.25, 480.0, clear=True)
    for name in ("a", "b", "c", "d"):
        incidents.add_wait(name, None, 2.0, 470.0, clear=False)
    page = await scene.look()
    assert [incident_sentence(each) for each in page["incidents"]] == [
        (
            "sub was cut off 10.0 s ago: 1,024 items of pub and b\\x1b[2J written off after 20.1 s "
            "without progress; pub had waited 20.0 s. sub\\x1b's network loses 3 %."
        ),
        "pub waited for slow, until 20.0 s ago: 3.2 s.",
        (
            "a, b, c and others waited for somebody, until 30.0 s ago: 4 waits, the longest 2.0 s; "
            "4 left meanwhile."
        ),
    ]
    lines = printed(page, Room(20)).splitlines()
    assert lines[0] == "Nobody waits."
    assert lines[2].startswith("sub was cut off 10.0 s ago: 1,024 items of pub")
    assert len([line for line in lines if " ago: " in line]) == 3
    ring: Any = {**page["incidents"][0], "ring": 3, "waits": 0, "items": 1}
    ring["debtors"] = []
    ring["why"] = None
    assert incident_sentence(ring) == (
        "sub was cut off 10.0 s ago: 1 item written off after 20.1 s without progress, in a ring "
        "of 3."
    )


async def test_that_it_looks_less_often_than_asked_for_is_said() -> None:
    page = await Scene(Limit(items=10)).look()
    assert "a look every" not in text_of(View("here", 20, Choice(), 1.0), page)
    page["busy_ms"] = 64.0
    said = "a look every 3.2 s, not 1 s: each takes 64 ms of the relay's time"
    assert said in text_of(View("here", 20, Choice(), 1.0), page)
    assert "a look every" not in text_of(View("here", 20, Choice(), 5.0), page)
    assert "a look every" not in text_of(View("here", 20, Choice(), None), page)


def text_of(view: View, page: Any) -> str:
    console = Console(file=io.StringIO(), width=1000, color_system=None, markup=False)
    console.print(view.screen(page, None))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def crowded() -> tuple[Scene, Any]:
    """Return what has to be kept, and a look at fifty who owe and hold, with one who waits."""
    scene = Scene(Limit(items=10, bytes=None))
    scene.send(300)
    for n in range(9):
        scene.ledger.incidents.add_wait("mqtt:1883/tenant/client", f"box {n}", 2, 9, clear=True)
    for n in range(50):
        account = scene.ledger.open(f"mqtt:1883/tenant/client-{n:02}", parent=scene.server)
        scene.boxes.append(Box(scene.ledger, f"box {n:02}"))
        with account.turn(nbytes=0) as turn:
            turn.send(scene.boxes[-1], b"", items=n + 1, nbytes=n)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.publisher.ensure_clear_funds)
        await wait_all_tasks_blocked()
        page = await scene.look()
        nursery.cancel_scope.cancel()
    return scene, page


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 30), (200, 60), (60, 30), (80, 40)])
async def test_it_fits_the_terminal(width: int, height: int) -> None:
    scene, page = await crowded()
    text = printed(page, Room(20, width, height))
    lines = text.splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert "pub" in text
    assert "Who waits on whom" in text
    assert "Who owes" in text
    assert "Who holds" in text
    assert "more" in text
    assert scene.ledger.accounts


async def test_what_is_left_out_is_counted() -> None:
    _, page = await crowded()
    text = printed(page, Room(20))
    # 51 accounts, the server's not counted, and as many holders.
    assert text.count("and 31 more") == 2
    assert printed(page, Room(5)).count("and 46 more") == 2
    assert text.index("Who owes") < text.index("Who holds")
    text = printed(page, Room(20), holders_first=True)
    assert text.index("Who holds") < text.index("Who owes")


def test_lengths_and_sizes() -> None:
    assert [duration(s) for s in (0, 99.94, 99.96, 250, 600, 7500, 36000, 1e6)] == [
        *("0.0 s", "99.9 s", "1 min 40 s", "4 min 10 s", "10 min", "2 h 5 min", "10 h"),
        "11 d 13 h",
    ]
    assert [about(s) for s in (0.4, 25.2, 99.9, 250)] == ["0 s", "25 s", "1 min 40 s", "4 min 10 s"]
    assert [size(n) for n in (0, 9_999, 10_000, 8 << 20, 5 << 30)] == [
        *("0 B", "9999 B", "9.8 KiB", "8.0 MiB", "5.0 GiB")
    ]


async def test_an_alarm_is_what_is_waited_for_and_who_holds_memory_is_named_for_it() -> None:
    scene = Scene(NO_LIMIT)
    scene.send(3)
    scene.ledger.alarms.update(memory=True, disk=False)
    scene.ledger.troubles["store"] = "cannot write to the store: \x1b[2J the disk is full"
    scene.server.halt("memory")
    page = await scene.look_while_waiting(2.0)
    assert first_line(page) == (
        "pub waits, for 2.0 s, for an alarm: memory is short; of what is owed outlet sub holds "
        "3 items."
    )
    text = printed(page, Room(20))
    assert "Alarm: memory is short. Nobody who publishes is read until that is over." in text
    assert r"cannot write to the store: \x1b[2J the disk is full." in text
    # What no repayment ends is no holder's business.
    scene.server.halt("disk")
    scene.server.resume("memory")
    page = await scene.look_while_waiting(2.0)
    assert first_line(page) == (
        "pub waits, for 2.0 s, for an alarm: the disk is nearly full; nobody who publishes is "
        "read until that is over."
    )
    assert page["holders"][0]["waited_items"] == 0
    assert what_next(page["holders"][0]) == ""


async def test_whoever_blocks_is_who_is_waited_for() -> None:
    scene = Scene(NO_LIMIT)
    other = Box(scene.ledger, "other", patience=1.0)
    scene.send(3)
    scene.send(500, box=other)
    gate_of(scene.publisher).block("sub")
    page = await scene.look_while_waiting(0.5)
    assert page["accounts"][0]["state"] == "flow"
    assert first_line(page) == (
        "pub waits, for 0.5 s, blocked by outlet sub: it holds 3 items and makes progress."
    )
    page = await scene.look_while_waiting(2.0)
    assert first_line(page) == (
        "pub waits, for 2.0 s, blocked by outlet sub: it holds 3 items and has made no progress "
        "for 2.5 s; it is cut off in 18.0 s unless it reads, and pub goes on then."
    )
    held = {row["name"]: row["waited_items"] for row in page["holders"]}
    assert held == {"sub": 3, "other": 0}
    gate_of(scene.publisher).block("other")
    page = await scene.look_while_waiting(2.0)
    assert "blocked by outlet other (and 1 more): " in first_line(page)
    assert "pub goes on then" not in first_line(page)
    gate_of(scene.publisher).unblock("sub")
    gate_of(scene.publisher).unblock("other")
    gate_of(scene.publisher).block("the store")
    page = await scene.look_while_waiting(2.0)
    assert first_line(page) == "pub waits, for 2.0 s, blocked by the store."


async def test_what_is_at_rest_is_told_of_apart() -> None:
    scene = Scene(NO_LIMIT)
    disk = scene.ledger.open("disk", limit=Limit(items=None, bytes=1 << 20), at_rest="disk")
    queue = scene.ledger.open("mqtt/away", parent=disk)
    assert "kept" not in printed(await scene.look(), Room(20))
    scene.send(2)
    scene.publisher = queue
    scene.send(5, 1 << 19)
    page = await scene.look()
    text = printed(page, Room(20))
    assert "2 items, 0 B owed; 5 items, 512.0 KiB kept on disk; " in text
    assert "mqtt/away" not in text
    [row] = [line for line in text.splitlines() if line.strip().startswith("disk")]
    assert "512.0 KiB" in row
    assert "1.0 MiB" in row
    assert page["totals"]["at_rest_items"] == {"disk": 5}
