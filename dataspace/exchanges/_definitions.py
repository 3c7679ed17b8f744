"""The definitions of a virtual host: its queues by name, and what survives a restart.

Source: AMQP 0-9-1, section 1.7.3; rabbit_channel.erl and rabbit_amqqueue.erl of RabbitMQ 3.10.
Texts of errors are RabbitMQ's.
"""

from __future__ import annotations

import abc
import logging
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ...accounts import Account, Turn
from ..queues import DeadLetter, Keeper, Queue, QueueInUseError, QueueNotEmptyError
from ._arguments import (
    ARGUMENTS,
    QUORUM,
    QueueArguments,
    check_equivalent,
    check_same,
    read_arguments,
)
from ._declared_queue import QUEUE_BYTES, DeclaredQueue, QueueMaker
from ._errors import HostError, Reason, not_found, precondition_failed
from ._exchange import EXCHANGE_BYTES, Destination
from ._keeping import (
    decode_binding,
    decode_exchange,
    decode_queue,
    encode_queue,
    queue_key,
)
from ._limits import HostLimits
from ._tables import NO_ARGUMENTS, Table
from ._topology import ALTERNATE, Topology, check_name, check_not_default, stripped

logger = logging.getLogger("clearfunds.dataspace.exchanges")

GENERATED: Final = "amq.gen-"
"""The beginning of the names of queues that clients leave to the server; as RabbitMQ."""

GENERATED_BYTES: Final = 16
"""Random bytes in such a name, as RabbitMQ; they are its secret."""


