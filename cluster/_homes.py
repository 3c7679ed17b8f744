"""The home of each persistent session: the relay that has it.

Rules of this file:
1. The bucket is the authority. A relay makes a session only when the bucket says that it is the
   home; a relay whose session has another home drops its copy.
2. All that this relay wants to be so in the bucket is made so by one task for each session, which
   goes on until it is. Thousands may do so at once: their requests do not wait for each other.
3. What is done with a session whose home has left is decided in one place (`Homes.may_move`).

Theory of operation. Each relay watches the bucket, so that it knows all homes in RAM: a client
without any session costs no round trip. A relay writes what it wants with the revision that it
knows. If another relay was faster it is refused, and looks again.
"""

from __future__ import annotations

import enum
import hashlib
import json
import logging
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import attrs
import trio

from ..access._tenants import printable
from ..transports import TransportError
from ..transports.mqtt.server._homes import Guest, UnavailableError
from ..transports.nats import WrongSequenceError, open_bucket
from ._following import follow
from ._patiently import JOIN_SECONDS, RETRY_SECONDS, patiently
from ._wake import Wake

if TYPE_CHECKING:
    from ..transports.mqtt.server._homes import Bridge, Passage
    from ..transports.mqtt.server._server import MqttServer
    from ..transports.nats import Entry, KeyValue
    from ._cluster import Cluster
    from ._companion import Place
    from ._forwarding import Forwarding

logger = logging.getLogger("clearfunds.cluster")

KEY_BYTES: Final = 16
"""Bytes of the digest of a session's key: client identifiers may have any characters."""
MARKER_SECONDS: Final = 60.0
"""For so long the bucket tells those who have not been connected that a session has ended."""
REQUESTS: Final = 512
"""Requests under way at a time: 10,000 sessions take seconds, and NATS is not flooded."""
CLAIM_SECONDS: Final = 5.0
"""A client waits so long for its session to be written, before it is told to come again."""
RETURN_SECONDS: Final = 30.0
"""A relay with a store has so long to come back before its sessions are given up."""
DROPPED_A_STEP: Final = 32
"""Sessions dropped when a relay comes back before other tasks may run."""


@attrs.frozen
class Home:
    """The home of one session, as the bucket has it."""

    relay: str
    is_durable: bool
    """Whether the session outlives its relay's process."""
    revision: int

    @classmethod
    def of(cls, entry: Entry) -> Home:
        """Decode a value of the bucket.

        Raises:
            ValueError: It is malformed.
        """
        try:
            found = json.loads(entry.value)
            relay, is_durable = found["relay"], found["durable"]
        except (TypeError, LookupError, RecursionError) as exc:
            msg = f"no home: {exc!r}"
            raise ValueError(msg) from exc
        if not isinstance(relay, str) or type(is_durable) is not bool:
            msg = "no home: its relay or its store has a wrong type"
            raise ValueError(msg)
        return cls(relay, is_durable, entry.revision)


class Move(enum.Enum):
    """What is done with a client whose session has its home at another relay."""

    FORWARD = enum.auto()
    """The other relay serves it."""
    WAIT = enum.auto()
    """It is told to come again."""
    TAKE = enum.auto()
    """This relay becomes the home. The session there was is lost."""


@attrs.define(eq=False)
class _Claim:
    """The wish of clients that this relay be the home of a session."""

    clients: int = 0
    over: int = 0
    """The revision of the home that has been given up; 0: of none."""


