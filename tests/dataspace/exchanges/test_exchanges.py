"""Exchanges: declaring and deleting them, bindings, and where a message goes."""

from __future__ import annotations

from typing import Any

import pytest

from clearfunds.accounts import Outcome
from clearfunds.dataspace.exchanges import HostError, HostLimits, Message, Reason
from tests.dataspace.exchanges.conftest import Bench, refused
from tests.dataspace.queues.conftest import Heard

# -- the four types --------------------------------------------------------------------------------


def test_the_default_exchange_routes_to_the_queue_of_that_name(bench: Bench) -> None:
    bench.queue("a")
    bench.queue("b")
    assert bench.publish("", "a", "one")
    assert not bench.publish("", "c", "none")
    assert bench.reached() == {"a": ["one"]}
    assert bench.host.statistics().unrouted == 1


@pytest.mark.parametrize("exchange", ["amq.direct", "x"])
def test_a_direct_exchange_routes_by_the_key(bench: Bench, exchange: str) -> None:
    bench.host.declare_exchange("x", "direct")
    bench.queue("a", (exchange, "one"), (exchange, "two"))
    bench.queue("b", (exchange, "two"))
    assert [bench.publish(exchange, key, key) for key in ("one", "two", "#")] == [True, True, False]
    assert bench.reached() == {"a": ["one", "two"], "b": ["two"]}


@pytest.mark.parametrize("exchange", ["amq.fanout", "x"])
def test_a_fanout_exchange_routes_to_all(bench: Bench, exchange: str) -> None:
    bench.host.declare_exchange("x", "fanout")
    bench.queue("a", (exchange, "one"))
    bench.queue("b", (exchange,))
    assert bench.publish(exchange, "whatever")
    assert bench.reached() == {"a": ["m"], "b": ["m"]}


@pytest.mark.parametrize("exchange", ["amq.topic", "x"])
def test_a_topic_exchange_routes_by_words(bench: Bench, exchange: str) -> None:
    bench.host.declare_exchange("x", "topic")
    bench.queue("a", (exchange, "*.orange.*"))
    bench.queue("b", (exchange, "*.*.rabbit"), (exchange, "lazy.#"))
    for key in ("quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox", "lazy", "fox"):
        bench.publish(exchange, key, key)
    assert bench.reached() == {
        "a": ["quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox"],
        "b": ["quick.orange.rabbit", "lazy.orange.elephant", "lazy"],
    }


@pytest.mark.parametrize("exchange", ["amq.headers", "amq.match", "x"])
@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [
        ({}, {}, True),
        ({}, {"a": 1}, True),
        ({"x-match": "all"}, None, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": 1}, None, False),
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 2}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "all", "a": 1}, {"a": 2}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"b": "y"}, False),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {"b": "whatever"}, False),
        ({"a": None, "b": 2}, {"a": 1, "b": 2}, True),
        ({"x-match": "any", "a": None, "b": 2}, {"a": 1}, True),
        # Arguments that begin with x- are looked at only if that is wanted.
        ({"x-a": 1}, {}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 1}, {"x-a": 2}, False),
        # Numbers compare by value, whatever their types; a truth value is no number.
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, True),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, False),
        ({"a": bytearray(b"1")}, {"a": b"1"}, True),
    ],
)
def test_a_headers_exchange_routes_by_headers(
    bench: Bench, exchange: str, arguments: Any, headers: Any, matches: bool
) -> None:
    bench.host.declare_exchange("x", "headers")
    bench.queue("a", (exchange, "ignored", arguments))
    assert bench.publish(exchange, "other", headers=headers) is matches
    assert bench.reached() == ({"a": ["m"]} if matches else {})
    bench.host.unbind_queue("a", exchange, "ignored", arguments)
    assert not bench.publish(exchange, "other", headers=headers)


def test_a_headers_exchange_forgets_what_is_unbound(bench: Bench) -> None:
    bench.host.declare_exchange("x", "headers")
    x: Any = bench.host.exchanges["x"]
    bench.queue("a")
    wanted: list[Any] = [{}, {"a": 1}, {"a": None}, {"x-match": "any", "a": 1, "b": None, "c": 2}]
    for arguments in wanted:
        bench.host.bind_queue("a", "x", "", arguments)
    for arguments in wanted:
        bench.host.unbind_queue("a", "x", "", arguments)
    assert not any([x._by_header, x._by_value, x._criteria, x._without])


