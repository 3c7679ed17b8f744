"""The server of one protocol: shared state of its sessions, and their deadlines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import attrs
import trio

from ..access._account_tree import AccountTree
from ..access._admission import Admission
from ..access.acl import Authority
from ..accounts import Account
from ..accounts._cooperative import SHORT_SECONDS, STEP, run_to_end, with_pauses
from ..dataspace import Dataspace
from ._flusher import Flusher
from ._input import InputBook
from ._link import Link
from ._outlet import Outlet
from ._partings import Partings, Steps
from ._scheduler import SLICE_SECONDS, Work
from ._settings import ServerSettings
from ._ticker import next_tick

if TYPE_CHECKING:
    from ._session import Session

TICK_SECONDS = 0.5
"""The interval of deadline checks: a thousand idle connections cost one task, not a thousand."""

ALL_SECONDS = 10.0
"""The interval in which all connections are looked at, for those whose deadline is near. Ten
thousand idle ones that were all looked at in each tick would take 2 % of a core."""

SettingsT = TypeVar("SettingsT", bound=ServerSettings)
SessionT = TypeVar("SessionT", bound="Session[Any, Any]")


@attrs.define(slots=True)
class Counters:
    """Counts since the start; totals that never fall."""

    accepted: int = 0
    """Connections accepted."""
    refused: int = 0
    """Connections closed at once, because there were too many; and refused logins: MQTT's
    CONNECTs."""
    protocol_errors: int = 0
    """Connections closed because the peer broke the protocol."""
    timeouts: int = 0
    """Connections closed because the peer was silent for too long."""
    internal_errors: int = 0
    """Faults of the relay's own, each of which has ended a connection; logged with its trace. Those
    that have ended none are in `Faults.unowned`."""
    received: int = 0
    """Messages received: MQTT's publications."""
    received_bytes: int = 0
    """Bytes read from sockets."""
    rejected: int = 0
    """Messages that were not routed: not allowed on that topic, or over a quota."""


