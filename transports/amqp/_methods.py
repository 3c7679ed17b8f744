"""Methods as objects: pamqp's classes, decoded here, in time proportional to their bytes.

Those of the hot path are not made into objects of pamqp's: `_connection.py` reads them in place,
`_frames.py` writes them.
"""

from __future__ import annotations

import struct
from typing import Any, Final, cast

from pamqp import base, commands
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

from ._field_tables import NAMES, MalformedError, read_table

METHODS: Final[dict[int, type[base.Frame]]] = dict(commands.INDEX_MAPPING)
"""All methods, by class and method: `class_id << 16 | method_id`."""

FROM_CLIENTS: Final[frozenset[type[base.Frame]]] = frozenset(
    {
        *(Connection.StartOk, Connection.SecureOk, Connection.TuneOk, Connection.Open),
        *(Connection.Close, Connection.CloseOk, Connection.UpdateSecret),
        *(Channel.Open, Channel.Flow, Channel.FlowOk, Channel.Close, Channel.CloseOk),
        *(Exchange.Declare, Exchange.Delete, Exchange.Bind, Exchange.Unbind),
        *(Queue.Declare, Queue.Bind, Queue.Unbind, Queue.Purge, Queue.Delete),
        *(Basic.Qos, Basic.Consume, Basic.Cancel, Basic.CancelOk, Basic.Publish, Basic.Get),
        *(Basic.Ack, Basic.Nack, Basic.Reject, Basic.Recover, Basic.RecoverAsync),
        *(Confirm.Select, Tx.Select, Tx.Commit, Tx.Rollback),
    }
)
"""The methods that a client may send; it must not send the answers of a server."""

_INTEGERS: Final[dict[str, struct.Struct]] = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
    "timestamp": struct.Struct(">Q"),
}

_LENGTH: Final = struct.Struct(">I")

ARGUMENTS: Final = 4
"""Arguments begin behind the numbers of class and method."""


def decode_method(cls: type[base.Frame], payload: bytes) -> base.Frame:
    """Return the method that is the payload of a frame; `cls` is its class by its numbers.

    Long strings are bytes, short ones texts with lone surrogates where they are no UTF-8.

    Raises:
        MalformedError: If its arguments are not what the method has.
    """
    method: Any = cls.__new__(cls)
    at, end = ARGUMENTS, len(payload)
    bit = 8  # the next one of the octet before `at`; 8: none is left
    for name in cls.__slots__:
        kind = cls.amqp_type(name)
        if kind == "bit":
            if bit == 8:
                bit, at = 0, at + 1
            if at > end:
                raise MalformedError(f"{cls.name} ends before {name}")
            setattr(method, name, bool(payload[at - 1] >> bit & 1))
            bit += 1
            continue
        bit = 8
        value, at = _argument(cls, name, kind, payload, at, end)
        setattr(method, name, value)
    if at != end:
        raise MalformedError(f"{cls.name} has {end - at} bytes behind its last argument")
    return cast("base.Frame", method)


def _argument(
    cls: type[base.Frame], name: str, kind: str, payload: bytes, at: int, end: int
) -> tuple[object, int]:
    integer = _INTEGERS.get(kind)
    if integer is not None:
        after = at + integer.size
        if after <= end:
            return integer.unpack_from(payload, at)[0], after
    elif kind == "shortstr":
        if at < end:
            after = at + 1 + payload[at]
            if after <= end:
                return payload[at + 1 : after].decode(errors=NAMES), after
    elif at + 4 <= end:
        after = at + 4 + _LENGTH.unpack_from(payload, at)[0]
        if after <= end:
            if kind == "table":
                return read_table(payload, at + 4, after), after
            return payload[at + 4 : after], after
    raise MalformedError(f"{cls.name} ends within {name}")
