"""docs/evidence.md, put together from the sections and what has been kept of each."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from benchmarks.evidence._data import Record
from benchmarks.evidence._section import Claim, Rendered, Section
from benchmarks.evidence._text import in_order, label, listed, table, time_of, wrapped
from benchmarks.servers import BARE

MARK: Final = (
    "<!-- Written by `python -m benchmarks.evidence` from docs/data/evidence: not by hand. -->"
)

INTRODUCTION: Final = """
The relay's CPU cost, latency, memory and backpressure, measured on one machine beside the other
servers that were found there. One command wrote all of this page, its sentences about results
included: on another machine they state the results there. (One table, of a backlog of full size,
takes longer than that, and names its own command.) The figures of every single pass are in
[data/evidence/](data/evidence/); [the end](#what-to-distrust) says how far to trust them.
"""

BUSY: Final = 0.05
"""A section during which something else took more than this share of the cores is disturbed."""

DISTRUST: Final = """
**Everything is short.** A figure is the median of a few passes of a few seconds, with minimum and
maximum in brackets. Where these are far apart the median says little. Ratios are taken within a
pass, where both servers had the same neighbours.

**CPU time is counted in ticks of 10 ms**, for the whole server: all its threads and children, user
and system. A difference of a per cent or two means nothing.

**Loopback.** The sender's core does the receiver's TCP work, so that sending looks dearer than it
would over a network. Nothing is encrypted.

**One core for each server.** mosquitto, Redis and the relay could not use another; NATS and
RabbitMQ would use more cores, and deliver more.

**No server was tuned**, nor was the relay: each has its own defaults, except for its port, its
directory, and persistence, which is off where the section is not about it. One setting, turned on
for good reason, can change every row of a table.

**The servers do not do the same.** One drops, another waits, a third cuts off: speed alone compares
promises that are not alike. The columns about loss and backpressure are there for that.

**The relay's authors wrote the load generator.** It parses and counts all that it receives, and is
tested against servers that cheat (tests/benchmarks/test_loadgen.py).
"""


@attrs.frozen
class Page:
    """What is written."""

    text: str
    figures: Mapping[str, Callable[[], Any]]
    claims: tuple[Claim, ...]


NOTHING: Final = Rendered("")


@attrs.frozen
class _Part:
    """A section with what has become of it."""

    section: Section
    record: Record
    trouble: str | None
    """Why there is nothing to show, or nothing new."""

    rendered: Rendered = NOTHING

    @property
    def link(self) -> str:
        return f"[{self.section.heading}](#{self.section.name})"

    @property
    def short_link(self) -> str:
        return f"[{self.section.key}](#{self.section.name})"


def compose(sections: Mapping[str, Section | str], records: Mapping[str, Record]) -> Page:
    """Return the page.

    Args:
        sections: By name, in the order of the page; in place of one that there is none of, why.
        records: What is kept of each; none of one that has not been measured.
    """
    parts = [
        _part(section, records.get(name, Record()))
        for name, section in sections.items()
        if isinstance(section, Section)
    ]
    absent = [section for section in sections.values() if isinstance(section, str)]
    shown = [part for part in parts if part.rendered is not NOTHING]
    abouts = [part.record.about or {} for part in shown]
    latest: Mapping[str, Any] = {}
    if abouts:
        latest = max(abouts, key=lambda about: str(about.get("date", "")))
    text = [
        f"{MARK}\n\n# Evidence",
        wrapped(INTRODUCTION),
        _facts(latest, abouts),
        wrapped(" · ".join(part.link for part in parts)),
        "## What must hold",
        _claims(shown),
        *_beside(shown, latest),
        *(block for part in parts for block in _blocks(part, latest)),
        "## Skipped",
        _skipped(parts, absent, latest),
        "## What to distrust",
        _distrust(latest, abouts),
    ]
    figures = {name: make for part in shown for name, make in part.rendered.figures.items()}
    claims = tuple(claim for part in shown for claim in part.rendered.claims)
    return Page("\n\n".join(block for block in text if block) + "\n", figures, claims)


def _part(section: Section, record: Record) -> _Part:
    trouble = None
    if record.trouble is not None:
        trouble = f"{record.trouble['message']} ({record.trouble['date'][:10]})"
    if record.data is None:
        return _Part(section, record, trouble or "It has not been measured yet.")
    try:
        rendered = section.render(record.data)
    except Exception as error:  # noqa: BLE001 - one section less, not no page
        traceback.print_exc()
        reason = f"What was measured cannot be shown: {type(error).__name__}: {error}"
        return _Part(section, record, reason)
    return _Part(section, record, trouble, rendered)


# -- The head of the page --------------------------------------------------------------------------


def _facts(latest: Mapping[str, Any], abouts: Sequence[Mapping[str, Any]]) -> str:
    if not latest:
        return "Nothing has been measured yet."
    days = sorted({_day(about) for about in abouts})
    took = sum(float(about.get("seconds", 0)) for about in abouts)
    rows = [
        ["machine", _machine(latest)],
        ["servers", _versions(latest)],
        ["where", f"{latest.get('pinning', '')}; loopback"],
        [
            "measured",
            (days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}") + f", in {time_of(took)}",
        ],
        ["to do it again", "`make bench`, or `python -m benchmarks.evidence`"],
    ]
    return table(["", ""], rows)


def _machine(about: Mapping[str, Any]) -> str:
    found: Mapping[str, str] = about.get("machine", {})
    cores = found.get("cores", "?")
    return (
        f"{found.get('cpu', '?')}, {cores} {'core' if cores == '1' else 'cores'}, "
        f"{found.get('kernel', '?')}, {found.get('python', '?')}, Trio {found.get('trio', '?')}"
    )


def _versions(about: Mapping[str, Any]) -> str:
    servers: Mapping[str, str] = about.get("servers", {})
    return ", ".join(f"{label(name)} {_version(servers[name])}" for name in in_order(servers))


def _version(said: str) -> str:
    """Return the number in what a server says about its version."""
    found = re.search(r"\d+\.\d+[\w.+-]*", said)
    return found[0] if found else said


def _day(about: Mapping[str, Any]) -> str:
    return str(about.get("date", ""))[:10]


def _claims(parts: Sequence[_Part]) -> str:
    rows: list[list[str]] = []
    words: list[str] = []
    for part in parts:
        for claim in part.rendered.claims:
            words.append(claim.word)
            rows.append(
                [
                    claim.text,
                    "-" if claim.found is None else f"{claim.found:{claim.form}}",
                    f"{claim.most:g}",
                    f"**{claim.word}**" if claim.word == "MISSED" else claim.word,
                    part.short_link,
                ]
            )
    if not rows:
        return "Nothing that was measured has anything to hold."
    missed, unknown = words.count("MISSED"), words.count("not measured")
    summary = f"{words.count('held')} of {len(words)} hold"
    summary += f", {missed} {'is' if missed == 1 else 'are'} missed" if missed else ""
    if unknown:
        summary += f", {unknown} could not be measured"
    head = ["what", "found", "at most", "", "where"]
    return f"{summary}.\n\n{table(head, rows, right=(1, 2))}"


def _beside(parts: Sequence[_Part], latest: Mapping[str, Any]) -> list[str]:
    columns = {heading: cells for part in parts for heading, cells in part.rendered.beside.items()}
    servers = in_order({server for cells in columns.values() for server in cells})
    if not columns or not servers:
        return []
    versions: Mapping[str, str] = latest.get("servers", {})
    rows = [
        [
            label(server),
            _version(versions[server]) if server in versions else "-",
            *(cells.get(server, "-") for cells in columns.values()),
        ]
        for server in servers
    ]
    return [
        "## Side by side",
        "A row for each server; each column is from the section that has the details.",
        table(["", "version", *columns], rows),
    ]


# -- Sections --------------------------------------------------------------------------------------


def _blocks(part: _Part, latest: Mapping[str, Any]) -> list[str]:
    section = part.section
    blocks = [f'<a id="{section.name}"></a>\n\n## {section.heading}']
    if part.rendered is NOTHING:
        return [*blocks, f"**Not measured.** {part.trouble}", f"    {section.command}"]
    about = part.record.about or {}
    remarks = [f"Measured in {time_of(float(about.get('seconds', 0)))}.", *_other(about, latest)]
    if "remark" in about:  # written by hand, of what one run does not show
        remarks.append(f"**{about['remark']}**")
    if part.trouble is not None:
        remarks.append(f"**What is shown is older than the last attempt**: {part.trouble}")
    return [*blocks, f"    {section.command}", " ".join(remarks), part.rendered.text.strip()]


def _other(about: Mapping[str, Any], latest: Mapping[str, Any]) -> list[str]:
    """Say in what this section differs from what the head of the page says."""
    remarks: list[str] = []
    if (taken := _taken(about)) > BUSY:
        remarks.append(f"**Meanwhile something else took {taken:.0%} of the cores.**")
    if (day := _day(about)) != _day(latest):
        remarks.append(f"It is of {day}.")
    if about.get("machine") != latest.get("machine"):
        remarks.append(f"It was another machine: {_machine(about)}.")
    if about.get("pinning") != latest.get("pinning"):
        remarks.append(f"There: {about.get('pinning')}.")
    then: Mapping[str, str] = about.get("servers", {})
    now: Mapping[str, str] = latest.get("servers", {})
    changed = [
        f"{label(name)} {_version(then[name])}"
        for name in in_order(then)
        if then[name] != now.get(name)
    ]
    if changed:
        remarks.append(f"It was with {listed(changed)}.")
    # What runs in bare Python can be had wherever the relay can.
    if gone := [label(name) for name in in_order(now) if name not in {*then, BARE.name}]:
        remarks.append(f"It was without {listed(gone)}.")
    if (scale := float(about.get("scale", 1))) != 1:
        remarks.append(f"**Times and sizes were {scale:g} of what they should be.**")
    return remarks


def _skipped(parts: Sequence[_Part], absent: Sequence[str], latest: Mapping[str, Any]) -> str:
    lines = [str(sentence) for sentence in latest.get("missing", ())]
    for part in parts:
        if part.trouble is not None:
            lines.append(f"{part.link}: {part.trouble}")
        skipped: Sequence[Any] = (part.record.data or {}).get("skipped", ())
        lines += [f"{part.link}: {sentence}" for sentence in skipped]
    lines += absent
    return "\n".join(f"- {line}" for line in lines) or "Nothing."


def _taken(about: Mapping[str, Any]) -> float:
    """Return the share of the cores that something else took."""
    return float(about.get("others", 0)) + float(about.get("stolen", 0))


def _distrust(latest: Mapping[str, Any], abouts: Sequence[Mapping[str, Any]]) -> str:
    lines = [wrapped(each) for each in DISTRUST.split("\n\n")]
    if busy := [_taken(about) for about in abouts if _taken(about) > BUSY]:
        lines.insert(
            0,
            wrapped(
                f"**The machine was not idle** during {len(busy)} of {len(abouts)} sections: up to "
                f"{max(busy):.0%} of its cores were taken by other processes, or by other "
                "machines on the same hardware."
            ),
        )
    if latest.get("shared"):
        lines.insert(0, "**There was one core for server and generator.** Believe no figure here.")
    return "\n\n".join(lines)
