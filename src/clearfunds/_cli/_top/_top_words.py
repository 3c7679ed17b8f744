"""Sentences and figures for a page of the books."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clearfunds.accounts.watch._durations import duration

from .._printable import printable

if TYPE_CHECKING:
    from clearfunds.pages._survey import (
        HolderRow,
        IncidentRow,
        RingRow,
        WaitedOnRow,
        WaitRow,
    )
    from clearfunds.pages._top_json import TopPage

STILL_SECONDS: Final = 1.0
# Seconds without progress after which a holder "has made no progress" (as `accounts.RING_SECONDS`).

_ALARMS: Final = {
    "memory": "memory is short",
    "disk": "the disk is nearly full",
    "loop": "the event loop is late",
}

_RELIEF: Final = {
    "drop_oldest": ("drops", "drops what is old"),
    "drop_newest": ("drops", "drops what comes"),
    "conflate": ("drops", "keeps the latest of each topic alone"),
    "spill": ("spills", "has its backlog put aside"),
}
# The effect of a policy on the messages of a slow consumer: in a word, and in a sentence.

_KIB_FROM: Final = 10_000
# Below it, the number itself is as short.


def count(number: int) -> str:
    """Write a number of items."""
    return f"{number:,}"


def items_of(number: int) -> str:
    """Write a number of items, with the word."""
    return f"{number:,} item{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """Write a number of bytes."""
    if number < _KIB_FROM:
        return f"{number:.0f} B"
    for unit in ("KiB", "MiB"):
        number /= 1024
        if number < 1000:
            return f"{number:,.1f} {unit}"
    return f"{number / 1024:,.1f} GiB"


def one_of(names: list[str], number: int) -> str:
    """Write the names of `number` accounts, of which only some may be known."""
    shown = [printable(name) for name in names]
    if number > len(shown):
        return f"{', '.join(shown)} and {number - len(shown):,} more"
    return " and ".join((", ".join(shown[:-1]), shown[-1])) if len(shown) > 1 else shown[0]


def first_line(page: TopPage) -> str:
    """Return the most important wait in one sentence, or that nobody waits."""
    if page["waits"]:
        return sentence(page["waits"][0])
    if page["totals"]["waiting"]:
        return "The waiting accounts go on just now."
    return "Nobody waits."


def sentence(wait: WaitRow) -> str:
    """Describe a wait: the accounts, the holder, the debt and limit, the time, the next step."""
    who = one_of(wait["waiting"], wait["count"])
    several = wait["count"] > 1
    owes = "it owes" if wait["waiting"] == [wait["at"]] else f"{printable(wait['at'])} owes"
    waits = f"{who} {'wait' if several else 'waits'}"
    how_long = f"for {duration(wait['seconds'])}"
    how_much = f"{owes} {_of_limit(wait)}"
    if wait["alarms"]:
        return f"{waits}, {how_long}, for an alarm: {_alarmed(wait)}."
    if wait["blockers"]:
        why = _why(wait["on"][0]) if wait["on"] else ""
        return f"{waits}, {how_long}, blocked by {_blocked(wait, several)}.{why}"
    if wait["rate"] is not None:
        at = "it" if wait["waiting"] == [wait["at"]] else printable(wait["at"])
        return f"{waits}, {how_long}: more came in than {at} may bring, {wait['rate']}."
    if not wait["on"]:
        return f"{waits}, {how_long}: {how_much}, which nobody holds any more."
    first = wait["on"][0]
    more = len(wait["on"]) - 1 + wait["on_more"]
    whom = printable(first["name"]) + (f" and {more:,} more" if more else "")
    holds = f"{_holder(first)} holds {_amount_of(first, wait)}"
    what = f"{holds} and {_next(first, wait, several)}.{_why(first)}"
    return f"{waits} for {whom}, {how_long}: {how_much}; {what}"


def _why(row: HolderRow | IncidentRow) -> str:
    """Return why a holder is or was slow, as another sentence."""
    # A relay of an older version does not say it.
    why = row.get("why")
    return f" {printable(why)}." if why else ""


def _blocked(wait: WaitRow, several: bool) -> str:
    if not wait["on"]:
        return one_of(wait["blockers"], len(wait["blockers"]))
    first = wait["on"][0]
    more = len(wait["blockers"]) - 1
    others = f" (and {more:,} more)" if more else ""
    what = f"{_holder(first)}{others}: it holds {items_of(first['here_items'])}"
    if first["idle_seconds"] < STILL_SECONDS:
        return f"{what} and makes progress"
    return f"{what} and {_next(first, wait, several)}"


def alarm_sentence(kinds: list[str]) -> str:
    """Return the sentence about alarms."""
    return f"Alarm: {_short_of(kinds)}. Nobody who publishes is read until that is over."


def _short_of(kinds: list[str]) -> str:
    return " and ".join(_ALARMS.get(kind, kind) for kind in kinds)


def _alarmed(wait: WaitRow) -> str:
    what = _short_of(wait["alarms"])
    if not wait["on"]:
        return f"{what}; nobody who publishes is read until that is over"
    first = wait["on"][0]
    more = len(wait["on"]) - 1 + wait["on_more"]
    others = f", {more:,} more hold the rest" if more else ""
    return f"{what}; of what is owed {_holder(first)} holds {_amount_of(first, wait)}{others}"


def what_next(holder: HolderRow) -> str:
    """Return the next step for a holder in two words."""
    if holder["behind_seconds"] is not None and not holder["waited_items"]:
        # A holder that has lost messages is behind.
        lost = holder["dropped_items"]
        return f"lost {count(lost)}" if lost else "behind"
    if not holder["waited_items"]:
        return ""
    if holder["idle_seconds"] < STILL_SECONDS:
        return "makes progress"
    if holder["policy"] == "disconnect" and holder["left_seconds"] is not None:
        word = "ended" if holder["away"] else "cut off"
        return f"{word} in {duration(holder['left_seconds'])}"
    if holder["policy"] in _RELIEF and holder["left_seconds"] is not None:
        return f"{_RELIEF[holder['policy']][0]} in {duration(holder['left_seconds'])}"
    return "is waited for"


def ring_sentence(ring: RingRow) -> str:
    """Describe a ring: connections that block each other."""
    if ring["count"] == 1:
        return (
            f"A ring of one: {printable(ring['members'][0])} waits for what it does not take "
            f"itself, for {duration(ring['seconds'])}."
        )
    return (
        f"A ring: {one_of(ring['members'], ring['count'])} wait on each other; nothing has moved "
        f"for {duration(ring['seconds'])}."
    )


def incident_sentence(incident: IncidentRow) -> str:
    """Describe a recent incident: a disconnected holder, or long waits that are over."""
    ago = f"{duration(incident['ago_seconds'])} ago"
    whom = "somebody" if incident["holder"] is None else printable(incident["holder"])
    longest = duration(incident["seconds"])
    several = incident["waits"] > 1
    who = _who(incident["accounts"], incident["accounts_more"])
    left = f"; {incident['cancelled']:,} left meanwhile" if incident["cancelled"] else ""
    if incident["relieved"]:
        done = "put aside" if incident["policy"] == "spill" else "dropped"
        said = f"{whom} fell behind {ago}: {items_of(incident['items'])} {done} so far"
        if incident["waits"]:
            said += f"; {who} had waited {longest}{' at most' if several else ''}{left}"
        return f"{said}.{_why(incident)}"
    if not incident["given_up"]:
        how = f"{incident['waits']:,} waits, the longest {longest}" if several else longest
        return f"{who} waited for {whom}, until {ago}: {how}{left}."
    if incident["kind"] == "queue" and not incident["items"]:
        said = f"The session of {whom}, who was away, was ended {ago}"
        said += f", after {duration(incident['idle_seconds'])} without progress of its queue"
        if incident["waits"]:
            said += f"; {who} had waited {longest}{' at most' if several else ''}{left}"
        return f"{said}."
    said = f"{whom} was cut off {ago}: {items_of(incident['items'])}"
    if incident["debtors"]:
        debtors = one_of(incident["debtors"], len(incident["debtors"]) + incident["debtors_more"])
        said += f" of {debtors}"
    said += f" written off after {duration(incident['idle_seconds'])} without progress"
    if incident["ring"]:
        ring = "one" if incident["ring"] == 1 else f"{incident['ring']:,}"
        said += f", in a ring of {ring}"
    if incident["waits"]:
        said += f"; {who} had waited {longest}{' at most' if several else ''}{left}"
    return f"{said}.{_why(incident)}"


def _who(names: list[str], more: bool) -> str:
    shown = [printable(name) for name in names]
    if more or len(shown) < 2:
        return ", ".join(shown) + (" and others" if more else "")
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def _holder(holder: HolderRow) -> str:
    name = printable(holder["name"])
    return name if name.strip("()") == holder["kind"] else f"{holder['kind']} {name}"


def _in_bytes(wait: WaitRow) -> bool:
    """Whether the debt in bytes, and not in items, is above its limit."""

    def share(debt: int, limit: int | None) -> float:
        return 0.0 if limit is None else debt / (limit or 1)

    return share(wait["debt_bytes"], wait["limit_bytes"]) > share(
        wait["debt_items"], wait["limit_items"]
    )


def _amount(items: int, nbytes: int, wait: WaitRow) -> str:
    return size(nbytes) if _in_bytes(wait) else items_of(items)


def _amount_of(holder: WaitedOnRow, wait: WaitRow) -> str:
    return _amount(holder["here_items"], holder["here_bytes"], wait)


def _of_limit(wait: WaitRow) -> str:
    of = "of its share of" if wait["reason"] == "share" else "of"
    if _in_bytes(wait):
        return f"{size(wait['debt_bytes'])} {of} {size(wait['limit_bytes'] or 0)}"
    return f"{count(wait['debt_items'])} {of} {count(wait['limit_items'] or 0)} items"


def _next(holder: WaitedOnRow, wait: WaitRow, several: bool) -> str:
    if holder["idle_seconds"] < STILL_SECONDS:
        low = wait["low_bytes"] if _in_bytes(wait) else wait["low_items"]
        at = size(low or 0) if _in_bytes(wait) else items_of(low or 0)
        return f"makes progress; at {at} {'they go' if several else 'it goes'} on"
    idle = duration(holder["idle_seconds"])
    still = f"has made no progress for {idle}"
    if holder["away"]:
        still += ", its client is away"
    left = holder["left_seconds"]
    relief = _RELIEF.get(holder["policy"] or "")
    if (holder["policy"] != "disconnect" and relief is None) or left is None:
        return f"{still}; it is waited for, however long it takes"
    when = f"in {duration(left)}" if left > 0 else "now"
    who = "they" if several else printable(wait["waiting"][0])
    if holder["enough"]:
        then = f", and {who} {'go' if several else 'goes'} on then"
    else:
        then = f"; {who} {'have' if several else 'has'} to wait for others then"
    if relief is not None:
        return f"{still}; it {relief[1]} {when} unless it reads{then}"
    if holder["away"]:
        return f"{still}; its session is ended {when} unless it comes back{then}"
    return f"{still}; it is cut off {when} unless it reads{then}"


def totals(page: TopPage) -> str:
    """Return the totals in a line."""
    books: dict[str, Any] = page["totals"]
    accounts = sum(books["accounts"].values())
    debt = f"{items_of(books['debt_items'])}, {size(books['debt_bytes'])} owed"
    readers = "reader waits" if books["waiting"] == 1 else "readers wait"
    parts = [
        f"{accounts:,} account{'' if accounts == 1 else 's'}, {debt}",
        f"{books['waiting']:,} {readers}, {duration(books['waited_seconds'])} in all",
    ]
    for place, items in books["at_rest_items"].items():
        if items:
            where = "on disk" if place == "disk" else "in RAM"
            parts.insert(
                1, f"{items_of(items)}, {size(books['at_rest_bytes'][place])} kept {where}"
            )
    if books["leaked_loans"]:
        parts.append(f"{books['leaked_loans']:,} loans leaked")
    if not page["rings_sought"]:
        parts.append("no search for rings: too many wait")
    return "; ".join(parts)
