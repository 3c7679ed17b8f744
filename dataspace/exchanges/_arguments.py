"""The arguments of a queue: which there are, which values they take, and what they mean here.

Source: rabbit_amqqueue.erl (check_declare_arguments), rabbit_classic_queue.erl and
rabbit_quorum_queue.erl (capabilities) of RabbitMQ 3.10; the texts are its own, since clients
compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from ..queues import Overflow, QueueSettings
from ._errors import HostError, precondition_failed
from ._tables import Table, is_integer, shown, type_name, value_key

MAX_MILLISECONDS: Final = 10 * 365 * 24 * 3_600 * 1_000
"""Ten years: RabbitMQ's MAX_EXPIRY_TIMER."""

MAX_PRIORITIES: Final = 255
"""RabbitMQ's MAX_SUPPORTED_PRIORITY."""

CLASSIC: Final = "classic"
QUORUM: Final = "quorum"

_CLASSIC_ARGUMENTS: Final = (
    "x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-max-length", "x-max-length-bytes", "x-max-priority", "x-overflow", "x-queue-mode",
    "x-queue-version", "x-single-active-consumer", "x-queue-type", "x-queue-master-locator",
    # Of quorum queues only in RabbitMQ; here a queue of any type has it.
    "x-delivery-limit",
)  # fmt: skip

_QUORUM_ARGUMENTS: Final = (
    "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-expires",
    "x-max-length", "x-max-length-bytes", "x-max-in-memory-length", "x-max-in-memory-bytes",
    "x-overflow", "x-single-active-consumer", "x-queue-type", "x-quorum-initial-group-size",
    "x-delivery-limit", "x-message-ttl", "x-queue-leader-locator",
)  # fmt: skip

_STREAM_ARGUMENTS: Final = (
    "x-max-length-bytes", "x-queue-type", "x-max-age", "x-stream-max-segment-size-bytes",
    "x-initial-cluster-size", "x-queue-leader-locator",
)  # fmt: skip

ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    CLASSIC: _CLASSIC_ARGUMENTS,
    QUORUM: _QUORUM_ARGUMENTS,
}
"""The arguments that a queue of each type takes."""

_ALL: Final = frozenset((*_CLASSIC_ARGUMENTS, *_QUORUM_ARGUMENTS, *_STREAM_ARGUMENTS))

_Check = Callable[[object, Table], str | None]
"""Returns what is wrong with a value, as Erlang prints it; None: nothing."""


def _of_type(value: object) -> str:
    return f"{{unacceptable_type,{type_name(value)}}}"


def _integer(value: object, _: Table) -> str | None:
    return None if is_integer(value) else f'"expected integer, got {type_name(value)}"'


def _not_negative(value: object, table: Table) -> str | None:
    wrong = _integer(value, table)
    if wrong is None and isinstance(value, int) and value < 0:
        return f"{{value_negative,{value}}}"
    return wrong


def _positive(value: object, table: Table) -> str | None:
    return "{value_zero,0}" if value == 0 and is_integer(value) else _not_negative(value, table)


def _milliseconds(value: object, table: Table) -> str | None:
    wrong = _not_negative(value, table)
    if wrong is None and isinstance(value, int) and value > MAX_MILLISECONDS:
        return f"{{value_too_large,{value}}}"
    return wrong


def _expires(value: object, table: Table) -> str | None:
    return _positive(value, table) or _milliseconds(value, table)


def _priority(value: object, table: Table) -> str | None:
    wrong = _not_negative(value, table)
    if wrong is None and isinstance(value, int) and value > MAX_PRIORITIES:
        return f"{{max_value_exceeded,{value}}}"
    return wrong or '"priorities are not supported; leave it out"'


def _truth(value: object, _: Table) -> str | None:
    return None if isinstance(value, bool) else _of_type(value)


def _text(value: object, _: Table) -> str | None:
    return None if isinstance(value, str) else _of_type(value)


def _dead_letter_key(value: object, table: Table) -> str | None:
    wrong = _text(value, table)
    if wrong is None and "x-dead-letter-exchange" not in table:
        return "routing_key_but_no_dlx_defined"
    return wrong


def _one_of(*words: str, wrong: str) -> _Check:
    def check(value: object, table: Table) -> str | None:
        if not isinstance(value, str):
            return _of_type(value)
        return None if value in words else wrong.format(value)

    return check


def _version(value: object, table: Table) -> str | None:
    wrong = _not_negative(value, table)
    return wrong or (None if value in (1, 2) else f"\"unsupported queue version '{value}'\"")


_CHECKS: Final[Mapping[str, _Check]] = {
    "x-expires": _expires,
    "x-message-ttl": _milliseconds,
    "x-dead-letter-routing-key": _dead_letter_key,
    "x-dead-letter-strategy": _one_of(
        "at-most-once", "at-least-once", wrong="invalid_dlx_strategy"
    ),
    "x-max-length": _not_negative,
    "x-max-length-bytes": _not_negative,
    "x-max-in-memory-length": _not_negative,
    "x-max-in-memory-bytes": _not_negative,
    "x-max-priority": _priority,
    "x-overflow": _one_of(*Overflow, wrong="invalid_overflow"),
    "x-queue-mode": _one_of("default", "lazy", wrong="\"unsupported queue mode '{}'\""),
    "x-queue-version": _version,
    "x-single-active-consumer": _truth,
    "x-delivery-limit": _not_negative,
    "x-quorum-initial-group-size": _positive,
    "x-queue-leader-locator": _one_of(
        "client-local", "random", "least-leaders", "balanced", wrong="invalid_queue_locator_arg"
    ),
}

