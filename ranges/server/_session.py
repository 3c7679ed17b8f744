"""One reader's connection: binds the frames to subscriptions, an account and an outlet.

Rules of this file, beyond those of every session (`.._session`):
1. Requests are answered in order. Data on its way to the reader is charged to the connection's
   account; while that is over its limit, the connection fetches nothing more.
2. Meanwhile acknowledgements and the like are still taken (rule 10), but not those of messages that
   an earlier fetch of the same connection still waits for.
3. A writer's rows are not read while the writer's account is over its limit. See `_sink_writing`;
   a connection may read and write.
4. A connection that ends loses its attachments: nothing else tells that a reader has gone.
5. A peer that is not let in may send HELLO and AUTH, and nothing else (`_entrance`). Names are
   looked up among those of the connection's own user (`_names`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import attrs
import trio

from ...access._tenants import printable
from ...accounts import Account, QuotaExceededError
from ...transports._errors import RemoteProtocolError
from ...transports._link import Link
from ...transports._need_data import NEED_DATA
from ...transports._peer_facts import PeerFacts
from ...transports._session import LOOKAHEAD_BYTES, Session
from ..log import AtRest, RangeSubscription, SubscriptionOptions, block_range, merge_blocks
from ..wire import (
    UNKNOWN,
    Abort,
    Ack,
    AskHead,
    AskLast,
    Attach,
    Auth,
    Commit,
    Detach,
    DiskError,
    Drop,
    ErrorCode,
    Fetch,
    Forget,
    Hello,
    Kind,
    Open,
    OtherIncarnationError,
    Ping,
    RangeError,
    Reach,
    RefusedError,
    Request,
    SinkRequest,
    Stage,
    StageEnd,
    encode_acked,
    encode_attached,
    encode_error,
    encode_frame,
    encode_head,
    encode_reached,
    encode_records,
    encode_welcome,
    parse_request,
)
from ._entrance import Entrance, NotLetInError
from ._frames import MAX_LOGIN_BYTES, FrameReader
from ._sink_writing import SinkConnection

if TYPE_CHECKING:
    from ._server import SubscriptionServer

MOST_PENDING = LOOKAHEAD_BYTES // 32
"""Most requests to hold while they wait: what one look ahead finds. Each wait looks ahead anew, and
a reader may send requests faster than it takes the answers."""


@attrs.frozen(slots=True, eq=False)
class _Attachment:
    """A connection's attachment to a subscription."""

    subscription: RangeSubscription
    generation: int
    owner: bool
    """Whether it keeps the subscription attached; otherwise it reads along."""


