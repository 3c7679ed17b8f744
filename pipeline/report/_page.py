"""The report as one self-contained page: it loads no other file, and has no script.

Rule: text from a peer (names of accounts and holders, topics) goes through `_words.text` or
`_words.name`; everything else on the page is our own text, or a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from clearfunds._html import (
    COLOURS,
    NOTHING,
    Series,
    bad,
    colour,
    count,
    day,
    document,
    duration,
    linear,
    logarithmic,
    moment,
    moments,
    name,
    percent,
    period,
    plot,
    plural,
    section,
    size,
    table,
    text,
)

from ._book import Book, Row
from ._limits import Advice, by_pattern
from ._plots import bar, hold_axis, hold_range

SHOWN: Final = 15
"""Most rows of a table on the page; the Parquet files have all."""

_LITTLE: Final = 1e-4
"""Accounts with less than this part of the whole get no row: pure subscribers owe only for the
replies that they get."""

_WIDE: Final = 8
"""Most columns of the matrix."""


@attrs.frozen(kw_only=True)
class Report:
    """The contents of a page."""

    source: str
    """The journal's folder."""
    made_ns: int
    """The time it was made, in nanoseconds since 1970."""
    target_ms: float
    """The target for the 99th percentile of hold times."""
    book: Book
    advices: Sequence[Advice]
    """The limits to change."""
    toml: str
    """The file with these limits."""
    engine: str = "Spark"
    """The engine that computed it."""
    damaged: Sequence[str] = ()
    """Sentences about the files of the journal that were left out."""
    refresh: float | None = None
    """Seconds until a newer page replaces this one; None: it is the last."""


@attrs.frozen(kw_only=True)
class _Overview:
    """The one row of the table `overview`."""

    began_ns: int
    ended_ns: int
    rows: int
    items: float
    bytes: float
    accounts: int
    holders: int
    weight: float
    step_ns: int

    @property
    def seconds(self) -> float:
        return max((self.ended_ns - self.began_ns) / 1e9, 1e-9)


def page(report: Report) -> str:
    """Return the page, as HTML."""
    rows = report.book.rows("overview")
    seen = _Overview(**rows[0]) if rows and rows[0]["rows"] else None
    made = f"made {day(report.made_ns)} {moment(report.made_ns)} UTC"
    live = f", rewritten every {duration(report.refresh)}" if report.refresh is not None else ""
    if seen is None:
        about = [text(report.source), made + live]
        body = (
            '<div class="verdict calm"><p class="headline">Nothing has been settled yet: the '
            "journal has no rows.</p><p>A relay that runs with <kbd>--journal</kbd> writes them as "
            "it delivers, and closes a file after some seconds.</p></div>"
        )
    else:
        about = [text(report.source), period(seen.began_ns, seen.ended_ns), made + live]
        parts = (
            _verdict(report, seen),
            _left_out(report),
            _tiles(report, seen),
            _owed(report, seen),
            _held(report, seen),
            _blocked(report, seen),
            _waited(report),
            _fanned(report),
            _fair(report),
            _advice(report),
        )
        body = "\n".join(filter(None, parts))
    return document(
        "clearfunds report",
        [" · ".join(about)],
        body,
        subject=text(report.source),
        foot="" if seen is None else _foot(report, seen),
        refresh=report.refresh,
    )


# -- the sentences at the top -------------------------------------------------------------------


def _verdict(report: Report, seen: _Overview) -> str:
    book = report.book
    waited = book.total("stall_time", "seconds")
    worst = book.top("stall_time", "seconds", 1)
    holders = book.sums("blame", "holder", "byte_seconds")
    sentences: list[str] = []
    if worst:
        row = worst[0]
        culprit, seconds = row["culprit"], row["seconds"]
        mood = "stuck" if seconds > 0.5 * seen.seconds else "waits"
        alone = len(book.sums("stall_time", "account", "seconds")) == 1
        whom = f"waited <b>{duration(seconds)}</b> for <b>{name(culprit)}</b>"
        headline = f"{name(row['account'])} {whom}"
        if book.count("stall_time") > 1:
            headline += (
                f", of {duration(waited)} it waited in all"
                if alone
                else f"; all readers together waited {duration(waited)}"
            )
        headline += "."
    else:
        mood = "calm"
        headline = "Nobody had to wait: every account stayed within its limit."
    if holders:
        whole = sum(holders.values())
        first, held = next(iter(holders.items()))
        if whole > 0:
            sentences.append(
                f"{name(first)} held {percent(held / whole)} of all that was owed, "
                f"{size(held / seen.seconds)} on average."
            )
    late = [row for row in book.rows("hold_percentiles") if row["p99_ms"] > report.target_ms]
    wanted = duration(report.target_ms / 1e3)
    if late:
        slowest = max(late, key=lambda row: row["p99_ms"])
        sentences.append(
            f"{plural(len(late), 'holder')} held one delivery in a hundred for longer than the "
            f"target of {wanted}; {name(slowest['holder'])} held them for "
            f"{duration(slowest['p99_ms'] / 1e3)} or longer."
        )
    else:
        sentences.append(f"Every holder was done with 99 % of its deliveries within {wanted}.")
    changes = len(by_pattern(report.advices))
    if changes:
        sentences.append(
            f'<a href="#change">Other limits for {plural(changes, "account")}</a> would have kept '
            "their deliveries within it."
        )
    body = "".join(f"<p>{sentence}</p>" for sentence in [" ".join(sentences)])
    return f'<div class="verdict {mood}"><p class="headline">{headline}</p>{body}</div>'