class Server(Generic[SettingsT, SessionT]):
    """Shared state of the sessions of one protocol. Each protocol has its own, with a `handle`.

    Attributes:
        logger: The logger for events of their peers.
        dataspace: The dataspace in which their peers meet.
        ledger: The ledger of all debt.
        flusher: Sends for their outlets.
        account: The account above all of theirs.
        tree: The tree of their accounts, below it.
        settings: Limits and time-outs for peers.
        admission: Connection limits; shared with other protocols.
        open: Every connection, from when it may begin to its end.
        watched: Those that look at their deadlines in each tick: it may be over within
            `ALL_SECONDS`.
        counters: Counts since the start.
        stopping: Whether connections end as soon as everything they are owed has been sent.
        partings: State of ended connections that is still to be taken back.
        unflushed: A sentence for each that ended, while stopping, before everything was sent.
        make_outlet: Makes each connection's outlet; to be set before anybody connects.
        authority: Permissions of peers to publish and read; likewise.
        input: The book of their peers' unfinished input; likewise, where servers share it.
    """

    logger: ClassVar[logging.Logger]

    def __init__(
        self,
        dataspace: Dataspace,
        flusher: Flusher,
        account: Account,
        settings: SettingsT,
        admission: Admission | None = None,
        tree: AccountTree | None = None,
    ) -> None:
        self.dataspace = dataspace
        self.ledger = dataspace.ledger
        self.flusher = flusher
        self.account = account
        self.tree = AccountTree(account) if tree is None else tree
        self.settings = settings
        self.open: set[SessionT] = set()
        self.watched: set[SessionT] = set()
        self._all_due = 0.0
        self.admission = Admission(settings.max_connections) if admission is None else admission
        self.counters = Counters()
        self.partings = Partings(flusher, self._not_taken_back)
        self.stopping = False
        self._stop = trio.Event()
        self.unflushed: list[str] = []
        self.make_outlet: Callable[..., Outlet] = Outlet
        self.authority = Authority()
        self.input = InputBook(self.ledger)
        self.ledger.faults.ends.append(self._end)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.open)} connections>"

    def adjust(self, settings: SettingsT) -> None:
        """Take other settings, for the peers that are connected, too.

        Those may differ that are reloadable; what is shared with other servers, such as `tree` and
        `admission`, has been adjusted before.
        """
        self.settings = settings
        for session in list(self.open):
            self.ledger.faults.call(session, "applying changed settings", session.adjust)

    async def serve(self, link: Link, make: Callable[[], SessionT]) -> None:
        """Serve one accepted connection until it ends, if there is room for it.

        Never raises but for `trio.Cancelled`.
        """
        admission = self.admission
        why = admission.come(link.peer)
        if why is not None:
            self._refuse(link, why)
            return
        try:
            if await self._its_turn(link):
                self.counters.accepted += 1
                session = self._begun(link, make)
                del make  # kept, it would be 4 % of an idle connection's memory
                if session is not None:
                    await session.run()
        finally:
            admission.leave(link.peer)
            link.close()

    async def _its_turn(self, link: Link) -> bool:
        """Wait until a connection may begin (`ConnectRate`); False if it may not at all."""
        wait = self.admission.turn(link.peer, self.ledger.clock())
        if wait is None:
            self._refuse(link, "its address connects too often (connect_rate)")
            return False
        if wait:
            with trio.move_on_after(wait):
                await self._stop.wait()
        return not self.stopping

    def _refuse(self, link: Link, why: str) -> None:
        self.counters.refused += 1
        self.log_stranger(
            logging.WARNING,
            link.peer,
            f"{link.peer} refused: {why}",
            {
                "event": "refused",
                "peer": link.peer,
                "connections": len(self.admission),
                "reason": why,
            },
        )
        link.close()

    def log_stranger(self, level: int, peer: str, text: str, extra: dict[str, object]) -> None:
        """Log a line about a peer that has not been let in, unless there were enough of them."""
        now = self.ledger.clock()
        self.admission.strangers.log(self.logger, level, peer, text, extra, now)

    def _begun(self, link: Link, make: Callable[[], SessionT]) -> SessionT | None:
        """Make a session; None, with its link closed, if that fails: accepting goes on."""
        try:
            return make()
        except Exception as exc:  # noqa: BLE001 (the nursery is of all connections)
            link.close()
            self.ledger.faults.note(None, f"letting {link.peer} connect", exc)
            return None

    def _end(self, whose: object, doing: str, exc: Exception) -> bool:
        """End the connection at fault, if it is one of these; see `Faults`."""
        session = next((each for each in self.open if each.has(whose)), None)
        if session is None:
            return False
        session.fault(doing, exc)
        return True

    def take_back(self, name: str, account: Account, steps: Steps) -> None:
        """Take back the subscriptions and assertions of an ended connection; see `Partings`."""
        self.partings.take_back(name, account, Work(self.flusher.scheduler), steps)

    def _not_taken_back(self, name: str, fault: Exception) -> None:
        self.ledger.faults.note(None, f"taking back what {name} has left", fault)

    def stop(self) -> None:
        """End every connection as soon as everything it is owed has been sent."""
        self.stopping = True
        self._stop.set()
        self.admission.strangers.sum_up(self.ledger.clock())
        for session in list(self.open):
            session.cut("the relay stops")

    async def keep_time(self) -> None:
        """Hold every connection to its deadline, until cancelled."""
        while True:
            await next_tick(TICK_SECONDS)
            now = self.ledger.clock()
            call = self.ledger.faults.call
            await with_pauses(self.look_at_deadlines(now), SHORT_SECONDS)
            call(None, "summing up the log", self.admission.strangers.each_tick, now)
            try:
                await with_pauses(self.ticks(now), SLICE_SECONDS)
            except Exception as exc:  # noqa: BLE001 (whatever it is, time goes on)
                self.ledger.faults.note(None, "doing what is due", exc)
            call(None, "looking at unfinished input", self.input.tick, now, self.settings.patience)

    def look_at_deadlines(self, now: float) -> Generator[None, None, None]:
        """Have connections look at their deadlines, in steps."""
        soon = now + ALL_SECONDS + TICK_SECONDS
        if now >= self._all_due:
            self._all_due = now + ALL_SECONDS
            every = list(self.open)
            for start in range(0, len(every), STEP):
                if start:
                    yield
                # Some may have ended meanwhile.
                some = self.open.intersection(every[start : start + STEP])
                self.watched.update([each for each in some if each.quiet_until <= soon])
        call = self.ledger.faults.call
        for number, session in enumerate(list(self.watched), 1):
            if session.quiet_until > soon:
                self.watched.discard(session)
            elif session.quiet_until <= now and session in self.open:
                call(session, "looking at its deadline", session.check_deadline, now)
            if not number % STEP:
                yield

    def joined(self) -> None:
        """Note that a connection has been added to `open`."""

    def ticks(self, now: float) -> Generator[None, None, None]:
        """Do further work that is due at `now`, on the ledger's clock; yield between its steps."""
        del now
        yield

    def each_tick(self, now: float) -> None:
        """Do all of that in one step."""
        run_to_end(self.ticks(now))
