"""`/metrics/detailed`: a series for each account, each holder, each who-holds-whose-debt.

The number of these has no bound but the number of peers, so nothing is served unless it is asked
for, by `family=`, and never more than `limit=` series; what is left out is counted in the page.
The prefix is `clearfunds_detailed_`, so that one Prometheus can scrape both pages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import attrs

from ...accounts._waiters import waited_by_reason
from ._exposition import Family, format_labels
from ._holdings import BREATH_EVERY, Everybody, cells_of
from ._name_pattern import NamePattern

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from ...accounts import Account, Ledger
    from ._pace import Pace

SERIES_DEFAULT: Final = 50_000
# As many as four thousand accounts have. A Prometheus server takes in some hundred thousand a
# second.
SERIES_MAX: Final = 200_000
# The rows of a page are kept until it has been sent; this bounds them to some 20 MB.
PIECE_CHARACTERS: Final = 32768

_Row = tuple[str, tuple[float | None, ...]]


@attrs.frozen
class DetailedQuery:
    """What was asked for."""

    families: tuple[str, ...]
    """`account`, `holder`, `matrix`, `blame`, each at most once."""
    account: NamePattern | None = None
    """Which accounts, where accounts are told of."""
    holder: NamePattern | None = None
    """Which holders, where holders are told of."""
    limit: int = SERIES_DEFAULT
    """Series at most."""

    @classmethod
    def parse(cls, query: Mapping[str, tuple[str, ...]]) -> DetailedQuery:
        """Read a query string's fields.

        Raises:
            ValueError: something is wrong with them; the message says what in a sentence.
        """
        for field in query:
            if field not in ("family", "account", "holder", "limit"):
                msg = f"There is no field {field[:50]!r}; there are family, account, holder, limit."
                raise ValueError(msg)
        # An ordered set: a family named twice would be a metric told of twice.
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
        account = _last(query, "account")
        holder = _last(query, "holder")
        return cls(
            families=tuple(families),
            account=None if account is None else NamePattern(account),
            holder=None if holder is None else NamePattern(holder),
            limit=SERIES_DEFAULT if limit is None else min(int(limit), SERIES_MAX),
        )


def _last(query: Mapping[str, tuple[str, ...]], field: str) -> str | None:
    values = query.get(field)
    return values[-1] if values else None


async def write_detailed(
    ledger: Ledger, query: DetailedQuery, pace: Pace
) -> AsyncGenerator[bytes, None]:
    """Write the page, in pieces.

    Each row is read at one instant, the page as a whole is not.
    """
    room = query.limit
    left_out = 0
    for metrics, fill in [table for family in query.families for table in TABLES[family]]:
        table = _Table(metrics, room)
        await fill(ledger, query, table, pace)
        room = table.room
        left_out += table.left_out
        text: list[str] = []
        characters = 0
        for column, metric in enumerate(table.metrics):
            text.append(metric.head())
            for number, (labels, values) in enumerate(table.rows):
                if not number % BREATH_EVERY:
                    await pace.breathe()
                value = values[column]
                if value is not None:
                    line = metric.sample(labels, value)
                    text.append(line)
                    characters += len(line)
                    if characters >= PIECE_CHARACTERS:
                        yield _encode(text)
                        text.clear()
                        characters = 0
        yield _encode(text)
    yield _encode([TRUNCATED.head(), TRUNCATED.sample("", left_out)])


def _encode(text: list[str]) -> bytes:
    # A name with half of a surrogate pair in it must not cost the whole page.
    return "".join(text).encode("utf-8", "replace")


@attrs.define
class _Table:
    """Rows of one family, as many as there is room for."""

    metrics: tuple[Family, ...]
    room: int
    rows: list[_Row] = attrs.field(factory=list[_Row])
    left_out: int = 0

    def add(self, labels: Mapping[str, str], *values: float | None) -> None:
        """Add a row, with a value or None for each metric; count it if there is no room."""
        series = len(values) - values.count(None)
        if series > self.room:
            # No smaller row after this one: what is there is the beginning of the list.
            self.room = 0
            self.left_out += series
        else:
            self.room -= series
            self.rows.append((format_labels(labels), values))


def _ordered(ledger: Ledger) -> list[Account]:
    # Those that owe come first: they are what is looked for when not all can be told of.
    accounts = list(ledger.accounts.values())
    return [a for a in accounts if a.debt_items] + [a for a in accounts if not a.debt_items]


async def _accounts(ledger: Ledger, query: DetailedQuery, table: _Table, pace: Pace) -> None:
    for number, account in enumerate(_ordered(ledger)):
        if not number % BREATH_EVERY:
            await pace.breathe()
        if query.account is not None:
            await pace.breathe()
            if not query.account.matches(account.name):
                continue
        statement = account.statistics()
        table.add(
            {"account": statement.name, "parent": statement.parent or ""},
            statement.debt_items,
            statement.debt_bytes,
            statement.peak_items,
            statement.peak_bytes,
            statement.limit_items,
            statement.limit_bytes,
            statement.waiting,
            statement.borrowed_items,
            statement.borrowed_bytes,
            statement.waits,
        )


async def _throttled(ledger: Ledger, query: DetailedQuery, table: _Table, pace: Pace) -> None:
    for number, account in enumerate(_ordered(ledger)):
        if not number % BREATH_EVERY:
            await pace.breathe()
        if query.account is not None:
            await pace.breathe()
            if not query.account.matches(account.name):
                continue
        waited = waited_by_reason(
            account.waited_here, account.waited_above, account.readers or (), ledger.clock()
        )
        labels = {
            "account": account.name,
            "parent": "" if account.parent is None else account.parent.name,
        }
        for reason, seconds in waited.items():
            table.add({**labels, "reason": reason}, seconds)


async def _holders(ledger: Ledger, query: DetailedQuery, table: _Table, pace: Pace) -> None:
    for hands in await Everybody.of(ledger, pace):
        await pace.breathe()
        if query.holder is not None and not query.holder.matches(hands.name):
            continue
        cells = (await cells_of(hands, ledger, pace)).values()
        now = ledger.clock()
        table.add(
            {"holder": hands.name, "kind": hands.kind},
            sum([cell.items for cell in cells]),
            sum([cell.bytes for cell in cells]),
            sum([cell.loans for cell in cells]),
            max([now - cell.opened for cell in cells], default=0.0),
            # Who holds nothing is not failing to make progress.
            max([now - h.progressed_at for h in hands.holders], default=0.0) if cells else 0.0,
            min([holder.patience for holder in hands.holders], default=None),
        )


async def _matrix(ledger: Ledger, query: DetailedQuery, table: _Table, pace: Pace) -> None:
    for hands in await Everybody.of(ledger, pace):
        await pace.breathe()
        if query.holder is not None and not query.holder.matches(hands.name):
            continue
        cells = await cells_of(hands, ledger, pace)
        now = ledger.clock()
        for account, cell in cells.items():
            await pace.breathe()
            if query.account is None or query.account.matches(account):
                table.add(
                    {"account": account, "holder": hands.name},
                    cell.items,
                    cell.bytes,
                    now - cell.opened,
                )


async def _blame(ledger: Ledger, query: DetailedQuery, table: _Table, pace: Pace) -> None:
    for account in list(ledger.accounts.values()):
        await pace.breathe()
        if not account.blame or (query.account and not query.account.matches(account.name)):
            continue
        for holder, seconds in list(account.blame.items()):
            if query.holder is None or query.holder.matches(holder):
                table.add({"account": account.name, "holder": holder}, seconds)


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


_Fill = Callable[["Ledger", DetailedQuery, _Table, "Pace"], Awaitable[None]]

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
)

_HOLDER = (
    (
        _families(
            ("holder", "kind"),
            ("holder_debt_items", "Events in the holder's hands, whoever owes for them."),
            ("holder_debt_bytes", "Bytes in the holder's hands, whoever owes for them."),
            ("holder_loans", "Loans in the holder's hands."),
            ("holder_oldest_loan_age_seconds", "Age of the oldest loan in the holder's hands."),
            ("holder_idle_seconds", "Time since the holder made progress, if it holds anything."),
            ("holder_patience_seconds", "Idle time after which the holder's policy applies."),
        ),
        _holders,
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
                "Seconds that readers of the account waited for the holder to repay.",
            ),
        ),
        _blame,
    ),
)

TABLES: Final[dict[str, tuple[tuple[tuple[Family, ...], _Fill], ...]]] = {
    "account": _ACCOUNT,
    "holder": _HOLDER,
    "matrix": _MATRIX,
    "blame": _BLAME,
}
"""What each `family=` is: metrics whose samples stand in one table, and who fills it."""
