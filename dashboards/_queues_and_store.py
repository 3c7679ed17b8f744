"""How much is stored for clients, does it fit on the disk, and does the disk keep up?"""

from __future__ import annotations

from ._panels import HERE, Board, Query, Row, added, board, fullness, lines, number, rows_of

_RATE = "[$__rate_interval]"
_D = "clearfunds_detailed_queue"
_WHO = f'{HERE},holder=~"$holder"'

_USED = (
    f'sum by (instance) (clearfunds_at_rest_bytes{{place="disk",{HERE}}})'
    f' / sum by (instance) (clearfunds_debt_limit_bytes{{level="disk",{HERE}}})'
)


def _rate(counter: str) -> str:
    return f"sum(rate({counter}{{{HERE}}}{_RATE}))"


def _of_each(what: str) -> str:
    return f"sum by (instance, holder) ({_D}_{what}{{{_WHO}}})"


def queues_and_store() -> Board:
    """Make the dashboard of stored messages; it needs `/metrics`, and the names for one panel."""
    return board(
        "clearfunds-queues-and-store",
        "clearfunds: queues and store",
        "Messages stored for clients that are away or slow, in RAM and on disk, the room left, and "
        "whether the disk keeps up.",
        [
            Row("Is anything short?", _NOW),
            Row("What is kept for whom", _KEPT),
            Row("What becomes of it", _FLOW),
            Row("The store", _STORE),
        ],
        patterns=("holder",),
    )


_NOW = [
    number(
        "Messages in queues",
        "How many messages wait in queues for their consumers, or for an acknowledgement?",
        Query(f"sum(clearfunds_queue_messages{{{HERE}}})"),
    ),
    number(
        "Clients away",
        "How many persistent sessions have a client that is not connected?",
        Query(f'sum(clearfunds_sessions{{state="away",{HERE}}})'),
    ),
    number(
        "Disk budget used",
        "Which part of the disk quota do queues use? At 100 % no more messages are written; "
        "publishers owe for further ones, and wait.",
        Query(f"max({_USED})"),
        unit="percentunit",
        orange=0.75,
        red=0.9,
    ),
    number(
        "Waiting for the disk",
        "How many messages cannot be stored, because the disk quota is used up or the disk fails? "
        "Their publishers still owe for them, and get no confirm.",
        Query(f"sum(clearfunds_queue_unwritten_messages{{{HERE}}})"),
        orange=1,
    ),
    number(
        "Alarms up",
        "How many alarms are up, for memory or the disk? During an alarm no publisher is read, "
        "whatever it owes.",
        Query(f"sum(clearfunds_alarm{{{HERE}}})"),
        red=1,
    ),
    number(
        "Stores in trouble",
        "How many stores cannot be written to, because their disk refuses? Messages that are not "
        "on disk are not confirmed until it works again.",
        Query(f"sum(clearfunds_store_trouble{{{HERE}}})"),
        red=1,
    ),
    number(
        "Lost",
        "How many messages were missing on disk in the time shown? Each is in the log; "
        "`clearfunds store verify` says more.",
        Query(f"sum({added(f'clearfunds_queue_messages_lost_total{{{HERE}}}', '$__range')})"),
        red=1,
    ),
    number(
        "Dropped",
        "How many messages were dropped from full queues in the time shown? These are the oldest, "
        "of clients that are away for too long.",
        Query(f"sum({added(f'clearfunds_queue_messages_dropped_total{{{HERE}}}', '$__range')})"),
        orange=1,
    ),
]

_KEPT = [
    lines(
        "Messages in queues, by state",
        "How many messages wait for delivery, and how many are delivered and not acknowledged?",
        Query(f"sum by (state) (clearfunds_queue_messages{{{HERE}}})", "{{state}}"),
        stacked=True,
    ),
    lines(
        "Where they are",
        "How many of them are in RAM, and how many only on disk? RAM has the messages that "
        "consumers will take next; a long backlog should be on disk.",
        Query(f"sum(clearfunds_queue_ram_messages{{{HERE}}})", "in RAM"),
        Query(f"sum(clearfunds_queue_disk_only_messages{{{HERE}}})", "on disk only"),
        stacked=True,
    ),
    lines(
        "Disk budget",
        "How much have queues stored (paged out), and what are the limits?",
        Query(
            f"sum by (instance, place) (clearfunds_at_rest_bytes{{{HERE}}})",
            "{{place}}, {{instance}}",
        ),
        Query(
            f'sum by (instance, level) (clearfunds_debt_limit_bytes{{level=~"disk|kept",{HERE}}})',
            "limit of {{level}}, {{instance}}",
        ),
        unit="bytes",
    ),
    lines(
        "Sessions",
        "How many persistent sessions are there, of clients that are connected and away?",
        Query(f"sum by (state) (clearfunds_sessions{{{HERE}}})", "{{state}}"),
        stacked=True,
    ),
    lines(
        "Sessions that ended without their clients",
        "How many sessions expired, and how many were ended because they blocked others?",
        Query(f"sum({added(f'clearfunds_sessions_expired_total{{{HERE}}}', '10m')})", "expired"),
        Query(f"sum({added(f'clearfunds_sessions_given_up_total{{{HERE}}}', '10m')})", "given up"),
    ),
    lines(
        "Waiting to be written, or to be durable",
        "How many messages have no room on disk, and how many are with the store and wait for the "
        "next fsync? The first should be 0; the second is what comes between two fsyncs.",
        Query(f"sum(clearfunds_queue_unwritten_messages{{{HERE}}})", "no room"),
        Query(f"sum(clearfunds_queue_unsynced_messages{{{HERE}}})", "not durable yet"),
    ),
    rows_of(
        "Fullest queues",
        "Which queues have most messages, how full are they, and do they have consumers? Needs a "
        "scrape of /metrics/detailed?family=queue.",
        ("instance", "holder"),
        {
            "Ready": (f"topk(20, {_of_each('ready_messages')})", "short"),
            "Unacked": (_of_each("unacked_messages"), "short"),
            "Put aside": (_of_each("at_rest_bytes"), "bytes"),
            "Full": (f"max by (instance, holder) ({fullness(_WHO)})", "percentunit"),
            "Consumers": (_of_each("consumers"), "short"),
        },
        span=24,
        coloured="Full",
    ),
]

