"""Negotiation, the end of connections, and the errors that end them (AMQP 0-9-1, 1.2 and 4.2)."""

from __future__ import annotations

import struct
import time

from pamqp import commands

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.raw import (
    BODY,
    HEADER,
    METHOD,
    Raw,
    method_bytes,
    packed,
    plain,
)
from tests.transports.amqp.oracle.scene import Scene


def answers_with_its_own_header(raw: Raw, sent: bytes) -> None:
    raw.send(sent)
    assert raw.bytes(8) == HEADER
    raw.closed()


def refused_aloud(scene: Scene, raw: Raw, code: int) -> None:
    """See the relay say why it closes, where RabbitMQ closes the socket without a word."""
    if scene.on_rabbitmq:
        raw.closed()
    else:
        raw.refused(code)


@case
def wrong_protocol_gets_the_right_header(scene: Scene) -> None:
    answers_with_its_own_header(scene.raw(), b"GET / HT")


@case
def wrong_version_gets_the_right_header(scene: Scene) -> None:
    answers_with_its_own_header(scene.raw(), b"AMQP\x00\x00\x0a\x00")


@case
def amqp_1_0_gets_the_right_header(scene: Scene) -> None:
    answers_with_its_own_header(scene.raw(), b"AMQP\x00\x01\x00\x00")


@case
def header_of_0_8(scene: Scene) -> None:
    raw = scene.raw()
    if scene.on_rabbitmq:
        raw.send(b"AMQP\x01\x01\x08\x00")
        raw.expect(commands.Connection.Start, 0)
    else:
        answers_with_its_own_header(raw, b"AMQP\x01\x01\x08\x00")


@case
def header_in_pieces(scene: Scene) -> None:
    raw = scene.raw()
    for byte in HEADER:
        raw.send(bytes((byte,)))
    raw.expect(commands.Connection.Start, 0)


@case
def start_names_version_mechanism_and_locale(scene: Scene) -> None:
    start = scene.raw().greet()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert "PLAIN" in start.mechanisms.split()
    assert "en_US" in start.locales.split()
    for name in ("product", "version", "platform"):
        assert start.server_properties[name], name


@case
def start_names_what_the_server_can_do(scene: Scene) -> None:
    able = scene.raw().greet().server_properties["capabilities"]
    assert isinstance(able, dict)
    assert {name for name, value in able.items() if value} >= {
        "authentication_failure_close",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "exchange_exchange_bindings",
        "per_consumer_qos",
        "publisher_confirms",
    }


@case
def start_says_whether_consumers_have_priorities(scene: Scene) -> None:
    able = scene.raw().greet().server_properties["capabilities"]
    assert isinstance(able, dict)
    assert able["consumer_priorities"] is scene.on_rabbitmq


@case
def tune_proposes_limits(scene: Scene) -> None:
    raw = scene.raw()
    raw.log_in()
    tune = raw.expect(commands.Connection.Tune, 0)
    assert tune.frame_max == 131_072
    assert tune.channel_max == 2_047
    assert tune.heartbeat == 60


@case
def plain_logs_in(scene: Scene) -> None:
    scene.raw().open().alive()


@case
def amqplain_logs_in(scene: Scene) -> None:
    raw = scene.raw()

    def field(name: bytes, value: bytes) -> bytes:
        head = bytes((len(name),)) + name
        return head + b"S" + struct.pack(">I", len(value)) + value

    response = field(b"LOGIN", b"guest") + field(b"PASSWORD", b"guest")
    raw.log_in(response.decode(), mechanism="AMQPLAIN")
    raw.tune()
    raw.call(commands.Connection.Open("/"), commands.Connection.OpenOk, 0)
    raw.alive()


@case
def wrong_password_is_403_for_clients_that_can_take_it(scene: Scene) -> None:
    raw = scene.raw()
    raw.log_in(plain(password="wrong"))
    closed = raw.expect(commands.Connection.Close, 0)
    assert closed.reply_code == 403
    assert closed.reply_text.startswith("ACCESS_REFUSED - Login was refused using")
    assert "PLAIN" in closed.reply_text


@case
def unknown_user_is_403(scene: Scene) -> None:
    raw = scene.raw()
    raw.log_in(plain("nobody"))
    assert raw.expect(commands.Connection.Close, 0).reply_code == 403


