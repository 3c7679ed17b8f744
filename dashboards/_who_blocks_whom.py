"""Which accounts wait for which holders, for how long, and what comes next?"""

from __future__ import annotations

from ._panels import HERE, Board, Query, Row, bars, board, lines, matrix, number, rows_of

_RATE = "[$__rate_interval]"
_D = "clearfunds_detailed"
_ACCOUNT = f'account=~"$account",{HERE}'
_HOLDER = f'holder=~"$holder",{HERE}'
_BOTH = f'account=~"$account",holder=~"$holder",{HERE}'

# The debt of accounts whose readers wait, by holder.
_BLOCKING = (
    f"sum by (instance, holder) ({_D}_debt_items{{{_BOTH}}}"
    f" and on (instance, account) ({_D}_account_waiting_readers{{{_ACCOUNT}}} > 0))"
)
_WAITING = f"sum by (account) ({_D}_account_waiting_readers{{{_ACCOUNT}}}) > 0"


def _used_up(unit: str) -> str:
    return (
        f"({_D}_account_debt_{unit}{{{_ACCOUNT}}} / {_D}_account_debt_limit_{unit}{{{_ACCOUNT}}})"
    )


# The limit, in events or bytes, that is nearer; an account may have either, both or none.
_USED_UP = (
    f"({_used_up('items')} > {_used_up('bytes')}) or {_used_up('bytes')} or {_used_up('items')}"
)


def who_blocks_whom() -> Board:
    """Make the dashboard that names accounts and holders; it needs `/metrics/detailed`."""
    return board(
        "clearfunds-who-blocks-whom",
        "clearfunds: who blocks whom",
        "Accounts whose readers wait (backpressure), the holders of their debt, and for how long. "
        "Needs a scrape of /metrics/detailed?family=account,holder,matrix,blame,tenant.",
        [
            Row("The culprit", _CULPRIT),
            Row("Who holds whose debt", _MATRIX),
            Row("Who waits", _WAITERS),
            Row("Who holds", _HOLDERS),
            Row("Tenants", _TENANTS),
        ],
        patterns=("account", "holder"),
    )


_CULPRIT = [
    number(
        "Accounts that wait",
        "How many accounts are not read now because they owe too much?",
        Query(f"count({_D}_account_waiting_readers{{{_ACCOUNT}}} > 0) or vector(0)"),
        orange=1,
        span=4,
    ),
    number(
        "Most of it is held by",
        "Which holder has most of the debt of the accounts that wait, and which part of it? If "
        "that part is large, they wait for this slow consumer.",
        Query(
            f"topk(1, {_BLOCKING} / on (instance) group_left () sum by (instance) ({_BLOCKING}))",
            "{{holder}}",
        ),
        unit="percentunit",
        orange=0.5,
        span=10,
        name=True,
    ),
    number(
        "Next to be given up",
        "Which holder that others wait for has used up most of its patience (slow-consumer "
        "timeout), and which part? At 100 % the relay applies its policy: it disconnects the "
        "holder (unless it runs with --stuck wait) and discards its events. 0 %: no reader waits.",
        Query(
            f"topk(1, {_D}_holder_waited_for_seconds{{{_HOLDER}}}"
            f" / {_D}_holder_patience_seconds{{{_HOLDER}}})",
            "{{holder}}",
        ),
        unit="percentunit",
        orange=0.5,
        red=0.8,
        span=10,
        name=True,
    ),
]

_MATRIX = [
    matrix(
        "Events owed, by account (down) and holder (across)",
        "How much of each account's debt does each holder have? A column that is red from top to "
        "bottom is a slow consumer that blocks all publishers; a row that is red from left to "
        "right is a publisher that outruns all subscribers. The hundred largest cells are shown.",
        Query(f"topk(100, sum by (account, holder) ({_D}_debt_items{{{_BOTH}}}))"),
        row="account",
        column="holder",
        unit="short",
    ),
    rows_of(
        "Debt and its age",
        "How much of each account's debt does each holder have, and how old is the oldest loan "
        "there? Old and large is stuck; young and large is busy.",
        ("account", "holder"),
        {
            "Events": (f"topk(50, sum by (account, holder) ({_D}_debt_items{{{_BOTH}}}))", "short"),
            "Bytes": (f"topk(50, sum by (account, holder) ({_D}_debt_bytes{{{_BOTH}}}))", "bytes"),
            "Oldest": (
                f"topk(50, max by (account, holder) ({_D}_oldest_loan_age_seconds{{{_BOTH}}}))",
                "s",
            ),
        },
        span=24,
        coloured="Oldest",
    ),
]

