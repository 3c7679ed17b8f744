"""The index of patterns: by type, by shape, by constants, by what they show; pruned to nothing."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from clearfunds.dataspace import ANY, Group, Pattern, Publication, capture, compile_pattern, match
from clearfunds.dataspace._bag import identity
from clearfunds.dataspace._index import PatternIndex, kind_wanted
from clearfunds.dataspace._pattern import Skeleton
from tests.dataspace.conftest import PATTERNS, STEADY, VALUES, Alarm, Reading, inside, shown_of


def found(index: PatternIndex, value: object) -> Counter[object]:
    """Return who is shown what of a value."""
    return Counter(
        (observer, (identity(shown),))
        for endpoint, shown in index.matching(value)
        for observer in endpoint.observers
    )


def add(index: PatternIndex, pattern: object, observer: object) -> Skeleton:
    return index.add(compile_pattern(pattern), observer)[1]


def test_patterns_that_look_at_the_same_places_are_one_shape() -> None:
    """However many constants there are: the cost of routing goes by shapes."""
    index = PatternIndex()
    skeletons = [add(index, match(Reading, sensor=f"{n}"), n) for n in range(100)]
    skeletons += [add(index, match(Reading, sensor=f"{n}", unit=capture()), n) for n in range(100)]
    assert len(index) == 2
    assert found(index, Reading("7", 1.0)) == Counter(
        [(7, (identity(Reading("7", 1.0)),)), (7, (identity(("C",)),))]
    )
    assert found(index, Reading("100", 1.0)) == Counter()
    for n, skeleton in enumerate(skeletons):
        index.remove(skeleton, n % 100)
    assert len(index) == 0
    assert not inside(index, "_by_kind")


def test_observers_of_the_same_share_an_endpoint_in_the_order_in_which_they_came() -> None:
    index = PatternIndex()
    (one, first), (two, _) = (index.add(compile_pattern(("a", capture())), n) for n in "xy")
    assert one is two
    assert list(one.observers) == ["x", "y"]
    index.remove(first, "x")
    (three, _) = index.add(compile_pattern(("a", capture())), "x")
    assert three is one
    assert list(one.observers) == ["y", "x"]


def test_types_that_nobody_looks_at_cost_nothing() -> None:
    index = PatternIndex()
    assert not index.may_concern(Publication)
    handles = [(pattern, add(index, pattern, 1)) for pattern in (Reading, ("a",), "a", {"a": 1})]
    assert not index.may_concern(Publication)
    assert index.may_concern(Reading)
    assert not index.may_concern(Alarm)
    anything = add(index, ANY, 1)
    assert index.may_concern(Publication)
    index.remove(anything, 1)
    assert not index.may_concern(Publication)
    for _, skeleton in handles:
        index.remove(skeleton, 1)
    assert not inside(index, "_by_kind")


@STEADY
@given(st.lists(st.tuples(PATTERNS, st.booleans()), max_size=20), st.lists(VALUES, max_size=8))
def test_it_finds_what_brute_force_finds(
    steps: list[tuple[Pattern, bool]], values: list[object]
) -> None:
    index = PatternIndex()
    present: list[tuple[int, Pattern, Skeleton]] = []
    for n, (pattern, leave) in enumerate(steps):
        present.append((n, pattern, add(index, pattern, n)))
        if leave:
            gone, _, skeleton = present.pop(n // 2 % len(present))
            index.remove(skeleton, gone)
    for value in values:
        expected = ((n, shown_of(pattern, value)) for n, pattern, _ in present)
        assert found(index, value) == Counter(pair for pair in expected if pair[1] is not None)
    assert len(index) == len({(kind_wanted(s), s.shape) for _, _, s in present})
    for n, _, skeleton in present:
        index.remove(skeleton, n)
    assert not inside(index, "_by_kind")


def test_only_patterns_that_match_otherwise_depend_on_what_varies() -> None:
    """Somebody's pattern for the payloads of one topic makes nothing of other topics."""
    index = PatternIndex()
    for n in range(5):
        add(index, match(Publication, topic=f"t/{n}", payload=b"1"), n)
    levels = compile_pattern(("a", ANY, ANY))
    deep = Group(Publication, (("levels", levels), ("payload", compile_pattern(b"1"))))
    add(index, deep, "deep")
    plain = add(index, match(Publication, topic="t/0"), "plain")
    varying = ("payload",)
    assert index.concerned(Publication("t/9", b"2"), varying) == []
    assert index.concerned(Publication("b/b/b", b"2"), varying) == []
    assert index.concerned(Publication("b/b", b"2"), varying) == []
    for topic in ("t/0", "t/4", "a/b/c", "a/b/c/d"):
        assert index.concerned(Publication(topic, b"2"), varying) is None
    index.remove(plain, "plain")
    add(index, match(Publication, topic="t/9", payload=b"1"), 9)
    assert index.concerned(Publication("t/9", b"2"), varying) is None


