"""`/metrics/detailed`: a series for each account, holder, queue, and pair of holder and debtor.

Only the number of peers bounds the number of series. So a family is served only if `family=` asks
for it, and never more than `limit=` series; the page counts series left out.
The prefix is `clearfunds_detailed_`, so that one Prometheus can scrape both pages.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import attrs

from ..access._patterns import Patterns, of_peer
from ..accounts._gate import gate_of
from ..accounts._line import MAX_BLAMED, blame_of
from ..accounts._waiters import REASONS
from ..dataspace.queues import Group, Queue
from ._exposition import Family, escape
from ._holdings import BREATH_EVERY, Cell, Holdings
from ._tenant_rows import tenants_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from ..accounts import Account, Ledger
    from ._cooperative import Pace
    from ._holdings import Who

SERIES_DEFAULT: Final = 50_000
# Enough for four thousand accounts. A Prometheus server ingests some hundred thousand a second.
SERIES_MAX: Final = 200_000
# A page's rows are kept until it is sent; this limits them to some 20 MB.
PIECE_CHARACTERS: Final = 32768

_Row = tuple[str, tuple[float | None, ...]]

_Held = tuple[str, "Account | None", str, Cell]
"""The labels of a row of the matrix, its account if the ledger has it, its holder, the amounts."""


class _ForEver(float):
    """Infinity, in Prometheus's format."""

    def __repr__(self) -> str:
        return "+Inf"


_FOR_EVER: Final = _ForEver("inf")


@attrs.frozen
class DetailedQuery:
    """The parameters of a request."""

    families: tuple[str, ...]
    """`account`, `holder`, `matrix`, `blame`, `queue`, `tenant`, each at most once."""
    account: Patterns | None = None
    """Selects accounts; of a queue, its own, and of a tenant."""
    holder: Patterns | None = None
    """Selects holders; queues are among them."""
    limit: int = SERIES_DEFAULT
    """Most series."""

    @classmethod
    def parse(cls, query: Mapping[str, tuple[str, ...]]) -> DetailedQuery:
        """Parse a query string's fields.

        Raises:
            ValueError: A field is invalid; the message is a sentence about it.
        """
        for field in query:
            if field not in ("family", "account", "holder", "limit"):
                msg = f"There is no field {field[:50]!r}; there are family, account, holder, limit."
                raise ValueError(msg)
        # An ordered set: a family named twice would give a metric twice.
        families = dict.fromkeys(",".join(query.get("family", ())).split(","))
        unknown = [family for family in families if family not in TABLES]
        if unknown:
            msg = (
                f"There is no family {unknown[0][:50]!r}; ask for some of {', '.join(TABLES)}, "
                "as in ?family=account&family=matrix."
            )
            raise ValueError(msg)
        limit = _last(query, "limit")
        if limit is not None and not (limit.isascii() and limit.isdigit() and len(limit) < 10):
            msg = f"The limit is {limit[:50]!r}; it must be a number of series."
            raise ValueError(msg)
        account, holder = query.get("account"), query.get("holder")
        return cls(
            families=tuple(families),
            account=None if account is None else of_peer(account),
            holder=None if holder is None else of_peer(holder),
            limit=SERIES_DEFAULT if limit is None else min(int(limit), SERIES_MAX),
        )


def _last(query: Mapping[str, tuple[str, ...]], field: str) -> str | None:
    values = query.get(field)
    return values[-1] if values else None


async def write_detailed(
    ledger: Ledger, query: DetailedQuery, pace: Pace
) -> AsyncGenerator[bytes, None]:
    """Write the page, in pieces.

    Each row is read at one instant, the page as a whole is not. If there is no room for all series,
    each family has its share, and later ones also get the unused part of that.
    """
    books = _Books(ledger, query, pace)
    room = query.limit
    left_out = 0
    for number, family in enumerate(query.families):
        share = room // (len(query.families) - number)
        room -= share
        for metrics, fill in TABLES[family]:
            table = _Table(metrics, share)
            await fill(books, table)
            share = table.room
            left_out += table.left_out
            async with aclosing(_write(table, pace)) as pieces:
                async for piece in pieces:
                    yield piece
        room += share
    yield _encode([TRUNCATED.head(), TRUNCATED.sample("", left_out)])


