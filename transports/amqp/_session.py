"""One AMQP client's connection: binds the protocol to an account, an outlet and a virtual host.

Rules of this file, beyond those of every session (`.._session`):
1. Funds are looked at before each publication (rule 9), and before commands whose answers the
   client does not read.
2. While the connection waits, what a consumer says is taken out of a bounded stretch of its input
   (rule 10, `_parked.py`).
3. Whatever the client did wrong, it is told the reply code, and which object is closed. A soft
   error closes a channel: what was not acknowledged there goes back to the queues.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import trio
from pamqp.commands import Channel, Connection

from ...access._tenants import NO_USER
from ...accounts import Account, LoanedItem
from .._errors import RemoteProtocolError
from .._input import LOOKAHEAD_FLOOR
from .._link import Link
from .._need_data import NEED_DATA
from .._session import LINGER_SECONDS, LOOKAHEAD_PAUSE_SECONDS, Hold, Session
from ._channel import NotYet, ServerChannel
from ._connection import (
    Ack,
    Command,
    ConnectionInput,
    Greeting,
    Publish,
    Received,
    State,
    WrongProtocolError,
)
from ._consuming import OutletRoom
from ._facts import facts_of
from ._frames import (
    HEARTBEAT_FRAME,
    MIN_FRAME_SIZE,
    PROTOCOL_HEADER,
    close_frame,
    frame_of,
    method_frame,
)
from ._login import LoginRefusedError
from ._negotiation import Negotiation, Opened
from ._parked import Parked, channel_of, is_silent
from ._pausing import Pausing
from ._properties import KnownFacts
from ._refusing import passes, publish_or_refuse
from ._replies import NO_METHOD, AmqpError, Code, Method
from ._sender import Sender
from ._topic_rights import TopicRights

if TYPE_CHECKING:
    from ...dataspace.exchanges import VirtualHost
    from .._peer_facts import PeerFacts
    from ..mqtt.server._over_limit import Excess
    from ._server import AmqpServer

MISSED: Final = 2
"""Heartbeat intervals without a byte after which a connection ends (section 4.2.7)."""

POLL_SECONDS: Final = 0.005
"""How often it is looked whether the disk has what a basic.get waits for."""


@attrs.frozen(slots=True)
class _Polled:
    """Waits until something is the case that nobody reports."""

    ready: Callable[[], bool]

    async def wait(self) -> object:
        while not self.ready():  # noqa: ASYNC110 (nobody could say so)
            await trio.sleep(POLL_SECONDS)
        return None


class Unacked:
    """The deliveries that a client has to acknowledge, on all channels; their queues hold them."""

    __slots__ = ("_channels",)

    def __init__(self, channels: dict[int, ServerChannel]) -> None:
        self._channels = channels

    def __len__(self) -> int:
        return sum([channel.unacked for channel in self._channels.values()])

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """Yield nothing: the loans are the queues'."""
        return iter(())

    def close(self) -> None:
        """Leave them to their channels."""