@case
def wrong_password_closes_in_silence_for_others(scene: Scene) -> None:
    raw = scene.raw()
    raw.log_in(plain(password="wrong"), capabilities={})
    raw.closed()


@case
def unknown_mechanism(scene: Scene) -> None:
    raw = scene.raw()
    raw.log_in(mechanism="NTLM")
    refused_aloud(scene, raw, 503)


@case
def malformed_plain_response(scene: Scene) -> None:
    raw = scene.raw()
    raw.log_in("guest guest")
    refused_aloud(scene, raw, 403)


@case
def unknown_vhost_is_530(scene: Scene) -> None:
    raw = scene.raw()
    raw.log_in()
    raw.tune()
    raw.method(commands.Connection.Open("nowhere"), 0)
    raw.refused(530, "NOT_ALLOWED - vhost nowhere not found", method=(10, 40))


@case
def frame_max_below_the_least_is_530(scene: Scene) -> None:
    raw = scene.raw()
    raw.log_in()
    raw.tune(frame_max=4_095)
    refused_aloud(scene, raw, 530)


@case
def frame_max_above_the_proposed_is_530(scene: Scene) -> None:
    raw = scene.raw()
    raw.log_in()
    raw.tune(frame_max=131_073)
    refused_aloud(scene, raw, 530)


@case
def frame_max_without_a_limit_is_530(scene: Scene) -> None:
    raw = scene.raw()
    raw.log_in()
    raw.tune(frame_max=0)
    refused_aloud(scene, raw, 530)


@case
def channel_max_above_the_proposed_is_530(scene: Scene) -> None:
    raw = scene.raw()
    raw.log_in()
    raw.tune(channel_max=65_535)
    refused_aloud(scene, raw, 530)


@case
def channels_up_to_the_channel_max(scene: Scene) -> None:
    raw = scene.raw().open(channel_max=3, channels=3)
    raw.method(commands.Channel.Open(), 4)
    raw.refused(530, "NOT_ALLOWED")


@case
def frame_larger_than_the_frame_max_is_501(scene: Scene) -> None:
    raw = scene.raw().open(frame_max=4_096)
    raw.send(packed(METHOD, 1, bytes(5_000)))
    raw.refused(501, "FRAME_ERROR")


@case
def frame_of_just_the_frame_max(scene: Scene) -> None:
    raw = scene.raw().open(frame_max=4_096)
    name = raw.queue()
    raw.content(bytes(4_088), key=name, piece=4_088)
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk)
    raw.method(commands.Basic.Get(queue=name, no_ack=True))
    assert raw.message(commands.Basic.GetOk).body == bytes(4_088)