_FLOW = [
    lines(
        "Coming in and going out",
        "Do messages leave the queues as fast as they come?",
        Query(_rate("clearfunds_queue_messages_published_total"), "came"),
        Query(_rate("clearfunds_queue_messages_delivered_total"), "delivered"),
        Query(_rate("clearfunds_queue_messages_acked_total"), "acknowledged"),
        unit="ops",
    ),
    lines(
        "Sent again",
        "How many deliveries a second come back, and how many are redeliveries? Many mean that "
        "clients lose their connections, or do not acknowledge.",
        Query(_rate("clearfunds_queue_messages_requeued_total"), "came back"),
        Query(_rate("clearfunds_queue_messages_redelivered_total"), "sent again"),
        unit="ops",
    ),
    lines(
        "Not delivered",
        "How many messages a second end in a queue otherwise, and how? `dropped` were the oldest "
        "of a full queue, `purged` ended with their session.",
        *(
            Query(_rate(f"clearfunds_queue_messages_{name}_total"), name.replace("_", " "))
            for name in (
                *("dropped", "purged", "expired", "refused"),
                *("rejected", "failed", "written_off", "lost"),
            )
        ),
        unit="ops",
        stacked=True,
    ),
    lines(
        "Paged out and in",
        "How many messages a second are removed from RAM, and read back from disk?",
        Query(_rate("clearfunds_queue_messages_paged_out_total"), "out"),
        Query(_rate("clearfunds_queue_messages_paged_in_total"), "in"),
        unit="ops",
    ),
    lines(
        "Put aside",
        "How many messages a second are stored, which repays their publishers?",
        Query(_rate("clearfunds_queue_messages_stored_total"), "came to rest"),
        unit="ops",
    ),
    lines(
        "Dead letters",
        "How many messages a second are published once more as dead letters, and how many cannot?",
        Query(_rate("clearfunds_queue_messages_dead_lettered_total"), "published"),
        Query(_rate("clearfunds_queue_messages_dead_letters_failed_total"), "failed"),
        Query(_rate("clearfunds_queue_messages_cycles_total"), "came back by themselves"),
        unit="ops",
    ),
]

_STORE = [
    lines(
        "Time of an fsync",
        "How long does one take, on average? A publisher waits this long for a confirm, and for "
        "the interval between two fsyncs.",
        Query(
            f"sum by (instance) (rate(clearfunds_store_fsync_seconds_total{{{HERE}}}{_RATE}))"
            f" / (sum by (instance) (rate(clearfunds_store_fsyncs_total{{{HERE}}}{_RATE})) > 0)",
            "{{instance}}",
        ),
        Query(f"clearfunds_store_slowest_fsync_seconds{{{HERE}}}", "slowest ever, {{instance}}"),
        unit="s",
        orange=0.5,
    ),
    lines(
        "Not on disk yet",
        "How many bytes wait in RAM for the next transaction? If it grows, the disk does not keep "
        "up.",
        Query(f"sum(clearfunds_store_pending_bytes{{{HERE}}})", "to be written"),
        unit="bytes",
    ),
    lines(
        "Writes",
        "How often a second does the store get a change, and end a transaction with an fsync? Many "
        "changes share a transaction.",
        Query(_rate("clearfunds_store_commits_total"), "changes"),
        Query(_rate("clearfunds_store_fsyncs_total"), "transactions"),
        unit="ops",
    ),
    lines(
        "Files",
        "How large is the database, how much of it is free to be used again, and how large is its "
        "write-ahead log?",
        Query(f"sum by (state) (clearfunds_store_bytes{{{HERE}}})", "{{state}}"),
        unit="bytes",
        stacked=True,
        span=12,
    ),
    lines(
        "Written again",
        "How many bytes a second are written again, to free the room of acknowledged messages?",
        Query(_rate("clearfunds_store_rewritten_bytes_total"), "written again"),
        unit="Bps",
        span=12,
    ),
    lines(
        "Refused and damaged",
        "How often did the disk refuse to write, and how many places could not be read? Both "
        "should be 0.",
        Query(f"sum({added(f'clearfunds_store_failures_total{{{HERE}}}', '10m')})", "refused"),
        Query(f"sum(clearfunds_store_damages_total{{{HERE}}})", "damaged, since the start"),
        span=12,
    ),
    lines(
        "Alarms, and who waits for them",
        "Which alarms are up, and how many readers wait for them on average?",
        Query(f"max by (kind) (clearfunds_alarm{{{HERE}}})", "{{kind}}"),
        Query(
            f'sum(rate(clearfunds_throttled_seconds_total{{reason="alarm",{HERE}}}{_RATE}))',
            "readers that wait",
        ),
        span=12,
    ),
]