def _tiles(report: Report, seen: _Overview) -> str:
    book = report.book
    peak = book.top("peak_debt", "peak_bytes", 1)
    waited = book.total("stall_time", "seconds")
    outcomes = book.sums("outcomes", "outcome", "items")
    undone = sum(value for key, value in outcomes.items() if key not in _DONE)
    lost = (
        "all reached their holders"
        if not undone
        else f"{count(undone)} did not ({_worst_outcome(outcomes)})"
    )
    highest = "nothing" if not peak else size(peak[0]["peak_bytes"])
    who = "" if not peak else f"{name(peak[0]['account'])} at {moment(peak[0]['peak_bytes_at_ns'])}"
    return (
        '<dl class="tiles">'
        + _tile("Deliveries", count(seen.items), f"{size(seen.bytes)}; {lost}")
        + _tile(
            "Pace",
            f"{count(seen.items / seen.seconds)}/s",
            f"{size(seen.bytes / seen.seconds)}/s over {duration(seen.seconds)}",
        )
        + _tile("Highest debt", highest, who)
        + _tile(
            "Waited",
            duration(waited),
            f"{plural(seen.accounts, 'account')}, {plural(seen.holders, 'holder')}",
        )
        + "</dl>"
    )


_DONE: Final = ("delivered", "acked", "stored")
"""Outcomes of loans that holders finished; with all others, they were discarded."""


def _worst_outcome(outcomes: dict[str, float]) -> str:
    undone = {key: value for key, value in outcomes.items() if key not in _DONE}
    return text(
        ", ".join(
            f"{key.replace('_', ' ')} {count(value)}" for key, value in list(undone.items())[:2]
        )
    )


def _tile(term: str, figure: str, note: str) -> str:
    return f'<div class="tile"><dt>{term}</dt><dd>{figure}</dd><dd>{note}</dd></div>'


# -- who owed -----------------------------------------------------------------------------------


def _owed(report: Report, seen: _Overview) -> str:
    book = report.book
    owed = book.sums("blame", "account", "byte_seconds")
    order = list(owed) or [row["account"] for row in book.top("peak_debt", "peak_bytes", SHOWN)]
    shown = _worth(owed, SHOWN) or order[:SHOWN]
    peaks = {row["account"]: row for row in book.where("peak_debt", "account", shown)}
    limits = {row["account"]: row for row in book.where("accounts_now", "account", shown)}
    waits = book.sums("stall_time", "account", "seconds")
    rows: list[Sequence[str]] = []
    for place, account in enumerate(shown):
        peak, limit = peaks.get(account), limits.get(account)
        rows.append(
            (
                f'<span class="key {colour(place)}"></span>{name(account)}',
                size(owed.get(account, 0.0) / seen.seconds),
                NOTHING if peak is None else size(peak["peak_bytes"]),
                NOTHING if peak is None else count(peak["peak_items"]),
                NOTHING if peak is None else moment(peak["peak_bytes_at_ns"]),
                NOTHING if limit is None else _limit(limit["limit_items"], limit["limit_bytes"]),
                duration(waits[account]) if account in waits else NOTHING,
            )
        )
    head = ("account", "on average", "at most", "events", "at", "its limit", "waited")
    return section(
        "Who owed",
        "Debt is an account's outstanding work: messages that it caused and that no holder is done "
        "with yet, here in bytes. An account over its limit (high-water mark) is not read until "
        "its debt has come down.",
        _debt_plot(book, shown, seen, len(order))
        + table(head, rows, numbers=range(1, 7))
        + _more(len(order), "account", len(shown)),
        anchor="owed",
    )


