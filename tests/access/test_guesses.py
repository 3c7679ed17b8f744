"""Who is delayed after wrong passwords, and who is not, whatever the time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.access._guesses import (
    DELAYS,
    DUE_OF_ADDRESS,
    DUE_OF_USER,
    FORGOTTEN_SECONDS,
    FREE_OF_ADDRESS,
    FREE_OF_USER,
    Attempt,
    Guesses,
)

ALICE = Attempt("10.0.0.1", "alice", "laptop")


def of(address: str | None, user: str = "alice", client: str = "x") -> Attempt:
    return Attempt(address, user, client)


def test_an_address_is_told_later_and_later() -> None:
    guesses = Guesses()
    told = [guesses.wrong(of("10.0.0.6", f"u{n}"), float(n)) for n in range(9)]
    assert told == [0.0] * FREE_OF_ADDRESS + [*DELAYS, DELAYS[-1], DELAYS[-1]]


def test_a_user_is_told_later_and_later_wherever_the_attempts_are_from() -> None:
    guesses = Guesses()
    told = [guesses.wrong(of(f"10.0.1.{n}"), float(n)) for n in range(FREE_OF_USER + 5)]
    assert told == [0.0] * FREE_OF_USER + [*DELAYS, DELAYS[-1]]


def test_over_a_unix_socket_only_the_user_counts() -> None:
    guesses = Guesses()
    told = [guesses.wrong(of(None), float(n)) for n in range(FREE_OF_USER + 1)]
    assert told == [0.0] * FREE_OF_USER + [DELAYS[0]]
    assert guesses.looks_at(of(None), 0.0)


def test_the_longest_delay_can_be_shorter() -> None:
    guesses = Guesses(3.0)
    told = [guesses.wrong(of("a"), 0.0) for _ in range(FREE_OF_ADDRESS + 3)]
    assert told[-3:] == [2.0, 3.0, 3.0]


def test_without_a_delay_all_are_looked_at() -> None:
    guesses = Guesses(0.0)
    for _ in range(1_000):
        assert guesses.looks_at(of("a"), 0.0)
        assert guesses.wrong(of("a"), 0.0) == 0.0


def test_all_is_forgotten_after_a_while() -> None:
    guesses = Guesses()
    for _ in range(20):
        guesses.wrong(of("a"), 0.0)
    assert guesses.wrong(of("a"), FORGOTTEN_SECONDS - 1) > 0
    assert guesses.wrong(of("a"), 2 * FORGOTTEN_SECONDS - 1) == 0


def test_few_are_looked_at_while_answers_are_due() -> None:
    """With any number of connections: no more than with one that waits for its answers."""
    guesses = Guesses()
    looked_at = 0
    for tick in range(60 * 1_000):
        now = tick / 1_000
        attempt = of("10.0.0.6", f"u{tick}")
        if guesses.looks_at(attempt, now):
            looked_at += 1
            guesses.wrong(attempt, now)
    # The first at once, then so many in each delay.
    assert looked_at <= FREE_OF_ADDRESS + DUE_OF_ADDRESS * (60 / DELAYS[-1] + 1)


def test_few_are_looked_at_for_one_user_from_many_addresses() -> None:
    guesses = Guesses()
    looked_at = 0
    for tick in range(60 * 100):
        now = tick / 100
        attempt = of(f"10.0.{tick // 250}.{tick % 250}")
        if guesses.looks_at(attempt, now):
            looked_at += 1
            guesses.wrong(attempt, now)
    assert looked_at <= FREE_OF_USER + DUE_OF_USER * (60 / DELAYS[-1] + 1)


def crowd(guesses: Guesses, now: float, address: str = "10.0.0.1") -> None:
    """Try alice's password until nobody's is looked at any more, from there and for her."""
    for _ in range(100):
        attempt = of(address)
        if guesses.looks_at(attempt, now):
            guesses.wrong(attempt, now)
    assert not guesses.looks_at(of(address), now)


def test_who_was_right_lately_is_looked_at_whatever_others_try() -> None:
    guesses = Guesses()
    guesses.right(ALICE)
    crowd(guesses, 0.0)
    assert guesses.looks_at(ALICE, 0.0)
    assert not guesses.looks_at(of("10.0.0.1", "alice", "phone"), 0.0)
    assert not guesses.looks_at(of("10.0.0.2", "alice", "laptop"), 0.0)


def test_who_was_right_is_not_trusted_for_ever() -> None:
    guesses = Guesses()
    guesses.right(ALICE)
    crowd(guesses, 0.0)
    for _ in range(FREE_OF_ADDRESS):
        guesses.wrong(ALICE, 0.0)
        assert guesses.looks_at(ALICE, 0.0)
    guesses.wrong(ALICE, 0.0)
    assert not guesses.looks_at(ALICE, 0.0)


def test_who_is_right_in_between_is_delayed_as_much_for_other_users() -> None:
    guesses = Guesses()
    mallory = Attempt("10.0.0.6", "mallory", "m")
    told: list[float] = []
    for n in range(8):
        guesses.right(mallory)
        told.append(guesses.wrong(of("10.0.0.6", f"u{n}"), 0.0))
    assert told[FREE_OF_ADDRESS:] == [*DELAYS, DELAYS[-1]]


@pytest.mark.parametrize("right", [False, True])
def test_what_is_remembered_is_bounded(right: bool) -> None:
    guesses = Guesses(remembered=100)
    for n in range(1_000):
        attempt = of(f"a{n}", f"u{n}")
        if right:
            guesses.right(attempt)
        guesses.wrong(attempt, 0.0)
    assert len(guesses) <= 300


ATTEMPTS = st.tuples(
    st.floats(0, 5),
    st.sampled_from(["a", "b", None]),
    st.sampled_from(["alice", "bob"]),
    st.sampled_from(["x", "y"]),
    st.booleans(),
)


@given(st.lists(ATTEMPTS, max_size=200))
def test_whatever_happens(steps: list[tuple[float, str | None, str, str, bool]]) -> None:
    """Delays are those that there are, few are due at a time, and who is right is trusted."""
    guesses = Guesses()
    now = 0.0
    due: dict[str, list[float]] = {}
    for seconds, address, user, client, right in steps:
        now += seconds
        attempt = Attempt(address, user, client)
        if not guesses.looks_at(attempt, now):
            assert not guesses.trusts(attempt)
            continue
        trusted = guesses.trusts(attempt)
        if right:
            guesses.right(attempt)
            assert guesses.looks_at(attempt, now)
            continue
        delay = guesses.wrong(attempt, now)
        assert delay in (0.0, *DELAYS)
        if delay and not trusted:
            for key in (user, address):
                if key is not None:
                    answers = [each for each in due.get(key, []) if each > now]
                    assert len(answers) < DUE_OF_ADDRESS
                    due[key] = [*answers, now + delay]
