"""The gatekeeper: gives references to peers that have a sturdyref for them.

`<resolve <ref {oid: any sig: bytes}> #:k>` is answered by an assertion to k. The protocol has two
dialects of the answer: `<accepted #:ref>` or `<rejected reason>` until September 2024, `<ok #:ref>`
or `<error reason>` since. The question is the same in both.

Theory of operation. Clients in Rust ignore an answer that they do not know, so they can be given
both. They are recognised by the handle of their question: their runtime takes every tenth number,
from 3 on. syndicate-py 0.19.3, which speaks the older dialect and takes each number, fails on an
answer that it does not know. Any other client gets the older answer, and is asked for a sync: it is
a simple one if it leaves that unanswered for a while, and is given the newer answer, too.

Source: syndicate-protocols, gatekeeper.prs, rpc.prs and sturdy.prs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from .._errors import LocalProtocolError, RemoteProtocolError
from ._bindings import Binding, Bindings, name_key
from ._entities import RESOLVE, Attenuated, Entity
from ._preserves import Embedded, Record, Symbol, Value, is_tuple
from ._sturdy import SturdyRef, is_genuine, parse_sturdyref
from ._values import Decoded, Encoded, WireValue, wire_value

if TYPE_CHECKING:
    from ...accounts import Turn
    from .._settings import SyndicateSettings
    from ._entities import DataspaceEntity, Retractor, Source

Dialect: TypeAlias = Literal["ok", "accepted"]

_REFUSALS: Final[dict[Dialect, str]] = {"ok": "error", "accepted": "rejected"}


RUST_HANDLES: Final = 10, 3
"""Modulus and remainder of the handles of clients in Rust (actor.rs: BUMP_AMOUNT, NEXT_HANDLE)."""

MAX_FOLLOWED: Final = 100
"""Standing questions of one connection whose answers change when their names are bound, or no
longer: one that binds a name does work for each."""

SYNC_SECONDS: Final = 5.0
"""How long a client may take to answer a sync before it counts as one that answers none."""


class Heard(Entity):
    """The recipient of an answer to a sync of the relay's own."""

    __slots__ = ("_heard",)

    def __init__(self, heard: Callable[[], None]) -> None:
        super().__init__()
        self._heard = heard

    def assert_(self, turn: Turn, value: WireValue, source: Source) -> None:
        """Ignore it."""

    def message(self, turn: Turn, value: WireValue, source: Source) -> None:
        source.afterwards(self._heard)


class Question:
    """A question for a reference, and its answers.

    Attributes:
        step: what is asked for.
        key: the key of the name that it asks for; None: it has none.
        source: the connection that asks.
        handle: the handle of the question.
        asked: when, on the ledger's clock.
        over: whether it has been retracted.
        outcome: the reference, or why there is none.
    """

    __slots__ = ("_asker", "_given", "asked", "handle", "key", "outcome", "over", "source", "step")

    def __init__(self, step: Value, asker: Entity, source: Source, asked: float) -> None:
        self.step = step
        self.key = _key(step)
        self._asker = asker
        self._given: dict[Dialect, Retractor | None] = {}
        self.source = source
        self.handle = source.handle
        self.asked = asked
        self.over = False
        self.outcome: Entity | str = ""

    def give(self, turn: Turn, dialect: Dialect) -> None:
        """Give the answer in one dialect."""
        self._given[dialect] = tell(turn, self._asker, self.outcome, dialect, self.source)

    def change(self, turn: Turn) -> None:
        """Give another outcome, in the same dialects, in place of the one given."""
        dialects = list(self._given)
        self.take_back(turn)
        for dialect in dialects:
            self.give(turn, dialect)

    def sync(self, turn: Turn, heard: Callable[[], None]) -> None:
        """Ask the asker for a sync; call `heard` when it has answered."""
        self._asker.sync(turn, Heard(heard), _nothing, self.source)

    def take_back(self, turn: Turn) -> None:
        """Take all answers back."""
        given, self._given = self._given, {}
        for retract in given.values():
            if retract is not None:
                retract(turn)


def tell(
    turn: Turn, whom: Entity, outcome: Entity | str, dialect: Dialect, source: Source
) -> Retractor | None:
    """Assert `<ok #:reference>` or `<error reason>`, in a dialect; return what takes it back."""
    if isinstance(outcome, str):
        answer = Record(Symbol(_REFUSALS[dialect]), (outcome,))
    else:
        answer = Record(Symbol(dialect), (Embedded(outcome),))
    return whom.assert_(turn, wire_value(answer, len(str(answer))), source)


def _nothing() -> None:
    """Do nothing."""


