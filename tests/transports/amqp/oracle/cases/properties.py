"""Properties and headers come out as they went in."""

from __future__ import annotations

import datetime
import struct
from typing import Any, Final

from pamqp import commands

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.scene import Scene

ALL: Final[dict[str, Any]] = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "headers": {"a": "b"},
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "c-1",
    "reply_to": "somewhere",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    "message_type": "t",
    "user_id": "guest",
    "app_id": "app",
    # The fourteenth, cluster-id, which is reserved and "must be empty" in 0-9-1.
}


def round_trip(scene: Scene, properties: commands.Basic.Properties | bytes) -> bytes:
    """Return what came back of properties, as bytes."""
    raw = scene.raw().open()
    queue = raw.queue()
    raw.content(b"a", key=queue, properties=properties)
    raw.method(commands.Basic.Get(queue=queue, no_ack=True))
    return raw.message(commands.Basic.GetOk).header


def shortstr(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def longstr(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def table(*fields: tuple[bytes, bytes]) -> bytes:
    return longstr(b"".join(shortstr(name) + value for name, value in fields))


def headers(value: bytes) -> bytes:
    """Return the flags and the list of properties that have headers alone."""
    return b"\x20\x00" + value


def kept(scene: Scene, sent: bytes) -> None:
    assert round_trip(scene, sent) == sent


@case
def all_of_them(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.content(b"a", key=queue, properties=commands.Basic.Properties(**ALL))
    raw.method(commands.Basic.Get(queue=queue, no_ack=True))
    found = raw.message(commands.Basic.GetOk).properties
    assert {name: getattr(found, name) for name in ALL} == ALL


@case
def cluster_id(scene: Scene) -> None:
    kept(scene, b"\x00\x04" + shortstr(b"cluster"))


@case
def none(scene: Scene) -> None:
    kept(scene, b"\x00\x00")


@case
def all_bytes_are_kept(scene: Scene) -> None:
    sent = (
        b"\xff\xfc"
        + shortstr(b"text/plain")
        + shortstr(b"utf-8")
        + table((b"k", b"S" + longstr(b"v")))
        + b"\x01\x09"
        + b"".join(shortstr(each) for each in (b"corr", b"reply", b"60000", b"id"))
        + struct.pack(">Q", 1_700_000_000)
        + b"".join(shortstr(each) for each in (b"type", b"guest", b"app", b""))
    )
    kept(scene, sent)


@case
def empty_strings_are_kept(scene: Scene) -> None:
    kept(scene, b"\xc0\x00" + shortstr(b"") + shortstr(b""))


@case
def strings_of_255_bytes(scene: Scene) -> None:
    kept(scene, b"\x04\x80" + shortstr(b"c" * 255) + shortstr(b"m" * 255))


@case
def strings_that_are_no_utf_8(scene: Scene) -> None:
    kept(scene, b"\x04\x00" + shortstr(b"\xff\xfe\x00"))


@case
def delivery_modes(scene: Scene) -> None:
    kept(scene, b"\x10\x00\x01")
    kept(scene, b"\x10\x00\x02")


@case
def priority_of_255(scene: Scene) -> None:
    kept(scene, b"\x08\x00\xff")


@case
def timestamp_of_zero(scene: Scene) -> None:
    kept(scene, b"\x00\x40" + bytes(8))


@case
def empty_headers(scene: Scene) -> None:
    kept(scene, headers(table()))


FIELDS: Final = {
    b"boolean": b"t\x01",
    b"signed 8": b"b\xff",
    b"unsigned 8": b"B\xff",
    b"signed 16": b"s\x80\x00",
    b"unsigned 16": b"u\xff\xff",
    b"signed 32": b"I\x80\x00\x00\x00",
    b"unsigned 32": b"i\xff\xff\xff\xff",
    b"signed 64": b"l" + b"\x80" + bytes(7),
    b"float": b"f" + struct.pack(">f", 0.5),
    b"double": b"d" + struct.pack(">d", 0.1),
    b"decimal": b"D\x02" + struct.pack(">I", 314),
    b"string": b"S" + longstr("grüße".encode()),
    b"binary string": b"S" + longstr(b"\xff\x00\xfe"),
    b"timestamp": b"T" + struct.pack(">Q", 1_700_000_000),
    b"void": b"V",
    b"byte array": b"x" + longstr(b"\x00\x01\xff"),
    b"array": b"A" + longstr(b"I\x00\x00\x00\x01" + b"S" + longstr(b"two") + b"V"),
    b"table": b"F" + table((b"a", b"t\x00"), (b"b", b"F" + table())),
}


@case
def headers_of_every_type(scene: Scene) -> None:
    kept(scene, headers(table(*FIELDS.items())))


@case
def headers_of_every_type_to_a_consumer(scene: Scene) -> None:
    sent = headers(table(*FIELDS.items()))
    raw = scene.raw().open()
    queue = raw.queue()
    raw.call(commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)
    raw.content(b"a", key=queue, properties=sent)
    assert raw.message(commands.Basic.Deliver).header == sent


@case
def headers_of_every_type_in_a_dead_letter(scene: Scene) -> None:
    raw = scene.raw().open()
    dead = raw.queue()
    queue = raw.queue(arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    raw.content(b"a", key=queue, properties=headers(table(*FIELDS.items())))
    raw.method(commands.Basic.Get(queue=queue))
    raw.message(commands.Basic.GetOk)
    raw.method(commands.Basic.Reject(1, requeue=False))
    raw.call(commands.Basic.Consume(queue=dead, no_ack=True), commands.Basic.ConsumeOk)
    found = raw.message(commands.Basic.Deliver).header
    for name, value in FIELDS.items():
        assert shortstr(name) + value in found, name


@case
def headers_nested_deeply(scene: Scene) -> None:
    value = b"S" + longstr(b"inside")
    for _ in range(30):
        value = b"F" + table((b"n", value))
    kept(scene, headers(table((b"n", value))))


@case
def headers_that_are_large(scene: Scene) -> None:
    kept(scene, headers(table((b"k", b"S" + longstr(b"v" * 100_000)))))


@case
def decoded_headers(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    sent = {
        "int": -5,
        "big": 2**40,
        "text": "grüße",
        "true": True,
        "none": None,
        "list": [1, "two", [3]],
        "table": {"a": {"b": 1}},
        "time": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    }
    scene.publish(channel, queue, b"a", headers=sent)
    assert scene.take(channel, queue).properties.headers == sent


@case
def returned_properties_are_kept(scene: Scene) -> None:
    sent = headers(table(*FIELDS.items()))
    raw = scene.raw().open()
    raw.content(b"a", key=scene.name(), mandatory=True, properties=sent)
    assert raw.message(commands.Basic.Return).header == sent


@case
def delivery_modes_are_one_and_two(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, durable=True)
    for mode in (1, 2):
        scene.publish(channel, queue, b"a", delivery_mode=mode)
        assert scene.take(channel, queue).properties.delivery_mode == mode
    for mode in (3, 255):
        channel = scene.confirming()
        with scene.refused(channel, 406, "PRECONDITION_FAILED - invalid message"):
            scene.publish(channel, queue, b"a", delivery_mode=mode)