async def _write(table: _Table, pace: Pace) -> AsyncGenerator[bytes, None]:
    """Write a table, one metric after the other: Prometheus requires that order."""
    text: list[str] = []
    characters = 0
    rows = table.rows
    for column, metric in enumerate(table.metrics):
        text.append(metric.head())
        name = metric.name
        for start in range(0, len(rows), BREATH_EVERY):
            await pace.breathe()
            # The format of `Family.sample`, which would take three times as long for each.
            lines = "".join(
                [
                    f"{name}{labels} {values[column]!r}\n"
                    for labels, values in rows[start : start + BREATH_EVERY]
                    if values[column] is not None
                ]
            )
            text.append(lines)
            characters += len(lines)
            if characters >= PIECE_CHARACTERS:
                yield _encode(text)
                text.clear()
                characters = 0
    yield _encode(text)


def _encode(text: list[str]) -> bytes:
    # A name with half of a surrogate pair must not spoil the whole page.
    return "".join(text).encode("utf-8", "replace")


@attrs.define
class _Table:
    """Rows of one family, as many as fit."""

    metrics: tuple[Family, ...]
    room: int
    rows: list[_Row] = attrs.field(factory=list[_Row])
    left_out: int = 0

    def add(self, labels: str, *values: float | None) -> None:
        """Add a row, with a finite value or None for each metric; count it if there is no room."""
        series = len(values) - values.count(None)
        if series > self.room:
            # Smaller rows after this one are left out, too: the page has the beginning of the list.
            self.room = 0
            self.left_out += series
        else:
            self.room -= series
            self.rows.append((labels, values))


@attrs.define
class _Books:
    """The contents of the page: who holds whose debt, read once, and the order of rows."""

    ledger: Ledger
    query: DetailedQuery
    pace: Pace
    _accounts: list[Account] | None = None
    _holdings: Holdings | None = None
    _cells: list[_Held] | None = None
    above: dict[Account, dict[str, None]] = attrs.field(factory=dict["Account", "dict[str, None]"])
    """Accounts above others, and the holders of their descendants' debt; once `cells` are known."""

    async def accounts(self) -> list[Account]:
        """Return the selected accounts, the most interesting first.

        Waiting accounts, then accounts with debt, then accounts that have waited, then the others.
        """
        if self._accounts is None:
            waiting: list[Account] = []
            owing: list[Account] = []
            waited: list[Account] = []
            rest: list[Account] = []
            for number, account in enumerate(list(self.ledger.accounts.values())):
                if not number % BREATH_EVERY:
                    await self.pace.breathe()
                if await self.is_wanted_account(account.name):
                    if account.waiting:
                        waiting.append(account)
                    elif account.debt_items:
                        owing.append(account)
                    else:
                        (waited if account.waits else rest).append(account)
            self._accounts = [*waiting, *owing, *waited, *rest]
        return self._accounts

    async def holdings(self) -> Holdings:
        """Return the holdings of all holders."""
        if self._holdings is None:
            self._holdings = await Holdings.of(self.ledger, self.pace)
        return self._holdings

    async def cells(self) -> list[_Held]:
        """Return the selected rows of the matrix, waiting accounts first."""
        if self._cells is None:
            first: list[_Held] = []
            after: list[_Held] = []
            for holder, cells in (await self.holdings()).cells.items():
                await self.pace.breathe()
                if await self.is_wanted_holder(holder):
                    await self._sort(holder, cells, first, after)
            self._cells = first + after
        return self._cells

    async def _sort(
        self, holder: str, cells: dict[str, Cell], first: list[_Held], after: list[_Held]
    ) -> None:
        accounts = self.ledger.accounts
        escaped = escape(holder)
        parent: Account | None = None
        for number, (name, cell) in enumerate(cells.items()):
            if not number % BREATH_EVERY:
                await self.pace.breathe()
            account = accounts.get(name)
            if account is not None and account.parent is not parent:
                parent = account.parent
                for each in account.chain[1:]:
                    self.above.setdefault(each, {})[holder] = None
            if await self.is_wanted_account(name):
                labels = f'{{account="{escape(name)}",holder="{escaped}"}}'
                waits = account is not None and account.waiting
                (first if waits else after).append((labels, account, holder, cell))

    async def is_wanted_holder(self, name: str) -> bool:
        """Whether the request selects that holder."""
        return self.query.holder is None or await self._matches(self.query.holder, name)

    async def is_wanted_account(self, name: str) -> bool:
        """Whether the request selects that account."""
        return self.query.account is None or await self._matches(self.query.account, name)

    async def _matches(self, pattern: Patterns, name: str) -> bool:
        await self.pace.breathe()
        return pattern.matches(name)


