"""Snapshots of the books, as immutable values."""

import attrs

from .limits._limit_policy import MovingLimit


@attrs.frozen(slots=True)
class AccountStatistics:
    """The statement of one account."""

    name: str
    """The name that an operator sees."""
    parent: str | None
    """The name of the account above it."""
    at_rest: str | None
    """Where its messages are at rest (paged out): `disk` or `ram`; None: they are not."""
    state: str
    """`clear` (owes nothing), `owing`, `throttled` (above its limit, or above its share of its
    parent's), `flow` (a holder has no credit left for it) or `closing` (closed and still being paid
    off)."""
    alarms: tuple[str, ...]
    """The alarms for which its readers wait, and its descendants', whatever it owes."""
    debt_items: int
    """Outstanding events charged to it and its descendants."""
    debt_bytes: int
    """Outstanding bytes charged to it and its descendants."""
    peak_items: int
    """The highest `debt_items` so far."""
    peak_bytes: int
    """The highest `debt_bytes` so far."""
    limit_items: int | None
    """The high-water mark: the debt in events above which its readers wait."""
    limit_bytes: int | None
    """The same in bytes."""
    low_items: int | None
    """The lower mark: the debt in events at or below which they go on."""
    low_bytes: int | None
    """The same in bytes."""
    moving: MovingLimit | None
    """State of the controller that moves its limit; None: nothing moves it."""
    weight: float
    """Its weight among its siblings, if its parent is shared."""
    shared: bool
    """Whether its children have shares of its limit."""
    share_items: int | None
    """The events it may owe while its parent is above its limit; None: there is nothing to share
    now, or no limit in this unit."""
    share_bytes: int | None
    """The same in bytes."""
    rate_items: float | None
    """Rate limit in events per second; None: no limit."""
    rate_bytes: float | None
    """Rate limit in bytes per second; None: no limit."""
    blockers: tuple[str, ...]
    """Holders with no credit left for its readers' input, the longest without credit first."""
    borrowed_items: int
    """Events ever charged to it directly."""
    borrowed_bytes: int
    """Bytes ever charged to it directly."""
    waiting: int
    """Readers of this account that wait now, here or at an ancestor."""
    waiting_seconds: float
    """How long the longest of them has waited so far."""
    waits: int
    """How often a reader of this account had to wait."""
    waited_seconds: float
    """Total seconds of these waits, those still going on included."""
    waited_by_reason: dict[str, float]
    """The same seconds by reason: `account`, at this account itself; `parent`, at one above it; at
    either, `alarm`, during an alarm; `share`, above its share of the limit of the account above;
    `rate`, above a rate limit; `blocked`, while a holder blocked it."""
    blame: dict[str, float]
    """Blocked seconds by holder: each stretch of a wait counts for the holder whose repayment
    ended it. Ended waits, and the ended stretches of waits that go on."""
    standing_items: int
    """Assertions and retained messages it owns."""
    standing_bytes: int
    """Their bytes."""


@attrs.frozen(slots=True)
class HolderStatistics:
    """The loans of one holder, in figures."""

    name: str
    """The name that an operator sees."""
    kind: str
    """`mailbox`, `outlet`, `router`, ..."""
    items: int
    """Events it holds, of all accounts."""
    bytes: int
    """Bytes it holds."""
    loans: int
    """Loans it holds."""
    oldest_seconds: float
    """The age of the oldest of them, 0.0 when it holds none."""
    idle_seconds: float
    """Seconds since it last made progress, 0.0 when it holds none."""
    patience: float
    """Slow-consumer timeout: seconds without progress, while readers wait on it, until its policy
    applies."""
    policy: str
    """The policy for slow consumers that applies then: a `StuckPolicy`."""
    lagging: bool
    """Whether it is lagging: relieved, and not caught up since."""
    spells: int
    """How often it has been relieved."""
    dropped_items: int
    """Events that it could not take and that were dropped, since it was made."""
    dropped_bytes: int
    """Their bytes."""
    stored_items: int
    """Events that it could not take and that were spilled, since it was made."""
    stored_bytes: int
    """Their bytes."""


@attrs.frozen(slots=True)
class Holding:
    """One cell of the matrix: how much of one account's debt one holder has."""

    account: str
    """The account that owes."""
    holder: str
    """The holder."""
    items: int
    """Events."""
    bytes: int
    """Bytes."""
    oldest_seconds: float
    """The age of the oldest loan among them."""


@attrs.frozen(slots=True)
class LedgerStatistics:
    """All accounts in a few numbers; constant size however many accounts there are.

    The totals never fall when an account is closed.
    """

    accounts: dict[str, int]
    """Number of accounts in each state of `AccountStatistics.state`, without those at rest."""
    holders: int
    """Registered holders."""
    lagging: int
    """Lagging holders among them: relieved of messages that they could not take."""
    relieved: dict[str, int]
    """How often holders have been relieved, by policy."""
    relieved_items: dict[str, int]
    """Events that they could not take, by policy: dropped, or spilled (`spill`)."""
    relieved_bytes: dict[str, int]
    """Their bytes."""
    debt_items: int
    """Outstanding events, over all accounts but those at rest."""
    debt_bytes: int
    """Their bytes."""
    at_rest_items: dict[str, int]
    """Events at rest, by where they are: on `disk`, in `ram`."""
    at_rest_bytes: dict[str, int]
    """Their bytes."""
    top_debt_items: int
    """The highest debt of any one account, but for those at rest."""
    borrowed_items: int
    """Events ever borrowed."""
    borrowed_bytes: int
    """Bytes ever borrowed."""
    repaid_items: dict[str, int]
    """Events ever repaid, by outcome."""
    repaid_bytes: dict[str, int]
    """Bytes ever repaid, by outcome."""
    waiting: int
    """Readers that wait now."""
    waits: int
    """How often a reader had to wait."""
    waits_by_reason: dict[str, int]
    """The same by first reason of the wait; see `AccountStatistics.waited_by_reason`."""
    waited_seconds: float
    """Total seconds of these waits, those still going on included."""
    waited_by_reason: dict[str, float]
    """The same seconds by reason."""
    leaked_loans: int
    """Loans that the garbage collector found outstanding."""
    standing_items: int
    """Assertions and retained messages, of all owners."""
    standing_bytes: int
    """Their bytes."""
