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

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from .._errors import RemoteProtocolError
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
        source: the connection that asks.
        asked: when, on the ledger's clock.
    """

    __slots__ = ("_asker", "_given", "_outcome", "asked", "source")

    def __init__(self, asker: Entity, outcome: Entity | str, source: Source, asked: float) -> None:
        self._asker = asker
        self._outcome = outcome
        self._given: list[Retractor] = []
        self.source = source
        self.asked = asked

    def give(self, turn: Turn, dialect: Dialect) -> None:
        """Give the answer in one dialect."""
        outcome = self._outcome
        if isinstance(outcome, str):
            answer = Record(Symbol(_REFUSALS[dialect]), (outcome,))
        else:
            answer = Record(Symbol(dialect), (Embedded(outcome),))
        retractor = self._asker.assert_(turn, wire_value(answer, len(str(answer))), self.source)
        if retractor is not None:
            self._given.append(retractor)

    def sync(self, turn: Turn, heard: Callable[[], None]) -> None:
        """Ask the asker for a sync; call `heard` when it has answered."""
        self._asker.sync(turn, Heard(heard), _nothing, self.source)

    def take_back(self, turn: Turn) -> None:
        """Take all answers back."""
        given, self._given = self._given, []
        for retract in given:
            retract(turn)


def _nothing() -> None:
    """Do nothing."""


class Gatekeeper(Entity):
    """Gives the dataspace to peers that have a sturdyref for it.

    Args:
        dataspace: the dataspace.
        settings: the key, the name, and the form of the answers.
    """

    __slots__ = ("_dataspace", "_waiting", "settings")

    def __init__(self, dataspace: DataspaceEntity, settings: SyndicateSettings) -> None:
        super().__init__()
        self._dataspace = dataspace
        self.settings = settings
        # Questions whose askers have yet to answer a sync, the oldest first.
        self._waiting: dict[Question, None] = {}

    def assert_(self, turn: Turn, value: WireValue, source: Source) -> Retractor | None:
        """See `Entity.assert_`; everything but `<resolve ...>` is ignored, and logged."""
        asked = asked_by(value)
        if asked is None:
            source.complain("an assertion at a gatekeeper is no <resolve step #:k>; it is ignored")
            return None
        step, asker = asked
        try:
            outcome: Entity | str = self._resolve(step)
        except RemoteProtocolError as exc:
            outcome = str(exc)
            source.complain(f"a reference was not resolved: {outcome}")
        question = Question(asker, outcome, source, turn.account.ledger.clock())
        self._answer(turn, question)
        return partial(self._end, question)

    def _answer(self, turn: Turn, question: Question) -> None:
        dialect = self.settings.resolve_answer
        if dialect != "auto":
            question.give(turn, dialect)
            return
        question.give(turn, "accepted")
        every, first = RUST_HANDLES
        if question.source.handle % every == first:
            question.give(turn, "ok")
        else:
            self._waiting[question] = None
            question.sync(turn, partial(self._forget, question))

    def _forget(self, question: Question) -> None:
        self._waiting.pop(question, None)

    def _end(self, question: Question, turn: Turn) -> None:
        self._forget(question)
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
        settings = self.settings
        ref: SturdyRef = parse_sturdyref(step)
        if settings.sturdy_key is None:
            raise RemoteProtocolError(
                "this relay resolves no references: it has no --sturdy-key-file"
            )
        if ref.oid != settings.sturdy_oid or not is_genuine(ref, settings.sturdy_key):
            # The answer does not say which of the two is wrong: that would help to guess.
            raise RemoteProtocolError("this sturdyref names no service here, or was not made here")
        if not ref.caveats:
            return self._dataspace
        return Attenuated(self._dataspace, ref.caveats, max_caveats_size=settings.max_caveats_size)

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
