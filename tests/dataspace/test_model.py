"""The dataspace against a model of it: plain lists and brute force, over random turns.

All that each mailbox got is compared, in order but for what one action causes at once (the order in
which an event reaches several observations of one mailbox is nobody's promise); and with it the
counters, the quotas, what stands, and the books.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, cast

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import NO_LIMIT, Ledger, Quota, QuotaExceededError, Turn
from clearfunds.dataspace import (
    ANY,
    Asserted,
    Assertion,
    Dataspace,
    Mailbox,
    NotAssertedError,
    Observation,
    Observe,
    Pattern,
    Publication,
    Retracted,
    TopicFilter,
    capture,
    compile_pattern,
    match,
    topic_matches,
)
from clearfunds.dataspace._bag import identity
from tests.dataspace.conftest import (
    PATTERNS,
    STEADY,
    VALUES,
    FrozenMap,
    Pair,
    Reading,
    RefusedError,
    balance,
    by_brute_force,
    has_captures,
    is_bare,
    refuse,
    told,
)

OWNERS = ("first", "second")
HOLDERS = 3
"""Mailboxes 0 to 2; 3 to 5 are what each of them takes with acknowledgement."""
QUOTA = 12
MAX_RETAINED = 3


# -- what may happen in a turn --------------------------------------------------------------------


@attrs.frozen
class Assert:
    value: Any


@attrs.frozen
class Retract:
    which: int
    live: bool
    """Whether to choose among those that stand as the turn begins, or among all there ever were."""


@attrs.frozen
class Watch:
    pattern: Pattern
    holder: int


@attrs.frozen
class Subscribe:
    filter: TopicFilter
    holder: int
    acked: bool
    replay: bool


@attrs.frozen
class Leave:
    which: int
    live: bool


@attrs.frozen
class Publish:
    event: Any


@attrs.frozen
class Fail:
    pass


Action = Assert | Retract | Watch | Subscribe | Leave | Publish | Fail


# -- the model ------------------------------------------------------------------------------------


@attrs.define
class Watching:
    """One observation in the model."""

    pattern: Pattern | TopicFilter
    holder: int
    acked: bool
    owner: str
    assertion: int


@attrs.define
class Model:
    """What should be the case."""

    standing: dict[int, tuple[Any, str]] = attrs.Factory(dict[int, tuple[Any, str]])
    watching: dict[int, Watching] = attrs.Factory(dict[int, Watching])
    retained: dict[str, tuple[Publication, str]] = attrs.Factory(dict[str, tuple[Publication, str]])
    published: int = 0
    deliveries: int = 0
    unrouted: int = 0
    mail: list[list[list[Any]]] = attrs.Factory(lambda: [[] for _ in range(2 * HOLDERS)])
    """For each mailbox, what each action has sent there."""

    def begin(self) -> None:
        """Begin an action."""
        for letters in self.mail:
            letters.append([])

    def send(self, mailbox: int, event: Any) -> None:
        self.mail[mailbox][-1].append(event)

    def quota(self, owner: str) -> int:
        """Return how much an owner has standing."""
        mine = [o for _, o in self.standing.values()] + [o for _, o in self.retained.values()]
        return mine.count(owner)

    def distinct(self) -> dict[Hashable, Any]:
        return {identity(value): value for value, _ in self.standing.values()}

    def shows(self, pattern: Pattern) -> dict[Hashable, Any]:
        """Return all that an observer of `pattern` should have been shown of what stands."""
        found: dict[Hashable, Any] = {}
        for value in self.distinct().values():
            for seen in shown(pattern, value):
                found[identity(seen)] = seen
        return found

    def patterns(self) -> Iterator[tuple[int, Pattern]]:
        for watching in self.watching.values():
            if isinstance(watching.pattern, Pattern):
                yield watching.holder, watching.pattern

    def put(self, handle: int, value: Any, owner: str) -> None:
        if self.quota(owner) >= QUOTA:
            raise QuotaExceededError
        before = [(holder, pattern, self.shows(pattern)) for holder, pattern in self.patterns()]
        self.standing[handle] = value, owner
        for holder, pattern, had in before:
            for key, seen in self.shows(pattern).items():
                if key not in had:
                    self.send(holder, Asserted(seen))

    def take(self, handle: int) -> None:
        if handle not in self.standing:
            raise NotAssertedError
        before = [(holder, pattern, self.shows(pattern)) for holder, pattern in self.patterns()]
        del self.standing[handle]
        for holder, pattern, had in before:
            for key, seen in had.items():
                if key not in self.shows(pattern):
                    self.send(holder, Retracted(seen))

    def watch(self, handle: int, watching: Watching, *, replay: bool = True) -> None:
        self.watching[handle] = watching
        if isinstance(watching.pattern, Pattern):
            for seen in self.shows(watching.pattern).values():
                self.send(watching.holder, Asserted(seen))
        elif replay:
            self.replay(watching, watching.pattern)
        self.begin()
        self.put(watching.assertion, Observe(watching.pattern), watching.owner)

    def replay(self, watching: Watching, topic_filter: TopicFilter) -> None:
        for topic, (kept, _) in self.retained.items():
            if topic_matches(topic_filter.text, topic):
                if kept.qos and watching.acked:
                    self.send(HOLDERS + watching.holder, kept)
                else:
                    self.send(watching.holder, attrs.evolve(kept, qos=0))

    def leave(self, handle: int) -> None:
        if handle not in self.watching:
            raise NotAssertedError
        self.take(self.watching[handle].assertion)
        del self.watching[handle]

    def publish(self, event: Any, owner: str) -> None:
        reached = 0
        if isinstance(event, Publication):
            if event.retain:
                self.retain(event, owner)
            event = attrs.evolve(event, retain=False)
            reached += self.publish_to_subscribers(event)
        for holder, pattern in self.patterns():
            for seen in shown(pattern, event):
                self.send(holder, seen)
                reached += 1
        self.published += 1
        self.deliveries += reached
        self.unrouted += not reached

    def publish_to_subscribers(self, event: Publication) -> int:
        concerned = [
            watching
            for watching in self.watching.values()
            if isinstance(watching.pattern, TopicFilter)
            and topic_matches(watching.pattern.text, event.topic)
        ]
        holders = {watching.holder for watching in concerned}
        granted = {watching.holder for watching in concerned if watching.acked}
        for holder in holders:
            if event.qos and holder in granted:
                self.send(HOLDERS + holder, event)
            else:
                self.send(holder, attrs.evolve(event, qos=0))
        return len(holders)

    def retain(self, event: Publication, owner: str) -> None:
        old = self.retained.get(event.topic)
        if event.payload:
            if old is None and len(self.retained) >= MAX_RETAINED:
                raise QuotaExceededError
            if (old is None or old[1] != owner) and self.quota(owner) >= QUOTA:
                raise QuotaExceededError
            self.retained[event.topic] = event, owner
        else:
            self.retained.pop(event.topic, None)


def shown(pattern: Pattern, value: Any) -> list[Any]:
    """Return what an observer is shown of a value, if anything."""
    found = by_brute_force(pattern, value)
    if found is None:
        return []
    return [tuple(found) if has_captures(pattern) else value]


# -- both of them ---------------------------------------------------------------------------------


class Both:
    """The real one and the model, driven side by side."""

    def __init__(self) -> None:
        self.ledger = Ledger(quota=Quota(items=QUOTA, bytes=None))
        self.dataspace = Dataspace(self.ledger, cached_routes=2, max_retained=MAX_RETAINED)
        self.accounts = {name: self.ledger.open(name, limit=NO_LIMIT) for name in OWNERS}
        self.mailboxes = [Mailbox(self.ledger, f"mailbox {n}") for n in range(2 * HOLDERS)]
        self.model = Model()
        self.handles: list[Assertion | None] = []
        """By the numbers that the model has for them; those of observations are not taken back."""
        self.observations: list[Observation] = []

    def turn(self, owner: str, actions: list[Action]) -> None:
        """Let both do one turn; both have to fail, or neither."""
        model = copy.deepcopy(self.model)
        owed = {name: account.debt_items for name, account in self.accounts.items()}
        refusal: type[Exception] | None = None
        refused: type[Exception] | None = None
        live = [n for n in self.model.standing if self.handles[n] is not None]
        watching = list(self.model.watching)
        try:
            with self.accounts[owner].turn() as turn:
                for action in actions:
                    step = self.note(turn, model, owner, action, live, watching)
                    if refusal is None:  # else the turn is lost, and the model not asked any more
                        refusal = attempt(model, step)
        except (RefusedError, QuotaExceededError, NotAssertedError) as exc:
            refused = type(exc)
        else:
            sent = sum(len(letter) for letters in model.mail for letter in letters)
            sent -= sum(len(letter) for letters in self.model.mail for letter in letters)
            owed[owner] += sent
            self.model = model
        assert refused is refusal
        assert owed == {name: account.debt_items for name, account in self.accounts.items()}
        self.compare()

    def note(
        self,
        turn: Turn,
        model: Model,
        owner: str,
        action: Action,
        live: list[int],
        watching: list[int],
    ) -> Callable[[], None]:
        """Note an action in the real turn; return how to do it in the model."""
        real = self.dataspace
        match action:
            case Assert(value):
                self.handles.append(real.assert_(turn, value))
                return partial(model.put, len(self.handles) - 1, value, owner)
            case Retract(which, of_live):
                choices = live if of_live else [n for n, h in enumerate(self.handles) if h]
                if choices:
                    handle = choices[which % len(choices)]
                    real.retract(turn, cast("Assertion", self.handles[handle]))
                    return partial(model.take, handle)
            case Watch(pattern, holder):
                watch = self.watch(pattern, holder, owner)
                self.observations.append(real.observe(turn, pattern, self.mailboxes[holder]))
                return partial(model.watch, len(self.observations) - 1, watch)
            case Subscribe(topic_filter, holder, acked, replay):
                watch = self.watch(topic_filter, holder, owner, acked=acked)
                self.observations.append(
                    real.observe(
                        turn,
                        topic_filter,
                        self.mailboxes[holder],
                        acked=self.mailboxes[HOLDERS + holder] if acked else None,
                        replay=replay,
                    )
                )
                return partial(model.watch, len(self.observations) - 1, watch, replay=replay)
            case Leave(which, of_live):
                choices = watching if of_live else list(range(len(self.observations)))
                if choices:
                    number = choices[which % len(choices)]
                    real.unobserve(turn, self.observations[number])
                    return partial(model.leave, number)
            case Publish(event):
                turn.publish(real, event)
                return partial(model.publish, event, owner)
            case Fail():
                turn.act(refuse)
                return partial(refuse, turn)
        return lambda: None

    def watch(
        self, pattern: Pattern | TopicFilter, holder: int, owner: str, *, acked: bool = False
    ) -> Watching:
        """Return what the model notes of an observation, and keep a number for its assertion."""
        self.handles.append(None)
        return Watching(pattern, holder, acked, owner, len(self.handles) - 1)

    def compare(self) -> None:
        """Compare all that can be seen without taking the mail."""
        self.ledger.audit()
        real, model = self.dataspace.statistics(), self.model
        assert (real.published, real.deliveries, real.unrouted) == (
            model.published,
            model.deliveries,
            model.unrouted,
        )
        patterns = list(model.patterns())
        assert real.observations == len(patterns)
        assert real.subscriptions == len(model.watching) - len(patterns)
        assert real.retained == len(model.retained)
        assert Counter(map(identity, self.dataspace.assertions())) == Counter(
            list(model.distinct())
        )
        for topic, (kept, _) in model.retained.items():
            assert self.dataspace.retained.get(topic) == kept
        for name, account in self.accounts.items():
            assert account.standing().items == model.quota(name)

    def collect(self) -> None:
        """Take all mail, and compare it."""
        for mailbox, letters in zip(self.mailboxes, self.model.mail, strict=True):
            events = [identity(event) for event in told(mailbox)]
            for letter in letters:
                here, events = events[: len(letter)], events[len(letter) :]
                assert Counter(here) == Counter(map(identity, letter))
            assert events == []
            letters.clear()
        assert all(account.debt_items == 0 for account in self.accounts.values())

    def clear_out(self) -> None:
        """End everything, through the front door."""
        for number in list(self.model.watching):
            self.turn(OWNERS[0], [Leave(list(self.model.watching).index(number), live=True)])
        while self.model.standing:
            self.turn(OWNERS[1], [Retract(0, live=True)])
        self.collect()
        assert is_bare(self.dataspace)
        balance(self.ledger)


def attempt(model: Model, step: Callable[[], None]) -> type[Exception] | None:
    """Do one action in the model; return the error that it ends in."""
    model.begin()
    try:
        step()
    except (QuotaExceededError, NotAssertedError, RefusedError) as exc:
        return type(exc)
    return None


# -- at random ------------------------------------------------------------------------------------

FEW_VALUES = st.sampled_from(
    [
        *(("x", 1), ("x", True), ("x", 1.0), ("x", 2), ("x", 1, 2), ("y", 1), "x"),
        *(Reading("a", 1), Reading("a", 2), Reading("b", 1), Pair("x", ("x", 1))),
        *(FrozenMap({"x": 1}), FrozenMap({"x": 1, "y": 2})),
    ]
)
FEW_PATTERNS = st.sampled_from(
    [
        compile_pattern(pattern)
        for pattern in (
            *(ANY, capture(), ("x", ANY), ("x", 1), ("x", True), ("x", capture()), "x"),
            *(("x", capture(1)), (ANY, capture()), (capture(), ANY), (), (ANY, ANY, ANY)),
            *(Reading, match(Reading, sensor=capture()), match(Reading, celsius=1)),
            *({"x": 1}, {"x": capture()}, {}, match(Pair, right=("x", capture()))),
            *(Observe, match(Observe, pattern=capture()), match(Observe, pattern=TopicFilter)),
            *(Publication, match(Publication, payload=capture())),
        )
    ]
)
PUBLICATIONS = st.builds(
    Publication,
    st.sampled_from(("a", "a/b", "b", "$s", "a/")),
    st.sampled_from((b"", b"1", b"2")),
    st.integers(0, 2),
    st.booleans(),
)
FILTERS = st.sampled_from(
    [TopicFilter(text) for text in ("a", "a/b", "a/+", "+", "#", "a/#", "+/b", "$s")]
)
HOLDER = st.integers(0, HOLDERS - 1)
WHICH = st.integers(0, 50)
MOSTLY = st.sampled_from((True, True, True, True, False))
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(Assert, FEW_VALUES),
    st.builds(Assert, FEW_VALUES | VALUES),
    st.builds(Retract, WHICH, MOSTLY),
    st.builds(Watch, FEW_PATTERNS, HOLDER),
    st.builds(Watch, FEW_PATTERNS | PATTERNS, HOLDER),
    st.builds(Subscribe, FILTERS, HOLDER, st.booleans(), st.booleans()),
    st.builds(Leave, WHICH, MOSTLY),
    st.builds(Publish, FEW_VALUES | VALUES),
    st.builds(Publish, PUBLICATIONS),
    st.builds(Publish, PUBLICATIONS),
)
TURNS = st.tuples(
    st.sampled_from(OWNERS),
    st.tuples(st.lists(ACTIONS, max_size=5), st.sampled_from((False, False, False, True))).map(
        lambda parts: [*parts[0], Fail()] if parts[1] else parts[0]
    ),
    st.booleans(),
)


@pytest.mark.parametrize("examples", [150, pytest.param(3_000, marks=pytest.mark.long)])
def test_every_mailbox_gets_what_the_model_says(examples: int) -> None:
    @settings(STEADY, max_examples=examples)
    @given(st.lists(TURNS, max_size=16))
    def check(turns: list[tuple[str, list[Action], bool]]) -> None:
        every_mailbox_gets_what_the_model_says(turns)

    check()


def every_mailbox_gets_what_the_model_says(turns: list[tuple[str, list[Action], bool]]) -> None:
    both = Both()
    for owner, actions, collect in turns:
        both.turn(owner, actions)
        if collect:
            both.collect()
    both.clear_out()


@pytest.mark.parametrize("leave_first", [True, False])
def test_the_model_itself(leave_first: bool) -> None:
    """It is no mirror: some things are said here in so many words."""
    both = Both()
    pattern = compile_pattern(("x", capture()))
    both.turn("first", [Watch(pattern, 0), Assert(("x", 1)), Assert(("x", 1, 2))])
    assert both.model.mail[0] == [[], [], [Asserted((1,))], []]
    both.collect()
    both.turn("second", [Retract(0, live=True), Publish(("x", 3)), Publish("nobody's")])
    assert both.model.mail[0] == [[], [(3,)], []]
    assert (both.model.published, both.model.deliveries, both.model.unrouted) == (2, 1, 1)
    both.turn("second", [Assert("gone"), Fail()])
    assert both.model.mail[0] == [[], [(3,)], []]
    actions: list[Action] = [Leave(0, live=True), Retract(0, live=True)]
    both.turn("second", actions if leave_first else actions[::-1])
    expected = [] if leave_first else [[Retracted((1,))]]
    assert [letter for letter in both.model.mail[0][3:] if letter] == expected
    both.turn("first", [Retract(0, live=False)])  # a second time: fails
    both.clear_out()