def _of_account(account: Account) -> str:
    parent = account.parent
    return (
        f'account="{escape(account.name)}",parent="{"" if parent is None else escape(parent.name)}"'
    )


async def _accounts(books: _Books, table: _Table) -> None:
    for number, account in enumerate(await books.accounts()):
        if not number % BREATH_EVERY:
            await books.pace.breathe()
        limit = account.own_limit
        if not table.room:
            table.left_out += 8 + (limit.items is not None) + (limit.bytes is not None)
            continue
        table.add(
            f"{{{_of_account(account)}}}",
            account.debt_items,
            account.debt_bytes,
            account.peak_items,
            account.peak_bytes,
            limit.items,
            limit.bytes,
            account.waiting,
            account.borrowed_items,
            account.borrowed_bytes,
            account.waits,
        )


async def _throttled(books: _Books, table: _Table) -> None:
    never = dict.fromkeys(REASONS, 0.0)
    for number, account in enumerate(await books.accounts()):
        if not number % BREATH_EVERY:
            await books.pace.breathe()
        if not table.room:
            table.left_out += len(REASONS)
            continue
        labels = _of_account(account)
        waited = account.statistics().waited_by_reason if account.waits else never
        for reason, seconds in waited.items():
            table.add(f'{{{labels},reason="{reason}"}}', seconds)


async def _moving(books: _Books, table: _Table) -> None:
    for number, account in enumerate(await books.accounts()):
        if not number % BREATH_EVERY:
            await books.pace.breathe()
        control = account.control
        if control is None:
            continue
        if not table.room:
            table.left_out += 2
            continue
        seen = control.statistics()
        labels = f'{{{_of_account(account)},state="{seen.state}"}}'
        table.add(labels, seen.age_seconds, seen.target_seconds)


async def _holders(books: _Books, table: _Table) -> None:
    holdings = await books.holdings()
    router = books.ledger.router
    clock, pace = books.ledger.clock, books.pace
    if router.name not in holdings.cells and await books.is_wanted_holder(router.name):
        # A series that says that nobody holds anything.
        labels = f'{{holder="{escape(router.name)}",kind="{router.kind}"}}'
        table.add(labels, 0, 0, 0, 0.0, 0.0, None, router.patience, *_NEVER_LAGGED)
    since = await _waited_since(books)
    for name, cells in holdings.cells.items():
        await pace.breathe()
        if not await books.is_wanted_holder(name):
            continue
        who = holdings.who[name]
        patience = who.patience
        if patience is not None and math.isinf(patience):
            patience = _FOR_EVER
        waited: float | None = None
        if who.progressed_at is not None:
            first = await _first_that_waits(books, cells, since) if since else None
            waited = 0.0 if first is None else max(0.0, clock() - max(first, who.progressed_at))
        now = clock()
        held = cells.values()
        table.add(
            f'{{holder="{escape(name)}",kind="{escape(who.kind)}"}}',
            sum([cell.items for cell in held]),
            sum([cell.bytes for cell in held]),
            sum([cell.loans for cell in held]),
            max([now - cell.opened for cell in held]),
            0.0 if who.progressed_at is None else now - who.progressed_at,
            waited,
            patience,
            *_lagging(who, now),
        )


async def _causes(books: _Books, table: _Table) -> None:
    # Holders of one name and kind are one series, with one cause.
    causes = {(h.name, h.kind): cause.kind for h, cause in books.ledger.causes.known()}
    for (name, kind), cause in causes.items():
        if await books.is_wanted_holder(name):
            table.add(f'{{holder="{escape(name)}",kind="{escape(kind)}",cause="{cause}"}}', 1)


_NEVER_LAGGED: Final = (None, None, None, None, None)


def _lagging(who: Who, now: float) -> tuple[float | None, ...]:
    relief = who.relief
    if relief is None:
        return _NEVER_LAGGED
    return (
        0.0 if who.lagging_since is None else now - who.lagging_since,
        relief.dropped_items,
        relief.dropped_bytes,
        relief.stored_items,
        relief.stored_bytes,
    )


