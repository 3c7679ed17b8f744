"""The life of one peer's connection, from its acceptance to the settling of its last loan.

Rules of this file:
1. A read is handled as far as there are funds (rule 9), and whatever was handed over is sent before
   the reader waits: it would wait for its own unsent loans.
2. While it waits, a bounded stretch of its input is still read, for what would reduce debt
   (rule 10). Its clock stands still.
3. A fault of the peer's, of the socket's or of our own ends this connection, and no other.
4. However the connection ends, it ends in one step, without awaiting: what its peer stands for is
   taken back, what it holds is settled, its account is closed (`_retire`). What takes long is done
   after that, on the same account, which stays open for it (`_partings.py`).
5. Work is done in steps, each when it is this connection's turn (`_scheduler.py`).

What a peer's bytes mean is each protocol's own: the methods that are abstract here, and those that
do nothing.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import trio

from ..accounts import DEFAULT_LIMIT_BYTES, Account, LoanedItem
from ._errors import RemoteProtocolError
from ._flusher import OUTLETS_A_STEP
from ._input import FREE_BYTES, PAUSE_SECONDS, PAUSED_SECONDS, HeldInput
from ._link import LITTLE_BYTES, Ending, Link
from ._logged_connection import LoggedConnection, ServerT
from ._outlet import as_bytes
from ._peer_facts import PeerFacts
from ._scheduler import Work

if TYPE_CHECKING:
    from ._reactor import Reactor

LOOKAHEAD_BYTES = 128 << 10
"""How much unparsed input a connection that waits may have (rule 10): two reads. It is also what
two relays that echo each other may have under way, beyond their sockets' buffers, and go on.
While the peer has something to acknowledge it may have as much as its limit in bytes, or
`DEFAULT_LIMIT_BYTES`: peers write all that they may have in flight before the first
acknowledgement, and it may be just that which is waited for. Less where many wait: what all are
looked ahead at together is bounded (`_input.py`)."""

LOOKAHEAD_PAUSE_SECONDS = 0.05
"""How often it is looked whether there is room, or a reason, to look further ahead."""

FLUSH_POLL_SECONDS = 0.01
"""How often an orderly stop looks whether everything has gone out."""

LINGER_SECONDS = 1.0
"""How long a peer may take to read the last that it is told, and to close a connection that is
closed for it."""

AccountT = TypeVar("AccountT", bound=Account | None)


class Unacknowledged(Protocol):
    """Who holds what has been sent and has still to be acknowledged."""

    def __len__(self) -> int:
        """Return how much that is; 0 for nothing."""
        ...

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.loans`."""
        ...

    def close(self) -> None:
        """Settle it all. Idempotent."""
        ...


class Hold(Protocol):
    """Something that has to happen before a peer is read on: a `trio.Event`, or the like."""

    async def wait(self) -> object:
        """Wait until it has happened."""
        ...


