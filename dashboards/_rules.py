"""Recording rules and alerts for Prometheus.

An alert names the accounts and holders concerned. If its own expression does not, its text looks
them up in the detailed page when it is sent, and says so if that page is not scraped.
"""

from __future__ import annotations

from typing import Final

import attrs

from ._panels import added, fullness


@attrs.frozen
class Recording:
    """A precomputed series."""

    name: str
    """`level:metric:operations`, the convention of Prometheus."""
    expr: str


@attrs.frozen(kw_only=True)
class Alert:
    """An alert, with sentences that an operator can act on."""

    name: str
    expr: str
    lasts: str = ""
    """How long the condition must hold."""
    severity: str
    """`critical`: a fault, or the relay cannot be observed. `warning`: a connection is blocked.
    `info`: good to know."""
    summary: str
    """The subject line."""
    description: str
    """The condition, the accounts concerned and the remedy; a Prometheus template."""
    when: str
    """For the README: when it fires."""
    review: str
    """For the README: the threshold that depends on the relay."""

    @property
    def runbook(self) -> str:
        """The section about it, in the documentation."""
        return f"docs/alerts.md#{self.name.lower()}"


_D: Final = "clearfunds_detailed"
_WRITTEN_OFF: Final = 'clearfunds_repaid_items_total{outcome="written_off"}'


RECORDINGS: Final = (
    Recording(
        "instance:clearfunds_throttled_readers:rate2m",
        "sum by (instance) (rate(clearfunds_throttled_seconds_total[2m]))",
    ),
    Recording(
        "instance:clearfunds_throttled_fraction:rate2m",
        "instance:clearfunds_throttled_readers:rate2m\n"
        "  / clamp_min(sum by (instance) (clearfunds_connections), 1)",
    ),
    # `or` keeps both series: the one at rest has a label more.
    Recording(
        "instance:clearfunds_unbalanced_items:sum",
        "sum by (instance) (clearfunds_borrowed_items_total)\n"
        "  - sum by (instance) (clearfunds_repaid_items_total)\n"
        "  - sum by (instance) (clearfunds_debt_items or clearfunds_at_rest_items)",
    ),
    Recording(
        "instance:clearfunds_unbalanced_bytes:sum",
        "sum by (instance) (clearfunds_borrowed_bytes_total)\n"
        "  - sum by (instance) (clearfunds_repaid_bytes_total)\n"
        "  - sum by (instance) (clearfunds_debt_bytes or clearfunds_at_rest_bytes)",
    ),
    # The debt of accounts whose readers wait, by holder: the holders that block them.
    Recording(
        "instance_holder:clearfunds_blocking_items:sum",
        f"sum by (instance, holder) (\n"
        f"  {_D}_debt_items\n"
        f"  and on (instance, account) ({_D}_account_waiting_readers > 0)\n"
        f")",
    ),
    Recording(
        "instance_holder:clearfunds_blocking_items:share",
        "instance_holder:clearfunds_blocking_items:sum\n"
        "  / on (instance) group_left ()\n"
        "  sum by (instance) (instance_holder:clearfunds_blocking_items:sum)",
    ),
)


def _asking(query: str, labels: str, found: str, otherwise: str) -> str:
    """Return a template that queries Prometheus, with `%q` for each label, and gives the result."""
    ask = f"{{{{ with printf `{query}` {labels} | query }}}}"
    return f"{ask}{found}{{{{ else }}}}{otherwise}{{{{ end }}}}"


_FIRST_HOLDER: Final = "{{ . | first | label `holder` }}"
_FIRST_ACCOUNT: Final = "{{ . | first | label `account` }}"
_FIRST_ITEMS: Final = "{{ . | first | value | printf `%.0f` }}"


