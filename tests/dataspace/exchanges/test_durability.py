"""What survives a restart: durable exchanges, queues and bindings, and persistent messages."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.dataspace.exchanges import PREFIX, HostLimits
from clearfunds.dataspace.exchanges._keeping import escaped
from clearfunds.dataspace.exchanges._tables import (
    decode_table,
    encode_table,
    shown,
    type_name,
    value_key,
)
from clearfunds.dataspace.queues import Channel
from tests.dataspace.conftest import STEADY
from tests.dataspace.exchanges.conftest import Bench, MemoryKeeper, Worker
from tests.dataspace.queues.conftest import Heard


@pytest.fixture
def bench() -> Bench:
    return Bench(MemoryKeeper())


def keeper_of(bench: Bench) -> MemoryKeeper:
    assert bench.keeper is not None
    return bench.keeper


def definitions(bench: Bench) -> dict[str, Any]:
    """Return what is defined, in comparable form."""
    host = bench.host
    return {
        "exchanges": {
            (x.name, str(x.kind), x.durable, x.auto_delete, x.internal, x.alternate, encode_table(x.arguments))  # noqa: E501
            for x in host.exchanges.values()
        },
        "queues": {
            (q.name, q.durable, q.auto_delete, q.kind, encode_table(q.arguments))
            for q in host.queues.values()
        },
        "bindings": {
            (x.name, b.destination.name, type(b.destination).__name__, b.key, b.text)
            for x in host.exchanges.values()
            for b in x.bindings.values()
        },
    }  # fmt: skip


def test_durable_things_come_back(bench: Bench) -> None:
    host = bench.host
    table = {"n": 1, "t": [True, None, b"\xff", {"d": Decimal("1.5"), "w": datetime.now(UTC)}]}
    host.declare_exchange(
        "x/y%", "headers", durable=True, auto_delete=True, internal=True,
        arguments={"alternate-exchange": "amq.fanout", **table},
    )  # fmt: skip
    bench.queue(
        "a/b", ("x/y%", "k", table), ("amq.topic", "a.#"),
        durable=True, arguments={"x-message-ttl": 5_000, **table},
    )  # fmt: skip
    host.bind_exchange("amq.fanout", "amq.direct", "e2e")
    host.bind_queue("a/b", "amq.fanout")
    before = definitions(bench)
    keeper_of(bench).sync()
    after = bench.restart()
    assert definitions(after) == before
    assert after.host.bindings == host.bindings == 4
    assert after.publish("amq.direct", "e2e", "one")
    after.publish_topic("a/x", "two")
    assert after.reached() == {"a/b": ["one", "two"]}
    bench.close()
    assert not keeper_of(bench).values
    assert not keeper_of(bench).shelves
    after.close()


def test_others_do_not(bench: Bench) -> None:
    host = bench.host
    host.declare_exchange("x", "direct")
    bench.queue("a", ("amq.direct", "k"))
    bench.queue("b", ("amq.direct", "k"), exclusive_to=bench, durable=True)
    bench.queue("c", ("x", "k"), durable=True)
    host.bind_exchange("x", "amq.direct", "k")
    after = bench.restart()
    assert list(after.host.queues) == ["c"]
    assert after.host.bindings == 0
    assert "x" not in after.host.exchanges
    bench.close()
    after.close()


def test_what_is_deleted_stays_deleted(bench: Bench) -> None:
    host = bench.host
    for name in ("x", "y"):
        host.declare_exchange(name, "direct", durable=True)
        bench.queue(f"q{name}", (name, "k"), (name, "other"), durable=True)
    host.declare_exchange("gone", "direct", durable=True, auto_delete=True)
    host.bind_queue("qy", "gone")
    host.delete_exchange("x")
    host.delete_queue("qy")
    after = bench.restart()
    assert list(after.host.queues) == ["qx"]
    assert set(after.host.exchanges) - set(Bench().host.exchanges) == {"y"}
    assert after.host.bindings == 0
    bench.close()
    after.close()


@pytest.mark.rule(7)
def test_persistent_messages_come_back(bench: Bench) -> None:
    bench.queue("a", ("amq.fanout",), durable=True, arguments={"x-dead-letter-exchange": "amq.direct"})  # noqa: E501  # fmt: skip
    bench.queue("dead", ("amq.direct", "k"), durable=True)
    confirm = Heard()
    headers = {"h": [1, "x"], "BCC": ["k"]}
    bench.publish("amq.fanout", "k", "kept", persistent=True, headers=headers, confirm=confirm, priority=3)  # noqa: E501  # fmt: skip
    assert (confirm.expected, confirm.answers) == (1, [])
    keeper_of(bench).sync()
    assert confirm.answers == ["taken"]
    assert bench.publisher.debt_items == 0
    after = bench.restart()
    assert after.publisher.debt_items == 0
    assert after.disk.debt_items == 1
    queue = after.host.queues["a"].queue
    worker = Worker(queue)
    keeper_of(after).sync()
    (delivery,) = worker.got
    message = delivery.event
    assert (message.body, message.persistent, message.priority) == (b"kept", True, 3)
    assert after.host.properties.headers(message) == {"h": [1, "x"]}
    delivery.reject(requeue=False)
    keeper_of(after).sync()
    assert len(after.host.queues["dead"].queue) == 1
    assert len(queue) == 0
    worker.channel.close()
    last = after.restart()
    keeper_of(last).sync()
    worker = Worker(last.host.queues["dead"].queue)
    keeper_of(last).sync()
    assert [d.event.exchange for d in worker.got] == ["amq.direct"]
    worker.channel.close()
    for each in (bench, after, last):
        each.close()


def test_a_queue_that_goes_with_its_consumer(bench: Bench) -> None:
    """It comes back if it never had one; else that connection, and so the queue, has gone."""
    used = bench.queue("used", ("amq.direct", "k"), durable=True, auto_delete=True)
    bench.queue("new", ("amq.direct", "k"), durable=True, auto_delete=True)
    bench.host.declare_exchange("x", "fanout", durable=True, auto_delete=True)
    bench.host.bind_queue("used", "x")
    worker = Worker(used.queue)
    after = bench.restart()
    assert list(after.host.queues) == ["new"]
    assert after.host.bindings == 1
    assert "x" not in after.host.exchanges
    assert len(keeper_of(after).shelves) == 1
    new = after.host.queues["new"].queue
    Worker(new)
    last = after.restart()
    assert not last.host.queues
    assert not keeper_of(last).values
    worker.channel.close()
    for each in (bench, after, last):
        each.close()


def test_a_declaration_is_durable_before_it_is_answered(bench: Bench) -> None:
    answers: list[str] = []
    bench.queue("a", durable=True)
    bench.host.when_durable(lambda: answers.append("a"))
    assert answers == []
    assert keeper_of(bench).hurried == 1
    keeper_of(bench).sync()
    assert answers == ["a"]
    without = Bench()
    without.host.when_durable(lambda: answers.append("b"))
    assert answers == ["a", "b"]
    bench.close()


def test_damaged_values_are_left_out(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.queue("a", ("amq.direct", "k"), durable=True)
    keeper = keeper_of(bench)
    good = dict(keeper.values)
    prefix = f"{PREFIX}{escaped('/')}/"
    for kind in "xqb":
        for number, value in enumerate(
            (
                b"\xff", b"[]", b"{}", b"[" * 100_000,
                b'{"name":1,"kind":"direct","auto_delete":false,"internal":false,"arguments":""}',
                b'{"name":"x","kind":"foo","auto_delete":false,"internal":false,"arguments":""}',
                b'{"name":"x","auto_delete":false,"used":false,"arguments":"{\\"x\\":1}"}',
                b'{"name":"x","auto_delete":false,"used":false,"arguments":"[]"}',
                b'{"name":"x","auto_delete":false,"used":false,"arguments":"{\\"m\\":{\\"x-expires\\":0}}"}',
                b'{"source":"missing","to_exchange":false,"destination":"a","key":"","arguments":""}',
                b'{"source":"amq.direct","to_exchange":true,"destination":"missing","key":"","arguments":""}',
                b'{"source":"amq.direct","to_exchange":false,"destination":"missing","key":"","arguments":""}',
            )
        ):  # fmt: skip
            keeper.values[f"{prefix}{kind}/{number}"] = value
    keeper.values["mqtt/whatever"] = b"of another owner"
    after = bench.restart()
    assert len(caplog.records) == 36
    assert definitions(after) == definitions(bench)
    # They stay where they are: another version may read them.
    assert len(keeper_of(after).values) == len(good) + 37
    bench.close()
    after.close()


def test_limits_do_not_apply_to_what_was_there(bench: Bench) -> None:
    for name in "abc":
        bench.queue(name, ("amq.fanout",), durable=True)
    after = Bench(keeper_of(bench).crash(), limits=HostLimits(queues=1, bindings=1, exchanges=1))
    after.host.recover(keeper_of(after).values)
    assert after.host.bindings == 3
    with pytest.raises(Exception, match="queue limit of 1"):
        after.host.declare_queue("d")
    bench.close()
    after.close()


def test_the_process_ends(bench: Bench) -> None:
    declared = bench.queue("a", ("amq.topic", "#"), durable=True)
    other = bench.queue("b")
    bench.publish("", "a", persistent=True)
    bench.publish("", "b")
    keeper_of(bench).sync()
    worker = Worker(other.queue)
    bench.host.close()
    bench.host.close()
    bench.ledger.audit()
    assert not bench.account.standing().items
    assert worker.ends == ["queue b is closed"]
    assert not bench.publisher.debt_items
    assert not bench.disk.debt_items
    assert declared.queue.account.name not in bench.ledger.accounts
    after = bench.restart()
    queue = after.host.queues["a"].queue
    assert queue.get(Channel()) is None  # it has to be read first
    keeper_of(after).sync()
    assert after.take("a") == ["m"]
    after.close()


# -- tables ----------------------------------------------------------------------------------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.decimals(allow_nan=False, places=2)
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)
tables = st.dictionaries(st.text(max_size=5), values, max_size=4)


@STEADY
@given(tables)
def test_tables_come_back(table: dict[str, Any]) -> None:
    text = encode_table(table)
    assert decode_table(text) == table
    assert encode_table(dict(reversed(table.items()))) == text
    hash(value_key(table))
    for value in table.values():
        assert type_name(value)
        assert isinstance(shown(value), str)


@pytest.mark.parametrize(
    "text", ["x", "1", "[]", '{"m":1}', '{"z":1}', '{"b":"x"}', '{"t":"x"}', '{"d":"x"}', "{}", '{"m":{},"b":""}']  # noqa: E501
)  # fmt: skip
def test_texts_that_are_no_tables(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode_table(text)


def test_a_value_that_amqp_does_not_have() -> None:
    with pytest.raises(ValueError, match="is no value of a table"):
        encode_table({"a": object()})