class Definitions(Topology):
    """The definitions of a virtual host; see `VirtualHost` for the arguments.

    Attributes:
        queues: Its queues, by name.
    """

    def __init__(
        self,
        name: str,
        *,
        account: Account,
        maker: QueueMaker | None,
        keeper: Keeper | None,
        replicated: bool,
        limits: HostLimits,
    ) -> None:
        super().__init__(name, account=account, keeper=keeper, limits=limits)
        self.queues: dict[str, DeclaredQueue] = {}
        self._maker = QueueMaker(account.ledger, keeper=keeper) if maker is None else maker
        self._replicated = replicated
        # Those of each connection.
        self._exclusive: dict[object, dict[DeclaredQueue, None]] = {}

    @abc.abstractmethod
    def _publish_dead(
        self, queue: str, arguments: QueueArguments, turn: Turn, letter: DeadLetter
    ) -> None:
        """Publish a dead letter of a queue."""

    # -- queues ------------------------------------------------------------------------------------

    def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = False,
        exclusive_to: object = None,
        auto_delete: bool = False,
        arguments: Table = NO_ARGUMENTS,
        by: object = None,
    ) -> DeclaredQueue:
        """Make a queue, or find one that was declared in the same way.

        Args:
            name: Its name; "": the server makes one.
            durable: Whether it survives a restart; an exclusive queue does not.
            exclusive_to: The connection that may use it alone, and with which it goes; None: all.
            auto_delete: Whether it is deleted when its last consumer has gone.
            arguments: See `read_arguments`.
            by: The connection. It makes no difference: a queue that is exclusive to it is declared
                again as exclusive.

        Raises:
            HostError: ACCESS_REFUSED for a reserved name; RESOURCE_LOCKED if there is one of that
                name for another connection; PRECONDITION_FAILED if there is another one of that
                name, for wrong arguments, and where a limit is reached.
        """
        del by
        name = stripped(name)
        durable = durable and exclusive_to is None
        if name:
            check_name("queue", name)
            found = self.queues.get(name)
            if found is not None:
                self._check_declared(found, durable, exclusive_to, auto_delete, arguments)
                found.queue.touch()
                return found
        what = self.what("queue", name or GENERATED)
        text = self._text_of(arguments, what)
        read = read_arguments(
            what, arguments,
            durable=durable, auto_delete=auto_delete, replicated=self._replicated,
        )  # fmt: skip
        if read.kind == QUORUM and not name:
            raise precondition_failed(
                "Cannot declare a server-named queue for type rabbit_quorum_queue"
            )
        self._check_limit(f"declare {what}", "queue", len(self.queues), self.limits.queues)
        nbytes = QUEUE_BYTES + 2 * (len(name) + len(text))
        self._check_room(f"declare {what}", nbytes)
        found = self._make_queue(
            name or GENERATED + secrets.token_urlsafe(GENERATED_BYTES),
            read, dict(arguments), exclusive_to, nbytes,
        )  # fmt: skip
        if durable:
            self._store_queue(found, used=False)
        return found

    def _check_declared(
        self,
        found: DeclaredQueue,
        durable: bool,
        exclusive_to: object,
        auto_delete: bool,
        arguments: Table,
    ) -> None:
        if found.exclusive_to is not exclusive_to:
            raise self._locked(found)
        what = self.what("queue", found.name)
        check_same(what, "durable", found.durable, durable)
        check_same(what, "auto_delete", found.auto_delete, auto_delete)
        check_equivalent(what, ARGUMENTS[found.kind], found.arguments, arguments)

    def _make_queue(
        self,
        name: str,
        read: QueueArguments,
        arguments: Table,
        exclusive_to: object,
        nbytes: int,
    ) -> DeclaredQueue:
        has_dead_letters = read.dead_letter_exchange is not None
        queue = self._maker.make(
            name if self.name == "/" else f"{self.name}/{name}",
            queue_key(self._prefix, name),
            settings=read.settings,
            dead_letter=partial(self._publish_dead, name, read) if has_dead_letters else None,
            exclusive_to=exclusive_to,
            single_active=read.single_active,
            on_deleted=partial(self._queue_deleted, name),
        )
        declared = DeclaredQueue(
            name=name, queue=queue, durable=read.settings.durable,
            auto_delete=read.settings.auto_delete, exclusive_to=exclusive_to, arguments=arguments,
            kind=read.kind, nbytes=nbytes,
        )  # fmt: skip
        self.queues[name] = declared
        self.definition_bytes += nbytes
        if exclusive_to is not None:
            self._exclusive.setdefault(exclusive_to, {})[declared] = None
        return declared

    def _store_queue(self, declared: DeclaredQueue, *, used: bool) -> None:
        keeper = self._keeper
        if keeper is None:
            return
        value = encode_queue(
            declared.name,
            auto_delete=declared.auto_delete, used=used, arguments=declared.arguments,
        )  # fmt: skip
        keeper.set(queue_key(self._prefix, declared.name), value)
        if declared.auto_delete and not used:
            # With a consumer it will go, whether its consumers' connections do or the process.
            declared.queue.on_consumer = partial(self._queue_used, declared)

    def _queue_used(self, declared: DeclaredQueue) -> None:
        declared.queue.on_consumer = None
        self._store_queue(declared, used=True)

    def _queue_deleted(self, name: str, queue: Queue) -> None:
        declared = self.queues.get(name)
        if declared is None or declared.queue is not queue:
            return
        del self.queues[name]
        self.definition_bytes -= declared.nbytes
        owner = declared.exclusive_to
        if owner in self._exclusive:
            self._exclusive[owner].pop(declared, None)
            if not self._exclusive[owner]:
                del self._exclusive[owner]
        if declared.durable and self._keeper is not None:
            self._keeper.delete(queue_key(self._prefix, name))
        self._cut_off(declared)

    def find_queue(self, name: str, by: object = None) -> DeclaredQueue:
        """Return a queue for a connection to use: to consume, get, or declare it passively.

        Raises:
            HostError: NOT_FOUND; RESOURCE_LOCKED if it is exclusive to another connection.
        """
        found = self.queues.get(stripped(name))
        if found is None:
            raise not_found(self.what("queue", stripped(name)))
        self._check_access(found, by)
        return found

    def _check_access(self, found: DeclaredQueue, by: object) -> None:
        if found.exclusive_to is not None and found.exclusive_to is not by:
            raise self._locked(found)

    def _locked(self, found: DeclaredQueue) -> HostError:
        what = self.what("queue", found.name)
        return HostError(
            Reason.RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked {what}. It could be originally declared on "
            "another connection or the exclusive property value does not match that of the "
            "original declaration.",
        )

    def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False, by: object = None
    ) -> int:
        """Delete a queue, if there is one; return how many messages were ready.

        Its consumers are told.

        Raises:
            HostError: RESOURCE_LOCKED; PRECONDITION_FAILED with `if_unused` if it has consumers,
                with `if_empty` if it has ready messages.
        """
        found = self.queues.get(stripped(name))
        if found is None:
            return 0
        self._check_access(found, by)
        what = self.what("queue", found.name)
        try:
            return found.queue.delete(if_unused=if_unused, if_empty=if_empty)
        except QueueInUseError as exc:
            raise precondition_failed(f"{what} in use") from exc
        except QueueNotEmptyError as exc:
            raise precondition_failed(f"{what} not empty") from exc

    def purge_queue(self, name: str, by: object = None) -> int:
        """Drop the ready messages of a queue; return their number.

        Raises:
            HostError: As `find_queue`.
        """
        return self.find_queue(name, by).queue.purge()

    def connection_gone(self, by: object) -> None:
        """Delete the exclusive queues of a connection that has ended. Idempotent."""
        for declared in list(self._exclusive.get(by, ())):
            declared.queue.delete()

    # -- bindings ----------------------------------------------------------------------------------

    def bind_queue(
        self,
        name: str,
        exchange: str,
        key: str = "",
        arguments: Table = NO_ARGUMENTS,
        by: object = None,
    ) -> None:
        """Bind a queue to an exchange. Idempotent.

        Raises:
            HostError: NOT_FOUND; RESOURCE_LOCKED; ACCESS_REFUSED for the default exchange;
                PRECONDITION_FAILED for wrong arguments, and where a limit is reached.
        """
        check_not_default(stripped(exchange))
        source = self.exchange_of(stripped(exchange))
        found = self.queues.get(stripped(name))
        if found is None:
            raise not_found(self.what("queue", stripped(name)))
        source.check_arguments(arguments)
        self._check_access(found, by)
        self._bind(source, found, key, arguments)

    def unbind_queue(
        self,
        name: str,
        exchange: str,
        key: str = "",
        arguments: Table = NO_ARGUMENTS,
        by: object = None,
    ) -> None:
        """End a binding of a queue, if there is one.

        Raises:
            HostError: RESOURCE_LOCKED; ACCESS_REFUSED for the default exchange.
        """
        check_not_default(stripped(exchange))
        source = self.exchanges.get(stripped(exchange))
        found = self.queues.get(stripped(name))
        if source is None or found is None:
            return
        binding = self._find_binding(source, found, key, arguments)
        if binding is not None:
            self._check_access(found, by)
            self._end_binding(binding)

    # -- a restart ---------------------------------------------------------------------------------

    def when_durable(self, callback: Callable[[], object], whose: object = None) -> None:
        """Call back when all definitions until now are durable; at once if nothing is stored.

        `whose`: see `Keeper.when_durable`.
        """
        if self._keeper is None:
            callback()
        else:
            self._keeper.when_durable(callback, whose)
            self._keeper.hurry()

    def recover(self, values: Mapping[str, bytes]) -> None:
        """Take over the definitions from before a restart. Before anything else.

        A queue that deletes itself, and whose consumers have gone with the process, is deleted
        now. Limits do not apply.

        Args:
            values: All values in the store; those of other owners are ignored.
        """
        used: list[DeclaredQueue] = []
        steps: tuple[tuple[str, Callable[[bytes], DeclaredQueue | None]], ...] = (
            ("x/", self._recover_exchange),
            ("q/", self._recover_queue),
            ("b/", self._recover_binding),
        )
        for kind, step in steps:
            for key, value in values.items():
                if not key.startswith(self._prefix + kind):
                    continue
                try:
                    found = step(value)
                except (ValueError, HostError) as exc:
                    logger.error(
                        "the stored value %r is not recovered: %s", key, exc,
                        extra={"event": "unreadable", "key": key},
                    )  # fmt: skip
                    continue
                if found is not None:
                    used.append(found)
        for declared in used:
            declared.queue.delete()

    def _recover_exchange(self, value: bytes) -> None:
        stored = decode_exchange(value)
        alternate = stored.arguments.get(ALTERNATE)
        exchange = self._new_exchange(
            stored.kind, stored.name,
            durable=True, auto_delete=stored.auto_delete, internal=stored.internal,
            arguments=stored.arguments, nbytes=EXCHANGE_BYTES + 2 * len(value),
            alternate=alternate if isinstance(alternate, str) else None,
        )  # fmt: skip
        self._add_exchange(exchange)

    def _recover_queue(self, value: bytes) -> DeclaredQueue | None:
        stored = decode_queue(value)
        read = read_arguments(
            self.what("queue", stored.name), stored.arguments,
            durable=True, auto_delete=stored.auto_delete, replicated=True,
        )  # fmt: skip
        nbytes = QUEUE_BYTES + 2 * len(value)
        declared = self._make_queue(stored.name, read, stored.arguments, None, nbytes)
        if stored.used:
            return declared
        if stored.auto_delete:
            declared.queue.on_consumer = partial(self._queue_used, declared)
        return None

    def _recover_binding(self, value: bytes) -> None:
        stored = decode_binding(value)
        source = self.exchange_of(stored.source)
        destination: Destination
        if stored.to_exchange:
            destination = self.exchange_of(stored.destination)
        else:
            destination = self.find_queue(stored.destination)
        self._add_binding(source.bind(destination, stored.key, stored.arguments))

    def close_queues(self) -> None:
        """End the queues in this process, and leave what is stored. For the host. Idempotent."""
        for declared in list(self.queues.values()):
            declared.queue.close()
            declared.queue.account.close()
        self.queues.clear()
        self._exclusive.clear()
