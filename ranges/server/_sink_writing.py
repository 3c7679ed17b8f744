"""One connection's writing: requests to one sink, and their answers.

Rules of this file:
1. Every refusal is an answer; only a breach of the protocol ends the connection.
2. A waiting request says so once a second, so that its writer can tell waiting from silence.
3. A writer learns of a decision, or that a name is its own, only when that is on disk: otherwise it
   would not repeat what a crash has undone.
4. When the connection ends within a part, that part is discarded; everything else that it has
   staged stays, for any connection to commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import trio

from ...access._tenants import NO_USER, printable
from ...accounts import Account
from ..sink import Decision, Sink
from ..wire import (
    MAX_ROWS,
    UNKNOWN,
    Abort,
    AskLast,
    Commit,
    DiskError,
    Forget,
    ForgottenError,
    Kind,
    Open,
    PartKey,
    RangeError,
    RefusedError,
    SinkRequest,
    Stage,
    StageEnd,
    batch_is,
    committed,
    opened,
    staged,
)
from ._properties import properties_fault
from ._sink_serving import SinkServing

WAITING_SECONDS = 1.0
"""Interval at which a waiting writer is told that it waits."""

Step = Callable[[], Awaitable[None]]


class Answers(Protocol):
    """Sends a connection's answers: its session."""

    def answer(self, kind: int, number: int, payload: bytes) -> None:
        """Send an answer."""
        ...

    def refuse(self, number: int, fault: RangeError) -> None:
        """Send an ERROR."""
        ...

    def still_waits(self, number: int) -> None:
        """Say that a request waits, if the peer reads its output."""
        ...

    def received(self, rows: int) -> None:
        """Count rows."""
        ...


