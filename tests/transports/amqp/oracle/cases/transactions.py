"""The class tx, which RabbitMQ has and this relay refuses."""

from __future__ import annotations

from pamqp import commands

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.scene import Scene


@case
def select(scene: Scene) -> None:
    raw = scene.raw().open()
    if scene.on_rabbitmq:
        raw.call(commands.Tx.Select(), commands.Tx.SelectOk)
    else:
        raw.method(commands.Tx.Select())
        raw.refused(540, "NOT_IMPLEMENTED", method=(90, 10))


@case
def commit(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    if scene.on_rabbitmq:
        raw.call(commands.Tx.Select(), commands.Tx.SelectOk)
        raw.content(b"a", key=queue)
        raw.call(commands.Basic.Get(queue=queue), commands.Basic.GetEmpty)
        raw.call(commands.Tx.Commit(), commands.Tx.CommitOk)
        raw.method(commands.Basic.Get(queue=queue))
        assert raw.message(commands.Basic.GetOk).body == b"a"
    else:
        raw.method(commands.Tx.Commit())
        raw.refused(540, "NOT_IMPLEMENTED", method=(90, 20))


@case
def rollback(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    if scene.on_rabbitmq:
        raw.call(commands.Tx.Select(), commands.Tx.SelectOk)
        raw.content(b"a", key=queue)
        raw.call(commands.Tx.Rollback(), commands.Tx.RollbackOk)
        raw.call(commands.Basic.Get(queue=queue), commands.Basic.GetEmpty)
    else:
        raw.method(commands.Tx.Rollback())
        raw.refused(540, "NOT_IMPLEMENTED", method=(90, 30))


@case
def commit_without_select(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Tx.Commit())
    if scene.on_rabbitmq:
        raw.channel_refused(406, "PRECONDITION_FAILED - channel is not transactional")
    else:
        raw.refused(540, "NOT_IMPLEMENTED", method=(90, 20))