class SubscriptionSession(Session["SubscriptionServer", Account]):
    """One reader's connection."""

    __slots__ = (
        "_attachments", "_ends_at", "_entrance", "_frames", "_handles", "_listener", "_pending",
        "_step", "_writing",
    )  # fmt: skip

    _unacknowledged_are = "messages were not acknowledged"

    def __init__(self, server: SubscriptionServer, link: Link, listener: str) -> None:
        super().__init__(server, link, f"{listener}/{link.peer}")
        settings = server.settings
        self.account = server.ledger.open(self.name, limit=settings.limit, parent=server.readers)
        # A reader that does not read holds up only itself.
        self.outlet.owner = self.account
        self._listener = listener
        self._frames = FrameReader(min(settings.max_frame_size, MAX_LOGIN_BYTES))
        self._entrance = Entrance(server.door, link)
        self._ends_at: float | None = None
        # Requests that were read while earlier ones wait.
        self._pending: deque[tuple[int, Request]] = deque()
        # To be awaited before the next request.
        self._step: Callable[[], Awaitable[None]] | None = None
        self._attachments: dict[int, _Attachment] = {}
        self._handles = 0
        self._writing: SinkConnection | None = None

    def __repr__(self) -> str:
        return f"<SubscriptionSession {self.name}: {len(self._attachments)} attachments>"

    # -- its life -------------------------------------------------------------------------------

    async def _serve(self) -> str:
        """See `Session._serve`; it may have to wait for the disk between two requests."""
        link = self._link
        flusher = self._server.flusher
        account = self.account
        work = self._work
        while True:
            if not work.begin():
                await self._wait_for_turn(work.wait)
            more = self._handle_and_send()
            if flusher.dirty:
                await flusher.flush(work)
            work.end()
            if self._step is not None:
                step, self._step = self._step, None
                await step()
                continue
            if not more:
                ending = self._ending()
                if ending is not None:
                    return ending
            if not account.funds_are_clear():
                if await self._wait_for_clear_funds(account):
                    continue
                return self._cut_off()
            if self._writer_owes():
                if await self._wait_for_the_writer():
                    continue
                return self._cut_off()
            if more:
                self._note_input(lookahead=True)
                await self._wait_for_turn(work.let_others)
                continue
            held = self._note_input()
            if held is not None and not held.may_grow():
                await self._wait_for_room(held)
            self._received(await link.receive())

    def _received(self, data: bytes) -> None:
        if not data:
            self._eof = True
            return
        self._frames.receive_data(data)
        self._server.counters.received_bytes += len(data)

    def _handle_input(self) -> bool:
        while True:
            if self._pending:
                number, request = self._pending[0]
            else:
                found = self._next_request()
                if found is None:
                    return False
                number, request = found
                self._pending.append(found)
            if isinstance(request, Fetch) and not self.account.funds_are_clear():
                return True
            if self._writer_owes():
                return True
            self._pending.popleft()
            self._handle(number, request)
            if self._step is not None or self._work.is_over():
                return True

    def _writer_owes(self) -> bool:
        """Whether the next request stages rows that its writer has no funds for."""
        account = None if self._writing is None else self._writing.account
        if account is None or not self._pending or account.funds_are_clear():
            return False
        return isinstance(self._pending[0][1], Stage)

    async def _wait_for_the_writer(self) -> bool:
        """See `_wait_for_clear_funds`; the peer is told meanwhile that it has to wait."""
        writing = self._writing
        assert writing is not None
        assert writing.account is not None
        # It may be waiting for rows that the disk does not have yet.
        self._server.writing.hurry()
        went_on = False

        async def wait(account: Account) -> None:
            nonlocal went_on
            went_on = await self._wait_for_clear_funds(account)

        await writing.while_saying_so(self._pending[0][0], partial(wait, writing.account))
        return went_on

    def _next_request(self) -> tuple[int, Request] | None:
        frame = self._frames.next_frame()
        if frame is NEED_DATA:
            return None
        self._last = self._server.ledger.clock()
        try:
            request = parse_request(frame)
        except ValueError as exc:
            self._frames.put_back()
            raise RemoteProtocolError(str(exc)) from exc
        self._entrance.check(request)
        return frame.request, request

    def _ending(self) -> str | None:
        return self._cut_off() if self._eof else None

    def _cut_off(self) -> str:
        left = self._frames.unparsed_bytes
        if left:
            return f"the peer closed the connection within a frame ({left} bytes of it came)"
        return "the peer closed the connection"

    def _silence(self, seconds: float, allowed: float) -> str:
        if not self._entrance.let_in:
            what = "AUTH" if self._entrance.greeted else "HELLO"
            return f"no {what} within {allowed:g} s"
        return f"no request for {seconds:.1f} s"

    async def _take_leave(self, why: str) -> None:
        if not self._eof:
            await super()._take_leave(why)

    async def _say_why(self, fault: RemoteProtocolError) -> None:
        code = ErrorCode.PROTOCOL
        if isinstance(fault, NotLetInError):
            self._server.counters.refused += 1
            code = ErrorCode.NOT_AUTHORIZED
        self._send(encode_error(0, code, str(fault)))
        self._server.flusher.flush_now()
        await self._linger()

    def _withdraw(self, reason: str) -> None:
        for attachment in self._attachments.values():
            self._detach(attachment)
        self._attachments.clear()
        if self._writing is not None:
            self._writing.close()
        self._log(logging.INFO, "left", f"{self.name} left: {reason}", reason)

    def _is_of_peer(self, whose: object) -> bool:
        """See `Session.has`: its data is not its own debt, but it is the peer affected."""
        writing = self._writing
        return (
            super()._is_of_peer(whose)
            or (writing is not None and writing.sink is not None and whose is writing.sink)
            or any(whose is each.subscription for each in self._attachments.values())
        )

    def _holding(self) -> int:
        return self._frames.held_bytes

    def _let_go(self) -> None:
        self._frames.let_go()

    def _drop_input(self, why: str) -> None:
        self._frames.close()
        super()._drop_input(why)

    def _close(self) -> None:
        self._frames.close()
        self._pending.clear()
        self._step = None

    # -- waiting --------------------------------------------------------------------------------

    async def _look_ahead(self, wait: trio.CancelScope) -> None:
        """Take requests that reduce debt out of those that wait (rule 10)."""
        allowance = LOOKAHEAD_BYTES
        looked_at = 0
        while True:
            looked_at = self._overtake(looked_at)
            if looked_at < 0:
                return  # at a fault that has to be found in its turn
            self._server.flusher.flush_now()
            if self._eof:
                # Nobody wants the answers any more.
                self._pending.clear()
                self._left = True
                wait.cancel()
                return
            if allowance <= 0 or looked_at >= MOST_PENDING:
                return
            data = await self._receive_ahead()
            allowance -= len(data)
            self._received(data)
            self._note_input(lookahead=True)

    def _overtake(self, looked_at: int) -> int:
        """Handle requests that may overtake; return how many stay, -1 to look no further."""
        pending = self._pending
        kept = [pending.popleft() for _ in range(looked_at)]
        try:
            while True:
                if pending:
                    number, request = pending.popleft()
                else:
                    try:
                        found = self._next_request()
                    except RemoteProtocolError:
                        return -1  # the fault will be found again when its turn comes
                    if found is None:
                        return len(kept)
                    number, request = found
                if isinstance(request, (Ping, AskHead, Reach)) or (
                    isinstance(request, Ack) and not self._is_awaited(request, kept)
                ):
                    self._handle(number, request)
                    continue
                kept.append((number, request))
                if not isinstance(request, (Fetch, Ack)):
                    return -1
        finally:
            pending.extendleft(reversed(kept))

    @staticmethod
    def _is_awaited(ack: Ack, kept: list[tuple[int, Request]]) -> bool:
        """Whether this acknowledgement would remove messages that a waiting request asks for."""
        return any(
            isinstance(request, Fetch) and request.handle == ack.handle and request.start < ack.upto
            for _, request in kept
        )

    # -- requests -------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        """Send a frame, on the connection's account."""
        self.account.borrow(1, len(data))
        self.outlet.hold(self.account, data, 1, len(data), self._server.ledger.clock())

    def _handle(self, number: int, request: Request) -> None:
        try:
            self._answer(number, request)
        except RangeError as exc:
            self._send(encode_error(number, exc.code, str(exc)))
        except QuotaExceededError as exc:
            self._send(encode_error(number, ErrorCode.REFUSED, str(exc)))

    def _answer(self, number: int, request: Request) -> None:
        match request:
            case Fetch():
                self._fetch(number, request)
            case Ack(handle, upto):
                head = self._attachment(handle).subscription.ack(upto)
                self._send(encode_acked(number, head))
            case AskHead(handle):
                subscription = self._attachment(handle).subscription
                items, nbytes = subscription.owed()
                self._send(encode_head(number, subscription.head(), items, nbytes))
            case Reach(handle, start, max_bytes):
                end = self._attachment(handle).subscription.reach(start, max_bytes)
                self._send(encode_reached(number, end))
            case Ping():
                self._send(encode_frame(Kind.PONG, number))
            case Attach():
                self._attach(number, request)
            case Detach(handle):
                attachment = self._attachments.pop(handle, None)
                if attachment is not None:
                    self._detach(attachment)
                self._send(encode_frame(Kind.DETACHED, number))
            case Drop(handle):
                name = self._attachment(handle).subscription.subscription
                self._server.subscriptions.drop(name)
                self._say("%s dropped subscription %s", name, self._fields("subscription_dropped"))
                self._send(encode_frame(Kind.DROPPED, number))
            case Open() | Stage() | StageEnd() | Commit() | Abort() | AskLast() | Forget():
                self._step = self._write(number, request)
            case Hello():
                flags = self._entrance.greet(request)
                self._send(encode_welcome(number, self._server.settings.max_frame_size, flags))
                self._when_let_in()
            case Auth():
                checked = self._entrance.log_in(request, self._read_on)
                if checked is None:
                    self._logged_in(number)
                else:
                    self._step = partial(self._when_checked, number, checked)

    def check_deadline(self, now: float) -> None:
        """See `Session.check_deadline`: a token that has expired ends its connection."""
        if self._ends_at is not None and now >= self._ends_at:
            self._ends_at = None
            self.cut("its token has expired")
        else:
            super().check_deadline(now)

    def about(self, most: int) -> PeerFacts:
        names = dict.fromkeys(each.subscription.subscription for each in self._attachments.values())
        return PeerFacts(
            self.peer,
            subscriptions=tuple(islice(names, most)),
            subscriptions_more=max(0, len(names) - most),
        )

    # -- authentication -------------------------------------------------------------------------

    def _when_let_in(self) -> None:
        if self._entrance.let_in:
            self._note_known()
            self._deadline_after = self._server.settings.idle_timeout
            self._frames.allow(self._server.settings.max_frame_size)

    def _logged_in(self, number: int) -> None:
        self._when_let_in()
        if self._entrance.expires_in is not None:
            self._ends_at = self._server.ledger.clock() + self._entrance.expires_in
        fields = self._fields("logged_in")
        fields["user"] = user = printable(self._entrance.user)
        self._server.logger.info("%s is user %s", self.name, user, extra=fields)
        self._send(encode_frame(Kind.AUTHENTICATED, number))

    async def _when_checked(self, number: int, checked: Awaitable[None]) -> None:
        await checked
        self._logged_in(number)

    async def _read_on(self) -> bool:
        """Read a little while the password is checked; return whether the peer is still there."""
        if self._frames.unparsed_bytes >= MAX_LOGIN_BYTES:
            await trio.sleep_forever()
        try:
            self._received(await self._link.receive())
        except OSError:
            self._eof = True
        return not self._eof

    # -- writing --------------------------------------------------------------------------------

    def _write(self, number: int, request: SinkRequest) -> Callable[[], Awaitable[None]] | None:
        server = self._server
        writing = self._writing
        if writing is None:
            settings = server.settings
            writing = self._writing = SinkConnection(
                server.writing,
                self,
                max_stage_size=settings.max_stage_size,
                store_timeout=settings.store_timeout,
                owner=self._entrance.owner,
            )
        known = writing.sink
        step = writing.handle(number, request)
        if isinstance(request, Open) and writing.sink is not known:
            self._frames.allow(server.settings.max_stage_size)
            fields = self._fields("writer_opened")
            assert writing.sink is not None
            fields["writer"] = writing.sink.sink
            server.logger.info("%s writes as %s", self.name, writing.sink.sink, extra=fields)
        return step

    def answer(self, kind: int, number: int, payload: bytes) -> None:
        self._send(encode_frame(kind, number, payload))

    def refuse(self, number: int, fault: RangeError) -> None:
        self._send(encode_error(number, fault.code, str(fault)))

    def still_waits(self, number: int) -> None:
        if not self.outlet.queue and not self.outlet.closed:
            self._send(encode_frame(Kind.WAITING, number))
            self._server.flusher.ready()

    def received(self, rows: int) -> None:
        self._server.counters.received += rows

    def _say(self, sentence: str, name: str, fields: dict[str, object]) -> None:
        fields["subscription"] = name
        self._server.logger.info(sentence, self.name, name, extra=fields)

    def _attachment(self, handle: int) -> _Attachment:
        """Return an attachment that may still make requests."""
        attachment = self._attachments.get(handle)
        if attachment is None:
            raise RefusedError(f"this connection has no attachment {handle}; attach first")
        subscription = attachment.subscription
        if subscription.closed:
            msg = f"subscription {subscription.subscription} was dropped; attach to make it anew"
            raise RefusedError(msg)
        subscription.check(attachment.generation)
        return attachment

    # -- ATTACH ---------------------------------------------------------------------------------

    def _attach(self, number: int, request: Attach) -> None:
        server = self._server
        if len(self._attachments) >= server.settings.max_attachments:
            msg = (
                f"{server.settings.max_attachments} attachments are the limit for one connection "
                "(max_attachments)"
            )
            raise RefusedError(msg)
        subscription = self._find(request)
        start = subscription.low
        if request.join:
            pass
        elif not request.generation:
            subscription.attach()
        else:
            subscription.resume(request.generation, subscription.incarnation)
        if request.start is not None:
            start = subscription.start(request.start)
        self._handles += 1
        handle = self._handles
        generation = subscription.generation
        attachment = _Attachment(subscription, generation, not request.join)
        self._attachments[handle] = attachment
        what = "%s reads along in %s" if request.join else "%s attached to subscription %s"
        self._say(what, subscription.subscription, self._fields("attached"))
        answer = partial(self._attached, number, handle, attachment, start)
        if subscription.options.durable and not request.join:
            self._step = partial(self._when_durable, number, handle, answer)
        else:
            answer()

    def _find(self, request: Attach) -> RangeSubscription:
        """Return the subscription that is asked for; make it if it does not exist.

        Only an attached reader may change its settings: one that was replaced may not.
        """
        subscriptions = self._server.subscriptions
        for text in request.filters:
            fault = self._server.settings.topics.filter_fault(text)
            if fault is not None:
                raise RefusedError(fault)
        key, fault = self._server.names.find(self._entrance.owner, request.name)
        if fault is not None:
            raise RefusedError(fault)
        found = subscriptions.find(key)
        refused = self._not_readable(key, request.filters if found is None else found.filters)
        if refused is not None:
            raise RefusedError(refused)
        if found is None and self._server.disk is not None:
            self._server.disk.check_taken_up(key)
        if found is None and request.generation:
            msg = f"subscription {request.name!r} is not there any more; attach to make it anew"
            raise OtherIncarnationError(msg)
        if found is not None and request.generation:
            known = None if request.incarnation == UNKNOWN else request.incarnation
            found.check(request.generation, known)
        if request.join:
            return subscriptions.get(key)
        before = SubscriptionOptions() if found is None else found.options
        options = SubscriptionOptions(
            durable=request.durable if request.filters else before.durable,
            grace=before.grace if request.grace is None else request.grace,
            after_grace=before.after_grace if request.after_grace is None else request.after_grace,
        )
        return subscriptions.open(key, request.filters, options)

    def _not_readable(self, key: str, filters: Iterable[str]) -> str | None:
        """Return why the user may not read something of one of the filters; None if it may."""
        rights = self._server.rights_of(key)
        for text in filters:
            if not rights.may_subscribe(text):
                rights.denied.subscribe += 1
                return f"user {printable(self._entrance.user)} may read nothing of {text} (--acl)"
        return None

    def rules_changed(self) -> None:
        """End the connection if it is attached to something that its user may no longer read."""
        for each in self._attachments.values():
            subscription = each.subscription
            why = self._not_readable(subscription.subscription, subscription.filters)
            if why is not None:
                self.cut(why)

    async def _when_durable(self, number: int, handle: int, answer: Callable[[], None]) -> None:
        """Answer when the answer would still be true after a restart."""
        disk = self._server.disk
        assert disk is not None
        try:
            await disk.synced(self._server.settings.store_timeout)
        except DiskError as exc:
            self._detach(self._attachments.pop(handle))
            self._send(encode_error(number, exc.code, str(exc)))
        else:
            answer()

    def _attached(self, number: int, handle: int, attachment: _Attachment, start: int) -> None:
        subscription = attachment.subscription
        self._send(
            encode_attached(
                number,
                handle,
                attachment.generation,
                subscription.incarnation,
                subscription.head(),
                start,
            )
        )

    @staticmethod
    def _detach(attachment: _Attachment) -> None:
        if attachment.owner:
            attachment.subscription.detach(attachment.generation)

    def is_reader_of(self, subscription: RangeSubscription) -> bool:
        """Whether this connection keeps a subscription attached."""
        generation = subscription.generation
        return any(
            each.owner and each.subscription is subscription and each.generation == generation
            for each in self._attachments.values()
        )

    # -- FETCH ----------------------------------------------------------------------------------

    def _fetch(self, number: int, request: Fetch) -> None:
        subscription = self._attachment(request.handle).subscription
        max_bytes = min(request.max_bytes, self._server.settings.max_fetch_bytes)
        found = subscription.fetch(request.start, request.end, max_bytes)
        if isinstance(found, AtRest):
            self._step = partial(self._fetch_at_rest, number, request, found, max_bytes)
        else:
            self._send_records(number, request.start, found)

    async def _fetch_at_rest(
        self, number: int, request: Fetch, wanted: AtRest, max_bytes: int
    ) -> None:
        disk = self._server.disk
        assert disk is not None
        try:
            attachment = self._attachment(request.handle)
            subscription = attachment.subscription
            blocks = await disk.read(subscription, wanted, max_bytes)
            if not blocks:
                # The messages may have been acknowledged meanwhile.
                self._attachment(request.handle)
                subscription.check_range(request.start, request.end)
                msg = (
                    f"messages from {wanted.start} on of subscription {subscription.subscription} "
                    "are missing from the store: see `clearfunds store verify`"
                )
                fields = self._fields("store_lost", msg)
                fields["subscription"] = subscription.subscription
                self._server.logger.error("%s: %s", self.name, msg, extra=fields)
                self._send(encode_error(number, ErrorCode.DATA_LOSS, msg))
                return
        except RangeError as exc:
            self._send(encode_error(number, exc.code, str(exc)))
        else:
            self._send_records(number, request.start, blocks)

    def _send_records(self, number: int, start: int, blocks: list[bytes]) -> None:
        following = block_range(blocks[-1])[1] if blocks else start
        self._send(encode_records(number, following, merge_blocks(blocks)))
