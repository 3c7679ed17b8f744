"""Calendar time that only passes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports._passed import SECOND, Noted, PassedTime

FIRMWARE = 1_600_000_000
TODAY = 1_790_000_000


class Machine:
    """A machine's clocks, in seconds; `reboot` starts it again, with what its clock says then."""

    def __init__(self, wall: float) -> None:
        self.boots = 1
        self.up = 5.0
        self.wall = wall

    def passes(self, seconds: float) -> None:
        self.up += seconds
        self.wall += seconds

    def reboot(self, wall: float) -> None:
        self.boots += 1
        self.up = 3.0
        self.wall = wall

    def clock(self, noted: Noted | None = None, *, boot: str | None = None) -> PassedTime:
        return PassedTime(
            noted,
            wall=lambda: round(self.wall * SECOND),
            passed=lambda: round(self.up * SECOND),
            boot=f"boot {self.boots}" if boot is None else boot,
        )


def test_it_says_what_the_wall_clock_said_and_counts_from_there() -> None:
    machine = Machine(TODAY)
    clock = machine.clock()
    assert clock() == TODAY
    machine.passes(90)
    assert clock() == TODAY + 90
    assert clock.ns() == (TODAY + 90) * SECOND


@pytest.mark.parametrize("step", [3600, -3600, 1e9])
def test_a_clock_that_is_set_changes_nothing(step: float) -> None:
    machine = Machine(TODAY)
    clock = machine.clock()
    machine.wall += step
    machine.passes(1)
    assert clock() == TODAY + 1


def test_a_restart_counts_what_the_machine_has_been_up_for() -> None:
    machine = Machine(TODAY)
    noted = machine.clock().note()
    machine.passes(100)
    machine.wall += 1e8  # and set meanwhile
    assert machine.clock(noted)() == TODAY + 100


def test_a_reboot_counts_what_the_wall_clock_has_gone_on_by() -> None:
    machine = Machine(TODAY)
    noted = machine.clock().note()
    machine.reboot(TODAY + 7200)
    assert machine.clock(noted)() == TODAY + 7200


def test_without_a_battery_the_time_goes_on_where_it_was() -> None:
    machine = Machine(TODAY)
    noted = machine.clock().note()
    machine.reboot(FIRMWARE)
    clock = machine.clock(noted)
    assert clock() == TODAY
    machine.passes(30)
    machine.wall = TODAY + 86_400  # NTP sets it, a day later
    assert clock() == TODAY + 30
    # From now on the wall clock is believed again: the next reboot counts from here.
    noted = clock.note()
    machine.reboot(TODAY + 86_400 + 600)
    assert machine.clock(noted)() == TODAY + 30 + 600


def test_what_a_clock_that_is_behind_says_is_not_counted_from() -> None:
    machine = Machine(TODAY)
    noted = machine.clock().note()
    machine.reboot(FIRMWARE)
    clock = machine.clock(noted)
    machine.passes(7200)
    noted = clock.note()  # it was never set right in this boot
    machine.reboot(TODAY + 3 * 3600)
    # Three hours since it was last believed, two of which have been counted already.
    assert machine.clock(noted)() == TODAY + 3 * 3600


def test_where_boots_have_no_names_the_wall_clock_is_asked() -> None:
    machine = Machine(TODAY)
    noted = machine.clock(boot="").note()
    machine.passes(100)
    assert machine.clock(noted, boot="")() == TODAY + 100
    machine.wall = FIRMWARE
    assert machine.clock(noted, boot="")() == TODAY


def test_what_was_written_later_than_now_takes_it_along() -> None:
    clock = Machine(FIRMWARE).clock()
    clock.not_before(TODAY)
    assert clock() == TODAY
    clock.not_before(TODAY - 5)
    assert clock() == TODAY


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("passes"), st.floats(0, 1e6)),
            st.tuples(st.just("set"), st.floats(0, 4e9)),
            st.tuples(st.just("restart"), st.none()),
            st.tuples(st.just("reboot"), st.floats(0, 4e9)),
        )
    )
)
def test_it_never_runs_backwards(said: list[tuple[str, float | None]]) -> None:
    machine = Machine(TODAY)
    clock = machine.clock()
    last = clock()
    for what, value in said:
        if what == "passes":
            machine.passes(value or 0.0)
        elif what == "set":
            machine.wall = value or 0.0
        else:
            noted = Noted.of(clock.note().encode())
            if what == "reboot":
                machine.reboot(value or 0.0)
            clock = machine.clock(noted)
        assert clock() >= last - 1e-6
        last = clock()


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b"{}", b'{"now": 1}', b"1", b"[" * 100_000, b"\xff"]
)
def test_what_is_no_note_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Noted.of(value)


@pytest.mark.parametrize("field", ["now", "wall", "at", "boot", "since_boot"])
def test_a_note_of_the_wrong_kind_is_refused(field: str) -> None:
    note = json.loads(Machine(TODAY).clock().note().encode())
    note[field] = None
    with pytest.raises(ValueError, match=f"its {field} is None"):
        Noted.of(json.dumps(note).encode())
