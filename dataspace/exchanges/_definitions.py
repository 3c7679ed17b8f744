"""The definitions of a virtual host: its exchanges, queues and bindings, by name.

Rules of this file:
1. A definition is checked first and changed then, in one step: a refusal changes nothing.
2. What goes takes its bindings with it, in both directions; an exchange that deletes itself goes
   when its last binding as a source has.
3. A definition is stored if it is durable; a binding if both its ends are. What is deleted is
   deleted there.

Source: AMQP 0-9-1, sections 1.7.2 and 1.7.3; rabbit_channel.erl, rabbit_exchange.erl,
rabbit_binding.erl and rabbit_amqqueue.erl of RabbitMQ 3.10. Texts of errors are RabbitMQ's.
"""

from __future__ import annotations

import abc
import logging
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ...accounts import Account, Turn
from ..queues import DeadLetter, Queue, QueueInUseError, QueueNotEmptyError
from ._arguments import (
    ARGUMENTS,
    QUORUM,
    QueueArguments,
    check_equivalent,
    check_same,
    read_arguments,
)
from ._declared_queue import QUEUE_BYTES, DeclaredQueue, QueueMaker
from ._errors import HostError, Reason, access_refused, not_found, precondition_failed
from ._exchange import CLASSES, EXCHANGE_BYTES, PREDECLARED, Binding, Destination, Exchange
from ._keeping import (
    Keeper,
    binding_key,
    decode_binding,
    decode_exchange,
    decode_queue,
    encode_binding,
    encode_exchange,
    encode_queue,
    exchange_key,
    host_prefix,
    queue_key,
)
from ._limits import MAX_NAME_BYTES, HostLimits
from ._tables import NO_ARGUMENTS, Table, TableError, encode_table, type_name

logger = logging.getLogger("clearfunds.dataspace.exchanges")

RESERVED: Final = "amq."
"""The beginning of names that only the server gives (AMQP 0-9-1, sections 3.1.3 and 3.1.4)."""

GENERATED: Final = "amq.gen-"
"""The beginning of the names of queues that clients leave to the server; as RabbitMQ."""

GENERATED_BYTES: Final = 16
"""Random bytes in such a name, as RabbitMQ; they are its secret."""

DEFAULT_EXCHANGE: Final = ""
"""The exchange that routes to the queue whose name is the routing key."""

ALTERNATE: Final = "alternate-exchange"


