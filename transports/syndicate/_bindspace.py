"""The bindspace: clients that hold a reference to it bind names and make dataspaces.

`<bind <ref {oid: any key: bytes}> #:target #:k>` lets sturdyrefs that are made with that name and
key find the target, for as long as it is asserted; k is told `<bound <ref {oid: any sig: bytes}>>`
or `<error reason>`; #f in its place: nobody is told. `<dataspace #:k>` makes a dataspace; k is told
`<ok #:dataspace>`. `<q <resolve-path route>>` has the relay follow a route (`_routes.py`).

Everything else is state and messages, as in any dataspace: `<bound oid>` is there for each name
that is bound. Keys are not: holders of the reference do not see each other's.

Rules:

1. What an assertion brings about happens after the turn of its packet, on the account of its
   connection, or not at all.
2. What a client has bound and made ends when it is retracted: at the latest with its connection.

Source: syndicate-protocols, gatekeeper.prs and sturdy.prs; syndicate-server, sturdy.rs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from ...accounts import QuotaExceededError
from ...dataspace import Dataspace
from .._errors import LocalProtocolError, RemoteProtocolError
from ._bindings import Binding, Bindings, Shares, TooManyError, name_key
from ._entities import DataspaceEntity, Entity
from ._gatekeeper import Dialect, tell
from ._preserves import Embedded, Record, Symbol, Value, is_mapping
from ._sturdy import mint, sturdyref_value
from ._values import Decoded, Encoded, WireValue, label_kind, wire_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...accounts import Recipient, Turn
    from .._settings import ServerSettings
    from ._entities import Retractor, Source
    from ._routes import Routes
    from ._sturdy import Caveat

_BIND = label_kind(Symbol("bind"))
_DATASPACE = label_kind(Symbol("dataspace"))
_QUESTION = label_kind(Symbol("q"))
_RESOLVE_PATH = Symbol("resolve-path")

_BOUND = Symbol("bound")
_REF = Symbol("ref")
_OID = Symbol("oid")
_KEY = Symbol("key")

BINDING_LIMITS = "--max-bound-names", "--names-per-connection"


class Deed:
    """Something that lasts as long as an assertion: begun after its turn, ended after another's."""

    __slots__ = ("_begin", "_end", "_over")

    def __init__(self, begin: Callable[[], Callable[[], None]]) -> None:
        self._begin = begin
        self._end: Callable[[], None] | None = None
        self._over = False

    def note(self, turn: Turn) -> Retractor:
        """Begin after this turn; return the function that ends it after another."""
        turn.afterwards(self._begun)
        return self._retract

    def _begun(self) -> None:
        self._end = self._begin()

    def _retract(self, turn: Turn) -> None:
        turn.afterwards(self._ended)

    def _ended(self) -> None:
        # A turn that retracts it may fail; it is retracted again as its connection ends.
        if not self._over and self._end is not None:
            self._over = True
            self._end()


Answers: TypeAlias = "list[Retractor | None]"