@case
def wrong_frame_end_is_501(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.send(packed(METHOD, 1, method_bytes(20, 20, b"\x01"), end=b"\x00"))
    raw.refused(501, "FRAME_ERROR")


@case
def unknown_kind_of_frame_is_501(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.send(packed(7, 1, b"abc"))
    raw.refused(501)


@case
def unknown_class(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.send(packed(METHOD, 1, method_bytes(99, 10)))
    refused_aloud(scene, raw, 503)


@case
def unknown_method_of_a_known_class(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.send(packed(METHOD, 1, method_bytes(60, 999)))
    refused_aloud(scene, raw, 503)


@case
def arguments_cut_short(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.send(packed(METHOD, 1, method_bytes(50, 10, b"\x00\x00\x05a")))
    raw.refused(501 if scene.on_rabbitmq else 502, method=(50, 10))


@case
def arguments_with_more_behind_them(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.send(packed(METHOD, 1, method_bytes(85, 10, b"\x00\x00\x00\x00")))
    raw.refused(501 if scene.on_rabbitmq else 502, method=(85, 10))


@case
def unknown_field_type_in_a_table(scene: Scene) -> None:
    raw = scene.raw().open()
    table = b"\x01kZ1234"
    arguments = b"\x00\x00\x01q\x00" + struct.pack(">I", len(table)) + table
    raw.send(packed(METHOD, 1, method_bytes(50, 10, arguments)))
    refused_aloud(scene, raw, 502)


@case
def server_methods_from_a_client(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Queue.DeclareOk("q", 0, 0))
    raw.refused(503)


@case
def channel_0_is_for_the_connection_alone(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Queue.Declare(queue="q"), 0)
    raw.refused(504 if scene.on_rabbitmq else 503, method=(50, 10))


@case
def content_on_channel_0(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.send(packed(BODY, 0, b"abc"))
    raw.refused(505 if scene.on_rabbitmq else 501)


@case
def connection_methods_on_a_channel(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Connection.Open("/"), 1)
    raw.refused(503)


@case
def connection_opened_twice(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Connection.Open("/"), 0)
    raw.refused(504 if scene.on_rabbitmq else 503, method=(10, 40))


@case
def tune_ok_before_start_ok(scene: Scene) -> None:
    raw = scene.raw()
    raw.greet()
    raw.method(commands.Connection.TuneOk(10, 4_096, 0), 0)
    refused_aloud(scene, raw, 503)


@case
def channel_before_the_connection_is_open(scene: Scene) -> None:
    raw = scene.raw()
    raw.log_in()
    raw.expect(commands.Connection.Tune, 0)
    raw.method(commands.Channel.Open(), 1)
    raw.closed()


@case
def closing_is_answered(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Connection.Close(200, "bye", 0, 0), 0)
    raw.expect(commands.Connection.CloseOk, 0)


@case
def nothing_is_taken_after_close(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=False)
    raw = scene.raw().open()
    raw.method(commands.Connection.Close(200, "bye", 0, 0), 0)
    raw.content(b"late", key=queue)
    raw.expect(commands.Connection.CloseOk, 0)
    assert scene.ready(channel, queue) == 0


@case
def nothing_is_taken_after_the_server_closed(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=False)
    raw = scene.raw().open()
    raw.method(commands.Exchange.Declare(exchange="q", exchange_type="nope"))
    raw.content(b"late", key=queue)
    raw.refused(503)
    assert scene.ready(channel, queue) == 0


@case
def closing_tells_the_offending_method(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Exchange.Declare(exchange=scene.name(), exchange_type="nope"))
    raw.refused(503, "COMMAND_INVALID - unknown exchange type 'nope'", method=(40, 10))


@case
def heartbeats_come_at_the_agreed_interval(scene: Scene) -> None:
    raw = scene.raw().open(heartbeat=1)
    begun = time.monotonic()
    found = raw.read()
    assert found is not None
    assert (found.kind, found.channel, found.payload) == (8, 0, b"")
    assert time.monotonic() - begun < 2.5


@case
def silence_for_two_heartbeats_ends_a_connection(scene: Scene) -> None:
    raw = scene.raw().open(heartbeat=1)
    begun = time.monotonic()
    raw.closed()
    assert 1.0 < time.monotonic() - begun < 6.0


@case
def no_heartbeats_when_none_are_agreed(scene: Scene) -> None:
    raw = scene.raw().open(heartbeat=0)
    # One that comes all the same hurts nobody.
    raw.heartbeat()
    raw.alive()


@case
def heartbeat_on_another_channel(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.send(packed(8, 1, b""))
    raw.refused(505 if scene.on_rabbitmq else 501)


@case
def frames_in_single_bytes(scene: Scene) -> None:
    raw = scene.raw().open()
    for byte in packed(METHOD, 1, method_bytes(60, 10, b"\x00\x00\x00\x00\x00\x01\x00")):
        raw.send(bytes((byte,)))
    raw.expect(commands.Basic.QosOk)


@case
def many_frames_in_one_segment(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.send(packed(METHOD, 1, method_bytes(60, 10, b"\x00\x00\x00\x00\x00\x01\x00")) * 50)
    for _ in range(50):
        raw.expect(commands.Basic.QosOk)


@case
def secret_is_updated(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Connection.UpdateSecret("guest", "renewed"), 0)
    raw.expect(commands.Connection.UpdateSecretOk, 0)


@case
def lost_connection_gives_back_unacknowledged_messages(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=False)
    scene.publish(channel, queue, b"a")
    raw = scene.raw().open()
    raw.method(commands.Basic.Get(queue=queue))
    raw.message(commands.Basic.GetOk)
    raw.end()
    got = scene.take(channel, queue)
    assert (got.body, got.method.redelivered) == (b"a", True)


@case
def lost_connection_ends_its_consumers(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=False)
    raw = scene.raw().open()
    raw.call(commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
    assert scene.consumers(channel, queue) == 1
    raw.end()
    scene.until(lambda: scene.consumers(channel, queue) == 0)