async def _waited_since(books: _Books) -> dict[Account, float]:
    """Return the accounts at which readers wait, and since when the first of them does.

    As in `accounts._patience`: readers that only an alarm stops wait on no holder.
    """
    since: dict[Account, float] = {}
    for number, waiter in enumerate(list(books.ledger.waiters)):
        if not number % BREATH_EVERY:
            await books.pace.breathe()
        at = waiter.at
        if at is not None and gate_of(at).waits_on_holders:
            since[at] = min(waiter.since, since.get(at, waiter.since))
    return since


async def _first_that_waits(
    books: _Books, cells: dict[str, Cell], since: dict[Account, float]
) -> float | None:
    """Return since when a reader waits for a holder's loans; None if nobody does."""
    first: float | None = None
    accounts = books.ledger.accounts
    for number, name in enumerate(cells):
        if not number % BREATH_EVERY:
            await books.pace.breathe()
        account = accounts.get(name)
        for each in () if account is None else account.chain:
            began = since.get(each)
            if began is not None and (first is None or began < first):
                first = began
    return first


async def _matrix(books: _Books, table: _Table) -> None:
    now = books.ledger.clock()
    for number, (labels, _, _, cell) in enumerate(await books.cells()):
        if not number % BREATH_EVERY:
            await books.pace.breathe()
            now = books.ledger.clock()
        table.add(labels, cell.items, cell.bytes, now - cell.opened)


async def _blame(books: _Books, table: _Table) -> None:
    for number, account in enumerate(list(books.ledger.accounts.values())):
        if not number % BREATH_EVERY:
            await books.pace.breathe()
        blame = blame_of(account)
        if blame and await books.is_wanted_account(account.name):
            for holder, seconds in list(blame.items()):
                if await books.is_wanted_holder(holder):
                    table.add(_of_cell(account.name, holder), seconds)
    # A holder that may be blamed next needs a series beforehand: Prometheus's `rate` sees no rise
    # in a series that begins with its final value, such as that of a first stall.
    for number, (labels, debtor, holder, _) in enumerate(await books.cells()):
        if not number % BREATH_EVERY:
            await books.pace.breathe()
        if debtor is not None and _may_be_blamed(debtor, holder):
            table.add(labels, 0.0)
    # Accounts above owe the debt of those below.
    for account, holders in books.above.items():
        if await books.is_wanted_account(account.name):
            for holder in holders:
                await books.pace.breathe()
                if _may_be_blamed(account, holder):
                    table.add(_of_cell(account.name, holder), 0.0)


async def _queues(books: _Books, table: _Table) -> None:
    queues: list[Queue] = []
    for number, holder in enumerate(list(books.ledger.holders)):
        if not number % BREATH_EVERY:
            await books.pace.breathe()
        if (
            isinstance(holder, Queue)
            and await books.is_wanted_holder(holder.name)
            and await books.is_wanted_account(holder.account.name)
        ):
            queues.append(holder)
    # The fullest first: if there is no room for all, these matter most.
    queues.sort(key=len, reverse=True)
    for queue in queues:
        await books.pace.breathe()
        if queue.deleted:
            continue
        labels = f'{{holder="{escape(queue.name)}",account="{escape(queue.account.name)}"}}'
        seen, limit = queue.statistics(), queue.account.own_limit
        backing, counters = seen.backing, seen.counters
        table.add(
            labels,
            seen.ready,
            seen.ready_bytes,
            seen.unacked,
            seen.disk_items,
            seen.disk_bytes,
            limit.items,
            limit.bytes,
            backing.ready_in_ram + backing.pending_in_ram,
            backing.disk_only,
            seen.unwritten,
            seen.consumers,
            counters.published,
            counters.delivered,
            counters.redelivered,
            counters.acked,
            counters.expired,
            counters.dropped,
            counters.refused,
            counters.dead_lettered,
            counters.recovered,
            counters.lost,
            backing.paged_out,
            backing.paged_in,
        )


async def _groups(books: _Books, table: _Table) -> None:
    for number, holder in enumerate(list(books.ledger.holders)):
        if not number % BREATH_EVERY:
            await books.pace.breathe()
        if isinstance(holder, Group) and await books.is_wanted_holder(holder.name):
            await books.pace.breathe()
            group = f'holder="{escape(holder.name)}"'
            for member in holder.member_statistics(SERIES_MAX):
                table.add(
                    f'{{{group},member="{escape(member.name)}"}}',
                    member.delivered,
                    member.unacked,
                    int(member.flows),
                )


