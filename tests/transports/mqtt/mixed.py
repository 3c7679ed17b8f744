"""All features of a relay at once, at random, and the books after each step.

Where two features meet, a path may forget to charge, or charge somebody else: a policy that changes
while its holder is behind, a group's message that is handed over, rules that end a subscription
whose messages wait, a take-over in the middle of a spill. A step here is one thing that one client,
reader, writer or operator does; the relay is whole, with its clocks and watches, in this process,
and the connections are socket pairs with small buffers, so that much is behind.

After each step the relay has met no fault of its own, the books balance, and nobody is charged for
what another has caused: each payload says who has to pay for it, and what is found in a loan is
compared with the loan's account. Others may pay for it only where the rules say so: who asked for a
replay pays for that, and what is at rest or behind has accounts of its own. At times the relay is
stopped, or ended in the middle of everything, and starts again with its store or an older copy of
it; at times everybody leaves, and nothing may be owed then.

As a program it counts::

    python -m tests.transports.mqtt.mixed --steps 100000 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from clearfunds.access import Passwords, Tenant
from clearfunds.access.acl import Acl, parse_acl
from clearfunds.accounts import MEMORY, Account, Alarms, StuckPolicy, UnfitPolicyError, Watermark
from clearfunds.dataspace import Batch, Publication
from clearfunds.dataspace.queues import Group, Queue
from clearfunds.ranges.log import RangeSubscription
from clearfunds.ranges.server._server import READERS_ACCOUNT
from clearfunds.relay import Relay, RelayReport, RelaySettings, serve_relay
from clearfunds.transports import Link, SubscriptionPolicy
from clearfunds.transports._outlet import Outlet
from clearfunds.transports._scheduler import Work
from clearfunds.transports.mqtt import Disconnect, PingReq, Properties, Subscribe, Unsubscribe
from clearfunds.transports.mqtt.server._inflight import Inflight
from experiments.credit_flow import Credit
from tests.experiments.credit_flow.relays import on_credit
from tests.transports.mqtt.mixed_clients import Client, Reader, Writer
from tests.transports.mqtt.users import user_line
from tests.transports.mqtt.whole_packets import now_and_then, quietly
from tests.transports.peers import SECONDS, until

LISTENER: Final = "test"

SMALL: Final[dict[str, Any]] = {
    "listen": ("mqtt+tcp://127.0.0.1:0", "subscribe+tcp://127.0.0.1:0"),
    "limit_items": 12,
    "limit_bytes": 20_000,
    "server_limit_items": 120,
    "max_packet_size": 8000,
    "max_subscriptions": 6,
    "max_inflight": 3,
    "max_awaiting_release": 4,
    "max_topic_alias": 2,
    "max_retained": 4,
    "max_sessions": 5,
    "max_queued": 12,
    "session_expiry": 3.0,
    "patience": 0.02,
    "reader_patience": 0.02,
    "sink_grace": 0.1,
    "behind_items": 6,
    "behind_bytes": 6000,
    "slow_wait": None,
    "throttled_after": 0.05,
    "memory_alarm": None,
    "anonymous": True,
}
"""Small limits, so that a few steps come to them."""

RULES: Final = [
    parse_acl("topic #\nuser u\ntopic #\nuser v\ntopic #\n"),
    parse_acl("topic t/#\nuser u\ntopic read #\ntopic write t/#\npattern deny v/%c\n"),
    parse_acl("topic read v\ntopic write t/#\nuser u\ntopic t/a\nuser v\ntopic read #\n"),
    parse_acl("user u\ntopic #\n"),
]
"""Rules that take turns."""

POLICIES: Final = tuple(
    SubscriptionPolicy(client, topics, policy)
    for client, topics, policy in (
        ("a", "#", "spill"),
        ("b", "t/a", "conflate"),
        ("b", "t/b", "drop_newest"),
        ("b", "r/#", "disconnect"),
        ("c", "#", "drop_oldest"),
        ("d", "t/a", "spill"),
        ("d", "t/b", "wait"),
    )
)
"""One client spills, one does by topic, and so on; the others are dealt with as the relay says."""

RAM_POLICIES: Final = tuple(each for each in POLICIES if each.policy is not StuckPolicy.SPILL)

RELAYS: Final[dict[str, dict[str, Any]]] = {
    "store": {"store": True, "fsync_interval": 0.0, "subscription_policy": POLICIES},
    "slow store": {
        "store": True,
        "fsync_interval": 0.03,
        "subscription_policy": POLICIES,
        "disk_limit": 20_000,
        "reader_stuck": "drop_oldest",
        "reader_disk_limit": 5_000,
    },
    "ram": {"subscription_policy": RAM_POLICIES, "kept_limit": 20_000},
    "dropping": {"stuck": "drop_oldest", "reader_stuck": "drop_oldest"},
    "spilling": {"stuck": "spill", "store": True, "fsync_interval": 0.0, "behind_limit": 20_000},
    "waiting": {"stuck": "wait", "reader_stuck": "wait", "store": True},
    "tenants": {
        "store": True,
        "fsync_interval": 0.0,
        "subscription_policy": POLICIES,
        "tenant": (
            Tenant(name="topics", topic=("t/b", "v"), kept=6000),
            Tenant(name="some", client=("a", "b"), users=True, user_items=8, kept=6000),
            Tenant(name="rest", default=True, items=20),
        ),
    },
    "credit": {
        "serve": on_credit(
            reader_outlet=Credit(4, 2), reader_queue=Credit(4, 2), queue_store=Credit(4, 2)
        ),
        "store": True,
        "fsync_interval": 0.0,
        "subscription_policy": POLICIES,
    },
}
"""What they differ in."""

BILL: Final = re.compile(rb"<(\d+)([!~])>")

NAMES: Final = "abcde"

DOINGS: Final = {
    "come": 6,
    "leave": 2,
    "publish": 26,
    "subscribe": 10,
    "unsubscribe": 3,
    "read": 16,
    "acknowledge": 16,
    "pass_time": 5,
    "change_policy": 4,
    "change_rules": 1,
    "prove_again": 4,
    "cut_replay": 1,
    "range": 5,
    "write": 5,
    "alarm": 1,
    "copy": 0.4,
    "restart": 0.15,
    "crash": 0.25,
    "desert": 0.2,
}
"""What may be done, and how often as against the rest."""

WORDS: Final = tuple(DOINGS)

BY_CLIENTS: Final = ("publish", "subscribe", "read", "acknowledge", "prove_again")
"""What only a client can do that is there."""


@attrs.frozen
class Step:
    """One thing that is done: by or to whom, and what chance says of the rest."""

    doing: str
    who: int
    seed: int


def made_up(chance: random.Random, count: int) -> list[Step]:
    """Return steps."""
    doings = chance.choices(WORDS, list(DOINGS.values()), k=count)
    return [
        Step(doing, chance.randrange(len(NAMES)), chance.randrange(1 << 30)) for doing in doings
    ]


def _scram() -> tuple[Any, Passwords]:
    """Return what clients prove with, None if it is not here; and the passwords."""
    lines = [user_line(user, b"secret") for user in "uv"]
    try:
        scramp = import_module("scramp")
    except ModuleNotFoundError:
        return None, Passwords.from_text("\n".join(lines))
    from clearfunds.access._scram import ScramKeys

    return scramp, Passwords.from_text("\n".join(ScramKeys.of("secret").line(u) for u in "uv"))


def payloads(item: Any) -> Iterator[bytes]:
    """Yield what is in a loan, as far as it is in RAM."""
    if isinstance(item, bytes):
        yield item
    elif isinstance(item, Publication):
        yield item.payload
    elif isinstance(item, Batch):
        yield item.raw
    elif isinstance(item, list | tuple):
        for each in item:  # pyright: ignore[reportUnknownVariableType]
            yield from payloads(each)
    else:
        for name in ("publication", "event", "raw", "item", "data"):
            found = getattr(item, name, None)
            if found is not None and not callable(found):
                yield from payloads(found)


class Machine:
    """One relay after the other, and those who do things to it.

    Attributes:
        relay: The one that runs.
        done: How often each thing was done.
        seen: How often something was behind, was waited for, and so on, after a step; and what
            became of the messages.
        looked: In how many loans it was seen who has to pay, and for how many payloads.
    """

    relay: Relay

    def __init__(self, which: str, directory: Path) -> None:
        self._settings = {**SMALL, **RELAYS[which]}
        self._directory = directory
        self._has_store = bool(self._settings.pop("store", None))
        self._lives = 0
        self._copies = 0
        scram, self._passwords = _scram()
        self.done: Counter[str] = Counter()
        self.looked = 0
        self.seen: Counter[str] = Counter()
        self._bills: list[str] = []
        self._wrong: list[str] = []
        self._hung: list[socket.socket] = []
        self._clients = [Client(name, LISTENER, self._bill, scram) for name in NAMES]
        self._readers = [Reader("one"), Reader("two")]
        self._writer = Writer("writer", self._bill)
        self._everybody = (*self._clients, *self._readers, self._writer)
        self._store = directory / "store 0"
        self._copy: Path | None = None

    def _bill(self, who: str, replays: bool) -> bytes:
        self._bills.append(who)
        return b"<%d%s>" % (len(self._bills) - 1, b"~" if replays else b"!")

    # -- the relay's lives ----------------------------------------------------------------------

    async def play(self, steps: Sequence[Step]) -> None:
        """Do all this; at the end everybody leaves."""
        left = list(reversed(steps))
        while left:
            async with self._life() as ends:
                while left:
                    step = left.pop()
                    self.done[step.doing] += 1
                    try:
                        with trio.fail_after(SECONDS * 2):
                            await self._do(step)
                            await self._settle()
                            self.check()
                    except BaseException:
                        print(f"step {sum(self.done.values())}: {step}", file=sys.stderr)
                        raise
                    if step.doing in ("restart", "crash"):
                        ends.append(step.doing)
                        break
                else:
                    await self._desert()

    @asynccontextmanager
    async def _life(self) -> AsyncGenerator[list[str]]:
        """Run a relay; end it in the middle of everything if ``crash`` is put into the list."""
        self._lives += 1
        settings = dict(self._settings, acl=Acl(RULES[0]), passwords=self._passwords)
        if self._has_store:
            settings["store"] = str(self._store)
        run_it = settings.pop("serve", serve_relay)
        made: list[Relay] = []
        reports: list[RelayReport] = []
        ends: list[str] = []

        class Kept(Relay):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                made.append(self)

        async def serve(task_status: trio.TaskStatus[Any]) -> None:
            reports.append(
                await run_it(RelaySettings(**settings), task_status=task_status, stop=stop)
            )

        stop = trio.Event()
        async with trio.open_nursery() as relays, trio.open_nursery() as connections:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("clearfunds.relay._relay.Relay", Kept)
                await relays.start(serve)
            (self.relay,) = made
            self._connections = connections
            self._alarms = Alarms(self.relay.mqtt.account, {MEMORY: Watermark(100, 90)})
            yield ends
            self._alarms.clear_all()
            # Connections end before what they share, as they do in a relay's own nursery.
            if "crash" in ends:
                connections.cancel_scope.cancel()
            else:
                self.relay.stop()
                for each in self._everybody:
                    each.hear(1 << 24)
                    each.close()
                self._hang_up()
                with trio.move_on_after(0.3):
                    await until(self._nobody_is_there)
                connections.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await until(self._nobody_is_there)
            if "crash" in ends:
                relays.cancel_scope.cancel()
            else:
                stop.set()
                await until(lambda: reports)
        for each in self._everybody:
            each.close()
        self._hang_up()
        self._look_at_the_end()
        if "crash" in ends and self._copy is not None:
            self._store, self._copy = self._copy, None

    def _nobody_is_there(self) -> bool:
        return not any(side.open for side in self.relay.sides)

    def _look_at_the_end(self) -> None:
        ledger = self.relay.ledger
        ledger.audit()
        assert self.relay.internal_errors == 0
        assert set(ledger.accounts) == {"server"}, set(ledger.accounts)
        found = ledger.statistics()
        assert found.debt_items == found.leaked_loans == 0
        self.seen.update(found.repaid_items)
        self.seen.update({f"relieved: {policy}": n for policy, n in found.relieved.items()})

    def _hang_up(self) -> None:
        for sock in self._hung:
            sock.close()
        self._hung.clear()

    def _connect(self, chance: random.Random, handle: Callable[..., Any]) -> socket.socket:
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, chance.choice((2304, 2304, 20_000)))
        self._connections.start_soon(handle, Link(ours, "pair"), LISTENER)
        return theirs

    async def _settle(self) -> None:
        for _ in range(100):
            await wait_all_tasks_blocked()
            if not self.relay.mqtt.log_ins.threads.borrowed_tokens:
                return
            await trio.sleep(0.001)

    # -- looking --------------------------------------------------------------------------------

    def check(self) -> None:
        """See that no fault was met, that the books balance, and that everybody pays for itself."""
        ledger = self.relay.ledger
        assert self.relay.internal_errors == 0
        ledger.audit()
        assert ledger.leaked_loans == 0
        assert not self._wrong, self._wrong[0]
        self._note()
        for holder, loan in ledger.held():
            self._bill_is_right(holder, loan.account, loan.item)

    def _note(self) -> None:
        """Note what was the case, for who wants to know whether anything ever is."""
        relay, ledger = self.relay, self.relay.ledger
        self.seen["connected"] += len(relay.mqtt.sessions)
        self.seen["waits"] += bool(ledger.waiters)
        self.seen["halted"] += bool(relay.mqtt.account.halted)
        self.seen["at rest"] += any(account.debt_items for account in ledger.at_rest)
        self.seen["delayed will"] += bool(len(relay.mqtt.wills))
        self.seen["shared"] += bool(len(relay.mqtt.groups))
        for holder in ledger.lagging:
            self.seen[f"behind: {holder.policy}"] += 1

    def _bill_is_right(self, holder: str, account: Account, item: object) -> None:
        """See that an account may be charged for what somebody holds."""
        if account in account.ledger.at_rest:
            return
        if any(each.name == READERS_ACCOUNT for each in account.chain):
            return  # what a reader has asked for; until it acknowledges that, others owe it, too
        for data in payloads(item):
            for found in BILL.finditer(data):
                self.looked += 1
                payer = self._bills[int(found[1])]
                wrong = payer not in account.name
                if wrong and found[2] == b"~":
                    wrong = not holder.startswith(account.name)  # its own replay
                why = f"{account.name} pays at {holder} for what {payer} caused: {data!r}"
                assert not wrong, why

    def look_at_charges(self, patch: pytest.MonkeyPatch) -> None:
        """Look at what is charged at the moment when it is, too: much is repaid at once."""

        def looking(hold: Callable[..., object]) -> Callable[..., object]:
            def look_and_hold(holder: Any, account: Account, item: Any, *more: Any) -> object:
                name = str(getattr(holder, "name", ""))
                try:
                    self._bill_is_right(name, account, item)
                except AssertionError as exc:
                    self._wrong.append(str(exc))  # it may be caught where it is
                return hold(holder, account, item, *more)

            return look_and_hold

        for kind in (Outlet, Inflight, Queue, Group, RangeSubscription):
            patch.setattr(kind, "hold", looking(kind.hold))

    # -- what is done ---------------------------------------------------------------------------

    async def _do(self, step: Step) -> None:
        chance = random.Random(step.seed)
        client = self._clients[step.who]
        doing = step.doing
        if not client.open and doing in BY_CLIENTS and chance.random() < 0.5:
            doing = "come"
        match doing:
            case "come":
                self._come(client, chance)
                for _ in range(chance.choice((0, 3, 3))):  # as far as it is in, or not
                    await self._settle()
                    client.read(1 << 20)
            case "leave":
                self._leave(client, chance)
            case "publish":
                if chance.random() < 0.5:
                    client.read(1 << 20)
                client.publish(chance)
            case "subscribe":
                self._subscribe(client, chance)
            case "unsubscribe":
                client.tell(Unsubscribe(2, (chance.choice(FILTERS),)))
            case "read":
                client.read(chance.choice((100, 2000, 1 << 20)))
                client.tell(PingReq())
            case "acknowledge":
                client.read(1 << 20)
                client.acknowledge(chance)
            case "prove_again":
                client.read(1 << 20)
                self.seen["proves anew"] += client.proved
                client.prove_again(chance)
                for _ in range(chance.choice((0, 1, 3))):
                    await self._settle()
                    client.read(1 << 20)
            case "cut_replay":
                client.tell(Subscribe(1, (("#", chance.randrange(3)),)))
                if chance.random() < 0.5:
                    await trio.lowlevel.checkpoint()
                client.close()
            case _:
                await self._do_to_all(step, chance)

    async def _do_to_all(self, step: Step, chance: random.Random) -> None:
        match step.doing:
            case "pass_time":
                await self._pass_time(chance)
            case "change_policy":
                self._change_policy(chance)
            case "change_rules":
                acl = self.relay.settings.acl
                assert acl is not None
                # All is allowed most of the time.
                acl.replace(RULES[max(0, chance.randrange(-3, len(RULES)))])
            case "range":
                self._range(self._readers[step.who % 2], chance)
            case "write":
                self._write(chance)
            case "alarm":
                self._alarms.sample(MEMORY, chance.choice((0, 0, 0, 200)))
            case "copy":
                await self._make_copy()
            case "desert":
                await self._desert()
            case _:  # the relay's life ends
                pass

    def _come(self, client: Client, chance: random.Random) -> None:
        if client.sock is not None and chance.random() < 0.6:
            self._hung.append(client.sock)
        else:
            client.close()
        client.take(self._connect(chance, self.relay.mqtt.handle))
        client.say(client.hello(chance, users=True))
        if chance.random() < 0.5:
            self._subscribe(client, chance)

    def _leave(self, client: Client, chance: random.Random) -> None:
        if chance.random() < 0.3:
            client.tell(Disconnect())
        elif client.version == 5 and chance.random() < 0.3:
            client.tell(Disconnect(4, Properties(session_expiry=0)))
        if chance.random() < 0.3:
            self._hang_up()
        client.close()

    def _subscribe(self, client: Client, chance: random.Random) -> None:
        options = chance.randrange(3)
        filters = chance.sample(FILTERS, chance.choice((1, 1, 2)))
        said = Properties()
        if client.version == 5:
            retain = chance.randrange(3) << 4 | chance.randrange(2) << 3
            local = chance.choice((0, 0, 4))
            pairs = [
                (text, options | retain | (0 if text.startswith("$share") else local))
                for text in filters
            ]
            if chance.random() < 0.3:
                said = Properties(subscription_ids=(7,))
        else:
            pairs = [(text, options) for text in filters]
        client.tell(Subscribe(1, tuple(pairs), said))

    async def _pass_time(self, chance: random.Random) -> None:
        if chance.random() < 0.3:
            # By the clock by which things expire a long time passes.
            wall: Any = self.relay.mqtt.wall
            wall.not_before(wall() + chance.choice((1.5, 4.0)))
        await trio.sleep(chance.choice((0.005, 0.025, 0.05)))

    def _change_policy(self, chance: random.Random) -> None:
        """Let some of the holders be dealt with otherwise, whether they are behind or not."""
        holders = sorted(self.relay.ledger.holders, key=lambda holder: holder.name)
        lagging = [holder for holder in holders if holder.lagging]
        chosen = lagging if lagging and chance.random() < 0.6 else holders
        for holder in chosen[:: chance.choice((1, 2, 3))]:
            with contextlib.suppress(UnfitPolicyError):
                holder.policy = chance.choice(list(StuckPolicy))

    def _range(self, reader: Reader, chance: random.Random) -> None:
        readers = self.relay.readers
        assert readers is not None
        if not reader.open or chance.random() < 0.1:
            if reader.sock is not None and chance.random() < 0.5:
                self._hung.append(reader.sock)
            else:
                reader.close()
            durable = self._has_store and chance.random() < 0.6
            reader.come(self._connect(chance, readers.handle), chance, durable)
        elif chance.random() < 0.1:
            reader.close()
        else:
            reader.step(chance)

    def _write(self, chance: random.Random) -> None:
        readers = self.relay.readers
        assert readers is not None
        if not self._writer.open or chance.random() < 0.1:
            self._writer.close()
            self._writer.come(self._connect(chance, readers.handle))
        elif chance.random() < 0.1:
            self._writer.close()
        else:
            self._writer.step(chance)

    async def _make_copy(self) -> None:
        """Copy the store, when nothing is being written: where a crash may go back to."""
        if not self._has_store:
            return
        if self._copy is not None:
            shutil.rmtree(self._copy)
        self._copies += 1
        await trio.sleep(0.05)
        self._copy = self._directory / f"store {self._copies}"
        shutil.copytree(self._store, self._copy)

    async def _desert(self) -> None:
        """Let everybody leave: nothing is owed then but for what is at rest."""
        relay, ledger = self.relay, self.relay.ledger
        self._alarms.clear_all()
        for each in self._everybody:
            each.close()
        self._hang_up()

        def all_is_over() -> bool:
            # What is kept may be waited for, for ever if its policy says so.
            self._forget_what_is_kept()
            return not (left() or owes())

        def left() -> list[object]:
            """Return connections, and groups with a member: sessions end in steps, and later."""
            groups = relay.mqtt.groups.by_key.values()
            members = [each.group for each in groups if len(each.group)]
            return [session for side in relay.sides for session in side.open] + members

        def owes() -> bool:
            return bool(ledger.statistics().debt_items)

        with trio.move_on_after(SECONDS / 2):
            while not all_is_over():  # noqa: ASYNC110
                await trio.sleep(0.005)
        await self._settle()
        self.check()
        assert left() == []
        assert not owes(), f"{list(ledger.holders)}, {ledger.matrix()}"

    def _forget_what_is_kept(self) -> None:
        kept, readers = self.relay.mqtt.persistent_sessions, self.relay.readers
        assert kept is not None
        assert readers is not None
        for key, session in list(kept.by_id.items()):
            if session.may_be_ended:
                kept.discard(key)
        for name in list(readers.subscriptions.names()):
            readers.subscriptions.drop(name)


FILTERS: Final = (
    "t/#",
    "#",
    "t/a",
    "t/b",
    "v",
    "r/#",
    "+/a",
    "$SYS/#",
    "$share/g/t/#",
    "$share/g/t/#",
    "$share/h/#",
)


@asynccontextmanager
async def machine(which: str) -> AsyncGenerator[Machine]:
    """Make one of `RELAYS`, whose steps are short, so that many things come in between."""
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for module in ("_flusher", "_session", "_direct_send"):
            patch.setattr(f"clearfunds.transports.{module}.OUTLETS_A_STEP", 1)
        patch.setattr("experiments.credit_flow._session.OUTLETS_A_STEP", 1)
        patch.setattr("clearfunds.transports._server.TICK_SECONDS", 0.02)
        patch.setattr(Work, "is_over", now_and_then())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = Machine(which, directory)
        found.look_at_charges(patch)
        yield found


async def count(which: str, seed: int, steps: int) -> dict[str, Any]:
    """Do so many steps, made up."""
    chance = random.Random(f"{which} {seed}")
    began = time.monotonic()
    async with machine(which) as found:
        await found.play(made_up(chance, steps))
        took = time.monotonic() - began
        return {
            "relay": which,
            "seed": seed,
            "steps": sum(found.done.values()),
            "looked": found.looked,
            "seen": found.seen,
            "seconds": round(took, 1),
            "steps/s": round(steps / took),
        }


def main() -> None:
    """Do steps, of one relay after the other."""
    parser = argparse.ArgumentParser(description="Mix all features, and look at the books.")
    parser.add_argument("--steps", type=int, default=10_000, help="how many, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--relay", choices=list(RELAYS), action="append", help="default: each")
    args = parser.parse_args()
    relays = args.relay or list(RELAYS)
    with quietly():
        for which in relays:
            found = trio.run(count, which, args.seed, args.steps // len(relays))
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