class SinkConnection:
    """One connection's writing.

    Args:
        serving: The sinks.
        answers: Its session.
        max_stage_size: Bytes of one STAGE.
        store_timeout: How long the store may take to write to disk.
        owner: The owner of the names that it uses; see `Names`.

    Attributes:
        sink: The sink that it has opened.
    """

    def __init__(
        self,
        serving: SinkServing,
        answers: Answers,
        *,
        max_stage_size: int,
        store_timeout: float,
        owner: str | None = None,
    ) -> None:
        self.sink: Sink | None = None
        self._owner = owner
        self._serving = serving
        self._answers = answers
        self._max_stage_size = max_stage_size
        self._store_timeout = store_timeout
        self._generation = 0
        # The part that was refused last: its remaining rows get no more answers.
        self._failed: PartKey | None = None

    @property
    def account(self) -> Account | None:
        """The account that must have clear funds before more is staged."""
        return None if self.sink is None else self.sink.account

    def handle(self, number: int, request: SinkRequest) -> Step | None:
        """Answer a request; or return a step to await for that."""
        try:
            return self._handle(number, request)
        except RangeError as exc:
            self._answers.refuse(number, exc)
            return None

    def _handle(self, number: int, request: SinkRequest) -> Step | None:
        answer = self._answers.answer
        match request:
            case Stage():
                self._stage(number, request)
            case StageEnd():
                return self._stage_end(number, request)
            case Commit():
                return self._commit(number, request)
            case Abort(batch):
                sink = self._checked()
                sink.abort(batch)
                return self._tell(Kind.ABORTED, number, batch_is(sink.last), sure=sink.last_is_sure)
            case AskLast():
                sink = self._opened()
                return self._tell(Kind.LAST_IS, number, batch_is(sink.last), sure=sink.last_is_sure)
            case Forget():
                self._serving.sinks.forget(self._checked())
                answer(Kind.FORGOTTEN, number, b"")
            case Open():
                return self._open(number, request)
        return None

    def _opened(self) -> Sink:
        if self.sink is None:
            raise RefusedError("this connection has not opened a writer's name; send OPEN first")
        return self.sink

    def _checked(self) -> Sink:
        sink = self._opened()
        sink.check(self._generation, sink.incarnation)
        return sink

    def _tell(self, kind: Kind, number: int, payload: bytes, *, sure: bool) -> Step | None:
        """Answer; if it is not `sure`, only when the answer would survive a restart."""
        answer = partial(self._answers.answer, kind, number, payload)
        if sure or self._serving.disk is None:
            answer()
            return None
        return partial(self.while_saying_so, number, partial(self._when_synced, number, answer))

    async def _when_synced(self, number: int, answer: Callable[[], None]) -> None:
        try:
            await self._synced()
        except DiskError as exc:
            self._answers.refuse(number, exc)
        else:
            answer()

    def _open(self, number: int, request: Open) -> Step | None:
        if self.sink is not None:
            raise RefusedError(f"this connection is writer {self.sink.sink} already")
        key, fault = self._serving.names.find(self._owner, request.name)
        if fault is not None:
            raise RefusedError(fault)
        known = self._serving.sinks.find(key)
        incarnation = None if request.incarnation == UNKNOWN else request.incarnation
        if request.generation:
            if known is None:
                raise ForgottenError(
                    f"writer {request.name!r} is not remembered here: it was forgotten, or the "
                    "relay has no store and was restarted; open it anew"
                )
            known.check(request.generation, incarnation)
        sink = self._serving.sinks.open(key)
        if request.take_over:
            sink.take_over()
        self.sink = sink
        self._generation = sink.generation
        self._serving.connected(sink)
        limits = self._max_stage_size, MAX_ROWS
        return self._tell(
            Kind.OPENED,
            number,
            opened(sink.generation, sink.incarnation, sink.last, *limits),
            # Otherwise, after a crash, the replaced connection would be let in, and this one not.
            sure=not request.take_over and sink.last_is_sure,
        )

    # -- staging --------------------------------------------------------------------------------

    def _stage(self, number: int, request: Stage) -> None:
        key = request.key
        if key == self._failed and request.at:
            return
        self._failed = None
        rows = request.rows
        try:
            sink = self._checked()
            fault = rows.fault(self._topic_fault) or properties_fault(rows.properties())
            if fault is not None:
                sink.refuse_part(key, f"{key} of writer {sink.sink}: {fault}")
            sink.stage(self, key, request.at, rows.block, rows.count)
        except RangeError:
            self._failed = key
            raise
        self._answers.received(rows.count)

    def _topic_fault(self, topic: str) -> str | None:
        fault = self._serving.topic_fault(topic)
        allows = self._checked().allows
        if fault is not None or allows is None or allows(topic):
            return fault
        self._serving.authority.denied.publish += 1
        return f"user {printable(self._owner or NO_USER)} may not publish to {topic!r} (--acl)"

    def _stage_end(self, number: int, request: StageEnd) -> Step | None:
        sink = self._checked()
        already = self._complete(sink, request)
        if self._serving.disk is None or already:
            self._staged(number, request, already)
            return None
        work = partial(self._when_written, number, request)
        return partial(self.while_saying_so, number, work)

    def _complete(self, sink: Sink, request: StageEnd) -> bool:
        return sink.complete(self, request.key, request.rows, request.nbytes, request.crc)

    def _staged(self, number: int, request: StageEnd, already: bool) -> None:
        self._answers.answer(Kind.STAGED, number, staged(request.rows, already))

    async def _when_written(self, number: int, request: StageEnd) -> None:
        """Answer when the staged part would survive a restart."""
        try:
            sink = self._checked()
            while not sink.is_noted(request.key):
                await self._serving.moved()
                self._complete(self._checked(), request)  # it may have been written off
            await self._synced()
        except RangeError as exc:
            self._answers.refuse(number, exc)
        else:
            self._staged(number, request, False)

    # -- committing -----------------------------------------------------------------------------

    def _commit(self, number: int, request: Commit) -> Step:
        self._checked()
        work = partial(self._decide, number, request)
        return partial(self.while_saying_so, number, work)

    async def _decide(self, number: int, request: Commit) -> None:
        try:
            while True:
                sink = self._checked()
                decision = sink.commit(request.batch, request.parts)
                if decision is not Decision.LATER:
                    break
                await self._serving.moved()
            await self._settled(sink, request.batch)
        except RangeError as exc:
            self._answers.refuse(number, exc)
        else:
            already = decision is Decision.BEFORE
            self._answers.answer(Kind.COMMITTED, number, committed(sink.last, already))

    async def _settled(self, sink: Sink, batch: int) -> None:
        """Wait until a decision is on disk; without a store, until all rows are handed over."""
        if self._serving.disk is not None:
            await self._synced()
            return
        while sink.publishing is not None and sink.publishing.batch <= batch:
            await self._serving.moved()

    async def _synced(self) -> None:
        disk = self._serving.disk
        assert disk is not None
        await disk.synced(self._store_timeout)

    async def while_saying_so(self, number: int, work: Step) -> None:
        """Await something, and say once a second that a request waits for it.

        Its exceptions are raised in a group, by the nursery.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._say_so, number)
            await work()
            nursery.cancel_scope.cancel()

    async def _say_so(self, number: int) -> None:
        while True:
            await trio.sleep(WAITING_SECONDS)
            self._answers.still_waits(number)

    def close(self) -> None:
        """End the writing of a connection that has ended. Idempotent."""
        sink, self.sink = self.sink, None
        if sink is not None:
            if not sink.closed:
                sink.left_by(self)
            self._serving.disconnected(sink)