class Homes:
    """The homes of all persistent sessions of a cluster; a `Companion`.

    Args:
        mqtt: The relay's MQTT side; from now on its sessions have homes.
        cluster: The relay's place in the cluster.
        forwarding: Has clients served by other relays.

    Attributes:
        me: This relay's name.
        taken: Sessions that this relay has made anew, since their home had left.
        dropped: Sessions that this relay has dropped, since they have another home.
        refused: Clients told to come again.
    """

    def __init__(self, mqtt: MqttServer, cluster: Cluster, forwarding: Forwarding) -> None:
        sessions = mqtt.persistent_sessions
        assert sessions is not None
        self.taken = self.dropped = self.refused = 0
        self._mqtt = mqtt
        self._sessions = sessions
        self._cluster = cluster
        self._forwarding = forwarding
        self.me = cluster.settings.name
        self._value = json.dumps({"relay": self.me, "durable": sessions.outlives}).encode()
        # Tokens that this look at the bucket has found, until it has found all; whether one has.
        self._there: set[str] | None = None
        self._has_looked = False
        # What the bucket says, and this relay's own sessions: both by token.
        self._homes: dict[str, Home] = {}
        self._mine = {token_of(key): key for key in sessions.by_id}
        self._claims: dict[str, _Claim] = {}
        # Homes that have been given up for clients that want no session, by revision.
        self._given_up: dict[str, int] = {}
        # What is not as it is to be in the bucket; and of that, what no task does yet.
        self._unsettled: dict[str, trio.Event] = {}
        self._waiting: dict[str, None] = {}
        self._wake = Wake()
        sessions.on_change = self._changed
        mqtt.homes = cluster.homes = self

    def __repr__(self) -> str:
        return f"<Homes: {len(self)}, {len(self._mine)} here, {len(self._unsettled)} unsettled>"

    def __len__(self) -> int:
        """Return the number of sessions in the cluster."""
        return len(self._homes)

    # -- clients that come ------------------------------------------------------------------------

    def visit(self, guest: Guest) -> Visit:
        """See `Homes` of the MQTT server."""
        return Visit(self, self._forwarding, guest)

    def home_of(self, guest: Guest) -> Home | None:
        """Return the home of a client's session, or of the one that it would adopt."""
        home = self._homes.get(token_of(guest.key))
        if home is None and guest.older_key is not None:
            home = self._homes.get(token_of(guest.older_key))
        return home

    def may_move(self, home: Home, guest: Guest) -> tuple[Move, str]:
        """Decide what is done with a client whose session is at another relay; and why."""
        away = self._cluster.away_since(home.relay)
        if away is None:
            return Move.FORWARD, "it is there"
        lease = self._cluster.lease
        if lease is None or not lease.is_held:
            return Move.WAIT, "this relay is cut off from the others"
        seconds = away + RETURN_SECONDS - trio.current_time()
        if guest.resumes and home.is_durable and seconds > 0:
            self._cluster.on_absence(home.relay)
            why = f"relay {home.relay} has its session, and has {seconds:.0f} s to come back"
            return Move.WAIT, why
        return Move.TAKE, f"relay {home.relay} has left"

    def is_here(self, guest: Guest) -> bool:
        """Whether this relay has a client's session."""
        return token_of(guest.key) in self._mine

    def is_settled(self, guest: Guest) -> bool:
        """Whether the bucket says that this relay is the home of a session."""
        token = token_of(guest.key)
        home = self._homes.get(token)
        return home is not None and home.relay == self.me and token not in self._unsettled

    def claim(self, guest: Guest) -> None:
        """Wish that this relay be the home of a client's session, until `unclaim`."""
        token = token_of(guest.key)
        self._claims.setdefault(token, _Claim()).clients += 1
        self._touch(token)

    def unclaim(self, guest: Guest) -> None:
        """Give up a wish; a session that has been made keeps its home."""
        token = token_of(guest.key)
        claim = self._claims[token]
        claim.clients -= 1
        if not claim.clients:
            del self._claims[token]
            self._touch(token)

    def take(self, guest: Guest, home: Home, why: str) -> None:
        """Give a home up that has left: for the wish that there is, or for nobody. Idempotent."""
        keys = (guest.key, guest.older_key or guest.key)
        token = next(each for each in map(token_of, keys) if self._homes.get(each) == home)
        claim = self._claims.get(token)
        before = self._given_up.get(token) if claim is None else claim.over
        if before == home.revision:
            return
        if claim is None:
            self._given_up[token] = home.revision
        else:
            claim.over = home.revision
        self._touch(token)
        self.taken += 1
        logger.warning(
            "the session of %s ends, and another one may begin here: %s",
            printable(guest.key), why,
            extra={"event": "session_taken", "relay": home.relay, "client_id": guest.key},
        )  # fmt: skip

    def until_settled(self, guest: Guest, deadline: float) -> Settling:
        """Return what has to be waited for until a wish is settled."""
        event = self._unsettled.get(token_of(guest.key))
        if event is None:  # it has just been, and was not granted
            return Settling(trio.Event(), min(deadline, trio.current_time() + RETRY_SECONDS))
        return Settling(event, deadline)

    # -- this relay's sessions --------------------------------------------------------------------

    def _changed(self, key: str) -> None:
        token = token_of(key)
        if key in self._sessions.by_id:
            self._mine[token] = key
        else:
            self._mine.pop(token, None)
        self._touch(token)

    def _is_wanted(self, token: str) -> bool:
        return token in self._mine or token in self._claims

    def _is_as_wanted(self, token: str) -> bool:
        home = self._homes.get(token)
        is_home = home is not None and home.relay == self.me
        return is_home == self._is_wanted(token) and token not in self._given_up

    def _touch(self, token: str) -> None:
        """See that the bucket says what is wanted."""
        if token not in self._unsettled and not self._is_as_wanted(token):
            self._unsettled[token] = trio.Event()
            self._waiting[token] = None
            self._wake.set()

    def _drop(self, token: str) -> None:
        """Drop a session that has another home."""
        key = self._mine.pop(token, None)
        if key is None:
            return
        self.dropped += 1
        home = self._homes.get(token)
        logger.warning(
            "the session of %s is dropped: it is at relay %s now",
            printable(key), "?" if home is None else home.relay,
            extra={"event": "session_dropped", "client_id": key},
        )  # fmt: skip
        connected = self._mqtt.sessions.get(key)
        if connected is not None:
            connected.give_way()
        self._sessions.discard(key)

    # -- the bucket -------------------------------------------------------------------------------

    async def run(
        self, place: Place, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See `Companion.run`: it has started when this relay's sessions have their homes."""
        bucket = await patiently(
            partial(
                open_bucket,
                place.js,
                f"clearfunds-{place.cluster}-sessions",
                marker_ttl=MARKER_SECONDS,
                replicas=place.replicas,
            )
        )
        async with trio.open_nursery() as nursery:
            watch = partial(
                follow,
                bucket,
                "the homes of sessions cannot be read, trying again",
                begin=self._begin_look,
                note=self._take_entry,
                whole=self._all_noted,
            )
            await nursery.start(watch)
            nursery.start_soon(self._settle_all, bucket)
            with trio.move_on_after(JOIN_SECONDS) as patience:
                for event in list(self._unsettled.values()):
                    await event.wait()
            if patience.cancelled_caught:
                logger.warning("%d sessions are not in the cluster yet", len(self._unsettled))
            task_status.started()

    def _begin_look(self) -> None:
        self._there = set()

    async def _take_entry(self, entry: Entry) -> None:
        if self._there is not None:
            self._there.add(entry.key)
        self._note(entry, begins=not self._has_looked)

    async def _all_noted(self) -> None:
        for token in self._homes.keys() - (self._there or set()):
            del self._homes[token]
        self._there = None
        await self._reconcile()
        self._has_looked = True

    async def _reconcile(self) -> None:
        """Compare this relay's sessions with the bucket, when that has been read."""
        for number, token in enumerate([*self._mine], 1):
            home = self._homes.get(token)
            if home is not None and home.relay != self.me:
                self._drop(token)
            else:
                self._touch(token)
            if not number % DROPPED_A_STEP:
                await trio.lowlevel.checkpoint()
        for token, home in list(self._homes.items()):
            if home.relay == self.me:
                self._touch(token)

    def _note(self, entry: Entry, *, begins: bool = False) -> None:
        """Note what the bucket says of one session; `begins`: it is the first look."""
        token = entry.key
        known = self._homes.get(token)
        if known is not None and entry.revision < known.revision:
            return
        try:
            home = Home.of(entry) if entry.is_there else None
        except ValueError as exc:
            logger.error("the home of session %s is malformed: %s", token, exc)
            return
        if home is None:
            self._homes.pop(token, None)
        else:
            self._homes[token] = home
        if begins:
            return  # see `_reconcile`
        if home is not None and home.relay != self.me and token in self._mine:
            self._mqtt.ledger.faults.call(None, "dropping a session", self._drop, token)
        self._touch(token)

    async def _settle_all(self, bucket: KeyValue) -> NoReturn:
        places = trio.Semaphore(REQUESTS)
        async with trio.open_nursery() as nursery:
            while True:
                await self._wake.wait()
                while self._waiting:
                    await places.acquire()
                    token = next(iter(self._waiting))
                    del self._waiting[token]
                    nursery.start_soon(self._settle, bucket, token, places)

    async def _settle(self, bucket: KeyValue, token: str, places: trio.Semaphore) -> None:
        """Make the bucket say what is wanted of one session."""
        try:
            while not self._is_as_wanted(token):
                try:
                    if not await self._step(bucket, token):
                        break
                except WrongSequenceError:
                    await self._look_again(bucket, token)
                except TransportError as exc:
                    logger.debug("the home of session %s is not written: %s", token, exc)
                    await trio.sleep(RETRY_SECONDS)
        finally:
            self._unsettled.pop(token).set()
            places.release()
        if token in self._mine and not self._is_as_wanted(token):
            self._mqtt.ledger.faults.call(None, "dropping a session", self._drop, token)

    async def _step(self, bucket: KeyValue, token: str) -> bool:
        """Do one step; return whether there may be another one.

        Raises:
            TransportError: It could not be done; `WrongSequenceError` if another relay was faster.
        """
        home = self._homes.get(token)
        claim = self._claims.get(token)
        given_up = self._given_up.pop(token, None)
        if not self._is_wanted(token):
            if home is not None and (home.relay == self.me or home.revision == given_up):
                revision = home.revision
                await bucket.delete(token, revision=revision, purge=True, ttl=MARKER_SECONDS)
                self._homes.pop(token, None)
            return True
        if home is None:
            revision = await bucket.create(token, self._value)
        elif home.relay != self.me:
            if claim is None or claim.over != home.revision:
                return False  # it has another home
            revision = await bucket.update(token, self._value, home.revision)
        else:
            return True
        self._homes[token] = Home(self.me, self._sessions.outlives, revision)
        return True

    async def _look_again(self, bucket: KeyValue, token: str) -> None:
        try:
            found = await bucket.get(token, direct=False)
        except TransportError as exc:
            logger.debug("the home of session %s cannot be read: %s", token, exc)
            await trio.sleep(RETRY_SECONDS)
            return
        if found is None:
            self._homes.pop(token, None)
            return
        try:
            self._homes[token] = Home.of(found)
        except ValueError as exc:
            logger.error("the home of session %s is malformed: %s", token, exc)
            await trio.sleep(RETRY_SECONDS)


@attrs.frozen
class Settling:
    """Something that a client waits for, but not for long."""

    event: trio.Event
    deadline: float

    async def wait(self) -> None:
        """Wait until it has happened, or for too long."""
        with trio.move_on_at(self.deadline):
            await self.event.wait()


class Visit:
    """A client that looks for its session; see `Visit` of the MQTT server.

    Args:
        homes: The homes of all sessions.
        forwarding: Has clients served by other relays.
        guest: The client.
    """

    __slots__ = ("_forwarding", "_guest", "_has_claimed", "_homes")

    def __init__(self, homes: Homes, forwarding: Forwarding, guest: Guest) -> None:
        self._homes = homes
        self._forwarding = forwarding
        self._guest = guest
        self._has_claimed = False

    def find(self) -> Generator[Settling, None, str | None]:
        """Return the relay that serves the client; None: this one."""
        homes, guest = self._homes, self._guest
        deadline = trio.current_time() + CLAIM_SECONDS
        while True:
            home = homes.home_of(guest)
            if home is not None and home.relay != homes.me:
                move, why = homes.may_move(home, guest)
                if move is Move.FORWARD:
                    self.close()
                    return home.relay
                if move is Move.WAIT:
                    raise self._refusal(why)
                if guest.keeps:
                    self._claim()
                homes.take(guest, home, why)
            if not guest.keeps:
                return None
            self._claim()
            if homes.is_settled(guest) or homes.is_here(guest):
                return None
            yield homes.until_settled(guest, deadline)
            if trio.current_time() >= deadline:
                raise self._refusal("its session could not be written in the cluster in time")

    def _claim(self) -> None:
        if not self._has_claimed:
            self._has_claimed = True
            self._homes.claim(self._guest)

    def _refusal(self, why: str) -> UnavailableError:
        self._homes.refused += 1
        return UnavailableError(why)

    def cross(self, relay: str, passage: Passage) -> Bridge:
        """Have another relay serve the client.

        Raises:
            UnavailableError: It has just left.
        """
        bridge = self._forwarding.cross(relay, passage)
        if bridge is None:
            raise self._refusal(f"relay {relay}, which has its session, has just left")
        return bridge

    def close(self) -> None:
        """Give up the right to make a session, if none has been made. Idempotent."""
        if self._has_claimed:
            self._has_claimed = False
            self._homes.unclaim(self._guest)


def token_of(key: str) -> str:
    """Return the key in the bucket of a session."""
    return hashlib.blake2b(key.encode(), digest_size=KEY_BYTES).hexdigest()
