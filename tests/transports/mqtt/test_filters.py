"""What a client's subscriptions make of a topic, against looking at each of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clearfunds.dataspace import LONG_TOPIC, topic_matches
from clearfunds.transports.mqtt.codec._options import NO_LOCAL, RETAIN_AS_PUBLISHED
from clearfunds.transports.mqtt.server._filters import (
    CACHED_TOPICS,
    Chosen,
    Filters,
)

FILTERS = ["a", "a/b", "a/+", "a/#", "+/b", "#", "+", "+/+", "$s/#", "b/#"]
TOPICS = ["a", "a/b", "b", "b/b", "a/c/d", "$s/x", "/a"]

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.sampled_from(FILTERS),
            st.sampled_from([0, NO_LOCAL, RETAIN_AS_PUBLISHED, 0x0C, 0x30, 0x2D]),
            st.sampled_from([0, 0, 1, 2, 268_435_455]),
        ),
        st.tuples(st.just("remove"), st.sampled_from(FILTERS)),
        st.tuples(st.just("look"), st.sampled_from(TOPICS)),
        st.just(("clear",)),
    ),
    max_size=40,
)


def naive(table: dict[str, tuple[int, int]], topic: str) -> Chosen:
    found = [each for text, each in table.items() if topic_matches(text, topic)]
    return Chosen(
        local=not found or any(not options & NO_LOCAL for options, _ in found),
        as_published=any(options & RETAIN_AS_PUBLISHED for options, _ in found),
        identifiers=tuple(sorted({identifier for _, identifier in found} - {0})),
    )


@given(steps)
def test_they_are_as_if_each_were_looked_at(steps: list[tuple[object, ...]]) -> None:
    filters = Filters()
    table: dict[str, tuple[int, int]] = {}
    for step in steps:
        match step:
            case ("add", str(text), int(options), int(identifier)):
                filters.add(text, options, identifier)
                table[text] = options, identifier
            case ("remove", str(text)):
                filters.remove(text)
                table.pop(text, None)
            case ("look", str(topic)):
                assert filters.of(topic) == filters.of(topic) == naive(table, topic)
            case _:
                filters.clear()
                table.clear()
        assert (len(filters), bool(filters)) == (len(table), bool(table))
        assert filters.selects == any(options & 0x0C for options, _ in table.values())
        assert filters.identifies == any(identifier for _, identifier in table.values())
    for topic in TOPICS:
        assert filters.of(topic) == naive(table, topic)


def test_what_was_chosen_is_remembered_for_so_many_topics() -> None:
    filters = Filters()
    filters.add("#", NO_LOCAL, 7)
    for n in range(CACHED_TOPICS + 100):
        assert filters.of(f"t/{n}") == Chosen(local=False, identifiers=(7,))
        assert len(filters._cached) <= CACHED_TOPICS  # pyright: ignore[reportPrivateUsage]
    filters.add("t/+")
    assert not filters._cached  # pyright: ignore[reportPrivateUsage]
    assert filters.of("t/1") == Chosen(local=True, identifiers=(7,))


def test_long_topics_are_not_remembered() -> None:
    filters = Filters()
    filters.add("#", NO_LOCAL)
    for length in (LONG_TOPIC, LONG_TOPIC + 1):
        for _ in range(2):
            assert filters.of("t" * length) == Chosen(local=False)
    assert list(filters._cached) == ["t" * LONG_TOPIC]  # pyright: ignore[reportPrivateUsage]
