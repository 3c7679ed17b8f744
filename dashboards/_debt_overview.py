"""Does any connection wait, how near are others to their limits, and which accounts owe most?"""

from __future__ import annotations

from ._panels import (
    FIRING,
    HERE,
    Board,
    Query,
    Row,
    added,
    board,
    heat,
    lines,
    number,
    quantiles,
    rows_of,
)

_RATE = "[$__rate_interval]"
_WRITTEN_OFF = f'clearfunds_repaid_items_total{{outcome="written_off",{HERE}}}'


def debt_overview() -> Board:
    """Make the dashboard to open first; it needs only `/metrics`."""
    return board(
        "clearfunds-debt-overview",
        "clearfunds: debt overview",
        "Outstanding work (debt), headroom below the limits, readers that wait (backpressure), and "
        "the largest debtors and holders. The dashboard `who blocks whom` names each pair.",
        [
            Row("Is anybody held up?", _NOW),
            Row("Headroom: how much more may be owed", _HEADROOM),
            Row("Who pays", _PAYING),
            Row("Who holds", _HOLDING),
            Row("What became of it", _OUTCOMES),
            Row("Coming in and going out", _TRAFFIC),
        ],
    )


_NOW = [
    number(
        "Events owed",
        "How many events are outstanding now, over all accounts? Messages stored in queues do not "
        "count.",
        Query(f"sum(clearfunds_debt_items{{{HERE}}})"),
        span=4,
    ),
    number(
        "Readers that wait",
        "How many connections are not read now because they owe too much (backpressure)?",
        Query(f"sum(clearfunds_waiting_readers{{{HERE}}})"),
        orange=1,
        span=4,
    ),
    number(
        "Reader time throttled",
        "For which part of the time were connections not read? All connections count, pure "
        "subscribers too, so one publisher that stands still among ten connections is 10 %.",
        Query(
            f"sum(rate(clearfunds_throttled_seconds_total{{{HERE}}}{_RATE}))"
            f" / clamp_min(sum(clearfunds_connections{{{HERE}}}), 1)"
        ),
        unit="percentunit",
        orange=0.01,
        red=0.1,
        span=4,
    ),
    number(
        "Oldest loan",
        "How long has the oldest outstanding event been with its holder?",
        Query(f"max(clearfunds_oldest_loan_age_seconds{{{HERE}}})"),
        unit="s",
        orange=10,
        red=60,
        span=4,
    ),
    number(
        "Holds most",
        "Which holder has most of the outstanding events, and how many? The dashboard "
        "`who blocks whom` shows whether any reader waits for it.",
        Query(f"topk(1, sum by (holder) (clearfunds_top_holder_items{{{HERE}}}))", "{{holder}}"),
        name=True,
        span=4,
    ),
    number(
        "Alerts",
        "How many of the alerts of clearfunds.rules.yml fire now?",
        Query(f"count({FIRING}) or vector(0)"),
        orange=1,
        span=4,
    ),
    number(
        "Bytes owed",
        "How many bytes are outstanding now?",
        Query(f"sum(clearfunds_debt_bytes{{{HERE}}})"),
        unit="bytes",
        span=4,
    ),
    number(
        "Rings",
        "How many rings of connections block each other (flow-control deadlock), so that none of "
        "them can go on by itself?",
        Query(f"sum(clearfunds_rings{{{HERE}}})"),
        orange=1,
        span=4,
    ),
    number(
        "Given up",
        "How many events were discarded in the time shown, or since the relay started, because "
        "their holder made no progress for its patience (slow-consumer timeout)?",
        Query(f"sum({added(_WRITTEN_OFF, '$__range')})"),
        orange=1,
        span=4,
    ),
    number(
        "Leaked loans",
        "How many loans were lost without being settled? Any at all is a fault in the program.",
        Query(f"sum(clearfunds_leaked_loans_total{{{HERE}}})"),
        red=1,
        span=4,
    ),
    number(
        "Owes most",
        "Which account owes most, and how many events?",
        Query(
            f"topk(1, sum by (account) (clearfunds_top_debtor_debt_items{{{HERE}}}))",
            "{{account}}",
        ),
        name=True,
        span=4,
    ),
    number(
        "Books off by",
        "By how much does borrowed - repaid differ from the debt? Anything but 0 is a fault in the "
        "program.",
        Query(
            f"abs(sum(clearfunds_borrowed_items_total{{{HERE}}})"
            f" - sum(clearfunds_repaid_items_total{{{HERE}}})"
            f" - sum(clearfunds_debt_items{{{HERE}}} or clearfunds_at_rest_items{{{HERE}}}))"
        ),
        red=1,
        span=4,
    ),
]

_HEADROOM = [
    lines(
        "Bytes left before the whole relay waits",
        "How much more may all connections together owe before none of them is read?",
        Query(
            f'clearfunds_debt_limit_bytes{{level="server",{HERE}}}'
            f" - ignoring (level) clearfunds_debt_bytes{{{HERE}}}",
            "{{instance}}",
        ),
        unit="bytes",
    ),
    lines(
        "Debt and its peak",
        "How many events are owed, and how many were owed at most since the relay started?",
        Query(f"clearfunds_debt_items{{{HERE}}}", "owed, {{instance}}"),
        Query(f"clearfunds_debt_peak_items{{{HERE}}}", "peak, {{instance}}"),
    ),
    lines(
        "Limits in force",
        "At which debt in events, the high-water mark, do the readers of an account wait?",
        Query(f"clearfunds_debt_limit_items{{{HERE}}}", "{{level}}, {{instance}}"),
    ),
    heat(
        "Accounts by what they owe",
        "How many accounts owe how much, and how many come near the limit?",
        Query(
            f"sum by (le) (clearfunds_account_debt_items_distribution_bucket{{{HERE}}})", "{{le}}"
        ),
        unit="short",
    ),
    lines(
        "Overshoot",
        "By how many events were accounts over their limit when they began to wait? One packet's "
        "fan-out is by design; much more is not.",
        *quantiles("clearfunds_overshoot_items"),
        span=12,
    ),
]