async def _tenants(books: _Books, table: _Table) -> None:
    for tenant in await tenants_of(books.ledger, books.pace):
        await books.pace.breathe()
        if await books.is_wanted_account(tenant.account.name):
            seen = tenant.account.statistics()
            table.add(
                f'{{tenant="{escape(tenant.name)}"}}',
                seen.weight,
                seen.debt_items,
                seen.debt_bytes,
                seen.limit_items,
                seen.limit_bytes,
                seen.share_items,
                seen.share_bytes,
                tenant.users,
                tenant.accounts,
                tenant.waiting,
                tenant.waiting_seconds,
            )


def _of_cell(account: str, holder: str) -> str:
    return f'{{account="{escape(account)}",holder="{escape(holder)}"}}'


def _may_be_blamed(account: Account, holder: str) -> bool:
    """Whether a holder of the account's debt is not on its statement yet, and may get there."""
    blame = blame_of(account)
    # Without a limit, nobody waits.
    return bool(account.limited) and (
        not blame or (holder not in blame and len(blame) < MAX_BLAMED)
    )


_PREFIX: Final = "clearfunds_detailed_"

TRUNCATED: Final = Family(
    f"{_PREFIX}truncated_series", "Series left out of this page because of its limit."
)


def _families(labels: tuple[str, ...], *rows: tuple[str, str]) -> tuple[Family, ...]:
    return tuple(
        Family(
            _PREFIX + name,
            documentation,
            "counter" if name.endswith("_total") else "gauge",
            labels,
        )
        for name, documentation in rows
    )


_Fill = Callable[[_Books, _Table], Awaitable[None]]

_ACCOUNT = (
    (
        _families(
            ("account", "parent"),
            ("account_debt_items", "Events unfinished on the account's behalf."),
            ("account_debt_bytes", "Bytes unfinished on the account's behalf."),
            ("account_debt_peak_items", "Highest debt of the account so far, in events."),
            ("account_debt_peak_bytes", "Highest debt of the account so far, in bytes."),
            ("account_debt_limit_items", "Debt in events above which the account's readers wait."),
            ("account_debt_limit_bytes", "Debt in bytes above which the account's readers wait."),
            ("account_waiting_readers", "Readers of the account that wait now."),
            ("account_borrowed_items_total", "Events charged to the account itself."),
            ("account_borrowed_bytes_total", "Bytes charged to the account itself."),
            ("account_throttle_events_total", "Times a reader of the account had to wait."),
        ),
        _accounts,
    ),
    (
        _families(
            ("account", "parent", "reason"),
            (
                "account_throttled_seconds_total",
                "Seconds that readers of the account waited, at itself or at one above it.",
            ),
        ),
        _throttled,
    ),
    (
        _families(
            ("account", "parent", "state"),
            (
                "account_moving_limit_age_seconds",
                "Time to clear the account's debt at its recent rate.",
            ),
            ("account_moving_limit_target_seconds", "The most that this should be."),
        ),
        _moving,
    ),
)

_HOLDER = (
    (
        _families(
            ("holder", "kind"),
            ("holder_debt_items", "Events in the holder's hands, of all accounts."),
            ("holder_debt_bytes", "Bytes in the holder's hands, of all accounts."),
            ("holder_loans", "Loans in the holder's hands."),
            ("holder_oldest_loan_age_seconds", "Age of the oldest loan in the holder's hands."),
            ("holder_idle_seconds", "Time since the holder made progress, if it holds anything."),
            (
                "holder_waited_for_seconds",
                "Time without progress for which readers have waited for the holder.",
            ),
            ("holder_patience_seconds", "Time waited for it after which its policy applies."),
            ("holder_behind_seconds", "Time for which it has been behind; 0 if no longer."),
            ("holder_dropped_items_total", "Events it could not take that were dropped."),
            ("holder_dropped_bytes_total", "Bytes it could not take that were dropped."),
            ("holder_stored_items_total", "Events it could not take that were spilled."),
            ("holder_stored_bytes_total", "Bytes it could not take that were spilled."),
        ),
        _holders,
    ),
    (
        _families(
            ("holder", "kind", "cause"),
            (
                "holder_cause_info",
                "1, with why it is slow, while readers wait for it and if that is clear.",
            ),
        ),
        _causes,
    ),
)

