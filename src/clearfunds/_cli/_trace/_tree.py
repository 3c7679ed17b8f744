"""A trace as a tree: the packet, its turns, and the holder, outcome and end of each loan."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from clearfunds.accounts.watch._durations import duration

from .._printable import printable
from .._top._top_words import count, items_of, size

if TYPE_CHECKING:
    from clearfunds.pages._trace_json import (
        LoanRow,
        SettlementRow,
        SumRow,
        ThereRow,
        TracedWaitRow,
        TraceRow,
        TurnRow,
    )
    from clearfunds.pages._trace_waits import WaitingRow

_STILL_SECONDS: Final = 1.0
# Seconds without progress after which a holder "has taken nothing", as in `clearfunds top`.

_ENDED_BADLY: Final = frozenset(("rejected", "dropped", "expired", "written_off", "leaked"))


def moment(seconds: float) -> str:
    """Write a duration that may be very short."""
    if abs(seconds) < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if abs(seconds) < 1:
        return f"{seconds * 1e3:.1f} ms"
    return duration(seconds) if seconds >= 60 else f"{seconds:.2f} s"


def after(seconds: float) -> str:
    """Write a time, counted from the beginning of the trace."""
    return f"+{moment(seconds)}" if seconds >= 0 else moment(seconds)


def trace_tree(trace: TraceRow) -> RenderableType:
    """Return everything known of one event."""
    slowest = _slowest(trace)
    tree = Tree(_head(trace), guide_style="dim")
    _turn_into(tree, trace, trace["root"], slowest)
    _waits_into(tree, trace)
    _left_out(tree, trace)
    return Group(tree, _sum(trace, slowest))


def waiting_lines(waits: list[WaitingRow], more: int) -> Iterator[Text]:
    """Yield the waits of the moment: each account, and the holders that block it."""
    for wait in waits:
        name = printable(wait["account"])
        where = "" if wait["at"] == wait["account"] else f" at {printable(wait['at'])}"
        owes = f"{items_of(wait['debt_items'])}, {size(wait['debt_bytes'])} are owed there"
        said = f"{name} waits{where}, for {duration(wait['seconds'])}: {owes}"
        if not wait["on"]:
            yield Text(f"{said}; nobody holds it any more.", "bold")
            continue
        holders = ", ".join(
            f"{printable(on['holder'])} ({_kind(on['kind'], on['holder'])}"
            f"{items_of(on['items'])}{_idle(on['idle_seconds'])})"
            for on in wait["on"]
        )
        others = f" and {count(wait['on_more'])} more" if wait["on_more"] else ""
        yield Text(f"{said}, held by {holders}{others}.", "bold")
    if more:
        yield Text(f"and {count(more)} more accounts wait", "dim")


def _kind(kind: str, holder: str) -> str:
    return "" if kind in ("", holder.strip("()")) else f"{kind}, "


def _idle(seconds: float | None) -> str:
    if seconds is None or seconds < _STILL_SECONDS:
        return ""
    return f", has taken nothing for {duration(seconds)}"


def _head(trace: TraceRow) -> Text:
    root = trace["root"]
    began = datetime.fromtimestamp(trace["began"], UTC)
    came = f"{items_of(root['items'])}, {size(root['bytes'])}"
    when = began.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    text = Text(printable(trace["account"]), "bold")
    text.append(f"  {came} came in at {when} UTC", "not bold")
    return text


def _turn_into(tree: Tree, trace: TraceRow, turn: TurnRow, slowest: LoanRow | None) -> None:
    branch = tree.add(_turn(trace, turn))
    for loan in turn["loans"]:
        there = branch.add(_loan(trace, loan, loan is slowest))
        for move in loan["moves"]:
            there.add(f"{after(move['at'])} given to {move['kind']} {printable(move['holder'])}")
        for settlement in loan["settlements"] if _parts(loan) else ():
            there.add(_settlement(loan, settlement))
        for held in loan["held"]:
            there.add(
                Text(
                    f"{items_of(held['items'])} still held by "
                    f"{_kind(held['kind'], held['holder']).replace(',', '')}"
                    f"{printable(held['holder'])} after {moment(trace['seconds'])}"
                    f"{_idle(held['idle_seconds'])}",
                    "bold red",
                )
            )
        for caused in loan["turns"]:
            _turn_into(there, trace, caused, slowest)
        for crossed in loan["there"]:
            _there_into(there, crossed)
        if loan["more_there"]:
            more = loan["more_there"]
            what = "message" if more == 1 else "messages"
            there.add(Text(f"{count(more)} more {what} to other relays are not followed", "dim"))


def _there_into(tree: Tree, there: ThereRow) -> None:
    """Add what another relay did, with its own times."""
    trace, on_the_way = there["trace"], there["on_the_way"]
    text = Text("on ")
    text.append(printable(there["relay"]), "bold")
    text.append(f"  sent {after(there['sent'])}", "dim")
    if trace is None or on_the_way is None:
        text.append(", nothing has come back about it", "red")
        tree.add(text)
        return
    took = moment(trace["seconds"])
    text.append(f", {moment(on_the_way)} on the way there and back", "dim")
    if trace["complete"]:
        text.append(f", done there in {took}", "green")
    else:
        text.append(f", not done there after {took}", "red")
    branch = tree.add(text)
    slowest = _slowest(trace)
    _turn_into(branch, trace, trace["root"], slowest)
    _waits_into(branch, trace)
    _left_out(branch, trace)


def _turn(trace: TraceRow, turn: TurnRow) -> Text:
    labels = ", ".join(map(printable, turn["labels"]))
    if turn["more_labels"]:
        labels += f" and {count(turn['more_labels'])} more"
    what = f"turn about {labels}" if labels else "turn"
    if turn["outcome"] is None:
        return Text(f"{after(turn['opened'])} {what}: open for {moment(trace['seconds'])}", "red")
    ended = turn["ended"]
    took = "" if ended is None else f" in {moment(ended - turn['opened'])}"
    if turn["outcome"] != "delivered":
        return Text(f"{after(turn['opened'])} {what}: {turn['outcome']}{took}, undone", "red")
    to = f", to {count(len(turn['loans']))}" if turn["loans"] else ", to nobody"
    if turn is trace["root"] and (trace["not_shown"]["loans"] or trace["not_followed"]["loans"]):
        to = ""
    return Text(f"{after(turn['opened'])} {what}: committed{took}{to}")


def _loan(trace: TraceRow, loan: LoanRow, slowest: bool) -> Text:
    text = Text(f"{loan['kind']} " if _kind(loan["kind"], loan["holder"]) else "")
    text.append(printable(loan["holder"]), "bold")
    label = f", {printable(loan['label'])}" if loan["label"] else ""
    text.append(f"  {items_of(loan['items'])}, {size(loan['bytes'])}{label}")
    text.append(f"  lent {after(loan['lent'])}", "dim")
    ended = loan["ended"]
    if ended is not None and not _parts(loan):
        outcome = loan["settlements"][-1]["outcome"]
        style = "red" if outcome in _ENDED_BADLY else "green"
        text.append(f", {_words(outcome)} {after(ended)}", style)
    if slowest:
        text.append("  ← slowest" if ended is not None else "  ← outstanding", "bold yellow")
    return text


def _parts(loan: LoanRow) -> bool:
    """Whether its end takes more than a word."""
    return (
        len(loan["settlements"]) != 1
        or loan["left_items"] > 0
        or loan["settlements"][0]["holder"] != loan["holder"]
    )


def _settlement(loan: LoanRow, settlement: SettlementRow) -> Text:
    outcome = settlement["outcome"]
    times = "" if settlement["times"] == 1 else f" in {count(settlement['times'])} parts, the last"
    said = f"{items_of(settlement['items'])} {_words(outcome)}{times} {after(settlement['at'])}"
    if settlement["holder"] != loan["holder"]:
        said += f" by {printable(settlement['holder'])}"
    return Text(said, "red" if outcome in _ENDED_BADLY else "green")


def _words(outcome: str) -> str:
    return outcome.replace("_", " ")


def _wait(trace: TraceRow, wait: TracedWaitRow) -> Text:
    until = wait["until"]
    end = trace["seconds"] if until is None else until
    where = "" if wait["at"] in (None, trace["account"]) else f" at {printable(wait['at'] or '')}"
    said = f"{after(wait['since'])} the account's reader waits{where}, "
    said += f"{'so far ' if until is None else ''}{moment(end - wait['since'])}"
    if wait["blame"]:
        most = sorted(wait["blame"].items(), key=lambda each: -each[1])
        said += ", on " + ", ".join(f"{printable(n)} {moment(s)}" for n, s in most[:5])
    return Text(said, "yellow")


def _waits_into(tree: Tree, trace: TraceRow) -> None:
    for wait in trace["waits"]:
        tree.add(_wait(trace, wait))
    if trace["more_waits"]:
        tree.add(Text(f"and {count(trace['more_waits'])} more waits", "dim"))


def _left_out(tree: Tree, trace: TraceRow) -> None:
    if trace["not_shown"]["loans"]:
        tree.add(Text(f"{_more(trace['not_shown'])} not shown: they were quicker", "dim"))
    if trace["not_followed"]["loans"]:
        tree.add(Text(f"{_more(trace['not_followed'])} not followed", "dim"))
    if trace["turns_not_followed"]:
        tree.add(Text(f"{count(trace['turns_not_followed'])} more turns are not followed", "dim"))


def _more(left_out: SumRow) -> str:
    loans = left_out["loans"]
    what = "loan" if loans == 1 else "loans"
    return f"{count(loans)} more {what} ({items_of(left_out['items'])})"


def _sum(trace: TraceRow, slowest: LoanRow | None) -> Text:
    ended = ", ".join(f"{count(n)} {_words(outcome)}" for outcome, n in trace["outcomes"].items())
    if trace["complete"]:
        if not ended:
            return Text(f"It went to nobody; done after {moment(trace['seconds'])}.", "green")
        last = ""
        if slowest is not None:
            latest = max(_loans(trace["root"]), key=lambda loan: loan["ended"] or 0.0)
            last = f", the last of it by {printable(latest['holder'])}"
        return Text(f"All of it ended within {moment(trace['seconds'])}{last}: {ended}.", "green")
    if not trace["left_items"]:
        return Text(f"It is not over after {moment(trace['seconds'])}: a turn is open.", "bold red")
    left = f"{items_of(trace['left_items'])} outstanding after {moment(trace['seconds'])}"
    holders = sorted({held["holder"] for loan in _loans(trace["root"]) for held in loan["held"]})
    shown = ", ".join(map(printable, holders[:3]))
    others = f" and {count(len(holders) - 3)} more" if len(holders) > 3 else ""
    by = f", held by {shown}{others}" if holders else ""
    return Text(f"{left}{by}{f'; {ended}' if ended else ''}.", "bold red")


def _loans(turn: TurnRow) -> Iterator[LoanRow]:
    for loan in turn["loans"]:
        yield loan
        for caused in loan["turns"]:
            yield from _loans(caused)


def _slowest(trace: TraceRow) -> LoanRow | None:
    """Return the loan outstanding for the longest, else the slowest; only if there are several."""
    loans = list(_loans(trace["root"]))
    if len(loans) < 2:
        return loans[0] if loans and trace["not_shown"]["loans"] else None
    return max(loans, key=lambda loan: (loan["ended"] is None, _seconds(trace, loan)))


def _seconds(trace: TraceRow, loan: LoanRow) -> float:
    return (trace["seconds"] if loan["ended"] is None else loan["ended"]) - loan["lent"]