PUBLICATIONS = st.builds(
    Publication,
    st.sampled_from(["a", "a/b", "b/b", "a/b/c"]),
    st.sampled_from([b"x", b"y"]),
    st.integers(0, 1),
    st.booleans(),
)
OF_PUBLICATIONS = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.sampled_from(["a", "a/b", capture()]),
        "levels": st.sampled_from([("a",), ("a", ANY), (ANY, "b"), (ANY, ANY, ANY), ()]),
        "payload": st.sampled_from([b"x", b"y", ANY, ("a",)]),
        "qos": st.sampled_from([0, 1, capture()]),
        "nbytes": st.sampled_from([2, 4]),
    },
).map(
    lambda entries: Group(Publication, tuple((k, compile_pattern(p)) for k, p in entries.items()))
)


@STEADY
@given(st.lists(OF_PUBLICATIONS | st.just(ANY), max_size=6), st.lists(PUBLICATIONS, min_size=1))
def test_topics_that_nobody_looks_at(patterns: list[Pattern], values: list[Publication]) -> None:
    """Then nobody observes any publication on it."""
    index = PatternIndex()
    for n, pattern in enumerate(patterns):
        add(index, pattern, n)
    for value in values:
        may = index.may_concern_topic(Publication(value.topic, b""))
        assert may or not index.concerned(value)
    plain = [p for p in patterns if isinstance(p, Group) and not p.entries]
    if plain:
        assert index.may_concern_topic(Publication("nobody's", b""))


def test_a_topic_is_looked_at_whatever_else_its_publications_have() -> None:
    index = PatternIndex()
    add(index, match(Publication, topic="t", payload=b"1", qos=1), "one")
    assert index.may_concern_topic(Publication("t", b""))
    assert not index.may_concern_topic(Publication("u", b""))
    gone = add(index, match(Publication, payload=b"1"), "any")
    assert index.may_concern_topic(Publication("u", b""))
    index.remove(gone, "any")
    assert not index.may_concern_topic(Publication("u", b""))
    add(index, ANY, "all")
    assert index.may_concern_topic(Publication("u", b""))


@STEADY
@given(
    st.lists(
        st.tuples(st.sampled_from([ANY, "a", 1, capture()]), st.sampled_from([ANY, "x", "y"]))
    ),
    st.booleans(),
)
def test_what_does_not_depend_is_the_same_for_all(
    pairs: list[tuple[object, object]], reverse: bool
) -> None:
    index = PatternIndex()
    added = [add(index, pair[::-1] if reverse else pair, n) for n, pair in enumerate(pairs)]
    place = 0 if reverse else 1
    for first in ("a", "b", 1):

        def value(last: str, first: object = first) -> tuple[object, ...]:
            return (last, first) if reverse else (first, last)

        steady = index.concerned(value("x"), (place,))
        plain = [index.concerned(value(last)) for last in "xyz"]
        if steady is None:
            assert plain[0] != plain[2] or plain[1] != plain[2]
        else:
            assert all(each == steady for each in plain)
    for n, skeleton in enumerate(added):
        index.remove(skeleton, n)
    assert not inside(index, "_by_kind")


def test_many_shapes_are_told_apart_by_their_constants() -> None:
    """What is in the way of nothing is not looked at twice."""
    index = PatternIndex()
    looks: list[str] = []

    class Noting(dict[str, int]):
        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            looks.append(key)
            return super().get(key, default)

    for n in range(50):
        add(index, {"a": 1, "b": 2, f"c{n}": ANY}, n)
    assert not found(index, Noting(a=1, b=3, c1=1))
    assert sorted(looks) == ["a", "b"]
    looks.clear()
    assert list(found(index, Noting(a=1, b=2, c1=1))) == [(1, (identity(Noting(a=1, b=2, c1=1)),))]
    assert len(looks) == 2 + 50
