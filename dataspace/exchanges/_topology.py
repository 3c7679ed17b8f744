"""Exchanges and bindings of a virtual host, by name.

Rules of this file:
1. A definition is checked first and changed then, in one step: a refusal changes nothing.
2. What goes takes its bindings with it, in both directions; an exchange that deletes itself goes
   when its last binding as a source has.
3. A definition is stored if it is durable; a binding if both its ends are. What is deleted is
   deleted there.

Source: AMQP 0-9-1, section 1.7.2; rabbit_channel.erl, rabbit_exchange.erl and rabbit_binding.erl of
RabbitMQ 3.10. Texts of errors are RabbitMQ's.
"""

from __future__ import annotations

import abc
from typing import Any, Final

from ...accounts import Account
from ..queues import Keeper
from ._arguments import check_equivalent, check_same
from ._errors import HostError, Reason, access_refused, not_found, precondition_failed
from ._exchange import CLASSES, EXCHANGE_BYTES, PREDECLARED, Binding, Destination, Exchange, Kind
from ._keeping import (
    binding_key,
    encode_binding,
    encode_exchange,
    exchange_key,
    host_prefix,
)
from ._limits import MAX_NAME_BYTES, HostLimits
from ._tables import NO_ARGUMENTS, Table, TableError, encode_table, type_name
from ._topic_patterns import CacheBudget

RESERVED: Final = "amq."
"""The beginning of names that only the server gives (AMQP 0-9-1, sections 3.1.3 and 3.1.4)."""

DEFAULT_EXCHANGE: Final = ""
"""The exchange that routes to the queue whose name is the routing key."""

ALTERNATE: Final = "alternate-exchange"


class Topology(abc.ABC):
    """The exchanges and bindings of a virtual host; see `VirtualHost` for the arguments.

    Attributes:
        name: The name of the virtual host.
        account: The account that pays for what stands in the dataspace on its behalf.
        exchanges: Its exchanges, by name, without the default one.
        limits: Limits on all definitions.
        definition_bytes: The memory that they take, about.
        bindings: The number of bindings.
    """

    def __init__(
        self, name: str, *, account: Account, keeper: Keeper | None, limits: HostLimits
    ) -> None:
        self.name = name
        self.account = account
        self.exchanges: dict[str, Exchange] = {}
        self.limits = limits
        self.definition_bytes: int = 0
        self.bindings = 0
        self._keeper = keeper
        self._prefix = host_prefix(name)
        self._cache = CacheBudget()
        for known, kind in PREDECLARED:
            self.exchanges[known] = self._new_exchange(kind, known, durable=True)

    # -- for the host ------------------------------------------------------------------------------

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
        check_not_default(name)
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
        check_not_default(name)
        what = self.what("exchange", name)
        found = self.exchanges.get(name)
        if found is not None:
            check_same(what, "type", found.kind, cls.kind)
            check_same(what, "durable", found.durable, durable)
            check_same(what, "auto_delete", found.auto_delete, auto_delete)
            check_same(what, "internal", found.internal, internal)
            check_equivalent(what, (ALTERNATE,), found.arguments, arguments)
            return found
        check_name("exchange", name)
        alternate = arguments.get(ALTERNATE)
        if ALTERNATE in arguments and not isinstance(alternate, str):
            raise precondition_failed(
                f"invalid type '{type_name(alternate)}' for arg '{ALTERNATE}' in {what}"
            )
        declared = len(self.exchanges) - len(PREDECLARED)
        self._check_limit(f"declare {what}", "exchange", declared, self.limits.exchanges)
        nbytes = EXCHANGE_BYTES + 2 * (len(name) + len(self._text_of(arguments, what)))
        self._check_room(f"declare {what}", nbytes)
        found = self._new_exchange(
            cls.kind, name, durable=durable, auto_delete=auto_delete, internal=internal,
            arguments=dict(arguments), nbytes=nbytes,
            alternate=alternate if isinstance(alternate, str) else None,
        )  # fmt: skip
        self._add_exchange(found)
        if durable and self._keeper is not None:
            self._keeper.set(exchange_key(self._prefix, name), encode_exchange(found))
        return found

    def _new_exchange(self, kind: str, name: str, **more: Any) -> Exchange:
        if kind == Kind.TOPIC:
            more["cache"] = self._cache
        return CLASSES[kind](name, **more)

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
        check_not_default(name)
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

    # -- bindings ----------------------------------------------------------------------------------

    def bind_exchange(
        self, destination: str, source: str, key: str = "", arguments: Table = NO_ARGUMENTS
    ) -> None:
        """Bind an exchange to another one, or to itself. Idempotent.

        Raises:
            HostError: As `bind_queue`.
        """
        destination, source = stripped(destination), stripped(source)
        check_not_default(destination)
        check_not_default(source)
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
        check_not_default(destination)
        check_not_default(source)
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


def stripped(name: str) -> str:
    """Return a name without line ends, as RabbitMQ takes it."""
    return name.replace("\r", "").replace("\n", "")


def check_not_default(name: str) -> None:
    """Check that an exchange is not the default one, which nobody changes."""
    if name == DEFAULT_EXCHANGE:
        raise access_refused("operation not permitted on the default exchange")


def check_name(kind: str, name: str) -> None:
    """Check that a client may give this name to something new."""
    if name.startswith(RESERVED):
        raise access_refused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
    if len(name.encode(errors="surrogateescape")) > MAX_NAME_BYTES:
        raise precondition_failed(
            f"{kind} names have at most {MAX_NAME_BYTES} bytes, not as many as '{name[:40]}...'"
        )