def _limit(items: int | None, nbytes: int | None) -> str:
    said = [
        *([] if items is None else [plural(items, "event")]),
        *([] if nbytes is None else [size(nbytes)]),
    ]
    return ", ".join(said) or "none"


def _worth(shares: Mapping[str, float], most: int) -> list[str]:
    """Return the first keys whose part of the whole is worth a row."""
    least = sum(shares.values()) * _LITTLE
    return [each for each, share in shares.items() if share > least][:most]


def _debt_plot(book: Book, order: Sequence[str], seen: _Overview, there: int) -> str:
    step = seen.step_ns
    # The debt of an interval is that at its end.
    times = range(seen.began_ns // step * step, seen.ended_ns + step, step)
    if len(times) < 3 or not order:
        return ""
    coloured = order[:COLOURS]
    series = [
        Series(account, _line(book.where("debt_over_time", "account", [account]), times))
        for account in coloured
    ]
    if there > len(coloured):
        all_of_them = _line(book.rows("debt_total"), times)
        rest = [
            max(whole - sum(parts), 0.0)
            for whole, *parts in zip(all_of_them, *(each.values for each in series), strict=True)
        ]
        series.append(Series(plural(there - len(coloured), "other"), rest))
    totals = [sum(values) for values in zip(*(each.values for each in series), strict=True)]
    return plot(
        f"Debt over time in bytes, at most {size(max(totals))}",
        times,
        series,
        x=moments(times[0], times[-1]),
        y=linear(totals, binary=True),
        x_words=lambda at: moment(int(at)),
        y_words=lambda value: size(value) if value else "0",
        stacked=True,
    )


def _line(rows: Iterable[Row], moments: Sequence[int]) -> list[float]:
    """Return a value for each moment; without a row of its own, it is the last value."""
    known = sorted((_ns(row["at"]), float(row["debt_bytes"])) for row in rows)
    values: list[float] = []
    last, place = 0.0, 0
    for moment_ns in moments:
        while place < len(known) and known[place][0] <= moment_ns:
            last = known[place][1]
            place += 1
        values.append(last)
    return values


def _ns(at: Any) -> int:
    # A datetime, from a column of timestamps.
    return int(round(at.timestamp() * 1e6) * 1000)


# -- who held -----------------------------------------------------------------------------------


_HOLDS: Final = ("p50_ms", "p90_ms", "p99_ms", "max_ms")


def _held(report: Report, seen: _Overview) -> str:
    book = report.book
    least = book.total("hold_percentiles", "items") * _LITTLE
    found = [
        row
        for row in book.top("hold_percentiles", "p99_ms", 2 * SHOWN)
        if row["items"] > least or row["p99_ms"] > report.target_ms
    ][:SHOWN]
    if not found:
        return ""
    target = report.target_ms / 1e3
    held = book.sums("blame", "holder", "byte_seconds")
    every = [row[column] / 1e3 for row in found for column in ("p50_ms", "p99_ms", "max_ms")]
    axis = logarithmic([*every, target])
    rows = [
        (
            name(row["holder"]),
            count(row["items"]),
            NOTHING if row["holder"] not in held else size(held[row["holder"]] / seen.seconds),
            hold_range(axis, [row[each] / 1e3 for each in _HOLDS], target),
            duration(row["p50_ms"] / 1e3),
            _late(row["p99_ms"], report.target_ms),
            duration(row["max_ms"] / 1e3),
        )
        for row in found
    ]
    head = (
        *("holder", "deliveries", "held on average", hold_axis(axis, target)),
        *("half within", "99 % within", "all within"),
    )
    return section(
        "Who held it, and for how long",
        "From when an event came in to when its holder was done with it: the dot is the median, "
        "the mark 90 %, the thick bar ends at 99 %. The dashed line is the target, "
        f"{duration(target)}.",
        table(head, rows, numbers=(1, 2, 4, 5, 6))
        + _more(book.count("hold_percentiles"), "holder", len(found)),
        anchor="held",
    )


def _late(milliseconds: float, target: float) -> str:
    return bad(duration(milliseconds / 1e3), milliseconds > target)


# -- who blocked whom ---------------------------------------------------------------------------


def _blocked(report: Report, seen: _Overview) -> str:
    book = report.book
    accounts = book.sums("blame", "account", "byte_seconds")
    holders = book.sums("blame", "holder", "byte_seconds")
    whole = sum(accounts.values())
    if whole <= 0:
        return ""
    rows, columns = _worth(accounts, SHOWN), _worth(holders, _WIDE)
    cells = {(row["account"], row["holder"]): row for row in book.where("blame", "account", rows)}
    highest = max(row["byte_seconds"] for row in cells.values()) or 1.0
    lines: list[str] = []
    for account in rows:
        line = [f"<th>{name(account)}</th>"]
        for holder in columns:
            row = cells.get((account, holder))
            if row is None or not row["byte_seconds"]:
                line.append('<td class="cell none" style="--heat:0">·</td>')
                continue
            heat = 0.06 + 0.64 * (row["byte_seconds"] / highest) ** 0.6
            title = text(
                f"{account} owed {size(row['byte_seconds'] / seen.seconds)} on average for what "
                f"{holder} held: {percent(row['byte_seconds'] / whole)} of all debt "
                f"({count(row['byte_seconds'])} byte-seconds, {count(row['item_seconds'])} "
                "event-seconds)"
            )
            line.append(
                f'<td class="cell" style="--heat:{heat:.2f}" title="{title}">'
                f"{size(row['byte_seconds'] / seen.seconds)}</td>"
            )
        line.append(f'<td class="sum">{size(accounts[account] / seen.seconds)}</td>')
        lines.append(f"<tr>{''.join(line)}</tr>")
    heads = "".join(f"<th>{name(holder)}</th>" for holder in columns)
    sums = "".join(f"<td>{percent(holders[holder] / whole)}</td>" for holder in columns)
    matrix = (
        '<div class="scroll"><table class="matrix"><thead><tr><th></th>'
        f"{heads}<th>owed in all</th></tr></thead><tbody>{''.join(lines)}</tbody>"
        f"<tfoot><tr><th>of all debt</th>{sums}<td></td></tr></tfoot></table></div>"
    )
    left: list[str] = []
    if len(accounts) > len(rows):
        left.append(plural(len(accounts) - len(rows), "account"))
    if len(holders) > len(columns):
        left.append(plural(len(holders) - len(columns), "holder"))
    more = f'<p class="more">{" and ".join(left)} more in tables/blame.</p>' if left else ""
    return section(
        "Who blocked whom",
        "A row is an account, a column a holder of its messages; the figure is its average debt "
        "there. Look first where the colour is strongest.",
        matrix + more,
        anchor="blocked",
    )


def _waited(report: Report) -> str:
    book = report.book
    found = book.top("stall_time", "seconds", SHOWN)
    if not found:
        return ""
    highest = found[0]["seconds"] or 1.0
    rows = [
        (
            name(row["account"]),
            name(row["culprit"]),
            bar(row["seconds"] / highest, duration(row["seconds"]), "blamed"),
            duration(row["seconds"]),
            count(row["stalls"]),
        )
        for row in found
    ]
    return section(
        "Who had to wait, and for whom",
        "How long an account's reader was paused (backpressure), by the holder that had most of "
        "the messages that it waited for.",
        table(("account", "waited for", "", "in all", "times"), rows, numbers=(3, 4))
        + _more(book.count("stall_time"), "pair"),
        anchor="waited",
    )


def _fanned(report: Report) -> str:
    book = report.book
    found = book.top("fan_out", "copies", SHOWN)
    if not found:
        return ""
    highest = found[0]["copies"] or 1.0
    rows = [
        (
            name(row["account"]),
            f'<bdi class="name">{text(row["topic"])}</bdi>',
            count(row["published"]),
            count(row["copies"]),
            bar(row["copies"] / highest, f"{count(row['copies'])} deliveries"),
            f"&times; {row['amplification']:.3g}",
        )
        for row in found
    ]
    return section(
        "What became of each publication",
        "Write amplification: one event to nine subscribers is nine deliveries, and all nine are "
        "charged to its publisher.",
        table(("account", "topic", "published", "deliveries", "", "each"), rows, numbers=(2, 3, 5))
        + _more(book.count("fan_out"), "topic"),
        anchor="fan-out",
    )


# -- fairness -----------------------------------------------------------------------------------


def _fair(report: Report) -> str:
    book = report.book
    found = book.rows("fairness")
    shares = book.sums("tenants", "tenant", "bytes")
    if not found or len(shares) < 2 or found[0]["fairness_bytes"] is None:
        return ""
    row = found[0]
    whole = sum(shares.values()) or 1.0
    shown = list(shares)[:SHOWN]
    items = book.sums("tenants", "tenant", "items")
    rows = [
        (
            name(tenant),
            bar(shares[tenant] / whole, percent(shares[tenant] / whole)),
            percent(shares[tenant] / whole),
            size(shares[tenant]),
            count(items.get(tenant, 0.0)),
        )
        for tenant in shown
    ]
    index = row["fairness_bytes"]
    about = (
        f"Jain's index is <b>{index:.2f}</b> over {plural(len(shares), 'tenant')} in bytes "
        f"({row['fairness_items']:.2f} in events): 1 if all got as much, "
        f"{1 / len(shares):.2g} if one got everything. It is as if {index * len(shares):.3g} of "
        "them had shared it evenly."
    )
    return section(
        "How evenly it was shared",
        about,
        table(("tenant", "", "share", "delivered", "events"), rows, numbers=(2, 3, 4))
        + _more(len(shares), "tenant"),
        anchor="fair",
    )


# -- what to change -----------------------------------------------------------------------------


def _advice(report: Report) -> str:
    wanted = duration(report.target_ms / 1e3)
    advices = by_pattern(report.advices)
    if not advices:
        return section(
            "What to change",
            "Nothing: with the present limits, 99 % of every account's deliveries were done within "
            f"{wanted}, or no limit of its own would help.",
            "",
            anchor="change",
        )
    rows = [
        (
            f'<bdi class="name">{text(key)}</bdi>',
            name(advice.holder),
            _late(advice.p99_ms, report.target_ms),
            f"{count(advice.items_per_s)}/s, {size(advice.bytes_per_s)}/s",
            f'<span class="now">{_limit(advice.now_items, advice.now_bytes)}</span>',
            f'<b class="good">{_limit(advice.limit_items, advice.limit_bytes)}</b>'
            + ("*" if advice.floor else ""),
        )
        for key, advice in list(advices.items())[:SHOWN]
    ]
    head = (
        *("account", "waits at", "99 % within, now", "cleared there"),
        *("limit now", "limit wanted"),
    )
    floor = (
        "*: lower would cost throughput; it may not be enough."
        if any(advice.floor for advice in advices.values())
        else ""
    )
    about = (
        "Debt is the rate at which holders clear it, times the time that each message waits "
        f"(Little's law). If 99 of 100 are to be done within <b>{wanted}</b>, an account may owe "
        "no more than is cleared of its debt in that time. It publishes no less: only the queue in "
        "between gets shorter."
    )
    return section(
        "What to change",
        about,
        table(head, rows, numbers=(2, 3, 4, 5))
        + (f'<p class="more">{floor}</p>' if floor else "")
        + _more(len(advices), "limit", where="limits.toml")
        + '<p class="more">The file limits.toml is beside this page; give it to the relay: '
        + f"<kbd>clearfunds relay --config limits.toml</kbd></p><pre>{_lines(report.toml)}</pre>",
        anchor="change",
    )


def _lines(toml: str) -> str:
    """Show the file, line by line; only the first 60 lines of a long one."""
    lines = toml.splitlines()
    shown = lines if len(lines) <= 60 else [*lines[:59], f"... {len(lines) - 59} lines more"]
    return "\n".join(map(text, shown))


# -- the frame ----------------------------------------------------------------------------------


def _left_out(report: Report) -> str:
    """Name the damaged files: without them every sum on the page is too low."""
    damaged = report.damaged
    if not damaged:
        return ""
    shown = "".join(f"<li>{text(each)}</li>" for each in damaged[:SHOWN])
    more = _more(len(damaged), "file", where="the list that clearfunds report printed")
    return section(
        "Left out",
        f"{plural(len(damaged), 'file')} of the journal could not be read: the rows in them are "
        "missing from every figure here.",
        f"<ul>{shown}</ul>{more}",
        anchor="damaged",
    )


def _foot(report: Report, seen: _Overview) -> str:
    sampled = (
        ""
        if seen.weight <= 1
        else f" The relay wrote a sample at times, down to one in {seen.weight:,.0f} rows, and "
        "sums are scaled up for it; a peak may have been higher than it is here."
    )
    return (
        "<footer><p>Read from "
        f"{plural(seen.rows, 'settlement')}, one for each loan that ended: who owed, who held, how "
        f"much, from when to when.{sampled} Computed by {report.engine}. Percentiles "
        "are approximate, within about a percent."
        "</p><p>All rows of every table are in tables/, as Parquet.</p></footer>"
    )


def _more(there: int, what: str, shown: int = SHOWN, where: str = "tables/") -> str:
    if there <= shown:
        return ""
    return f'<p class="more">{plural(there - shown, what)} more in {where}.</p>'