_NO_DETAIL: Final = _asking(
    "topk(1, clearfunds_top_holder_items{instance=%q})",
    "$labels.instance",
    f"Of all holders {_FIRST_HOLDER} has most, {_FIRST_ITEMS} events. Prometheus does not scrape "
    "the detailed page, which shows whether they wait for this one; "
    "http://{{ $labels.instance }}/ shows it, too.",
    "See http://{{ $labels.instance }}/ for the holder.",
)

_WHO_BLOCKS: Final = _asking(
    "topk(1, instance_holder:clearfunds_blocking_items:sum{instance=%q})",
    "$labels.instance",
    f"{_FIRST_HOLDER} holds most of the debt that they wait for, {_FIRST_ITEMS} events: look at "
    "that subscriber first.",
    _asking(
        f"topk(1, sum by (holder) (rate({_D}_blamed_seconds_total{{instance=%q}}[2m])) > 0)",
        "$labels.instance",
        f"Nobody waits at this moment; over the last 2 minutes readers waited most for "
        f"{_FIRST_HOLDER}: look at that subscriber first.",
        _NO_DETAIL,
    ),
)

_WHO_WAITS: Final = _asking(
    f"topk(1, sum by (account) ({_D}_debt_items{{instance=%q,holder=%q}}"
    f" and on (instance, account) ({_D}_account_waiting_readers > 0)))",
    "$labels.instance $labels.holder",
    f"{_FIRST_ACCOUNT} waits for it, among others, with {_FIRST_ITEMS} events.",
    "Nobody waits for it any more.",
)

_WHY: Final = _asking(
    f"{_D}_holder_cause_info{{instance=%q,holder=%q}}",
    "$labels.instance $labels.holder",
    " Cause: {{ . | first | label `cause` }}.",
    "",
)

_BLAMED: Final = (
    f"topk(1, sum by (holder) (rate({_D}_blamed_seconds_total{{instance=%q,account=%q}}[2m])) > 0)"
)

_WHO_HOLDS_OF: Final = _asking(
    f"topk(1, sum by (holder) ({_D}_debt_items{{instance=%q,account=%q}}))",
    "$labels.instance $labels.account",
    f"{_FIRST_HOLDER} holds most of its debt, {_FIRST_ITEMS} events.",
    _asking(
        _BLAMED,
        "$labels.instance $labels.account",
        f"It owes nothing at this moment; over the last 2 minutes it waited most for "
        f"{_FIRST_HOLDER}.",
        _asking(
            f"topk(1, sum by (holder) ({_D}_debt_items{{instance=%q}}))",
            "$labels.instance",
            "It owes nothing itself: it waits because {{ $labels.parent }}, the account above it, "
            f"owes too much. {_FIRST_HOLDER} holds most of all debt, {_FIRST_ITEMS} "
            "events.",
            "It owes nothing itself, and no holder has anything at this moment: it waits at "
            "{{ $labels.parent }}, the account above it, now and then. The live page has its "
            "statement.",
        ),
    ),
)

_WHO_HAS_THE_OLDEST: Final = _asking(
    f"topk(1, {_D}_oldest_loan_age_seconds{{instance=%q}})",
    "$labels.instance",
    f"{_FIRST_HOLDER} has it, and {_FIRST_ACCOUNT} owes it.",
    "See http://{{ $labels.instance }}/ for its holder.",
)

# An alarm stops readers, whatever they owe.
_ALARMED: Final = (
    'sum by (instance) (rate(clearfunds_throttled_seconds_total{reason="alarm"}[1m])) > 0'
)

_AUDIT: Final = (
    "Save http://{{ $labels.instance }}/ledger.json, which shows the imbalance, before you restart "
    "the relay, and report it: this is a fault in the program."
)

