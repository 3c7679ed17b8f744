"""Is anybody held up, how near are the others to it, who pays and what became of it?"""

from __future__ import annotations

from ._panels import HERE, Board, Query, Row, board, lines, number

_RATE = "[$__rate_interval]"


def debt_overview() -> Board:
    """Make the dashboard that one opens first; it needs `/metrics` alone."""
    return board(
        "clearfunds-debt-overview",
        "clearfunds: debt overview",
        "What is owed, how much more may be, and whether readers wait. "
        "Who holds it is on the dashboard `who blocks whom`.",
        [
            Row("Is anybody held up?", _NOW),
            Row("Headroom: how much more may be owed", _HEADROOM),
            Row("Who pays", _PAYING),
            Row("What became of it", _OUTCOMES),
            Row("Coming in and going out", _TRAFFIC),
        ],
    )


_NOW = [
    number(
        "Events owed",
        "How many events are unfinished now, over all accounts?",
        Query(f"sum(clearfunds_debt_items{{{HERE}}})"),
    ),
    number(
        "Bytes owed",
        "How many bytes are those?",
        Query(f"sum(clearfunds_debt_bytes{{{HERE}}})"),
        unit="bytes",
    ),
    number(
        "Readers that wait",
        "How many connections are not read now because of what they owe?",
        Query(f"sum(clearfunds_waiting_readers{{{HERE}}})"),
        orange=1,
    ),
    number(
        "Reader time throttled",
        "Which part of the connections' time were they not read? All connections count, those that "
        "only subscribe too, so one publisher out of ten that stands still is 10 %.",
        Query(
            f"sum(rate(clearfunds_throttled_seconds_total{{{HERE}}}{_RATE}))"
            f" / clamp_min(sum(clearfunds_connections{{{HERE}}}), 1)"
        ),
        unit="percentunit",
        orange=0.01,
        red=0.1,
    ),
    number(
        "Given up",
        "How many events were given up unfinished in the time shown, because their holder made no "
        "progress for longer than its patience?",
        Query(
            f'sum(increase(clearfunds_repaid_items_total{{outcome="written_off",{HERE}}}'
            "[$__range]))"
        ),
        orange=1,
    ),
    number(
        "Leaked loans",
        "How many loans did nobody settle? Any at all is a fault in the program.",
        Query(f"sum(clearfunds_leaked_loans_total{{{HERE}}})"),
        red=1,
    ),
    number(
        "Books off by",
        "Is what was borrowed and not repaid what is owed? Anything but 0 is a fault in the "
        "program.",
        Query(
            f"abs(sum(clearfunds_borrowed_items_total{{{HERE}}})"
            f" - sum(clearfunds_repaid_items_total{{{HERE}}})"
            f" - sum(clearfunds_debt_items{{{HERE}}}))"
        ),
        red=1,
    ),
    number(
        "Alerts",
        "How many of the alerts of clearfunds.rules.yml fire now?",
        Query(
            f'count(ALERTS{{alertname=~"Clearfunds.*",alertstate="firing",{HERE}}}) or vector(0)'
        ),
        orange=1,
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
        "At which debt in events do the readers of an account wait? The limit stands beside the "
        "debt because a limit that nobody knows of explains nothing.",
        Query(f"clearfunds_debt_limit_items{{{HERE}}}", "{{level}}, {{instance}}"),
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
        "How many readers waited at a time? 1 is one connection that was not read at all.",
        Query(
            f"sum by (instance) (rate(clearfunds_throttled_seconds_total{{{HERE}}}{_RATE}))",
            "{{instance}}",
        ),
    ),
    lines(
        "Waits begun",
        "How often a second did a reader have to wait? Many short waits are how the relay keeps "
        "pace with a slow subscriber; few long ones are one that is stuck.",
        Query(
            f"sum by (instance) (rate(clearfunds_throttle_events_total{{{HERE}}}{_RATE}))",
            "{{instance}}",
        ),
        unit="ops",
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
        "How many events a second ended otherwise, and how? `written_off` was given up because its "
        "holder was stuck; `leaked` is a fault in the program.",
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
        "How many messages a second are handed to peers, once for each of them?",
        Query(
            f"sum by (instance) (rate(clearfunds_messages_delivered_total{{{HERE}}}{_RATE}))",
            "{{instance}}",
        ),
        unit="ops",
        span=6,
    ),
    lines(
        "Copies of a message, on average",
        "To how many peers does a message go? What one message may cause at once is the fan-out.",
        Query(
            f"sum(rate(clearfunds_messages_delivered_total{{{HERE}}}{_RATE}))"
            f" / clamp_min(sum(rate(clearfunds_messages_received_total{{{HERE}}}{_RATE})), 1)",
            "copies",
        ),
        span=6,
    ),
    lines(
        "Messages that went nowhere",
        "How many messages a second concerned nobody, or were not taken (reserved topics, quotas)?",
        Query(
            f"sum(rate(clearfunds_messages_unroutable_total{{{HERE}}}{_RATE}))", "concerned nobody"
        ),
        Query(f"sum(rate(clearfunds_messages_rejected_total{{{HERE}}}{_RATE}))", "not taken"),
        unit="ops",
        span=6,
    ),
]