_WAITERS = [
    rows_of(
        "Accounts that are not read",
        "Which accounts' readers wait now, what do they owe, and which part of their limit is it? "
        "A part below 100 % that falls is being paid off: they go on at half (the low-water mark). "
        "An account that waits with little debt waits because the whole relay is over its limit.",
        ("account",),
        {
            "Readers that wait": (_WAITING, "short"),
            "Events owed": (
                f"sum by (account) ({_D}_account_debt_items{{{_ACCOUNT}}}) and ({_WAITING})",
                "short",
            ),
            "Bytes owed": (
                f"sum by (account) ({_D}_account_debt_bytes{{{_ACCOUNT}}}) and ({_WAITING})",
                "bytes",
            ),
            "Of what it may": (f"max by (account) ({_USED_UP}) and ({_WAITING})", "percentunit"),
        },
        coloured="Of what it may",
    ),
    bars(
        "Nearest to having to wait",
        "Which accounts have used up most of their limit, in events or bytes, whichever is nearer? "
        "Above 100 % their readers wait.",
        Query(f"topk(10, {_USED_UP})", "{{account}}"),
        unit="percentunit",
        orange=0.5,
        red=1,
    ),
    lines(
        "Time throttled, by account",
        "For which part of the time was each account not read? At 100 % it stands still.",
        Query(
            "topk(10, sum by (account)"
            f" (rate({_D}_account_throttled_seconds_total{{{_ACCOUNT}}}{_RATE})))",
            "{{account}}",
        ),
        unit="percentunit",
        span=12,
    ),
    lines(
        "Debt, by account",
        "Which accounts owe most, over time? The accounts of the whole relay and of tenants are "
        "left out.",
        Query(
            f"topk(10, sum by (account) ({_D}_account_debt_items"
            f'{{{_ACCOUNT},parent!="",account!~"tenant/.*"}}))',
            "{{account}}",
        ),
        span=12,
    ),
]

_HOLDERS = [
    lines(
        "Held, by holder",
        "Which holders have the outstanding events of all accounts?",
        Query(
            f"topk(10, sum by (holder) ({_D}_holder_debt_items{{{_HOLDER}}}))",
            "{{holder}}",
        ),
        span=12,
    ),
    lines(
        "Blamed, by holder",
        "For which holders did readers wait? Each stretch of a wait counts for the holder whose "
        "repayment ended it, so one that never repays appears only when it is given up.",
        Query(
            f"topk(10, sum by (holder) (rate({_D}_blamed_seconds_total{{{_BOTH}}}{_RATE})))",
            "{{holder}}",
        ),
        unit="percentunit",
        span=12,
    ),
    lines(
        "Oldest loan, by holder",
        "How long does each holder keep its events?",
        Query(
            f"topk(10, max by (holder) ({_D}_holder_oldest_loan_age_seconds{{{_HOLDER}}}))",
            "{{holder}}",
        ),
        unit="s",
        span=8,
    ),
    bars(
        "Patience used up",
        "For which part of its patience has each holder made no progress while others waited for "
        "it?",
        Query(
            f"topk(10, {_D}_holder_waited_for_seconds{{{_HOLDER}}}"
            f" / {_D}_holder_patience_seconds{{{_HOLDER}}})",
            "{{holder}}",
        ),
        unit="percentunit",
        orange=0.5,
        red=0.8,
        maximum=1,
        span=8,
    ),
    number(
        "Series left out",
        "Are all series here? Anything but 0 was left out of the detailed page because of its "
        "`limit`: raise it, or ask for fewer accounts (see the README).",
        Query(f"sum({_D}_truncated_series{{{HERE}}})"),
        orange=1,
        span=8,
    ),
]


def _of_tenants(metric: str) -> str:
    return f"sum by (tenant) ({_D}_tenant_{metric}{{{HERE}}})"


def _tenants_part(unit: str) -> str:
    return f"({_D}_tenant_debt_{unit}{{{HERE}}} / {_D}_tenant_debt_limit_{unit}{{{HERE}}})"


_TENANTS_PART = (
    f"({_tenants_part('items')} > {_tenants_part('bytes')})"
    f" or {_tenants_part('bytes')} or {_tenants_part('items')}"
)

_TENANTS = [
    rows_of(
        "Tenants",
        "What does each tenant owe, which part of its own limit is it, and how many of its readers "
        "wait? A tenant that waits below its limit waits for its share of the server's limit, in "
        "proportion to its weight. Without tenants this is empty.",
        ("tenant",),
        {
            "Weight": (f"max by (tenant) ({_D}_tenant_weight{{{HERE}}})", "short"),
            "Connections": (_of_tenants("accounts"), "short"),
            "Events owed": (_of_tenants("debt_items"), "short"),
            "Bytes owed": (_of_tenants("debt_bytes"), "bytes"),
            "Of what it may": (
                f"max by (tenant) ({_TENANTS_PART})",
                "percentunit",
            ),
            "Readers that wait": (_of_tenants("waiting_readers"), "short"),
            "The longest": (f"max by (tenant) ({_D}_tenant_waiting_seconds{{{HERE}}})", "s"),
        },
        span=24,
        coloured="Of what it may",
    ),
    lines(
        "Debt, by tenant",
        "Which tenants owe most, over time?",
        Query(f"topk(10, {_of_tenants('debt_items')})", "{{tenant}}"),
        span=12,
    ),
    lines(
        "Charged, by tenant",
        "How many events a second are charged to each tenant, or to each of its users if these "
        "have accounts?",
        Query(
            f"topk(10, sum by (parent) (rate({_D}_account_borrowed_items_total"
            f'{{{HERE},parent=~"tenant/.*"}}{_RATE})))',
            "{{parent}}",
        ),
        span=12,
    ),
]