class Session(LoggedConnection[ServerT], abc.ABC, Generic[ServerT, AccountT]):
    """One peer's connection.

    Attributes:
        account: Who pays for what it causes. A protocol whose peers say who they are may have None
            until they have.
        outlet: The way out.
        quiet_until: Before that `check_deadline` would do nothing, on the ledger's clock.
    """

    __slots__ = (
        "_deadline_after", "_eof", "_hold", "_input", "_last", "_left", "_retired", "_steps",
        "_waiting", "_work", "account", "outlet", "quiet_until",
    )  # fmt: skip

    _unacknowledged_are: ClassVar[str]
    """How a sentence goes on that began with how many have not been acknowledged."""

    account: AccountT

    def __init__(
        self,
        server: ServerT,
        link: Link,
        name: str,
        *,
        frame: Callable[[Any], bytes] = as_bytes,
    ) -> None:
        super().__init__(server, link, name)
        settings = server.settings
        self.outlet = server.make_outlet(
            server.ledger,
            server.flusher,
            link.sock,
            name,
            frame=frame,
            on_broken=link.cut,
            patience=settings.patience,
            policy=settings.undroppable_policy,
        )
        self._eof = False
        # Whether it has been found at the end of the stream that nothing is left to be handled.
        self._left = False
        self._waiting = False
        self._retired = False
        self._work = link.work = Work(server.flusher.scheduler)
        # What has to happen before it is read on.
        self._hold: Hold | None = None
        # What is left of a packet that is handled in steps; nothing else is handled before.
        self._steps: Iterator[Hold | None] | None = None
        # What it holds of its peer's input, where that is more than most ever do.
        self._input: HeldInput | None = None
        link.book = server.input
        # Silence is counted from here, and how much of it is too much.
        self._last = server.ledger.clock()
        self._deadline_after: float | None = settings.connect_timeout
        self.quiet_until = 0.0

    def about(self, most: int) -> PeerFacts:
        """Return who its peer is, with the first `most` of its subscriptions."""
        del most
        return PeerFacts(self.peer)

    # -- its life -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the connection until it ends. Never raises but for `trio.Cancelled`."""
        server = self._server
        link = self._link
        try:
            server.open.add(self)
            server.watched.add(self)
            server.joined()
            await self._live()
            if link.says_goodbye and link.opened and not link.closed:
                # Nothing waits for it: what the peer stood for has been taken back.
                with (
                    trio.move_on_after(LINGER_SECONDS),
                    contextlib.suppress(OSError, trio.ClosedResourceError),
                ):
                    await link.say_goodbye()
        except Exception as exc:  # noqa: BLE001 (the nursery is of all connections)
            self.fault("ending it", exc)
        except BaseExceptionGroup as group:
            # Cancelled, and at fault as well.
            faults, others = group.split(Exception)
            if faults is not None:
                self.fault("ending it", faults)
            if others is not None:
                raise others from None
        finally:
            self._retire("internal error")  # nothing is left to be done, but after a fault
            server.open.discard(self)
            server.watched.discard(self)
            link.close()

    async def _live(self) -> None:
        """Serve the connection until nothing but the link is left of it, which knows why."""
        server = self._server
        link = self._link
        reason = "the relay stopped"
        try:
            with link.scope:
                await link.open()
                reason = await self._serve()
            reason = link.why or reason
            if link.ending is Ending.ERROR:
                pass  # it has been logged
            elif server.stopping:
                await self._flush_out()
            else:
                link.ending = Ending.LEFT if link.why is None else Ending.CUT
                await self._take_leave(reason)
                await self._wait_to_leave()
        except RemoteProtocolError as exc:
            server.counters.protocol_errors += 1
            reason = str(exc)
            link.ending = Ending.FAULT
            link.why = link.why or reason
            # Not the exception itself, which would keep this session in whoever keeps log records.
            self._log(logging.WARNING, "closed", f"{self._who} closed: {reason}", reason)
            await self._say_why(exc)
            # Where it was raised, and why, leads back here: kept, only the garbage collector could
            # free this.
            exc.__traceback__ = exc.__context__ = exc.__cause__ = None
            await self._wait_to_leave()
        except OSError as exc:
            link.ending = Ending.LEFT
            reason = f"the connection broke: {exc.strerror or exc}"
            await self._wait_to_leave()
        except Exception as exc:  # noqa: BLE001
            # A fault of ours ends the connection that met it, not the others.
            reason = f"internal error: {exc!r}"
            self.fault("serving it", exc)
        finally:
            self._retire(reason)
            self._work.end()

    async def _serve(self) -> str:
        """Read and handle until the peer leaves; return why it ended."""
        link = self._link
        flusher = self._server.flusher
        work = self._work
        reactor = flusher.reactor if link.can_be_lent else None
        size = 0
        if self.account is None:
            # Nothing is to be done, or to be paid first, before the peer has said who it is.
            self._received(await link.receive_first(reactor))
        while True:
            if self._hold is not None:
                await self._held(self._hold)
            if not work.begin():
                await self._wait_for_turn(work.wait)
            more = self._handle_and_send()
            if flusher.dirty:
                await flusher.flush(work)
            work.end()
            if self._hold is not None:
                continue  # something may have been read when it is over
            if not more:
                # Who has nothing more to say need not wait until it has paid (rule 14).
                ending = self._ending()
                if ending is not None:
                    return ending
            account = self._after_sending()
            if account is not None:
                if account.is_open_wide() or account.funds_are_clear():
                    if more:
                        self._resume(account)
                elif (more and not work.paused) or not account.debt_is_clear():
                    if await self._wait_for_clear_funds(account):
                        continue
                    return self._cut_off()
                # Otherwise there is an alarm, which stops those who publish: not this peer, so far.
            if more:
                self._note_input(lookahead=True)
                await self._wait_for_turn(work.let_others)
                continue
            if self._input is not None or self._holding() > FREE_BYTES:
                held = self._note_input()
                if held is not None and not held.may_grow():
                    await self._wait_for_room(held)
            data = await (link.receive() if size >= LITTLE_BYTES else self._read_little(reactor))
            if data is None:
                continue
            size = len(data)
            self._received(data)
            del data  # up to 64 KiB, while nothing comes

    async def _read_little(self, reactor: Reactor | None) -> bytes | None:
        """Read as often as reads are handled by `_handle_read`: most likely as little comes again.

        Returns:
            What that could not handle; None: it has, and something else is to be done now.
        """
        link = self._link
        if reactor is not None:
            return await link.lend(reactor, self._handle_read)
        while 0 < len(data := await link.receive()) < LITTLE_BYTES:
            done = self._handle_read(data)
            if done is None:
                break
            if not done:
                return None
        return data

    def _handle_read(self, data: bytes) -> bool | None:
        """Do what `_serve` does with what was read, as long as nothing has to be waited for.

        Returns:
            None if `data` has still to be received. Otherwise whether the next read may follow at
            once; if not, `_serve` sees why.
        """
        work = self._work
        if not (data and work.begin()):
            return None
        self._received(data)
        more = self._handle_and_send()
        if self._server.flusher.dirty:
            return False
        work.end()
        if more or self._hold is not None or self._ending() is not None:
            return False
        account = self._after_sending()
        if account is not None and not account.is_open_wide():
            return False
        if self._input is None and self._holding() <= FREE_BYTES:
            return True
        return self._note_input() is None

    def _handle_and_send(self) -> bool:
        """Handle what was read, and send what came of it; whether it stopped (`_handle_input`).

        What this reader may have to wait for must not sit unsent in its own hands. Where there are
        very many outlets it is still to be flushed.
        """
        flusher = self._server.flusher
        flusher.corks += 1  # as `Flusher.corked`, which costs 1 us more for each read
        try:
            more = self._handle_input()
        finally:
            flusher.corks -= 1
        if flusher.dirty and len(flusher.dirty) <= OUTLETS_A_STEP:
            flusher.flush_now()
        return more

    async def _wait_for_turn(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait until it is this connection's turn, and begin a step; its clock stands still."""
        waiting, self._waiting = self._waiting, True
        try:
            await wait()
        finally:
            self._waiting = waiting
            if not waiting:
                self._last = self._server.ledger.clock()

    async def _wait_to_leave(self) -> None:
        """Begin the last step, which is `_retire`: thousands of peers may leave at once."""
        self._work.end()
        if not (self._server.stopping or self._work.begin()):
            await self._wait_for_turn(self._work.wait)

    async def _held(self, hold: Hold) -> None:
        """Wait for what has to happen before the peer is read on."""
        self._waiting = True
        try:
            await hold.wait()
        finally:
            self._waiting = False
            self._last = self._server.ledger.clock()
        if self._hold is hold:
            self._hold = None

    @abc.abstractmethod
    def _handle_input(self) -> bool:
        """Handle what was read; True when it stopped for want of funds, or to let others run."""

    @abc.abstractmethod
    def _received(self, data: bytes) -> None:
        """Take what was read, b"" at the end of the stream, to be handled later."""

    @abc.abstractmethod
    def _ending(self) -> str | None:
        """Say how the peer has left, if it has; nothing that it sent is left to be handled.

        Raises:
            RemoteProtocolError: If it may not leave so.
        """

    @abc.abstractmethod
    def _cut_off(self) -> str:
        """Say how the stream ended.

        Raises:
            RemoteProtocolError: If it may not end so.
        """

    def _go_on(self, steps: Iterator[Hold | None]) -> bool:
        """Go on with what is handled in steps; whether it has been handled.

        A step may yield what has to happen before the next one.
        """
        self._steps = None  # nothing is left of one that fails
        is_over = self._work.is_over
        for hold in steps:
            if hold is not None:
                self._hold = hold
            if hold is not None or is_over():
                self._steps = steps
                return False
        return True

    def _after_sending(self) -> Account | None:
        """Do what is to be done when what was handled has been sent.

        Returns whose funds have to be clear before the peer is read on, or before it is resumed.
        """
        return self.account

    def _resume(self, account: Account) -> None:
        """Do some of what had to wait for funds, which there are, where not all is handled."""

    # -- unfinished input: see `_input.py` -------------------------------------------------------

    @abc.abstractmethod
    def _holding(self) -> int:
        """Return how many bytes of input are in memory, in whatever form."""

    def _let_go(self) -> None:
        """Let go of input that has been handled and is in memory still."""

    def _share(self) -> tuple[str, int | None]:
        """Return name and limit of the share that the input counts for."""
        return self._server.input.of_address(self._link.peer)

    def _drop_input(self, why: str) -> None:
        """Cut the connection, for its input, and drop that at once."""
        self._input = None
        self.cut(why)

    def _note_input(self, *, lookahead: bool = False) -> HeldInput | None:
        """Charge the input that is held, if that is much; `lookahead`: see `HeldInput.note`."""
        held = self._input
        if self._holding() > FREE_BYTES:
            self._let_go()
        nbytes = self._holding()
        if nbytes <= FREE_BYTES:
            self._close_input()
            return None
        if held is None:
            name, limit = self._share()
            held = self._input = self._server.input.open(
                name, limit, self.name, self, measure=self._holding, cut=self._drop_input
            )
        held.note(nbytes, lookahead=lookahead)
        return held

    def _close_input(self) -> None:
        held, self._input = self._input, None
        if held is not None:
            held.close()

    async def _wait_for_room(self, held: HeldInput) -> None:
        """Wait until there is room for more input; the clock stands still for who has logged in."""
        clock = self._server.ledger.clock
        until = clock() + PAUSED_SECONDS
        self._waiting = self.account is not None
        try:
            while not held.may_grow():
                if clock() >= until:
                    self._server.input.cut_for(held, "there is no room for more input")
                await trio.sleep(PAUSE_SECONDS)
        finally:
            if self._waiting:
                self._waiting = False
                self._last = clock()

    # -- its end --------------------------------------------------------------------------------

    async def _flush_out(self) -> None:
        """Wait until everything has gone out, and been acknowledged; an orderly stop bounds it."""
        async with trio.open_nursery() as nursery:
            # Nothing is accepted any more, but acknowledgements: they make room for the rest.
            nursery.start_soon(self._look_ahead, nursery.cancel_scope)
            # Polled: it happens once, and an event in each outlet would cost every connection.
            while self.outlet.unsent or (self._unacknowledged() and not self._eof):  # noqa: ASYNC110
                await trio.sleep(FLUSH_POLL_SECONDS)
            nursery.cancel_scope.cancel()
        await self._take_leave("the relay stops")

    async def _take_leave(self, why: str) -> None:
        """Say the last word to a peer that has done nothing wrong, if the protocol has one."""
        if self._server.stopping:
            await self._linger()

    async def _say_why(self, fault: RemoteProtocolError) -> None:
        """Tell the peer what it did wrong, if the protocol can say so."""

    async def _linger(self) -> None:
        """Let the peer read what is on its way, and close.

        Closed with input unread, the kernel would drop what the peer has not taken yet.
        """
        if not self._link.opened:
            return
        with (
            trio.move_on_after(LINGER_SECONDS),
            contextlib.suppress(OSError, trio.ClosedResourceError),
        ):
            while self.outlet.unsent and not self.outlet.closed:  # noqa: ASYNC110 (as above)
                await trio.sleep(FLUSH_POLL_SECONDS)
            if self.outlet.closed:
                return
            self._link.sock.shutdown(socket.SHUT_WR)
            while not self._eof and (data := await self._link.receive()):
                self._passed_over(data)

    def _passed_over(self, data: bytes) -> None:
        """Look whether what comes after the end is the peer's own last word."""

    def _unacknowledged(self) -> Unacknowledged | None:
        """Return who holds what has been sent and has still to be acknowledged."""
        return None

    def unflushed(self) -> str | None:
        """Say what has not gone out, or has not been acknowledged; None if nothing is left."""
        items = sum(loan.items for loan in self.outlet.loans())
        nbytes = sum(loan.bytes for loan in self.outlet.loans())
        holder = self._unacknowledged()
        unacknowledged = 0 if holder is None else sum(loan.items for loan in holder.loans())
        if not items and not unacknowledged:
            return None
        return (
            f"{self.name}: {items} items ({nbytes} bytes) were not sent, {unacknowledged} "
            f"{self._unacknowledged_are}"
        )

    def _retire(self, reason: str) -> None:
        """Take back all that this connection stands for (rule 4 of this file). Idempotent.

        Its link is closed, too, unless it has still to say goodbye: `run` sees to that.
        """
        if self._retired:
            return
        self._retired = True
        if self._known:
            ledger = self._server.ledger
            ledger.timelines.left(self.name, ledger.clock(), reason)
        flush_now = self._server.flusher.flush_now
        flush_now()
        account = self.account
        # Each for itself: what one of them cannot do the others do all the same.
        for step in (
            self._note_unflushed,
            partial(self._withdraw, reason),
            self.outlet.close,
            self._close_holder,
            self._close_input,
            partial(self._close_account, account),
            self._close,
        ):
            self._server.ledger.faults.call(self, "taking back what it stood for", step)
        if not self._link.says_goodbye:
            self._link.close()
        flush_now()

    def _note_unflushed(self) -> None:
        if self._server.stopping:
            unflushed = self.unflushed()
            if unflushed is not None:
                self._server.unflushed.append(unflushed)

    def _close_holder(self) -> None:
        holder = self._unacknowledged()
        if holder is not None:
            holder.close()

    def _close_account(self, account: Account | None) -> None:
        if account is not None:
            self._server.tree.close(account)

    @abc.abstractmethod
    def _withdraw(self, reason: str) -> None:
        """Take back what the peer stands for, on its own account (rule 2); log why it left."""

    @abc.abstractmethod
    def _close(self) -> None:
        """Forget what was not handled."""

    def cut(self, why: str) -> None:
        """End the connection from this side."""
        self._link.cut(why)

    def expel(self, why: str) -> None:
        """End the connection for the operator; a peer whose protocol has words for that is told."""
        self.cut(why)

    def has(self, whose: object) -> bool:
        """Whether it is this connection's: itself, its account, what is held for its peer."""
        return whose is self or whose is self.outlet or self._is_of_peer(whose)

    def _is_of_peer(self, whose: object) -> bool:
        return whose is not None and (whose is self.account or whose is self._unacknowledged())

    def adjust(self) -> None:
        """Apply the changed settings of its server."""
        settings = self._server.settings
        self.outlet.patience = settings.patience
        self.outlet.policy = settings.undroppable_policy

    # -- its deadline ---------------------------------------------------------------------------

    def check_deadline(self, now: float) -> None:
        """End the connection if the peer has been silent for too long."""
        allowed = self._deadline_after
        if self._waiting or allowed is None or self._retired:
            return  # while it is not read, its clock stands still (rule 10)
        silent = now - self._last
        if silent > allowed:
            self._server.counters.timeouts += 1
            why = self._silence(silent, allowed)
            self._log(logging.WARNING, "closed", f"{self._who} closed: {why}", why)
            self._link.cut(why)

    @abc.abstractmethod
    def _silence(self, seconds: float, allowed: float) -> str:
        """Say what has not come for so long."""

    # -- waiting --------------------------------------------------------------------------------

    async def _wait_for_clear_funds(self, account: Account) -> bool:
        """Wait until there is room, or nothing left to do with it; False if the peer has gone."""
        self._waiting = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_ahead, nursery.cancel_scope)
                await account.ensure_clear_funds()
                nursery.cancel_scope.cancel()
        finally:
            self._waiting = False
            self._last = self._server.ledger.clock()
        return not self._left

    @abc.abstractmethod
    async def _look_ahead(self, wait: trio.CancelScope) -> None:
        """Read a bounded stretch while the rest waits, for what reduces debt (rule 10).

        Where nothing is left that could be handled if there were funds, it cancels the `wait`; and
        sets `_left` if that is because the peer has gone.
        """

    async def _receive_ahead(self) -> bytes:
        """Read while the rest waits; b"" also for a fault, which is found again in its turn."""
        try:
            return await self._link.receive()
        except OSError:
            return b""

    def _stretch(self) -> int:
        """How much unparsed input this connection may have while it waits."""
        most = LOOKAHEAD_BYTES
        if self._unacknowledged():
            limit = self._server.settings.limit.bytes
            most = max(most, DEFAULT_LIMIT_BYTES if limit is None else limit)
        return self._server.input.stretch(most)