ALERTS: Final = (
    Alert(
        name="ClearfundsTargetDown",
        expr='up{job=~"clearfunds.*"} == 0',
        lasts="1m",
        severity="critical",
        summary="{{ $labels.instance }} does not answer ({{ $labels.job }})",
        description="Prometheus has not got the page of {{ $labels.job }} from "
        "{{ $labels.instance }} for a minute. The relay has stopped, or it cannot be reached from "
        "here, or it is too busy to answer: try http://{{ $labels.instance }}/healthz. The other "
        "alerts cannot report on it until it answers.",
        when="a page of a relay cannot be scraped for 1 min",
        review="the name of the jobs, `clearfunds...`",
    ),
    Alert(
        name="ClearfundsReadersThrottled",
        expr="instance:clearfunds_throttled_fraction:rate2m > 0.1",
        lasts="2m",
        severity="warning",
        summary="{{ $value | humanizePercentage }} of the connections of {{ $labels.instance }} "
        "are held up",
        description="Over the last 2 minutes {{ $labels.instance }} did not read "
        "{{ $value | humanizePercentage }} of its connections because they owe too much. "
        + _WHO_BLOCKS,
        when="connections were not read for more than 10 % of their time, for 2 min",
        review="10 %: with few publishers among many subscribers take less",
    ),
    Alert(
        name="ClearfundsAccountThrottled",
        expr=f"sum by (instance, account, parent)"
        f" (rate({_D}_account_throttled_seconds_total[2m])) > 0.5",
        lasts="2m",
        severity="warning",
        summary="{{ $labels.account }} is held up at {{ $labels.instance }}",
        description="{{ $labels.account }} was not read for {{ $value | humanizePercentage }} of "
        f"the last 2 minutes because it owes too much. {_WHO_HOLDS_OF}",
        when="one account was not read for more than half of the time, for 2 min",
        review="half of the time: a publisher that may be slowed down (a batch load) can be left "
        "out by `account!~`",
    ),
    Alert(
        name="ClearfundsOneHolderBlocks",
        expr="instance_holder:clearfunds_blocking_items:share > 0.5",
        # A stall lasts no longer than patience, 20 s by default: two scrapes.
        lasts="10s",
        severity="warning",
        summary="{{ $labels.holder }} holds up the publishers of {{ $labels.instance }}",
        description="{{ $labels.holder }} holds {{ $value | humanizePercentage }} of the debt of "
        f"the accounts that wait. {_WHO_WAITS}{_WHY} Make that subscriber read faster, narrow its "
        "subscriptions, or disconnect it.",
        when="one holder has more than half of the debt of the accounts that wait, for 10 s",
        review="half: two slow subscribers share it evenly; 10 s: half of the default patience, "
        "with a longer one take more",
    ),
    Alert(
        name="ClearfundsPatienceEnding",
        # 0.4, so that one scrape in 10 s falls between this and the end of patience.
        expr=f"{_D}_holder_waited_for_seconds > 0.4 * {_D}_holder_patience_seconds",
        severity="warning",
        summary="{{ $labels.holder }} is about to be given up by {{ $labels.instance }}",
        description="{{ $labels.holder }} ({{ $labels.kind }}) has taken nothing for "
        f"{{{{ $value | humanizeDuration }}}} while others waited for it. {_WHO_WAITS}{_WHY} "
        "When its patience (slow-consumer timeout) ends, the relay disconnects it (unless it runs "
        "with --stuck wait) and discards the events that it held.",
        when="others have waited for a holder that made no progress for 40 % of its patience",
        review="40 %: of the default 20 s, 12 s are left, which is more for the record than for "
        "the pager; with a longer `--patience` there is time to act",
    ),
    Alert(
        name="ClearfundsDebtWrittenOff",
        expr=f"sum by (instance) (\n  {added(_WRITTEN_OFF, '5m')}\n) > 0",
        severity="warning",
        summary="{{ $labels.instance }} gave up on a subscriber",
        description="{{ $labels.instance }} wrote off {{ $value | printf `%.0f` }} events in "
        "the last 5 minutes: their holder took nothing for longer than its patience while others "
        "waited. They were not delivered. The log of the relay names the holder and the accounts "
        "that waited, in a line with `made no progress`.",
        when="any events were written off in the last 5 min",
        review="0: where subscribers come and go, take a number that matters",
    ),
    Alert(
        name="ClearfundsOldestLoan",
        expr="max by (instance) (clearfunds_oldest_loan_age_seconds) > 60",
        lasts="1m",
        severity="warning",
        summary="{{ $labels.instance }} has an event that is unfinished for over a minute",
        description=f"An event at {{{{ $labels.instance }}}} has been unfinished for "
        f"{{{{ $value | humanizeDuration }}}}. {_WHO_HAS_THE_OLDEST} If no account waits for it, "
        "that is a subscriber that is slow or does not acknowledge; if one waits, "
        "ClearfundsOneHolderBlocks says so.",
        when="a loan is older than 60 s, for 1 min",
        review="60 s: longer than any of your subscribers may take",
    ),
    Alert(
        name="ClearfundsRing",
        expr="max by (instance) (clearfunds_rings) > 0",
        severity="warning",
        summary="Connections of {{ $labels.instance }} wait for each other",
        description="{{ $value | printf `%.0f` }} ring(s) of connections at {{ $labels.instance }} "
        "wait for each other (flow-control deadlock): each is not read until another one reads, so "
        f"none of them can go on by itself. {_WHO_BLOCKS} When their patience ends, the relay "
        "gives up as many as let the others go on (unless it runs with --stuck wait), and its log "
        "names them. Clients that publish much and subscribe to much should do so over two "
        "connections.",
        when="any connections wait for each other in a ring",
        review="nothing: it can last as long as patience",
    ),
    Alert(
        name="ClearfundsLoopLate",
        expr="histogram_quantile(0.99,\n"
        "  sum by (instance, le) (rate(clearfunds_event_loop_lag_seconds_bucket[2m]))\n"
        ") > 0.25",
        lasts="2m",
        severity="warning",
        summary="{{ $labels.instance }} is too busy to be in time",
        description="The event loop of {{ $labels.instance }} wakes up as much as "
        "{{ $value | humanizeDuration }} late. That slows down all its connections, and is charged "
        "to no account: either the machine has too little CPU, or one step takes too long. Look at "
        "CPU on the dashboard `relay runtime`, and at the machine's other processes.",
        when="1 of 100 wake-ups of the relay's loop is more than 0.25 s late, for 2 min",
        review="0.25 s: on a machine that is shared take more",
    ),
    Alert(
        name="ClearfundsLoansLeaked",
        expr=f"sum by (instance) (\n  {added('clearfunds_leaked_loans_total', '15m')}\n) > 0",
        severity="critical",
        summary="{{ $labels.instance }} lost track of a loan",
        description="The garbage collector of {{ $labels.instance }} found loans that were not "
        "settled. They were repaid, so no reader waits for them, but the events were not "
        "delivered. This is a fault in the program. The log of the relay names their accounts and "
        "holders, in a line with `leaked`; please report it.",
        when="any loan was leaked in the last 15 min",
        review="nothing: there must be none",
    ),
    Alert(
        name="ClearfundsBooksDoNotBalance",
        expr="instance:clearfunds_unbalanced_items:sum != 0\n"
        "or instance:clearfunds_unbalanced_bytes:sum != 0",
        lasts="1m",
        severity="critical",
        summary="The books of {{ $labels.instance }} do not balance",
        description="Borrowed - repaid differs from the debt by "
        "{{ $value | printf `%.0f` }} (events or bytes). Readers may wait for ever, or never. "
        + _AUDIT,
        when="borrowed - repaid is not the debt, for 1 min",
        review="nothing: all three are read at one instant",
    ),
    Alert(
        name="ClearfundsWaitingForNobody",
        # Over at least two scrapes: one may find readers that are about to go on.
        expr="sum by (instance) (min_over_time(clearfunds_waiting_readers[20s])) > 0\n"
        "unless on (instance) (\n"
        "  sum by (instance) (max_over_time(clearfunds_debt_items[20s])) > 0\n"
        "  and on (instance)\n"
        "  sum by (instance) (max_over_time(clearfunds_top_holder_items[20s])) > 0\n"
        ")\n"
        f"unless on (instance) {_ALARMED}",
        lasts="1m",
        severity="critical",
        summary="Readers of {{ $labels.instance }} wait, and no holder has what they wait for",
        description="{{ $value | printf `%.0f` }} readers of {{ $labels.instance }} wait for debt "
        "to be repaid, but no holder has any. They would wait for ever. " + _AUDIT,
        when="readers wait while there is no debt, or while no holder has any, for 1 min",
        review="nothing",
    ),
    Alert(
        name="ClearfundsAlarm",
        expr="max by (instance, kind) (clearfunds_alarm) > 0",
        severity="warning",
        summary="{{ $labels.instance }} has an alarm up: {{ $labels.kind }}",
        description="{{ if eq $labels.kind `disk` }}The disk of {{ $labels.instance }} is nearly "
        "full{{ else }}{{ $labels.instance }} uses nearly all the memory that it may{{ end }}. "
        "No publisher is read there until that is over; subscribers go on receiving. "
        "{{ if eq $labels.kind `disk` }}Make room on that disk, or let clients that are away come "
        "back for their stored messages{{ else }}Most of the memory is usually debt: see its "
        "holders on http://{{ $labels.instance }}/{{ end }}.",
        when="an alarm is up that stops all publishers",
        review="nothing here; the marks are `--memory-alarm` and `--disk-alarm`",
    ),
    Alert(
        name="ClearfundsLoopAlarm",
        expr="max by (instance) (clearfunds_loop_alarm) > 0",
        severity="warning",
        summary="The event loop of {{ $labels.instance }} is late: newcomers wait",
        description="{{ $labels.instance }} has more to do than its core can. It accepts no new "
        "connections{{ if gt $value 1.0 }}, and reads no clients that have published nothing "
        "lately{{ end }}. Those that publish go on. See clearfunds_event_loop_lag_seconds, and "
        "http://{{ $labels.instance }}/ for who causes the work.",
        when="the event loop stays late, so that no new connections are accepted",
        review="nothing here; the mark is `--loop-lag-alarm`",
    ),
    Alert(
        name="ClearfundsStoreTrouble",
        expr="max by (instance) (clearfunds_store_trouble) > 0",
        severity="critical",
        summary="{{ $labels.instance }} cannot write to its store",
        description="The disk refuses the writes of {{ $labels.instance }}; its log says why, in a "
        "line of the event `store_trouble`. Nothing is lost, and the relay tries again. But "
        "messages that are not on disk are not confirmed: their publishers owe for them, and will "
        "have to wait.",
        when="a store cannot be written to",
        review="nothing",
    ),
    Alert(
        name="ClearfundsMessagesLost",
        expr="sum by (instance) (\n"
        f"  {added('clearfunds_queue_messages_lost_total', '15m')}\n"
        "  or\n"
        f"  {added('clearfunds_store_damages_total', '15m')}\n"
        ") > 0\n"
        "or sum by (instance) (clearfunds_store_damages_total) > 0",
        severity="critical",
        summary="{{ $labels.instance }} cannot read all of its store",
        description="A part of the store of {{ $labels.instance }} cannot be read. The rest is "
        "served. Its log names the part; `clearfunds store verify` on its directory, while it is "
        "stopped, says more, and `clearfunds store repair` puts it in order.",
        when="a message was missing on disk in the last 15 min, or a place in the store could not "
        "be read since the relay started",
        review="nothing: there must be none",
    ),
    Alert(
        name="ClearfundsDiskBudgetNearlySpent",
        expr='max by (instance) (clearfunds_at_rest_bytes{place="disk"})\n'
        '  / on (instance) max by (instance) (clearfunds_debt_limit_bytes{level="disk"})\n'
        "  > 0.85",
        lasts="1m",
        severity="warning",
        summary="{{ $value | humanizePercentage }} of the disk quota of {{ $labels.instance }} "
        "is used",
        description="The messages that {{ $labels.instance }} stores for its clients take "
        "{{ $value | humanizePercentage }} of the disk quota (`--disk-limit`). "
        + _asking(
            f"topk(1, {_D}_queue_at_rest_bytes{{instance=%q}})",
            "$labels.instance",
            f"Most of it, {{{{ . | first | value | humanize1024 }}}}B, is for {_FIRST_HOLDER}.",
            "See http://{{ $labels.instance }}/ for the largest queues.",
        )
        + " When it is used up, no more messages are stored: their publishers have to wait, and "
        "the relay ends the sessions of clients that are away and block them.",
        when="more than 85 % of the disk quota is used, for 1 min",
        review="85 %: the rest must have room for the messages that come before you can act",
    ),
    Alert(
        name="ClearfundsQueueNearlyFull",
        expr=f"max by (instance, holder) ({fullness()}) > 0.8\n"
        f"  and on (instance, holder) sum by (instance, holder) ({_D}_queue_consumers) == 0",
        lasts="1m",
        severity="warning",
        summary="The queue of {{ $labels.holder }} at {{ $labels.instance }} is nearly full, and "
        "it is away",
        description="{{ $labels.holder }} is not connected, and its queue at "
        "{{ $labels.instance }} has {{ $value | humanizePercentage }} of its limit "
        "(`--max-queued`, `--max-queued-bytes`). When it is full, the oldest messages are dropped. "
        "If that client does not come back, end its session: connect once in its name with a clean "
        "session; or let sessions expire sooner (`--session-expiry`).",
        when="the queue of a client that is away has more than 80 % of its limit, for 1 min",
        review="80 %: see above",
    ),
    Alert(
        name="ClearfundsFsyncSlow",
        expr="sum by (instance) (rate(clearfunds_store_fsync_seconds_total[2m]))\n"
        "  / (sum by (instance) (rate(clearfunds_store_fsyncs_total[2m])) > 0)\n"
        "  > 0.5",
        lasts="2m",
        severity="warning",
        summary="The disk of {{ $labels.instance }} takes {{ $value | humanizeDuration }} for an "
        "fsync",
        description="An fsync of the store of {{ $labels.instance }} takes "
        "{{ $value | humanizeDuration }} on average. Publishers with QoS 1 or 2 wait this long for "
        "a confirm of stored messages. Another program may use that disk, or the disk fails.",
        when="an fsync takes more than 0.5 s on average, for 2 min",
        review="0.5 s: for a network disk take more, for an SSD a tenth",
    ),
    Alert(
        name="ClearfundsInternalErrors",
        expr=f"sum by (instance) (\n  {added('clearfunds_internal_errors_total', '15m')}\n) > 0",
        severity="critical",
        summary="{{ $labels.instance }} met internal errors",
        description="{{ $labels.instance }} met {{ $value | printf `%.0f` }} internal errors "
        "in the last 15 minutes. Each time it closed the connection concerned, if there was one, "
        "and nothing else. The tracebacks are in its log; please report them.",
        when="the relay met any internal error in the last 15 min",
        review="nothing",
    ),
    Alert(
        name="ClearfundsDetailsTruncated",
        expr=f"sum by (instance) ({_D}_truncated_series) > 0",
        lasts="10m",
        severity="info",
        summary="The detailed page of {{ $labels.instance }} is incomplete",
        description="{{ $value | printf `%.0f` }} series were left out of /metrics/detailed "
        "because of its limit: the alerts and panels that name accounts and holders may miss some. "
        "Raise `limit` in prometheus.yml, or ask for fewer accounts with `account`.",
        when="series were left out of the detailed page, for 10 min",
        review="nothing",
    ),
)