_MATRIX = (
    (
        _families(
            ("account", "holder"),
            ("debt_items", "Events of the account in the holder's hands."),
            ("debt_bytes", "Bytes of the account in the holder's hands."),
            ("oldest_loan_age_seconds", "Age of the account's oldest loan in the holder's hands."),
        ),
        _matrix,
    ),
)

_BLAME = (
    (
        _families(
            ("account", "holder"),
            (
                "blamed_seconds_total",
                "Seconds that readers of the account waited for the holder; 0 if not so far.",
            ),
        ),
        _blame,
    ),
)

_QUEUE = (
    (
        _families(
            ("holder", "account"),
            ("queue_ready_messages", "Messages in the queue that wait for a consumer."),
            ("queue_ready_bytes", "Bytes of the messages in the queue that wait for a consumer."),
            ("queue_unacked_messages", "Messages of the queue delivered and not acknowledged."),
            (
                "queue_at_rest_messages",
                "Messages at rest in the queue, which owes for them itself.",
            ),
            ("queue_at_rest_bytes", "Bytes at rest in the queue, which owes for them itself."),
            ("queue_limit_messages", "Most messages at rest in the queue."),
            ("queue_limit_bytes", "Most bytes at rest in the queue."),
            ("queue_ram_messages", "Messages of the queue in RAM, on disk as well or not."),
            ("queue_disk_only_messages", "Messages of the queue that are on disk and not in RAM."),
            ("queue_unwritten_messages", "Messages of the queue that wait to be written."),
            ("queue_consumers", "Consumers of the queue; none while its client is away."),
            ("queue_messages_published_total", "Messages that came into the queue."),
            ("queue_messages_delivered_total", "Deliveries from the queue."),
            (
                "queue_messages_redelivered_total",
                "Deliveries that may be repetitions.",
            ),
            ("queue_messages_acked_total", "Messages of the queue that were acknowledged."),
            ("queue_messages_expired_total", "Messages that outlived their time in the queue."),
            ("queue_messages_dropped_total", "Messages dropped from its head: it was full."),
            ("queue_messages_refused_total", "Messages refused: it was full, or the disk failed."),
            ("queue_messages_dead_lettered_total", "Messages published anew as dead letters."),
            ("queue_messages_recovered_total", "Messages of the queue found after a restart."),
            ("queue_messages_lost_total", "Messages of the queue that were not found on disk."),
            ("queue_messages_paged_out_total", "Messages paged out of RAM, to be read back."),
            ("queue_messages_paged_in_total", "Messages of the queue read back from disk."),
        ),
        _queues,
    ),
)

_GROUP = (
    (
        _families(
            ("holder", "member"),
            ("group_member_messages_total", "Messages given to the member of the group."),
            ("group_member_unacked_messages", "Messages that it has not acknowledged yet."),
            ("group_member_flows", "Whether it takes messages now; 0: it is stuck."),
        ),
        _groups,
    ),
)

_TENANT = (
    (
        _families(
            ("tenant",),
            ("tenant_weight", "Weight of the tenant's share beside those of others."),
            ("tenant_debt_items", "Events unfinished on behalf of the tenant."),
            ("tenant_debt_bytes", "Bytes unfinished on behalf of the tenant."),
            ("tenant_debt_limit_items", "Debt in events above which it waits or shares."),
            ("tenant_debt_limit_bytes", "Debt in bytes above which it waits or shares."),
            ("tenant_share_items", "Its share of the server's limit while that is exceeded."),
            ("tenant_share_bytes", "Its share of the server's limit while that is exceeded."),
            ("tenant_user_accounts", "Users of the tenant that have their own accounts."),
            ("tenant_accounts", "Accounts that cause the tenant's debt: its connections, mostly."),
            ("tenant_waiting_readers", "Readers of the tenant's connections that wait now."),
            ("tenant_waiting_seconds", "How long the first of them has waited."),
        ),
        _tenants,
    ),
)

TABLES: Final[dict[str, tuple[tuple[tuple[Family, ...], _Fill], ...]]] = {
    "account": _ACCOUNT,
    "holder": _HOLDER,
    "matrix": _MATRIX,
    "blame": _BLAME,
    "queue": _QUEUE,
    "group": _GROUP,
    "tenant": _TENANT,
}
"""The metrics of each `family=`, whose samples share one table, and the function that fills it."""