class AmqpSession(Session["AmqpServer", Account | None]):
    """One client's connection.

    Attributes:
        account: Who pays for what it causes; None before connection.open.
        channels: The open channels, by number.
        reads: How often its input was handled.
        room: The room in the outlet for deliveries.
        sender: Sends it the server's own frames.
        topics: Its rights to MQTT's topics; None before connection.open.
        facts: What the relay heeds of messages' properties.
        negotiation: What has been negotiated: its user, the size of frames, its capabilities.
        is_blocked: Whether it has heard that it is not read.
        pausing: Its pauses while consumers are behind.
    """

    __slots__ = (
        "_beats_at", "_excess", "_fault", "_incoming", "_missed", "_opened", "_parked", "_short",
        "channels", "facts", "is_blocked", "negotiation", "pausing", "reads", "room", "sender",
        "topics",
    )  # fmt: skip

    _unacknowledged_are = "deliveries were not acknowledged"

    def __init__(self, server: AmqpServer, link: Link, listener: str) -> None:
        # Until it has said who it is, it is known by where it comes from.
        super().__init__(server, link, link.peer)
        settings = server.settings
        self.account = None
        self.channels: dict[int, ServerChannel] = {}
        self.reads = 0
        self.room = OutletRoom(self.outlet)
        self.outlet.on_flowing = self.room.flows
        self.is_blocked = False
        self._incoming = ConnectionInput(
            max_first_size=max(settings.max_connect_size, MIN_FRAME_SIZE),
            max_message_size=settings.max_packet_size,
        )
        self.sender = Sender(server, link, self.outlet)
        self.negotiation = Negotiation(
            server, link, listener, self._incoming, self.sender.send_unowed
        )
        self._opened: Opened | None = None
        self.topics: TopicRights | None = None
        self._excess: Excess | None = None
        self.facts = KnownFacts()
        self._parked = Parked()
        # What was found behind the parked commands.
        self._fault: RemoteProtocolError | None = None
        # Who has no funds for the publication that is next, where others are refused.
        self._short: Account | None = None
        self._beats_at = 0.0
        self._missed = False
        self.pausing = Pausing()

    def __repr__(self) -> str:
        return f"<AmqpSession {self.name}: {self._incoming.state.value}>"

    @property
    def server(self) -> AmqpServer:
        """The server."""
        return self._server

    @property
    def host(self) -> VirtualHost:
        """The virtual host of a connection that is open."""
        assert self._opened is not None
        return self._opened.host

    @property
    def is_waiting(self) -> bool:
        """Whether it is not read."""
        return self._waiting

    @property
    def _who(self) -> str:
        peer = self._link.peer
        return peer if self.account is None else f"{self.name} ({peer})"

    @property
    def _account_name(self) -> str | None:
        return None if self.account is None else self.name

    # -- its life ----------------------------------------------------------------------------------

    def _ending(self) -> str | None:
        if self._incoming.state is State.CLOSED:
            return "the client closed the connection"
        return self._cut_off() if self._eof else None

    def _cut_off(self) -> str:
        if self._link.fault is not None:
            raise self._link.fault
        left = self._incoming.unparsed
        if left:
            return f"the client closed its socket within a frame ({left} bytes of it came)"
        return "the client closed its socket without connection.close"

    def _received(self, data: bytes) -> None:
        if not data:
            self._eof = True
            return
        self._server.counters.received_bytes += len(data)
        if self.account is not None:  # the time that it has to be let in goes on
            self._last = self._server.ledger.clock()
        self._incoming.receive_data(data)

    async def _flush_out(self) -> None:
        """See `Session._flush_out`: what is unacknowledged goes back to the queues."""
        if self.account is None:
            return
        self._end_channels(failed=False)
        await self._part(Code.CONNECTION_FORCED, "CONNECTION_FORCED - the relay stops")

    async def _take_leave(self, why: str) -> None:
        """See `Session._take_leave`; one that is cut off is told so, unless it is silent."""
        is_over = self._eof or self._incoming.state is State.CLOSED
        if self._missed or is_over or self.account is None:
            return
        self._end_channels(failed=True)
        if not self.outlet.unsent:
            await self._part(Code.CONNECTION_FORCED, f"CONNECTION_FORCED - {why}")

    async def _say_why(self, fault: RemoteProtocolError) -> None:
        """See `Session._say_why`."""
        if isinstance(fault, WrongProtocolError):
            self.sender.send_unowed(PROTOCOL_HEADER)
            await self._linger()
            return
        if not isinstance(fault, AmqpError) or self._incoming.state is State.HEADER:
            return
        if isinstance(fault, LoginRefusedError) and not self.negotiation.wants_close:
            return
        self._end_channels(failed=True)
        await self._part(fault.code, fault.text, fault.method)

    async def _part(self, code: Code, text: str, method: Method = NO_METHOD) -> None:
        """Send connection.close, and wait, not for long, until the client has agreed to it."""
        self.sender.answer(close_frame(0, code, text, method))
        incoming = self._incoming
        incoming.state = State.CLOSING
        self._deadline_after = None  # it is over in any case
        self._server.flusher.flush_now()
        with (
            trio.move_on_after(LINGER_SECONDS),
            contextlib.suppress(OSError, RemoteProtocolError, trio.ClosedResourceError),
        ):
            while not self.outlet.closed:
                command = incoming.next_command()
                if isinstance(command, Command):
                    if isinstance(command.method, Connection.Close):
                        self.sender.send_unowed(method_frame(0, Connection.CloseOk()))
                    break
                if command is NEED_DATA:
                    data = await self._link.receive()
                    if not data:
                        break
                    incoming.receive_data(data)
        incoming.close()

    def _unacknowledged(self) -> Unacked | None:
        return Unacked(self.channels) if self.channels else None

    def _end_channels(self, *, failed: bool) -> None:
        """End all channels; `failed`: what is unacknowledged has failed."""
        self._parked.clear()
        channels = list(self.channels.values())
        self.channels.clear()
        with self._server.flusher.corked():
            for channel in channels:
                close = partial(channel.close, failed=failed)
                self._server.ledger.faults.call(self, "closing its channels", close)

    def _withdraw(self, reason: str) -> None:
        """Take back what the client stands for: consumers, deliveries, exclusive queues."""
        server = self._server
        self.sender.gone = True
        graceful = self._incoming.state is State.CLOSED or server.stopping
        self.room.close()
        self._end_channels(failed=not graceful)
        opened, self._opened = self._opened, None
        if opened is not None:
            with server.flusher.corked():
                server.ledger.faults.call(
                    self, "deleting its exclusive queues", opened.host.connection_gone, self
                )
            if opened.place is not None:
                opened.place.leave()
        server.blocked.forget(self)
        left = "left" if self.account is not None else "left before it was connected"
        self._log(logging.INFO, "left", f"{self._who} {left}: {reason}", reason)

    def _close(self) -> None:
        self._incoming.close()
        self._parked.clear()
        self._fault = None
        excess = self._excess
        self._refuse_by(None)
        if excess is not None:
            excess.close()

    def _silence(self, seconds: float, allowed: float) -> str:
        if self.negotiation.login.undecided:
            return f"its password was not checked within {allowed:g} s"
        if self.account is None:
            return f"no connection.open within {allowed:g} s"
        self._missed = True  # such a connection ends without a word (section 4.2.7)
        return f"missed heartbeats from client, for {seconds:.1f} s; {allowed:g} are allowed"

    def check_deadline(self, now: float) -> None:
        """See `Session.check_deadline`; also sends heartbeats, and ends what a token allowed."""
        login = self.negotiation.login
        if login.ends_at is not None and now >= login.ends_at:
            login.ends_at = None
            self.cut("its token has expired")
        elif not login.is_delayed:
            super().check_deadline(now)
        heartbeat = self.negotiation.heartbeat
        if heartbeat and self._opened is not None and now >= self._beats_at:
            self._beats_at = now + heartbeat / 2
            if not self.outlet.unsent:
                self.sender.send(HEARTBEAT_FRAME)
                self._server.flusher.ready()

    # -- unfinished input --------------------------------------------------------------------------

    def _holding(self) -> int:
        return self._incoming.held_bytes + self._parked.nbytes

    def _let_go(self) -> None:
        self._incoming.let_go()

    def _share(self) -> tuple[str, int | None]:
        book, user = self._server.input, self.negotiation.login.user
        if self.account is None or user is None:
            return book.before_login(self._link.peer)
        if user.is_verified and self._opened is not None and self._opened.peer.user != NO_USER:
            return book.of_user(self._opened.peer.user)
        return book.of_address(self._link.peer)

    def _drop_input(self, why: str) -> None:
        self._incoming.close()
        self._parked.clear()
        super()._drop_input(why)

    def adjust(self) -> None:
        """See `Session.adjust`."""
        super().adjust()
        opened, account, server = self._opened, self.account, self._server
        if opened is None or account is None:
            return  # it has not been let in yet, or has left
        limit = server.settings.limit_of(opened.peer.name, opened.client)
        server.tree.adjust_connection(account, opened.peer, limit)
        if server.over_limits is not None:
            self._refuse_by(
                server.over_limits.renew(self._excess, account, opened.peer.name, opened.client)
            )

    def _refuse_by(self, excess: Excess | None) -> None:
        """Refuse publications above the client's limits from now on; None: they wait."""
        self._excess = excess
        self.sender.account = self.account if excess is None else excess.answers

    # -- waiting -----------------------------------------------------------------------------------

    def send_when_durable(self, data: bytes) -> None:
        """Send an answer when all definitions are durable; nothing more is handled before."""
        hold = trio.Event()

        def durable() -> None:
            if not hold.is_set():
                hold.set()
                self.sender.send_later(data)

        self._hold = hold
        self.host.when_durable(durable, self)
        if hold.is_set():
            self._hold = None

    def _after_sending(self) -> Account | None:
        """See `Session._after_sending`: who pays for the publication that is next."""
        if self._excess is None:
            return self.account
        return self._short or self._excess.overdue

    async def _held(self, hold: Hold) -> None:
        """See `Session._held`: what the disk has to do first may take long (rule 10)."""
        if self.negotiation.login.undecided:
            await self.negotiation.login.decide(self._read_until_it_leaves)
            self._hold = None
            self.negotiation.tune()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_ahead, nursery.cancel_scope)
            await super()._held(hold)
            nursery.cancel_scope.cancel()
        if self._hold is hold:
            self._hold = None  # the client has gone

    async def _read_until_it_leaves(self, check: trio.CancelScope) -> None:
        """Read a bounded stretch while its password is checked; end the check if it leaves."""
        while not self._eof and self._incoming.unparsed < LOOKAHEAD_FLOOR:
            self._note_input(lookahead=True)
            self._received(await self._receive_ahead())
        self._note_input(lookahead=True)
        if self._eof:
            check.cancel()

    async def _look_ahead(self, wait: trio.CancelScope) -> None:
        """Take what makes room out of the input, while publications wait (rule 10).

        It ends the wait where nothing is left that waits for funds and the client has left; and
        `patience` after it has left in any case: nothing of what waits then has been accepted.
        """
        while await self._overtake():
            self._note_input(lookahead=True)
            if self._eof or self._fault is not None:
                break
            if self._holding() >= self._stretch():
                await trio.sleep(LOOKAHEAD_PAUSE_SECONDS)
            else:
                self._received(await self._receive_ahead())
        else:
            return
        # It acknowledges nothing any more, and what it has may be just what it waits for.
        with self._server.flusher.corked():
            for channel in list(self.channels.values()):
                channel.consumes_no_more()
        self._server.flusher.flush_now()
        if self._parked:
            await trio.sleep(self._server.settings.patience)
            self.complain(f"{len(self._parked)} commands dropped: their client has left")
            self._parked.clear()
        self._left = self._eof and self._fault is None
        wait.cancel()

    async def _overtake(self) -> bool:
        """Handle all that has come and may overtake; False if the connection has ended.

        Cancellation: it is shielded, as what is handled has been taken out of the input.
        """
        work, server = self._work, self._server
        incoming = self._incoming
        work.begin_now()
        with server.handling():
            self.reads += 1
            while self._fault is None:
                command = None
                try:
                    found = incoming.next_command()
                    if found is NEED_DATA:
                        break
                    command = found
                    if self._may_overtake(command):
                        self._handle(command)
                    else:
                        self._parked.put(command)
                except NotYet:
                    assert command is not None
                    self._parked.put(command)
                except RemoteProtocolError as exc:
                    _note_channel(exc, command)
                    # Not raised: this is another task than the one that serves the connection.
                    if not self._closes_channel(exc):
                        self._fault = exc
                if self._retired or self._link.why is not None:
                    work.end()
                    return False
                if work.is_over():
                    server.settle()
                    server.say_confirms()
                    server.flusher.flush_now()
                    with trio.CancelScope(shield=True):
                        await work.let_others()
        server.flusher.flush_now()
        work.end()
        return True

    def _may_overtake(self, command: Received) -> bool:
        if not self._parked.lets(command):
            return False
        # A client that reads nothing must not fill its outlet with answers.
        return is_silent(command) or not (self.outlet.blocked or self._hold is not None)

    # -- what came in ------------------------------------------------------------------------------

    def _handle_input(self) -> bool:
        self.reads += 1
        if self._excess is not None:
            self._excess.begin()
            self._short = None
        with self._server.handling():
            more = self._handle_commands()
        if self._hold is None:
            self._hold = self.pausing.pause()
        return more

    def _handle_commands(self) -> bool:
        incoming, parked, work = self._incoming, self._parked, self._work
        has_begun = False
        while self._hold is None:
            if has_begun and work.is_over():
                return True
            has_begun = True
            command = None
            try:
                if parked:
                    command = parked.take()
                elif self._fault is not None:
                    raise self._fault
                else:
                    found = incoming.next_command()
                    if found is NEED_DATA:
                        if incoming.position >= len(incoming.buffer):
                            incoming.buffer = b""
                            incoming.position = 0
                        if self._link.fault is not None:
                            raise self._link.fault
                        return False
                    command = found
                if not self._has_funds(command):
                    parked.put_back(command)
                    return True
                self._handle(command)
            except NotYet as exc:
                assert command is not None
                parked.put_back(command)
                self._hold = _Polled(exc.ready)
            except AmqpError as exc:
                _note_channel(exc, command)
                if not self._closes_channel(exc):
                    raise
            if incoming.state is State.CLOSED:
                return False
        return True

    def _has_funds(self, command: Received) -> bool:
        """Whether a command may be handled now."""
        account = self.account
        if account is None or account.is_open_wide():
            return True
        server = self._server
        if server.acked:
            server.settle_acked()
        if isinstance(command, Publish):
            if account.funds_are_clear():
                return True
            excess = self._excess
            if excess is not None and passes(excess, command):
                # When what was handed over has been sent, there may be room again.
                return not excess.handed
        elif not self.outlet.blocked or is_silent(command) or account.debt_is_clear():
            return True
        self._short = account
        return False

    def _handle(self, command: Received) -> None:
        if type(command) is Publish:
            channel = self.channels.get(command.channel)
            if channel is not None:
                if self._excess is None:
                    channel.publish(command)
                else:
                    publish_or_refuse(self._excess, channel, command)
        elif type(command) is Ack:
            channel = self.channels.get(command.channel)
            if channel is not None:
                channel.ack(command, self._incoming)
        elif type(command) is Greeting:
            self.negotiation.greet()
        else:
            said = cast("Command", command)
            # It may look at what comes of those before it.
            self._server.settle()
            if not said.channel:
                self._handle_connection(said.method)
            elif isinstance(said.method, Channel.Open):
                self.channels[said.channel] = ServerChannel(self, said.channel)
                # An empty long string.
                self.sender.send(frame_of(said.channel, (20, 11), b"\0\0\0\0"))
            else:
                channel = self.channels.get(said.channel)
                if channel is None:
                    if isinstance(said.method, Channel.Close):
                        self._channel_closed(said.channel)
                elif isinstance(said.method, Channel.Close):
                    del self.channels[said.channel]
                    channel.close(failed=False)
                    self._channel_closed(said.channel)
                else:
                    channel.handle(said.method)

    @property
    def next_in_line(self) -> ConnectionInput | None:
        """The input that is to be handled next; None: others wait before it, or may be refused."""
        return None if self._parked or self._excess is not None else self._incoming

    def _channel_closed(self, number: int) -> None:
        """Agree that a channel is closed."""
        self._incoming.channel_closed(number)
        self.sender.send(method_frame(number, Channel.CloseOk()))

    def _closes_channel(self, exc: RemoteProtocolError) -> bool:
        """Close the channel that an error is about; False if it ends the connection."""
        if not isinstance(exc, AmqpError) or exc.ends_connection:
            return False
        channel = self.channels.get(exc.channel)
        if channel is None:
            return False
        self._server.settle_acked()
        self.close_channel(channel, exc)
        return True

    def close_channel(self, channel: ServerChannel, exc: AmqpError) -> None:
        """Close a channel for an error; its client is told."""
        number = channel.number
        if self.channels.get(number) is not channel:
            return
        del self.channels[number]
        self._incoming.channel_closing(number)
        self._parked.drop(number)
        channel.close(failed=False)
        self.complain(f"channel {number} closed: {exc.text}")
        self.sender.send_later(close_frame(number, exc.code, exc.text, exc.method))

    # -- the connection ----------------------------------------------------------------------------

    def _handle_connection(self, method: Any) -> None:
        match method:
            case Connection.StartOk():
                if self.negotiation.start(method):
                    self.negotiation.tune()
                else:
                    self._hold = trio.Event()  # nobody sets it: see `_held`
            case Connection.TuneOk():
                self.negotiation.tuned(method)
            case Connection.Open():
                self._open(self.negotiation.open(method.virtual_host))
            case Connection.Close():
                self._end_channels(failed=False)
                self.sender.answer(method_frame(0, Connection.CloseOk()))
                self._incoming.close()
            case Connection.CloseOk():
                self._incoming.close()
            case Connection.UpdateSecret():
                self.negotiation.login.renew(cast("bytes", method.new_secret))
                self.sender.send(method_frame(0, Connection.UpdateSecretOk()))
            case _:
                raise _not_asked_for(method)

    def _open(self, opened: Opened) -> None:
        """Begin to serve a client that has been let in."""
        server, negotiation = self._server, self.negotiation
        self._opened = opened
        self._close_input()  # what it sends from now on is its user's
        self.name = self.outlet.name = name = opened.peer.name
        account = self.account = opened.account
        # A client that is not read may not read either: two of them are a ring (rule 11).
        self.outlet.owner = account
        rights = server.rights_of(opened.peer, opened.client)
        self.topics = TopicRights(
            opened.host, negotiation.user, rights, server.authority, server.counters
        )
        self._refuse_by(server.excess_of(account, name, opened.client))
        now = self._last = server.ledger.clock()
        self._beats_at = now + negotiation.heartbeat / 2
        self._deadline_after = MISSED * negotiation.heartbeat or server.settings.idle_timeout
        self._say_connected()
        self.sender.send(frame_of(0, (10, 41), b"\0"))  # an empty short string

    def about(self, most: int) -> PeerFacts:
        return facts_of(self, most)


def _not_asked_for(method: Any) -> AmqpError:
    number = method.index >> 16, method.index & 0xFFFF
    return AmqpError(Code.COMMAND_INVALID, f"{method.name} was not asked for", number)


def _note_channel(exc: RemoteProtocolError, command: Received | None) -> None:
    """Note which channel an error is about, unless that is known."""
    if isinstance(exc, AmqpError) and not exc.channel and command is not None:
        exc.channel = channel_of(command)
