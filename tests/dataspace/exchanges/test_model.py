"""Exchanges, queues and bindings against a naive model: lists, and a search through all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clearfunds.dataspace import TopicFilter
from clearfunds.dataspace.exchanges import HostError
from tests.dataspace.exchanges.conftest import Bench, MemoryKeeper
from tests.dataspace.exchanges.test_topic_patterns import by_recursion, words_of

EXCHANGES = ("x0", "x1", "x2", "x3")
SYSTEM = ("amq.direct", "amq.fanout", "amq.topic", "amq.match")
QUEUES = ("q0", "q1", "q2")
KINDS = ("direct", "fanout", "topic", "headers")
KEYS = ("", "a", "a.b", "b.a.b", "q0", "c..a")
PATTERNS = ("", "a", "#", "*", "a.*", "#.b", "*.#.b", "a.#.b", "c.*.a", "q0")
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"h": 1},
    {"h": 1, "i": "x"},
    {"h": None, "x-i": 2},
    {"x-match": "any", "h": 1, "i": None},
    {"x-match": "all-with-x", "x-i": 2},
)
HEADERS: tuple[dict[str, Any], ...] = ({}, {"h": 1}, {"h": 1.0, "i": "x"}, {"i": "y", "x-i": 2})

exchanges = st.sampled_from(EXCHANGES)
sources = st.sampled_from((*EXCHANGES, *SYSTEM))
queues = st.sampled_from(QUEUES)
patterns = st.sampled_from(PATTERNS)
arguments = st.sampled_from(ARGUMENTS)


@attrs.define
class X:
    """An exchange in the model."""

    kind: str
    durable: bool = True
    auto_delete: bool = False
    alternate: str | None = None


@attrs.define
class Q:
    """A queue in the model."""

    durable: bool
    exclusive: bool
    messages: list[str] = attrs.Factory(list[str])


@attrs.define
class B:
    """A binding in the model."""

    source: str
    to: str
    key: str
    arguments: dict[str, Any]


def wants(kind: str, binding: B, key: str, headers: dict[str, Any]) -> bool:
    """Whether a binding of an exchange of some kind matches."""
    if kind == "fanout":
        return True
    if kind == "direct":
        return binding.key == key
    if kind == "topic":
        return by_recursion(words_of(binding.key), words_of(key))
    match = binding.arguments.get("x-match", "all")
    results = [
        name in headers and value in (None, headers[name])
        for name, value in binding.arguments.items()
        if name != "x-match" and (match.endswith("-with-x") or not name.startswith("x-"))
    ]
    return all(results) if match.startswith("all") else any(results)


class Hosts(RuleBasedStateMachine):
    """Declares, binds, deletes, publishes, restarts; and looks where everything went."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(MemoryKeeper())
        self.owner = object()
        self.exchanges: dict[str, X] = {}
        self.reset_system()
        self.queues: dict[str, Q] = {}
        self.bindings: list[B] = []
        self.number = 0

    def reset_system(self) -> None:
        kinds = ("direct", "fanout", "topic", "headers")
        self.exchanges.update({name: X(kind) for name, kind in zip(SYSTEM, kinds, strict=True)})

    # -- the model -----------------------------------------------------------------------------

    def route(self, exchange: str, keys: list[str], headers: dict[str, Any]) -> set[str]:
        """Return the queues that a message reaches."""
        found: set[str] = set()
        seen: set[str] = set()
        line = [exchange]
        while line:
            name = line.pop()
            if name in seen:
                continue
            if name == "":
                found |= {key for key in keys if key in self.queues}
                continue
            seen.add(name)
            if name not in self.exchanges:
                continue
            here = self.exchanges[name]
            matching = [
                binding
                for binding in self.bindings
                if binding.source == name
                and any(wants(here.kind, binding, key, headers) for key in keys)
            ]
            for binding in matching:
                if binding.to in self.queues:
                    found.add(binding.to)
                else:
                    line.append(binding.to)
            if not matching and here.alternate is not None:
                line.append(here.alternate)
        return found

    def remove(self, gone: Callable[[B], bool]) -> None:
        """Remove bindings, and exchanges that go with their last ones."""
        removed = [binding for binding in self.bindings if gone(binding)]
        self.bindings = [binding for binding in self.bindings if not gone(binding)]
        for source in {binding.source for binding in removed}:
            here = self.exchanges.get(source)
            unused = not any(binding.source == source for binding in self.bindings)
            if here is not None and here.auto_delete and unused:
                self.delete(source)

    def delete(self, name: str) -> None:
        self.queues.pop(name, None)
        self.exchanges.pop(name, None)
        self.remove(lambda binding: name in (binding.source, binding.to))

    def ends(self) -> Iterator[str]:
        yield from self.queues
        yield from self.exchanges

    # -- rules ---------------------------------------------------------------------------------

    @rule(
        name=exchanges,
        kind=st.sampled_from(KINDS),
        durable=st.booleans(),
        auto_delete=st.booleans(),
        alternate=st.sampled_from((None, None, "", *EXCHANGES, "amq.topic")),
    )
    def declare_exchange(
        self, name: str, kind: str, durable: bool, auto_delete: bool, alternate: str | None
    ) -> None:
        wanted = X(kind, durable, auto_delete, alternate)
        more: Any = {} if alternate is None else {"arguments": {"alternate-exchange": alternate}}
        here = self.exchanges.setdefault(name, wanted)
        try:
            self.bench.host.declare_exchange(
                name, kind, durable=durable, auto_delete=auto_delete, **more
            )
        except HostError:
            assert here != wanted
        else:
            assert here == wanted

    @rule(name=exchanges, if_unused=st.booleans())
    def delete_exchange(self, name: str, if_unused: bool) -> None:
        used = any(binding.source == name for binding in self.bindings)
        try:
            self.bench.host.delete_exchange(name, if_unused=if_unused)
        except HostError:
            assert if_unused
            assert used
        else:
            assert not (if_unused and used)
            self.delete(name)

    @rule(name=queues, durable=st.booleans(), exclusive=st.booleans())
    def declare_queue(self, name: str, durable: bool, exclusive: bool) -> None:
        wanted = Q(durable and not exclusive, exclusive)
        here = self.queues.setdefault(name, wanted)
        same = (here.durable, here.exclusive) == (wanted.durable, wanted.exclusive)
        owner = self.owner if exclusive else None
        try:
            self.bench.host.declare_queue(name, durable=durable, exclusive_to=owner)
        except HostError:
            assert not same
        else:
            assert same

    @rule(name=queues)
    def delete_queue(self, name: str) -> None:
        count = len(self.queues[name].messages) if name in self.queues else 0
        assert self.bench.host.delete_queue(name, by=self.owner) == count
        self.delete(name)

    @rule()
    def end_connection(self) -> None:
        self.bench.host.connection_gone(self.owner)
        for name, here in list(self.queues.items()):
            if here.exclusive:
                self.delete(name)

    @rule(source=sources, to=queues | sources, key=patterns, arguments=arguments)
    def bind(self, source: str, to: str, key: str, arguments: dict[str, Any]) -> None:
        host = self.bench.host
        there = source in self.exchanges and (to in self.queues or to in self.exchanges)
        try:
            if to in QUEUES:
                host.bind_queue(to, source, key, arguments, by=self.owner)
            else:
                host.bind_exchange(to, source, key, arguments)
        except HostError:
            assert not there
            return
        assert there
        binding = B(source, to, key, arguments)
        if binding not in self.bindings:
            self.bindings.append(binding)

    @precondition(lambda self: self.bindings)
    @rule(data=st.data())
    def unbind(self, data: st.DataObject) -> None:
        binding = data.draw(st.sampled_from(self.bindings))
        host = self.bench.host
        if binding.to in self.queues:
            host.unbind_queue(
                binding.to, binding.source, binding.key, binding.arguments, by=self.owner
            )
        else:
            host.unbind_exchange(binding.to, binding.source, binding.key, binding.arguments)
        self.remove(lambda each: each is binding)

    @rule(
        exchange=st.just("") | sources,
        key=st.sampled_from(KEYS),
        copies=st.lists(st.sampled_from(KEYS), max_size=2),
        blind=st.booleans(),
        headers=st.sampled_from(HEADERS),
        persistent=st.booleans(),
    )
    def publish(
        self,
        exchange: str,
        key: str,
        copies: list[str],
        blind: bool,
        headers: dict[str, Any],
        persistent: bool,
    ) -> None:
        self.number += 1
        body = f"{self.number}"
        # The model forgets nothing, so a restart must not either.
        table = {**headers, "BCC" if blind else "CC": copies} if copies else headers
        if exchange and exchange not in self.exchanges:
            with pytest.raises(HostError):
                self.bench.publish(exchange, key, body, headers=table)
            return
        reached = self.route(exchange, [key, *copies], headers)
        routed = self.bench.publish(
            exchange, key, body, headers=table if table or persistent else None
        )
        assert routed is bool(reached)
        for name in reached:
            self.queues[name].messages.append(body)

    @rule(topic=st.sampled_from(("a", "a/b", "b/a/b", "q0", "c//a")))
    def publish_topic(self, topic: str) -> None:
        self.number += 1
        self.bench.publish_topic(topic, f"{self.number}")
        key = topic.replace("/", ".")
        # Behind amq.topic headers are those of the publication.
        for name in self.route("amq.topic", [key], {"mqtt": ""}):
            self.queues[name].messages.append(f"{self.number}")

    @rule(key=st.sampled_from(KEYS))
    def publish_to_both(self, key: str) -> None:
        """By amq.topic to queues, each once, and to a subscriber."""
        self.number += 1
        body = f"{self.number}"
        with self.bench.dataspace.subscribed(self.bench.account, TopicFilter("#")) as mailbox:
            self.bench.publish("amq.topic", key, body)
            count = 0
            while next(mailbox.loans(), None) is not None:
                with mailbox.receive_nowait() as events:
                    count += len(events)
            assert count == bool(key)
        for name in self.route("amq.topic", [key], {}):
            self.queues[name].messages.append(body)

    @precondition(lambda self: self.queues)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.queues)))
        found = self.bench.take(name)
        assert found == self.queues[name].messages
        self.queues[name].messages.clear()

    @rule()
    def restart(self) -> None:
        """What is durable is there again. (Messages are taken out before.)"""
        for name, here in self.queues.items():
            assert self.bench.take(name) == here.messages
            here.messages.clear()
        assert self.bench.keeper is not None
        self.bench.keeper.sync()
        after = self.bench.restart()
        self.bench.close()
        self.bench = after
        durable = {name for name, here in self.exchanges.items() if here.durable}
        durable |= {name for name, here in self.queues.items() if here.durable}
        self.exchanges = {n: here for n, here in self.exchanges.items() if n in durable}
        self.queues = {name: here for name, here in self.queues.items() if name in durable}
        self.bindings = [b for b in self.bindings if b.source in durable and b.to in durable]

    # -- what always holds ---------------------------------------------------------------------

    @invariant()
    def same(self) -> None:
        host = self.bench.host
        assert {name for name in host.exchanges if name in (*EXCHANGES, *SYSTEM)} == set(
            self.exchanges
        )
        assert set(host.queues) == set(self.queues)
        assert host.bindings == len(self.bindings)
        for name, here in self.queues.items():
            assert len(host.queues[name].queue) == len(here.messages)
        keys = {b.key for b in self.bindings if b.source == "amq.topic"}
        assert set(host.topics._observed) == keys  # pyright: ignore[reportPrivateUsage]
        assert not host.topics._own  # pyright: ignore[reportPrivateUsage]
        self.bench.ledger.audit()

    def teardown(self) -> None:
        self.bench.close()
        assert self.bench.keeper is not None
        assert not self.bench.keeper.values
        assert not self.bench.keeper.shelves


TestHosts = Hosts.TestCase
TestHosts.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