@pytest.mark.parametrize(
    ("match", "text"),
    [
        (
            "foo",
            'Invalid x-match field value <<"foo">>; expected all, any, all-with-x, or any-with-x',
        ),
        (1, "Invalid x-match field type signedint (value 1); expected longstr"),
    ],
)
def test_a_wrong_x_match(bench: Bench, match: object, text: str) -> None:
    bench.queue("a")
    arguments = {"x-match": match}
    refused(
        Reason.PRECONDITION_FAILED, text, bench.host.bind_queue, "a", "amq.headers", "", arguments
    )
    bench.host.bind_queue("a", "amq.direct", "", arguments)  # where it has no meaning


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_a_message_is_in_a_queue_once(bench: Bench, kind: str) -> None:
    bench.host.declare_exchange("x", kind)
    bench.queue("a", ("x", "k"), ("x", "k", {"number": 2}), ("x", "k", {"x-number": 3}))
    bench.host.bind_queue("a", "x", "k")  # there already
    assert bench.host.bindings == 3
    for left in (3, 2, 1, 0):
        headers = {"number": 2}
        assert bench.publish("x", "k", headers=headers) is bool(left)
        assert bench.reached() == ({"a": ["m"]} if left else {})
        if left:
            arguments = ({"x-number": 3}, {"number": 2}, {})[3 - left]
            bench.host.unbind_queue("a", "x", "k", arguments)
    bench.host.unbind_queue("a", "x", "k")  # no longer there


# -- debt ------------------------------------------------------------------------------------------


@pytest.mark.rule(1)
@pytest.mark.rule(2)
def test_the_publisher_pays_for_each_copy_until_it_is_acked(bench: Bench) -> None:
    bench.queue("a", ("amq.fanout",))
    bench.queue("b", ("amq.fanout",))
    bench.publish("amq.fanout", "key", "12345")
    size = 5 + len("amq.fanout") + len("key")
    assert (bench.publisher.debt_items, bench.publisher.debt_bytes) == (2, 2 * size)
    bench.take("a")
    assert (bench.publisher.debt_items, bench.publisher.debt_bytes) == (1, size)
    bench.take("b")
    assert bench.publisher.debt_items == 0
    assert bench.ledger.repaid_items[Outcome.ACKED] == 2