_PAYING = [
    lines(
        "Accounts by state",
        "How many accounts owe nothing, owe something, have readers that wait, or are closed and "
        "still being paid off?",
        Query(f"sum by (state) (clearfunds_accounts{{{HERE}}})", "{{state}}"),
        stacked=True,
    ),
    lines(
        "Readers that waited, on average",
        "How many readers waited at a time, for their own account's debt or for that of an account "
        "above it? 1 is one connection that was not read at all.",
        Query(
            f"sum by (reason) (rate(clearfunds_throttled_seconds_total{{{HERE}}}{_RATE}))",
            "{{reason}}",
        ),
        stacked=True,
    ),
    lines(
        "Waits begun",
        "How often a second did a reader have to wait? Many short waits mean that the relay keeps "
        "pace with a slow consumer; few long ones mean that a consumer is stuck.",
        Query(
            f"sum by (reason) (rate(clearfunds_throttle_events_total{{{HERE}}}{_RATE}))",
            "{{reason}}",
        ),
        unit="ops",
        stacked=True,
    ),
    lines(
        "How long a wait lasts",
        "How long did readers wait until they went on?",
        *quantiles("clearfunds_throttle_duration_seconds"),
        unit="s",
        span=12,
    ),
    rows_of(
        "Largest debtors",
        "Which accounts owe most now? The ten largest of each relay.",
        ("instance", "account"),
        {
            "Events": (
                f"sum by (instance, account) (clearfunds_top_debtor_debt_items{{{HERE}}})",
                "short",
            ),
        },
    ),
]

_HOLDING = [
    rows_of(
        "Largest holders",
        "Which holders have most of the debt now? The ten largest of each relay.",
        ("instance", "holder"),
        {
            "Events": (
                f"sum by (instance, holder) (clearfunds_top_holder_items{{{HERE}}})",
                "short",
            ),
        },
    ),
    lines(
        "Age of loans when they ended, by hop",
        "How long do events stay with each kind of holder? This is the 99th percentile.",
        Query(
            "histogram_quantile(0.99, sum by (le, hop)"
            f" (rate(clearfunds_loan_age_seconds_bucket{{{HERE}}}{_RATE})))",
            "{{hop}}",
        ),
        unit="s",
        span=12,
    ),
]

_OUTCOMES = [
    lines(
        "Borrowed and repaid",
        "Do events end as fast as they begin? Where the lines part, debt grows or shrinks.",
        Query(f"sum(rate(clearfunds_borrowed_items_total{{{HERE}}}{_RATE}))", "borrowed"),
        Query(f"sum(rate(clearfunds_repaid_items_total{{{HERE}}}{_RATE}))", "repaid"),
        unit="ops",
    ),
    lines(
        "Finished",
        "How many events a second were delivered, acknowledged or stored?",
        Query(
            'sum by (outcome) (rate(clearfunds_repaid_items_total{outcome=~"delivered|acked|stored"'
            f",{HERE}}}{_RATE}))",
            "{{outcome}}",
        ),
        unit="ops",
        stacked=True,
    ),
    lines(
        "Not finished",
        "How many events a second ended otherwise, and how? `written_off` events were discarded "
        "because their holder was stuck; `leaked` ones are a fault in the program.",
        Query(
            "sum by (outcome) (rate(clearfunds_repaid_items_total"
            f'{{outcome!~"delivered|acked|stored",{HERE}}}{_RATE}))',
            "{{outcome}}",
        ),
        unit="ops",
        stacked=True,
    ),
]

_TRAFFIC = [
    lines(
        "Messages received",
        "How many messages a second do peers publish, by protocol?",
        Query(
            f"sum by (transport) (rate(clearfunds_messages_received_total{{{HERE}}}{_RATE}))",
            "{{transport}}",
        ),
        unit="ops",
        stacked=True,
        span=6,
    ),
    lines(
        "Messages delivered",
        "How many messages a second are delivered to peers, once for each peer?",
        Query(
            f"sum by (instance) (rate(clearfunds_messages_delivered_total{{{HERE}}}{_RATE}))",
            "{{instance}}",
        ),
        unit="ops",
        span=6,
    ),
    lines(
        "Copies of a message",
        "To how many peers does a message go (fan-out, write amplification)?",
        *quantiles("clearfunds_fanout_copies"),
        span=6,
    ),
    lines(
        "Messages that went nowhere",
        "How many messages a second had no subscriber, or were refused (quotas, limits, ...)?",
        Query(
            f"sum(rate(clearfunds_messages_unroutable_total{{{HERE}}}{_RATE}))", "concerned nobody"
        ),
        Query(f"sum(rate(clearfunds_messages_rejected_total{{{HERE}}}{_RATE}))", "not taken"),
        Query(
            f"sum by (result) (rate(clearfunds_over_limit_messages_total{{{HERE}}}{_RATE}))",
            "above a limit: {{result}}",
        ),
        unit="ops",
        span=6,
    ),
]