class Gatekeeper(Entity):
    """Gives references to peers that have a sturdyref for them.

    The dataspace has the name `sturdy_oid`, the bindspace `bind_oid`, both with the relay's key;
    clients bind other names, with keys of their own, at the bindspace. An answer changes when its
    name is bound, or is no longer.

    Args:
        dataspace: the dataspace.
        bindspace: what makes bindings.
        bindings: what clients have bound.
        settings: the key, the names, and the form of the answers.
    """

    __slots__ = ("_bindings", "_followed", "_own", "_standing", "_waiting", "settings")

    def __init__(
        self,
        dataspace: DataspaceEntity,
        bindspace: Entity,
        bindings: Bindings,
        settings: SyndicateSettings,
    ) -> None:
        super().__init__()
        self._own = dataspace, bindspace
        self._bindings = bindings
        bindings.changed.append(self._changed)
        self.settings = settings
        # Questions whose askers have yet to answer a sync, the oldest first.
        self._waiting: dict[Question, None] = {}
        # Questions whose answers may change, by the key of the name that they ask for.
        self._standing: dict[bytes, dict[Question, None]] = {}
        self._followed: Counter[object] = Counter()

    def assert_(self, turn: Turn, value: WireValue, source: Source) -> Retractor | None:
        """See `Entity.assert_`; everything but `<resolve ...>` is ignored, and logged."""
        asked = asked_by(value)
        if asked is None:
            source.complain("an assertion at a gatekeeper is no <resolve step #:k>; it is ignored")
            return None
        question = Question(*asked, source, turn.account.ledger.clock())
        # In a turn of its own: what the same packet binds is bound by then, and another's fault
        # cannot undo it.
        turn.afterwards(partial(self._begin, question))
        return partial(self._retract, question)

    def _begin(self, question: Question) -> None:
        key, source = question.key, question.source
        if key is not None and self._followed[source] < MAX_FOLLOWED:
            self._followed[source] += 1
            self._standing.setdefault(key, {})[question] = None
        question.outcome = self._outcome(question)
        with question.source.account.turn() as turn:
            dialect = self.settings.resolve_answer
            if dialect != "auto":
                question.give(turn, dialect)
                return
            question.give(turn, "accepted")
            every, first = RUST_HANDLES
            if question.handle % every == first:
                question.give(turn, "ok")
            else:
                self._waiting[question] = None
                question.sync(turn, partial(self._forget, question))

    def _outcome(self, question: Question) -> Entity | str:
        try:
            return self._resolve(question.step)
        except RemoteProtocolError as exc:
            question.source.complain(f"a reference was not resolved: {exc}")
            return str(exc)

    def _changed(self, key: bytes) -> None:
        """Answer again those who have asked for a name that is bound, or is no longer."""
        for question in list(self._standing.get(key, ())):
            faults = question.source.account.ledger.faults
            faults.call(None, "answering again", self._answer_again, question)

    def _answer_again(self, question: Question) -> None:
        question.outcome = self._outcome(question)
        with question.source.account.turn() as turn:
            question.change(turn)

    def _forget(self, question: Question) -> None:
        self._waiting.pop(question, None)

    def _retract(self, question: Question, turn: Turn) -> None:
        turn.afterwards(partial(self._end, question))

    def _end(self, question: Question) -> None:
        if question.over:
            return  # a turn that retracted it has failed, and the peer has left
        question.over = True
        self._forget(question)
        key = question.key
        if key is not None and question in self._standing.get(key, ()):
            asked = self._standing[key]
            del asked[question]
            if not asked:
                del self._standing[key]
            self._followed[question.source] -= 1
            if not self._followed[question.source]:
                del self._followed[question.source]
        with question.source.account.turn() as turn:
            question.take_back(turn)

    def tick(self, now: float) -> None:
        """Give the newer answer, too, to clients that have answered no sync."""
        while self._waiting:
            question = next(iter(self._waiting))
            if now - question.asked < SYNC_SECONDS:
                return
            del self._waiting[question]
            with question.source.account.turn() as turn:
                question.give(turn, "ok")

    def _resolve(self, step: Value) -> Entity:
        ref: SturdyRef = parse_sturdyref(step)
        binding = self._binding(ref.oid)
        if binding is None or not is_genuine(ref, binding.key):
            if self.settings.sturdy_key is None:
                raise RemoteProtocolError("this relay has no key for sturdyrefs: --sturdy-key-file")
            # The answer does not say which of the two is wrong: that would help to guess.
            raise RemoteProtocolError("this sturdyref names no service here, or was not made here")
        if not ref.caveats:
            return binding.target
        size = self.settings.max_caveats_size
        return Attenuated(binding.target, ref.caveats, max_caveats_size=size)

    def _binding(self, oid: Value) -> Binding | None:
        settings = self.settings
        if settings.sturdy_key is not None:
            names = settings.sturdy_oid, settings.bind_oid
            for name, entity in zip(names, self._own, strict=True):
                if oid == name:
                    return Binding(oid, settings.sturdy_key, entity)
        return self._bindings.get(oid)

    def is_own(self, oid: Value) -> bool:
        """Whether a name is the relay's own, which no client may bind."""
        return oid in (self.settings.sturdy_oid, self.settings.bind_oid)

    def message(self, turn: Turn, value: WireValue, source: Source) -> None:
        """Ignore it, and log that."""
        source.complain("a message to a gatekeeper is ignored: first resolve a reference")


def asked_by(value: WireValue) -> tuple[Value, Entity] | None:
    """Return the step and the asker of a `<resolve step #:asker>`; None if it is none."""
    if not isinstance(value, (Encoded, Decoded)) or value.pattern_kind != RESOLVE:
        return None
    fields = value.value().fields
    if not is_tuple(fields) or len(fields) != 2 or not isinstance(fields[1], Embedded):
        return None
    return fields[0], fields[1].embeddedValue


def _key(step: Value) -> bytes | None:
    """Return the key of the name that is asked for; None: it is no sturdyref."""
    try:
        return name_key(parse_sturdyref(step).oid)
    except (RemoteProtocolError, LocalProtocolError):
        return None