@pytest.mark.rule(4)
def test_a_turn_that_fails_publishes_nothing(bench: Bench) -> None:
    bench.queue("a", ("amq.topic", "#"))
    before = bench.host.statistics()
    with pytest.raises(HostError), bench.publisher.turn() as turn:  # noqa: PT012
        bench.host.publish(turn, "amq.topic", Message("amq.topic", "k", b"", b"m"))
        bench.host.publish(turn, "missing", Message("missing", "k", b"", b"m"))
    with pytest.raises(ZeroDivisionError), bench.publisher.turn() as turn:  # noqa: PT012
        bench.host.publish(turn, "amq.topic", Message("amq.topic", "k", b"", b"m"))
        turn.act(lambda _: 1 // 0)  # type: ignore[arg-type]
    bench.ledger.audit()
    assert bench.reached() == {}
    assert bench.host.statistics() == before
    assert not bench.publisher.debt_items


def test_a_confirm_comes_when_the_queue_has_it(bench: Bench) -> None:
    bench.queue("a", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    first, second = Heard(), Heard()
    bench.publish("", "a", confirm=first)
    bench.publish("", "a", confirm=second)
    assert (first.answers, second.answers) == (["taken"], ["queue a is full"])


# -- declaring -------------------------------------------------------------------------------------


def test_an_exchange_can_be_declared_again(bench: Bench) -> None:
    more: Any = {"durable": True, "auto_delete": True, "internal": True}
    arguments = {"alternate-exchange": "y", "else": 1}
    first = bench.host.declare_exchange("x", "direct", arguments=arguments, **more)
    again = bench.host.declare_exchange(
        "x", "direct", arguments={"alternate-exchange": "y", "other": 2}, **more
    )
    assert first is again
    bench.host.check_exchange("x")
    bench.host.declare_exchange("amq.topic", "topic", durable=True)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"kind": "topic"}, "'type' for exchange 'x' in vhost '/': received 'topic' but current is 'direct'"),  # noqa: E501
        ({"durable": True}, "'durable' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),  # noqa: E501
        ({"auto_delete": True}, "'auto_delete' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),  # noqa: E501
        ({"internal": True}, "'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),  # noqa: E501
        ({"arguments": {"alternate-exchange": "z"}}, "'alternate-exchange' for exchange 'x' in vhost '/': received 'z' but current is 'y'"),  # noqa: E501
        ({"arguments": {}}, "'alternate-exchange' for exchange 'x' in vhost '/': received none but current is the value 'y' of type 'longstr'"),  # noqa: E501
    ],
)  # fmt: skip
def test_an_exchange_cannot_be_declared_otherwise(bench: Bench, changed: Any, text: str) -> None:
    arguments = {"alternate-exchange": "y"}
    bench.host.declare_exchange("x", "direct", arguments=arguments)
    call = {"name": "x", "kind": "direct", "arguments": arguments, **changed}
    refused(
        Reason.PRECONDITION_FAILED,
        f"inequivalent arg {text}",
        bench.host.declare_exchange,
        **call,
    )


def test_names_that_are_not_for_clients(bench: Bench) -> None:
    host = bench.host
    bench.queue("a")
    default = "operation not permitted on the default exchange"
    for call in (
        lambda: host.declare_exchange("", "direct"),
        lambda: host.check_exchange(""),
        lambda: host.delete_exchange("\r\n"),
        lambda: host.bind_queue("a", ""),
        lambda: host.unbind_queue("a", ""),
        lambda: host.bind_exchange("amq.direct", ""),
        lambda: host.bind_exchange("", "amq.direct"),
        lambda: host.unbind_exchange("", "amq.direct"),
        lambda: host.unbind_exchange("amq.direct", ""),
    ):
        refused(Reason.ACCESS_REFUSED, default, call)
    refused(
        Reason.ACCESS_REFUSED,
        "exchange name 'amq.mine' contains reserved prefix 'amq.*'",
        host.declare_exchange, "amq.mine", "direct",
    )  # fmt: skip
    refused(
        Reason.ACCESS_REFUSED,
        "deletion of system exchange 'amq.direct' in vhost '/' not allowed",
        host.delete_exchange, "amq.direct",
    )  # fmt: skip
    refused(
        Reason.COMMAND_INVALID,
        "unknown exchange type 'x-random'",
        host.declare_exchange, "x", "x-random",
    )  # fmt: skip
    refused(
        Reason.PRECONDITION_FAILED,
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'",
        host.declare_exchange, "x", "direct", arguments={"alternate-exchange": 1},
    )  # fmt: skip
    with pytest.raises(HostError, match="at most 255 bytes"):
        host.declare_exchange("x" * 256, "direct")
    host.declare_exchange("x\r\ny", "direct")
    host.check_exchange("xy")


def test_what_is_not_there(bench: Bench) -> None:
    host = bench.host
    bench.queue("a")
    no_exchange = "no exchange 'x' in vhost '/'"
    no_queue = "no queue 'q' in vhost '/'"
    refused(Reason.NOT_FOUND, no_exchange, host.check_exchange, "x")
    refused(Reason.NOT_FOUND, no_exchange, host.bind_queue, "q", "x")
    refused(Reason.NOT_FOUND, no_queue, host.bind_queue, "q", "amq.direct")
    refused(Reason.NOT_FOUND, no_exchange, host.bind_exchange, "x", "amq.direct")
    refused(Reason.NOT_FOUND, no_exchange, host.bind_exchange, "amq.direct", "x")
    refused(Reason.NOT_FOUND, no_queue, host.find_queue, "q")
    refused(Reason.NOT_FOUND, no_queue, host.purge_queue, "q")
    refused(Reason.NOT_FOUND, no_exchange, bench.publish, "x", "k")
    # To end what is not there succeeds.
    host.unbind_queue("q", "amq.direct")
    host.unbind_queue("a", "x")
    host.unbind_exchange("x", "amq.direct")
    host.unbind_exchange("amq.direct", "x")
    host.delete_exchange("x")
    assert host.delete_queue("q") == 0


def test_an_exchange_in_use(bench: Bench) -> None:
    host = bench.host
    host.declare_exchange("x", "direct")
    bench.queue("a", ("x", "k"))
    refused(
        Reason.PRECONDITION_FAILED,
        "exchange 'x' in vhost '/' in use",
        host.delete_exchange, "x", if_unused=True,
    )  # fmt: skip
    host.unbind_queue("a", "x", "k")
    host.bind_exchange("x", "amq.direct", "k")  # that is no use of its own
    host.delete_exchange("x", if_unused=True)
    assert host.bindings == 0
    assert not bench.publish("amq.direct", "k")


def test_an_internal_exchange(bench: Bench) -> None:
    bench.host.declare_exchange("x", "fanout", internal=True)
    bench.queue("a", ("x",))
    refused(
        Reason.ACCESS_REFUSED,
        "cannot publish to internal exchange 'x' in vhost '/'",
        bench.publish, "x", "k",
    )  # fmt: skip
    bench.host.bind_exchange("x", "amq.direct", "k")
    assert bench.publish("amq.direct", "k")
    assert bench.reached() == {"a": ["m"]}


def test_an_exchange_goes_with_its_last_binding(bench: Bench) -> None:
    host = bench.host
    host.declare_exchange("x", "direct", auto_delete=True)
    bench.queue("a", ("x", "1"), ("x", "2"))
    host.unbind_queue("a", "x", "1")
    host.check_exchange("x")
    host.unbind_queue("a", "x", "2")
    assert "x" not in host.exchanges
    # One that never had any stays.
    host.declare_exchange("x", "direct", auto_delete=True)
    host.bind_queue("a", "x", "1")
    host.delete_queue("a")
    assert "x" not in host.exchanges


@pytest.mark.parametrize("length", [3, 3_000])
def test_a_chain_of_exchanges_goes_as_one(length: int) -> None:
    bench = Bench(limits=HostLimits(exchanges=5_000))
    host = bench.host
    for number in range(length):
        host.declare_exchange(f"x{number}", "fanout", auto_delete=True)
        if number:
            host.bind_exchange(f"x{number}", f"x{number - 1}")
    bench.queue("a", (f"x{length - 1}",))
    assert bench.publish("x0", "k")
    assert bench.host.needs_headers("x0") is False
    assert bench.reached() == {"a": ["m"]}
    host.delete_queue("a")
    assert len(host.exchanges) == 5
    bench.close()


# -- from exchange to exchange ---------------------------------------------------------------------


def test_exchanges_may_be_bound_in_a_ring(bench: Bench) -> None:
    host = bench.host
    for name in "xyz":
        host.declare_exchange(name, "fanout")
        bench.queue(f"q{name}", (name,))
    for source, destination in ("xy", "yz", "zx", "xx", "xz"):
        host.bind_exchange(destination, source)
    assert bench.publish("y", "k")
    assert bench.reached() == {"qx": ["m"], "qy": ["m"], "qz": ["m"]}
    host.delete_exchange("z")
    assert bench.publish("y", "k")
    assert bench.reached() == {"qy": ["m"]}
    host.unbind_exchange("x", "x")
    host.unbind_exchange("y", "x")
    assert bench.publish("x", "k")
    assert bench.reached() == {"qx": ["m"]}


def test_an_alternate_exchange_gets_what_is_not_routed(bench: Bench) -> None:
    host = bench.host
    host.declare_exchange("x", "direct", arguments={"alternate-exchange": "y"})
    bench.queue("a", ("x", "k"))
    assert not bench.publish("x", "other")  # y is not there yet
    host.declare_exchange("y", "direct", arguments={"alternate-exchange": "x"})
    bench.queue("b", ("y", "other"))
    assert bench.publish("x", "k", "one")
    assert bench.publish("x", "other", "two")
    assert not bench.publish("x", "third")  # to each of the two once
    assert bench.reached() == {"a": ["one"], "b": ["two"]}
    host.declare_exchange("z", "fanout", arguments={"alternate-exchange": ""})
    assert bench.publish("z", "b", "by name")
    assert bench.reached() == {"b": ["by name"]}


def test_the_alternate_is_of_the_exchange_that_routes_nothing(bench: Bench) -> None:
    """One behind it that routes nothing has its own alternate exchange, or none."""
    host = bench.host
    host.declare_exchange("x", "direct", arguments={"alternate-exchange": "y"})
    host.declare_exchange("y", "fanout")
    host.declare_exchange("z", "direct")
    bench.queue("b", ("y",))
    host.bind_exchange("z", "x", "k")
    assert not bench.publish("x", "k")
    assert bench.publish("x", "other")
    assert bench.reached() == {"b": ["m"]}


def test_which_exchanges_look_at_headers(bench: Bench) -> None:
    host = bench.host
    for name in ("x", "y", "z"):
        host.declare_exchange(name, "direct", arguments={"alternate-exchange": "h"} if name == "z" else {})  # noqa: E501  # fmt: skip
    host.bind_exchange("y", "x", "k")
    host.bind_exchange("x", "y", "k")
    assert not host.needs_headers("x")
    assert not host.needs_headers("")
    assert host.needs_headers("amq.match")
    host.bind_exchange("amq.headers", "y", "k")
    assert host.needs_headers("x")
    assert not host.needs_headers("z")
    host.declare_exchange("h", "headers")
    assert host.needs_headers("z")


# -- CC and BCC ------------------------------------------------------------------------------------


def test_copies_go_by_further_keys(bench: Bench) -> None:
    for name in "abc":
        bench.queue(name, ("amq.direct", name))
    headers = {"CC": ["b", 1], "BCC": ["c", "c"], "else": 1}
    for exchange in ("", "amq.direct"):
        assert bench.publish(exchange, "a", headers=headers)
        for name in "abc":
            (message,) = bench.messages(name)
            assert (message.exchange, message.routing_key) == (exchange, "a")
            # The blind ones are not told to anybody.
            assert bench.host.properties.headers(message) == {"CC": ["b", 1], "else": 1}
    assert bench.publish("", "nobody", headers={"CC": ["a"]})
    assert bench.reached() == {"a": ["m"]}


def test_copies_that_are_none(bench: Bench) -> None:
    refused(
        Reason.PRECONDITION_FAILED,
        'invalid message: {unacceptable_type_in_header,"CC",longstr}',
        bench.publish, "", "a", headers={"CC": "b"},
    )  # fmt: skip
    with pytest.raises(HostError, match="1001 routing keys in CC and BCC; at most 1000"):
        bench.publish("", "a", headers={"BCC": ["b"] * 1001})


# -- limits ----------------------------------------------------------------------------------------


def test_limits() -> None:
    limits = HostLimits(queues=2, exchanges=1, bindings=1)
    bench = Bench(limits=limits)
    host = bench.host
    bench.queue("a", ("amq.direct", "k"))
    bench.queue("b")
    host.declare_exchange("x", "direct")
    for text, call in (
        ("declare queue 'c' in vhost '/': queue limit of 2", lambda: host.declare_queue("c")),
        (
            "declare exchange 'y' in vhost '/': exchange limit of 1",
            lambda: host.declare_exchange("y", "direct"),
        ),
        (
            "bind to exchange 'x' in vhost '/': binding limit of 1",
            lambda: host.bind_queue("a", "x"),
        ),
    ):
        full = f"cannot {text} is reached; delete some, or raise it"
        refused(Reason.PRECONDITION_FAILED, full, call)
    host.declare_queue("a")
    host.declare_exchange("x", "direct")
    host.bind_queue("a", "amq.direct", "k")
    host.delete_queue("b")
    host.declare_queue("c")
    bench.close()


def test_definitions_have_a_budget_in_bytes() -> None:
    bench = Bench(limits=HostLimits(definition_bytes=50_000))
    host = bench.host
    bench.queue("a")
    for call in (
        lambda: host.declare_queue("b", arguments={"a": "x" * 30_000}),
        lambda: host.declare_exchange("b", "direct", arguments={"a": "x" * 30_000}),
        lambda: host.bind_queue("a", "amq.direct", "b", {"a": "x" * 30_000}),
        # Each word of a key is a node of the trie.
        lambda: host.bind_queue("a", "amq.topic", "." * 254),
    ):
        with pytest.raises(HostError, match=r"definitions take \d+ bytes of 50000"):
            call()
    host.bind_queue("a", "amq.direct", "." * 254)
    bench.close()


def test_tables_that_are_too_deep(bench: Bench) -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    bench.queue("a")
    for call in (
        lambda: bench.host.declare_queue("b", arguments={"a": deep}),
        lambda: bench.host.declare_exchange("b", "direct", arguments={"a": deep}),
        lambda: bench.host.bind_queue("a", "amq.direct", "", {"a": deep}),
        lambda: bench.host.unbind_queue("a", "amq.direct", "", {"a": deep}),
    ):
        with pytest.raises(HostError, match="nested more than 32 deep"):
            call()
    bench.publish("amq.headers", "k", headers={"a": 1})


def test_a_deleted_queue_drops_what_is_on_its_way(bench: Bench) -> None:
    bench.queue("a")
    with bench.publisher.turn() as turn:
        bench.host.publish(turn, "", Message("", "a", b"", b"m"))
        bench.host.delete_queue("a")
    bench.ledger.audit()
    assert not bench.publisher.debt_items
    assert bench.ledger.repaid_items[Outcome.DROPPED] == 1