class Bindspace(Entity):
    """See the module's docstring.

    Args:
        space: has the rest of what is asserted here.
        bindings: what is bound.
        settings: the limits.

    Attributes:
        settings: the limits.
        is_own: whether a name is the relay's own.
        routes: follows routes; None: nobody does.
    """

    __slots__ = ("_bindings", "_shares", "_space", "is_own", "routes", "settings")

    def __init__(
        self, space: DataspaceEntity, bindings: Bindings, settings: ServerSettings
    ) -> None:
        super().__init__()
        self._space = space
        self._bindings = bindings
        self._shares = Shares("bindings and dataspaces")
        self.settings = settings
        self.routes: Routes | None = None
        self.is_own: Callable[[Value], bool] = _never

    def assert_(self, turn: Turn, value: WireValue, source: Source) -> Retractor | None:
        """See `Entity.assert_`."""
        if isinstance(value, (Encoded, Decoded)):
            kind = value.pattern_kind
            if kind == _BIND:
                fields = value.value().fields
                if len(fields) == 3 and isinstance(fields[1], Embedded):
                    description, target, observer = fields
                    begin = partial(self._bind, description, target, observer, source)
                    return Deed(begin).note(turn)
            elif kind == _DATASPACE:
                fields = value.value().fields
                if len(fields) == 1 and isinstance(fields[0], Embedded):
                    return Deed(partial(self._make, fields[0].embeddedValue, source)).note(turn)
            elif kind == _QUESTION and self.routes is not None:
                (question, *more) = value.value().fields or (None,)
                if _is_one(question, _RESOLVE_PATH) and not more:
                    begin = partial(self.routes.begin, question.fields[0], source)
                    return _both(self._space.assert_(turn, value, source), Deed(begin).note(turn))
        return self._space.assert_(turn, value, source)

    def message(self, turn: Turn, value: WireValue, source: Source) -> None:
        self._space.message(turn, value, source)

    def port(self, caveats: Sequence[Caveat] = ()) -> Recipient:
        return self._space.port(caveats)

    # -- bindings -------------------------------------------------------------------------------

    def _bind(
        self, description: Value, target: Embedded, observer: Value, source: Source
    ) -> Callable[[], None]:
        whom = observer.embeddedValue if isinstance(observer, Embedded) else None
        try:
            binding = self._described(description, target.embeddedValue)
            return self._bound(binding, whom, source)
        except (RemoteProtocolError, LocalProtocolError, TooManyError, QuotaExceededError) as exc:
            return self._refused(f"nothing was bound: {exc}", whom, source)

    def _described(self, description: Value, target: Entity) -> Binding:
        if _is_one(description, _REF):
            detail = description.fields[0]
            if is_mapping(detail) and _OID in detail:
                oid, key = detail[_OID], detail.get(_KEY)
                if isinstance(key, bytes):
                    name_key(oid)
                    return Binding(oid, key, target)
        raise RemoteProtocolError("a description is <ref {oid: any key: bytes}>")

    def _bound(self, binding: Binding, whom: Entity | None, source: Source) -> Callable[[], None]:
        if self.is_own(binding.oid):
            raise RemoteProtocolError("this name is the relay's own")
        self._take_share(source)
        space = self._space.dataspace
        shown = wire_value(Record(_BOUND, (binding.oid,)))
        sturdyref = sturdyref_value(mint(binding.oid, binding.key))
        told: Answers = []
        try:
            if self._bindings.get(binding.oid) is not None:
                raise RemoteProtocolError("this name is bound already")
            with source.account.turn() as turn:
                assertion = space.assert_(turn, shown)
                if whom is not None:
                    answer = wire_value(Record(_BOUND, (sturdyref,)))
                    told.append(whom.assert_(turn, answer, source))
        except BaseException:
            self._shares.give_back(source)
            raise
        self._bindings.add(binding)

        def end() -> None:
            self._bindings.remove(binding)
            self._shares.give_back(source)
            with source.account.turn() as turn:
                space.retract(turn, assertion)
                _take_back(turn, told)

        return end

    def _take_share(self, source: Source) -> None:
        most, each = self.settings.max_bound_names, self.settings.names_per_connection
        self._shares.take(source, most, each, BINDING_LIMITS)

    def _refused(self, why: str, whom: Entity | None, source: Source) -> Callable[[], None]:
        source.complain(why)
        told: Answers = []
        if whom is not None:
            with source.account.turn() as turn:
                told += [tell(turn, whom, why, dialect, source) for dialect in self._dialects()]

        def end() -> None:
            with source.account.turn() as turn:
                _take_back(turn, told)

        return end

    def _dialects(self) -> tuple[Dialect, ...]:
        dialect = self.settings.resolve_answer
        return ("accepted", "ok") if dialect == "auto" else (dialect,)

    # -- dataspaces -----------------------------------------------------------------------------

    def _make(self, whom: Entity, source: Source) -> Callable[[], None]:
        try:
            told = self._made(whom, source)
        except (TooManyError, QuotaExceededError) as exc:
            return self._refused(f"no dataspace was made: {exc}", whom, source)

        def end() -> None:
            self._shares.give_back(source)
            with source.account.turn() as turn:
                _take_back(turn, told)

        return end

    def _made(self, whom: Entity, source: Source) -> Answers:
        self._take_share(source)
        try:
            with source.account.turn() as turn:
                return [tell(turn, whom, new_dataspace(self._space, self.settings), "ok", source)]
        except BaseException:
            self._shares.give_back(source)
            raise


def new_dataspace(beside: DataspaceEntity, settings: ServerSettings) -> DataspaceEntity:
    """Make a dataspace with the ledger and the vocabulary of another, and nothing else of it."""
    dataspace = Dataspace(
        beside.dataspace.ledger,
        max_retained=settings.max_retained,
        max_retained_bytes=settings.max_retained_bytes,
        max_shapes=settings.max_shapes,
    )
    return DataspaceEntity(dataspace, beside.vocabulary)


def _is_one(value: Value, label: Symbol) -> TypeGuard[Record]:
    return isinstance(value, Record) and value.key == label and len(value.fields) == 1


def _both(one: Retractor | None, other: Retractor) -> Retractor:
    def retract(turn: Turn) -> None:
        if one is not None:
            one(turn)
        other(turn)

    return retract


def _take_back(turn: Turn, told: Answers) -> None:
    for retract in told:
        if retract is not None:
            retract(turn)


def _never(_oid: Value) -> bool:
    return False
