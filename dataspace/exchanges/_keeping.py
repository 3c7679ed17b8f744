"""Definitions that survive a restart: exchanges, queues and bindings as small values by key.

A key: `amqp/HOST/x/EXCHANGE`, `amqp/HOST/q/QUEUE`, or `amqp/HOST/b/DIGEST` for a binding, whose
digest is that of its value. A value is JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

import attrs

from ._exchange import CLASSES, Binding, Exchange
from ._tables import Table, decode_table, encode_table

PREFIX = "amqp/"
"""The beginning of all keys, and of the names of shelves."""


def escaped(name: str) -> str:
    """Return a name as a part of a key."""
    return name.replace("%", "%25").replace("/", "%2F")


def host_prefix(host: str) -> str:
    """Return the beginning of the keys of a virtual host."""
    return f"{PREFIX}{escaped(host)}/"


@attrs.frozen(slots=True)
class StoredExchange:
    """An exchange as it is stored."""

    name: str
    kind: str
    auto_delete: bool
    internal: bool
    arguments: dict[str, object]


@attrs.frozen(slots=True)
class StoredQueue:
    """A queue as it is stored."""

    name: str
    auto_delete: bool
    used: bool
    """Whether it has had a consumer, which has gone with the process: for `auto_delete`."""
    arguments: dict[str, object]


@attrs.frozen(slots=True)
class StoredBinding:
    """A binding as it is stored."""

    source: str
    to_exchange: bool
    destination: str
    key: str
    arguments: dict[str, object]


def _encoded(**fields: object) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def encode_exchange(exchange: Exchange) -> bytes:
    """Return the stored form of an exchange."""
    return _encoded(
        name=exchange.name, kind=str(exchange.kind), auto_delete=exchange.auto_delete,
        internal=exchange.internal, arguments=encode_table(exchange.arguments),
    )  # fmt: skip


def encode_queue(name: str, *, auto_delete: bool, used: bool, arguments: Table) -> bytes:
    """Return the stored form of a queue."""
    return _encoded(
        name=name, auto_delete=auto_delete, used=used, arguments=encode_table(arguments)
    )


def encode_binding(binding: Binding) -> bytes:
    """Return the stored form of a binding."""
    return _encoded(
        source=binding.source.name, to_exchange=isinstance(binding.destination, Exchange),
        destination=binding.destination.name, key=binding.key, arguments=binding.text,
    )  # fmt: skip


def exchange_key(prefix: str, name: str) -> str:
    """Return the key of an exchange."""
    return f"{prefix}x/{escaped(name)}"


def queue_key(prefix: str, name: str) -> str:
    """Return the key of a queue."""
    return f"{prefix}q/{escaped(name)}"


def binding_key(prefix: str, value: bytes) -> str:
    """Return the key of a binding, of its value."""
    return f"{prefix}b/{hashlib.blake2b(value, digest_size=20).hexdigest()}"


def _decoded(value: bytes, **types: type) -> dict[str, Any]:
    try:
        found = json.loads(value)
        if not isinstance(found, dict):
            raise TypeError("it is no object")
        fields = cast("dict[str, Any]", found)
        for name, kind in types.items():
            if type(fields[name]) is not kind:
                raise TypeError(f"{name} is {fields[name]!r}")
        fields["arguments"] = decode_table(fields["arguments"])
    except (TypeError, KeyError, AttributeError, RecursionError) as exc:
        msg = f"{type(exc).__name__}: {exc}"
        raise ValueError(msg) from exc
    return {name: fields[name] for name in types}


def decode_exchange(value: bytes) -> StoredExchange:
    """Decode a stored exchange.

    Raises:
        ValueError: If it is malformed.
    """
    found = StoredExchange(
        **_decoded(value, name=str, kind=str, auto_delete=bool, internal=bool, arguments=str)
    )
    if found.kind not in CLASSES:
        msg = f"there is no exchange of type {found.kind!r}"
        raise ValueError(msg)
    return found


def decode_queue(value: bytes) -> StoredQueue:
    """Decode a stored queue.

    Raises:
        ValueError: If it is malformed.
    """
    return StoredQueue(**_decoded(value, name=str, auto_delete=bool, used=bool, arguments=str))


def decode_binding(value: bytes) -> StoredBinding:
    """Decode a stored binding.

    Raises:
        ValueError: If it is malformed.
    """
    types: Mapping[str, type] = {
        "source": str, "to_exchange": bool, "destination": str, "key": str, "arguments": str,
    }  # fmt: skip
    return StoredBinding(**_decoded(value, **types))