class Definitions(abc.ABC):
    """The definitions of a virtual host; see `VirtualHost` for the arguments.

    Attributes:
        name: The name of the virtual host.
        account: The account that pays for what stands in the dataspace on its behalf.
        queues: Its queues, by name.
        exchanges: Its exchanges, by name, without the default one.
        limits: Limits on all of them.
        definition_bytes: The memory that they take, about.
        bindings: The number of bindings.
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
        self.name = name
        self.account = account
        self.queues: dict[str, DeclaredQueue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.limits = limits
        self.definition_bytes = 0
        self.bindings = 0
        self._maker = QueueMaker(account.ledger, keeper=keeper) if maker is None else maker
        self._keeper = keeper
        self._replicated = replicated
        self._prefix = host_prefix(name)
        # Those of each connection.
        self._exclusive: dict[object, dict[DeclaredQueue, None]] = {}
        for known, kind in PREDECLARED:
            self.exchanges[known] = CLASSES[kind](known, durable=True)

    # -- for the host ------------------------------------------------------------------------------

    @abc.abstractmethod
    def _publish_dead(
        self, queue: str, arguments: QueueArguments, turn: Turn, letter: DeadLetter
    ) -> None:
        """Publish a dead letter of a queue."""

    @abc.abstractmethod
    def _binding_added(self, binding: Binding) -> None:
        """Note a new binding, before it is added.

        Raises:
            HostError: If there is no room for it.
        """

    @abc.abstractmethod
    def _binding_removed(self, binding: Binding) -> None:
        """Note that a binding has been removed."""

    # -- exchanges ---------------------------------------------------------------------------------

    def exchange_of(self, name: str) -> Exchange:
        """Return an exchange, which is not the default one.

        Raises:
            HostError: NOT_FOUND if there is none of that name.
        """
        found = self.exchanges.get(name)
        if found is None:
            raise not_found(self.what("exchange", name))
        return found

    def check_exchange(self, name: str) -> None:
        """Check that an exchange exists: a passive declaration.

        Raises:
            HostError: NOT_FOUND, or ACCESS_REFUSED for the default exchange.
        """
        name = stripped(name)
        _check_not_default(name)
        self.exchange_of(name)

    def declare_exchange(
        self,
        name: str,
        kind: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table = NO_ARGUMENTS,
    ) -> Exchange:
        """Make an exchange, or find one that was declared in the same way.

        Args:
            name: Its name.
            kind: Its type: "direct", "fanout", "topic" or "headers".
            durable: Whether it survives a restart.
            auto_delete: Whether it is deleted when its last binding has gone.
            internal: Whether clients cannot publish to it.
            arguments: `alternate-exchange` names the exchange that gets what it cannot route.

        Raises:
            HostError: COMMAND_INVALID for an unknown type; ACCESS_REFUSED for the default exchange
                and for a new one with a reserved name; PRECONDITION_FAILED if there is another one
                of that name, for a wrong argument, and where a limit is reached.
        """
        cls = CLASSES.get(kind)
        if cls is None:
            raise HostError(Reason.COMMAND_INVALID, f"unknown exchange type '{kind}'")
        name = stripped(name)
        _check_not_default(name)
        what = self.what("exchange", name)
        found = self.exchanges.get(name)
        if found is not None:
            check_same(what, "type", found.kind, cls.kind)
            check_same(what, "durable", found.durable, durable)
            check_same(what, "auto_delete", found.auto_delete, auto_delete)
            check_same(what, "internal", found.internal, internal)
            check_equivalent(what, (ALTERNATE,), found.arguments, arguments)
            return found
        _check_name("exchange", name)
        alternate = arguments.get(ALTERNATE)
        if ALTERNATE in arguments and not isinstance(alternate, str):
            raise precondition_failed(
                f"invalid type '{type_name(alternate)}' for arg '{ALTERNATE}' in {what}"
            )
        declared = len(self.exchanges) - len(PREDECLARED)
        self._check_limit(f"declare {what}", "exchange", declared, self.limits.exchanges)
        nbytes = EXCHANGE_BYTES + 2 * (len(name) + len(self._text_of(arguments, what)))
        self._check_room(f"declare {what}", nbytes)
        found = cls(
            name, durable=durable, auto_delete=auto_delete, internal=internal,
            arguments=dict(arguments), nbytes=nbytes,
            alternate=alternate if isinstance(alternate, str) else None,
        )  # fmt: skip
        self._add_exchange(found)
        if durable and self._keeper is not None:
            self._keeper.set(exchange_key(self._prefix, name), encode_exchange(found))
        return found

    def _add_exchange(self, exchange: Exchange) -> None:
        self.definition_bytes += exchange.nbytes
        self.exchanges[exchange.name] = exchange

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings, if there is one.

        Raises:
            HostError: ACCESS_REFUSED for those that are always there; PRECONDITION_FAILED with
                `if_unused`, if it is the source of a binding.
        """
        name = stripped(name)
        _check_not_default(name)
        what = self.what("exchange", name)
        if name.startswith(RESERVED):
            raise access_refused(f"deletion of system {what} not allowed")
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.bindings:
            raise precondition_failed(f"{what} in use")
        self._remove_exchange(exchange)
        self._cut_off(exchange)

    def _remove_exchange(self, exchange: Exchange) -> None:
        """Remove an exchange, and the bindings of which it is the source."""
        del self.exchanges[exchange.name]
        self.definition_bytes -= exchange.nbytes
        if exchange.durable and self._keeper is not None:
            self._keeper.delete(exchange_key(self._prefix, exchange.name))
        for binding in list(exchange.bindings.values()):
            self._remove_binding(binding)

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
            _check_name("queue", name)
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
        _check_not_default(stripped(exchange))
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
        _check_not_default(stripped(exchange))
        source = self.exchanges.get(stripped(exchange))
        found = self.queues.get(stripped(name))
        if source is None or found is None:
            return
        binding = self._find_binding(source, found, key, arguments)
        if binding is not None:
            self._check_access(found, by)
            self._end_binding(binding)

    def bind_exchange(
        self, destination: str, source: str, key: str = "", arguments: Table = NO_ARGUMENTS
    ) -> None:
        """Bind an exchange to another one, or to itself. Idempotent.

        Raises:
            HostError: As `bind_queue`.
        """
        destination, source = stripped(destination), stripped(source)
        _check_not_default(destination)
        _check_not_default(source)
        from_ = self.exchange_of(source)
        to = self.exchange_of(destination)
        from_.check_arguments(arguments)
        self._bind(from_, to, key, arguments)

    def unbind_exchange(
        self, destination: str, source: str, key: str = "", arguments: Table = NO_ARGUMENTS
    ) -> None:
        """End a binding of an exchange to another one, if there is one.

        Raises:
            HostError: ACCESS_REFUSED for the default exchange.
        """
        destination, source = stripped(destination), stripped(source)
        _check_not_default(destination)
        _check_not_default(source)
        from_, to = self.exchanges.get(source), self.exchanges.get(destination)
        if from_ is not None and to is not None:
            binding = self._find_binding(from_, to, key, arguments)
            if binding is not None:
                self._end_binding(binding)

    def _find_binding(
        self, source: Exchange, destination: Destination, key: str, arguments: Table
    ) -> Binding | None:
        text = self._text_of(arguments, self.what("exchange", source.name))
        return source.bindings.get((destination, key, text))

    def _bind(self, source: Exchange, destination: Destination, key: str, arguments: Table) -> None:
        what = f"bind to {self.what('exchange', source.name)}"
        if self._find_binding(source, destination, key, arguments) is not None:
            return
        binding = source.bind(destination, key, dict(arguments))
        self._check_limit(what, "binding", self.bindings, self.limits.bindings)
        self._check_room(what, binding.nbytes)
        self._add_binding(binding)
        if self._keeper is not None and source.durable and destination.durable:
            value = encode_binding(binding)
            self._keeper.set(binding_key(self._prefix, value), value)

    def _add_binding(self, binding: Binding) -> None:
        self._binding_added(binding)
        self.bindings += 1
        self.definition_bytes += binding.nbytes
        binding.source.add(binding)

    def _end_binding(self, binding: Binding) -> None:
        """Remove a binding, and its source if that was its last one."""
        self._remove_binding(binding)
        source = binding.source
        if self._goes(source):
            self._remove_exchange(source)
            self._cut_off(source)

    def _goes(self, source: Exchange) -> bool:
        """Whether an exchange that has lost a binding deletes itself."""
        return source.auto_delete and not source.bindings and source.name in self.exchanges

    def _remove_binding(self, binding: Binding) -> None:
        source, destination = binding.source, binding.destination
        source.remove(binding)
        self.bindings -= 1
        self.definition_bytes -= binding.nbytes
        if self._keeper is not None and source.durable and destination.durable:
            self._keeper.delete(binding_key(self._prefix, encode_binding(binding)))
        self._binding_removed(binding)

    def _cut_off(self, gone: Destination) -> None:
        """Remove the bindings that lead to something deleted, and exchanges that go with them.

        A loop, since a chain of exchanges may be longer than the stack.
        """
        line = [gone]
        while line:
            for binding in list(line.pop().incoming):
                self._remove_binding(binding)
                if self._goes(binding.source):
                    self._remove_exchange(binding.source)
                    line.append(binding.source)

    # -- limits ------------------------------------------------------------------------------------

    def what(self, kind: str, name: str) -> str:
        """Return an object by RabbitMQ's words: "queue 'q' in vhost '/'"."""
        return f"{kind} '{name}' in vhost '{self.name}'"

    @staticmethod
    def _text_of(arguments: Table, what: str) -> str:
        try:
            return encode_table(arguments)
        except TableError as exc:
            raise precondition_failed(f"invalid arguments for {what}: {exc}") from exc

    @staticmethod
    def _check_limit(to_do: str, kind: str, count: int, most: int) -> None:
        if count >= most:
            raise precondition_failed(
                f"cannot {to_do}: {kind} limit of {most} is reached; delete some, or raise it"
            )

    def _check_room(self, to_do: str, nbytes: int) -> None:
        most = self.limits.definition_bytes
        if self.definition_bytes + nbytes > most:
            raise precondition_failed(
                f"cannot {to_do}: definitions take {self.definition_bytes} bytes of {most}; "
                "delete some, or raise that limit"
            )

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
        exchange = CLASSES[stored.kind](
            stored.name, durable=True, auto_delete=stored.auto_delete, internal=stored.internal,
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

    def close(self) -> None:
        """End the queues in this process, and leave what is stored: the process ends. Idempotent.

        Consumers are told.
        """
        for declared in list(self.queues.values()):
            declared.queue.close()
            declared.queue.account.close()
        self.queues.clear()
        self._exclusive.clear()


def stripped(name: str) -> str:
    """Return a name without line ends, as RabbitMQ takes it."""
    return name.replace("\r", "").replace("\n", "")


def _check_not_default(name: str) -> None:
    if name == DEFAULT_EXCHANGE:
        raise access_refused("operation not permitted on the default exchange")


def _check_name(kind: str, name: str) -> None:
    if name.startswith(RESERVED):
        raise access_refused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
    if len(name.encode(errors="surrogateescape")) > MAX_NAME_BYTES:
        raise precondition_failed(
            f"{kind} names have at most {MAX_NAME_BYTES} bytes, not as many as '{name[:40]}...'"
        )
