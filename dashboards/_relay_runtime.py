"""Is the process well?"""

from __future__ import annotations

from ._panels import HERE, Board, Query, Row, added, board, lines, number, quantiles, rows_of

_RATE = "[$__rate_interval]"
# The system's process metrics have generic names; this matcher selects those of relays.
_RELAYS = f"and on (instance, job) clearfunds_build_info{{{HERE}}}"


def relay_runtime() -> Board:
    """Make the dashboard of the process and its connections; it needs only `/metrics`."""
    return board(
        "clearfunds-relay-runtime",
        "clearfunds: relay runtime",
        "The relay as a process: its resources, its connections and its faults.",
        [
            Row("Now", _NOW),
            Row("Connections", _CONNECTIONS),
            Row("Resources", _RESOURCES),
            Row("Being watched", _WATCHED),
        ],
    )


_NOW = [
    rows_of(
        "Relays",
        "Which relays are there, in which version, and since when do they run?",
        ("instance", "version"),
        {
            "Up for": (
                (
                    f"max by (instance, version) ((time() - process_start_time_seconds{{{HERE}}})"
                    " * on (instance, job) group_left (version)"
                    f" clearfunds_build_info{{{HERE}}})"
                ),
                "s",
            ),
        },
    ),
    number(
        "Pages that answer",
        "Which part of the scrapes succeeds?",
        Query(f'avg(up{{job=~"clearfunds.*",{HERE}}})'),
        unit="percentunit",
        span=4,
    ),
    number(
        "Connections",
        "How many connections are open?",
        Query(f"sum(clearfunds_connections{{{HERE}}})"),
        span=4,
    ),
    number(
        "Faults of its own",
        "How many internal errors has the relay met in the time shown, or since it started? Each "
        "closes one connection at most, and is in the log with its traceback.",
        Query(f"sum({added(f'clearfunds_internal_errors_total{{{HERE}}}', '$__range')})"),
        red=1,
        span=4,
    ),
]

_CONNECTIONS = [
    lines(
        "Open connections",
        "How many connections are open, by protocol?",
        Query(f"sum by (transport) (clearfunds_connections{{{HERE}}})", "{{transport}}"),
        stacked=True,
        span=6,
    ),
    lines(
        "Connections accepted",
        "How many connections a second are accepted? Many mean that clients reconnect often.",
        Query(
            f"sum by (transport) (rate(clearfunds_accepted_connections_total{{{HERE}}}{_RATE}))",
            "{{transport}}",
        ),
        unit="ops",
        span=6,
    ),
    lines(
        "Connections turned away or closed",
        "How many a second were refused, broke the protocol, or were silent for too long?",
        Query(f"sum(rate(clearfunds_refused_connections_total{{{HERE}}}{_RATE}))", "refused"),
        Query(f"sum(rate(clearfunds_broken_connections_total{{{HERE}}}{_RATE}))", "broken"),
        Query(f"sum(rate(clearfunds_silent_connections_total{{{HERE}}}{_RATE}))", "silent"),
        unit="ops",
        span=6,
    ),
    lines(
        "Bytes received",
        "How many bytes a second does the relay read from its peers?",
        Query(
            f"sum by (transport) (rate(clearfunds_received_bytes_total{{{HERE}}}{_RATE}))",
            "{{transport}}",
        ),
        unit="Bps",
        stacked=True,
        span=6,
    ),
    lines(
        "Unsent in the kernel",
        "How many bytes has the kernel taken for peers, and not sent yet? They count as delivered. "
        "Many mean slow consumers or networks; for each peer at most `--unsent-bytes`.",
        Query(f"sum by (transport) (clearfunds_kernel_unsent_bytes{{{HERE}}})", "{{transport}}"),
        unit="bytes",
        stacked=True,
        span=6,
    ),
    lines(
        "Sent",
        "How many delivered bytes a second leave this machine? Not counted are those that the "
        "kernel still holds.",
        Query(
            "sum by (instance) (rate(clearfunds_repaid_bytes_total"
            f'{{outcome="delivered",{HERE}}}{_RATE}))'
            f" - sum by (instance) (deriv(clearfunds_kernel_unsent_bytes{{{HERE}}}{_RATE}))",
            "{{instance}}",
        ),
        unit="Bps",
        span=6,
    ),
]

_RESOURCES = [
    lines(
        "CPU",
        "Which part of one core does the relay use? It runs in one thread: at 100 % it is the "
        "bottleneck itself.",
        Query(
            f"rate(process_cpu_seconds_total{{{HERE}}}{_RATE}) {_RELAYS}",
            "{{instance}}",
        ),
        unit="percentunit",
        orange=0.8,
    ),
    lines(
        "Event-loop lag",
        "How late does the event loop wake up? All connections share one loop: a delay in it "
        "delays all of them, and is charged to no account.",
        *quantiles("clearfunds_event_loop_lag_seconds"),
        unit="s",
        orange=0.1,
    ),
    lines(
        "Resident memory",
        "How much memory does the relay use? Limits bound the debt, and quotas the standing state; "
        "growth that follows neither is worth a look.",
        Query(f"process_resident_memory_bytes{{{HERE}}} {_RELAYS}", "{{instance}}"),
        unit="bytes",
    ),
    lines(
        "File descriptors used",
        "Which part of its file descriptors does the relay use? Each connection is one.",
        Query(
            f"process_open_fds{{{HERE}}} / process_max_fds{{{HERE}}} {_RELAYS}",
            "{{instance}}",
        ),
        unit="percentunit",
        orange=0.8,
        maximum=1,
    ),
    lines(
        "Standing state",
        "How many subscriptions, retained messages and assertions are there?",
        Query(
            f"sum by (transport) (clearfunds_subscriptions{{{HERE}}})", "subscribed, {{transport}}"
        ),
        Query(f"sum(clearfunds_standing_items{{{HERE}}})", "under quota"),
    ),
    lines(
        "Holders",
        "How many mailboxes, outlets and queues can hold loans?",
        Query(f"clearfunds_holders{{{HERE}}}", "{{instance}}"),
    ),
]

_WATCHED = [
    lines(
        "Time of a scrape",
        "How long does each page take? The detailed page grows with accounts and holders.",
        Query(f'scrape_duration_seconds{{job=~"clearfunds.*",{HERE}}}', "{{job}}, {{instance}}"),
        unit="s",
        span=12,
    ),
    lines(
        "Series on a page",
        "How large is each page? /metrics is of constant size, /metrics/detailed has a limit.",
        Query(f'scrape_samples_scraped{{job=~"clearfunds.*",{HERE}}}', "{{job}}, {{instance}}"),
        span=12,
    ),
]
