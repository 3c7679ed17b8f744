"""What the books say, as values that do not change any more."""

import attrs

from ._limit_policy import MovingLimit


@attrs.frozen(slots=True)
class AccountStatistics:
    """The statement of one account."""

    name: str
    """What an operator knows it by."""
    parent: str | None
    """The name of the account above it."""
    at_rest: str | None
    """Where what it owes for is at rest: `disk` or `ram`; None: it is not."""
    state: str
    """`clear` (owes nothing), `owing`, `throttled` (above its limit, or above its share of its
    parent's), `flow` (somebody has no credit left for it) or `closing` (closed and still being paid
    off)."""
    alarms: tuple[str, ...]
    """The alarms for which its readers wait, and its descendants', whatever it owes."""
    debt_items: int
    """Events unfinished on its behalf, its descendants' included."""
    debt_bytes: int
    """Bytes unfinished on its behalf, its descendants' included."""
    peak_items: int
    """The highest `debt_items` so far."""
    peak_bytes: int
    """The highest `debt_bytes` so far."""
    limit_items: int | None
    """The debt in events above which its readers wait."""
    limit_bytes: int | None
    """The debt in bytes above which its readers wait."""
    low_items: int | None
    """The debt in events at or below which they go on."""
    low_bytes: int | None
    """The debt in bytes at or below which they go on."""
    moving: MovingLimit | None
    """What moves its limit is doing; None: nothing moves it."""
    weight: float
    """How large its share is beside its siblings', if its parent is shared."""
    shared: bool
    """Whether its children have shares of its limit."""
    share_items: int | None
    """What it may owe in events while its parent is above its limit; None: there is nothing to
    share now, or no limit in this unit."""
    share_bytes: int | None
    """The same in bytes."""
    rate_items: float | None
    """Events that may come in each second; None: no limit."""
    rate_bytes: float | None
    """Bytes that may; None: no limit."""
    blockers: tuple[str, ...]
    """Who has no credit left for what its readers bring in, for longest first."""
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
    """For how long in all, the waits that still go on included."""
    waited_by_reason: dict[str, float]
    """The same seconds by why they were waited: `account`, at this account itself; `parent`, at
    one above it; at either, `alarm`, while there was an alarm; `share`, for its share of what the
    account above may owe; `rate`, for more having come in than may; `credit`, for somebody's."""
    blame: dict[str, float]
    """Seconds waited by holder: each stretch of a wait counts for the holder whose repayment
    ended it. Ended waits, and the ended stretches of those that go on."""
    standing_items: int
    """Assertions and retained messages it owns."""
    standing_bytes: int
    """Their bytes."""


@attrs.frozen(slots=True)
class HolderStatistics:
    """What one holder has in its hands."""

    name: str
    """What an operator knows it by."""
    kind: str
    """`mailbox`, `outlet`, `router`, ..."""
    items: int
    """Events it holds, whoever owes for them."""
    bytes: int
    """Bytes it holds."""
    loans: int
    """Loans it holds."""
    oldest_seconds: float
    """The age of the oldest of them, 0.0 when it holds none."""
    idle_seconds: float
    """Seconds since it last made progress, 0.0 when it holds none."""
    patience: float
    """Seconds without progress, while others wait on it, after which its policy applies."""
    policy: str
    """What is done then: a `StuckPolicy`."""
    behind: bool
    """Whether it has been relieved and has not caught up since."""
    spells: int
    """How often it has been relieved."""
    dropped_items: int
    """Events that it could not take and that were dropped, since it was made."""
    dropped_bytes: int
    """Their bytes."""
    stored_items: int
    """Events that it could not take and that were put aside elsewhere, since it was made."""
    stored_bytes: int
    """Their bytes."""


@attrs.frozen(slots=True)
class Holding:
    """One cell of the matrix: who holds how much of whose debt."""

    account: str
    """Whose debt."""
    holder: str
    """Who holds it."""
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
    """How many accounts are in each state of `AccountStatistics.state`, but for those at rest."""
    holders: int
    """How many holders are registered."""
    behind: int
    """How many of them are behind: relieved of what they could not take."""
    relieved: dict[str, int]
    """How often holders have been relieved, by policy."""
    relieved_items: dict[str, int]
    """Events that they could not take, by policy: dropped, or put aside elsewhere (`spill`)."""
    relieved_bytes: dict[str, int]
    """Their bytes."""
    debt_items: int
    """Events unfinished, over all accounts but those at rest."""
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
    """The same by why it had to wait at first; see `AccountStatistics.waited_by_reason`."""
    waited_seconds: float
    """For how long in all, the waits that still go on included."""
    waited_by_reason: dict[str, float]
    """The same seconds by why they were waited."""
    leaked_loans: int
    """Loans that the garbage collector found outstanding."""
    standing_items: int
    """Assertions and retained messages, of all owners."""
    standing_bytes: int
    """Their bytes."""