_queue_type: Final = _one_of(CLASSIC, QUORUM, "stream", wrong="\"unsupported queue type '{}'\"")


@attrs.frozen(slots=True, kw_only=True)
class QueueArguments:
    """The meaning of a queue's arguments."""

    kind: str
    """`CLASSIC` or `QUORUM`."""
    settings: QueueSettings
    """The queue's settings."""
    dead_letter_exchange: str | None = None
    """The name of the exchange for dead letters; None: they are dropped."""
    dead_letter_key: str | None = None
    """The routing key of dead letters; None: their own."""
    single_active: bool = False
    """Whether one consumer gets everything as long as it is there."""


def read_arguments(
    what: str, table: Table, *, durable: bool, auto_delete: bool, replicated: bool
) -> QueueArguments:
    """Return the meaning of a queue's arguments. Arguments of unknown names have none.

    Args:
        what: The queue in the messages of errors: "queue 'q' in vhost '/'".
        table: The arguments.
        durable: Whether the queue is to survive a restart.
        auto_delete: Whether it is deleted with its last consumer.
        replicated: Whether the store is replicated: then there are quorum queues.

    Raises:
        HostError: PRECONDITION_FAILED if one has a wrong type or value, belongs to another type of
            queue, or asks for something that there is not.
    """
    if "x-queue-type" in table:
        _check("x-queue-type", _queue_type, what, table)
    exchange = table.get("x-dead-letter-exchange")
    if "x-dead-letter-exchange" in table and not isinstance(exchange, str):
        raise precondition_failed(
            f"invalid type '{type_name(exchange)}' for arg 'x-dead-letter-exchange' in {what}"
        )
    kind = table.get("x-queue-type", CLASSIC)
    if kind not in ARGUMENTS:
        raise _invalid("x-queue-type", what, '"streams are not supported; use another queue type"')
    if kind == QUORUM and not replicated:
        raise _invalid(
            "x-queue-type", what,
            '"a quorum queue needs a store that is replicated, and this one is not"',
        )  # fmt: skip
    allowed = ARGUMENTS[str(kind)]
    for name, check in _CHECKS.items():
        if name in table and name in allowed:
            _check(name, check, what, table)
    for name in table:
        if name in _ALL and name not in allowed:
            raise precondition_failed(
                f"invalid arg '{name}' for {what} of queue type rabbit_{kind}_queue"
            )
    if kind == QUORUM and (auto_delete or not durable):
        wrong = "auto-delete" if auto_delete else "non-durable"
        raise precondition_failed(f"invalid property '{wrong}' for {what}")
    return QueueArguments(
        kind=str(kind),
        settings=QueueSettings(
            durable=durable,
            auto_delete=auto_delete,
            max_length=_int(table, "x-max-length"),
            max_bytes=_int(table, "x-max-length-bytes"),
            overflow=Overflow(str(table.get("x-overflow", Overflow.DROP_HEAD))),
            message_ttl=_seconds(table, "x-message-ttl"),
            expires=_seconds(table, "x-expires"),
            # As in RabbitMQ 3.10: a message comes back any number of times.
            delivery_limit=_int(table, "x-delivery-limit"),
        ),
        dead_letter_exchange=_str(table, "x-dead-letter-exchange"),
        dead_letter_key=_str(table, "x-dead-letter-routing-key"),
        single_active=table.get("x-single-active-consumer") is True,
    )


def _check(name: str, check: _Check, what: str, table: Table) -> None:
    wrong = check(table[name], table)
    if wrong is not None:
        raise _invalid(name, what, wrong)


def _invalid(name: str, what: str, wrong: str) -> HostError:
    return precondition_failed(f"invalid arg '{name}' for {what}: {wrong}")


def _int(table: Table, name: str) -> int | None:
    value = table.get(name)
    return value if isinstance(value, int) else None


def _str(table: Table, name: str) -> str | None:
    value = table.get(name)
    return value if isinstance(value, str) else None


def _seconds(table: Table, name: str) -> float | None:
    value = _int(table, name)
    return None if value is None else value / 1_000


def check_equivalent(what: str, names: tuple[str, ...], current: Table, received: Table) -> None:
    """Check that the arguments `names` of a new declaration are those of the first one.

    Raises:
        HostError: PRECONDITION_FAILED if one is another.
    """
    for name in names:
        here, there = name in current, name in received
        if not here and not there:
            continue
        if here and there:
            if value_key(current[name]) != value_key(received[name]):
                raise inequivalent(
                    what, name, f"'{_one(current[name])}'", f"'{_one(received[name])}'"
                )
        elif name == "x-queue-type" and CLASSIC in (current.get(name), received.get(name)):
            continue  # it is what a queue is that says nothing
        else:
            raise inequivalent(what, name, _with_type(current, name), _with_type(received, name))


def check_same(what: str, name: str, current: object, received: object) -> None:
    """Check that a property of a new declaration is that of the first one.

    Raises:
        HostError: PRECONDITION_FAILED if it is another.
    """
    if current != received:
        raise inequivalent(what, name, f"'{_one(current)}'", f"'{_one(received)}'")


def inequivalent(what: str, name: str, current: str, received: str) -> HostError:
    """Return the error for a declaration that contradicts an earlier one."""
    return precondition_failed(
        f"inequivalent arg '{name}' for {what}: received {received} but current is {current}"
    )


def _one(value: object) -> str:
    return shown(value)


def _with_type(table: Table, name: str) -> str:
    if name not in table:
        return "none"
    return f"the value '{_one(table[name])}' of type '{type_name(table[name])}'"
