"""Measure what docs/evidence.md shows, and write it: ``python -m benchmarks.evidence``."""

from __future__ import annotations

import argparse
import datetime
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks import fanout
from benchmarks.evidence import _page, _plot, _sections
from benchmarks.evidence._data import Record, read, write
from benchmarks.evidence._section import Section, Setting
from benchmarks.evidence._text import first_line, time_of
from benchmarks.fanout import Cores
from benchmarks.servers import PEERS, TODAY, AnyServer, Relay

ROOT: Final = Path(__file__).resolve().parents[2]
QUICK: Final = ROOT / "build" / "evidence"
QUICK_MINUTES: Final = 5.0
QUICK_SCALE: Final = 0.05
QUICK_SERVERS: Final = ("relay", "mosquitto", "nats", "mochi")
"""What ``--quick`` sets: directories of its own, times and sizes, and servers that start fast."""
WRITING_SECONDS: Final = 20.0
"""What is left of the time for the page and its figures."""


def main(
    words: Sequence[str] | None = None, sections: Mapping[str, Section | str] | None = None
) -> int:
    """Measure, write the data, the figures and the page; return the exit status.

    0, also where something could not be measured, which the page says; with ``--check``, 1 then or
    when something does not hold; 130 after Ctrl-C, with what had been measured by then.
    """
    if sections is None:
        sections = {name: _sections.load(name) for name in _sections.NAMES}
    arguments = parse_arguments(words, list(sections))
    try:
        with _plot.styled():
            pass
    except ImportError as error:
        sys.exit(f"evidence: {error}")
    status = 0
    if not arguments.render:
        chosen = [
            section
            for name, section in sections.items()
            if name in arguments.only and isinstance(section, Section)
        ]
        for name, section in sections.items():
            if name in arguments.only and isinstance(section, str):
                say(section)
        status = measure(chosen, arguments)
    page = write_page(sections, arguments.data, arguments.out)
    missed = [claim for claim in page.claims if claim.word == "MISSED"]
    for claim in missed:
        say(f"MISSED: {claim.text}: {claim.found:{claim.form}}, at most {claim.most:g}")
    if status in {0, 1} and not arguments.check:
        return 0
    return status or (1 if missed else 0)


def parse_arguments(words: Sequence[str] | None, names: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence",
        description="Measure what docs/evidence.md shows, and write it.",
        epilog=f"sections: {', '.join(names)}",
    )
    positive = fanout.positive
    parser.add_argument(
        "--only",
        metavar="NAMES",
        action="append",
        help="these sections, separated by commas; the others stay; may be repeated (all)",
    )
    parser.add_argument(
        "--render", action="store_true", help="measure nothing: the page from what there is"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"all sections in {QUICK_MINUTES:g} minutes, to see that they work: few servers, "
        f"small sizes; the page is {QUICK.relative_to(ROOT) / 'evidence.md'}",
    )
    parser.add_argument("--scale", type=positive, help="of times and sizes, to try it out (1)")
    parser.add_argument(
        "--minutes",
        type=positive,
        help="a section is not begun that would not end within them (40)",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR",
        help="where what was measured is kept (docs/data/evidence)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help="where evidence.md and its figures are written (docs)",
    )  # fmt: skip
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if something is missed or failed"
    )
    arguments = parser.parse_args(words)
    quick: bool = arguments.quick
    arguments.scale = arguments.scale or (QUICK_SCALE if quick else 1.0)
    arguments.minutes = arguments.minutes or (QUICK_MINUTES if quick else 40.0)
    arguments.data = arguments.data or (
        QUICK / "data" if quick else ROOT / "docs" / "data" / "evidence"
    )
    arguments.out = arguments.out or (QUICK if quick else ROOT / "docs")
    given: list[str] | None = arguments.only
    chosen = names if given is None else [n for n in ",".join(given).split(",") if n]
    for name in chosen:
        if name not in names:
            parser.error(f"--only: {name} is not one of {', '.join(names)}")
    if not chosen:
        parser.error("--only: none given")
    arguments.only = chosen
    return arguments


# -- Measuring -------------------------------------------------------------------------------------


def measure(sections: Sequence[Section], arguments: argparse.Namespace) -> int:
    """Measure one section after the other, and keep each as soon as it is measured."""
    began = time.monotonic()
    deadline = began + 60 * arguments.minutes - WRITING_SECONDS
    servers, missing = find_servers()
    if arguments.quick:
        servers = tuple(server for server in servers if server.name in QUICK_SERVERS)
    for sentence in missing:
        say(sentence)
    cores = Cores.choose()
    usual, today = ({server.name for server in group} for group in (PEERS, TODAY))
    setting = Setting(
        tuple(server for server in servers if server.name in {"relay", *usual}),
        cores,
        reporter(began),
        arguments.scale,
        tuple(server for server in servers if server.name in {"relay", *today}),
    )
    facts: dict[str, Any] = {
        "machine": machine(),
        "pinning": str(cores),
        "shared": cores.server is None,
        "scale": arguments.scale,
        "servers": {server.name: version(server) for server in servers},
        "missing": missing,
    }
    status = 0
    for section in sections:
        path: Path = arguments.data / f"{section.name}.json"
        old = read(path)
        wanted, left = section.seconds * arguments.scale, deadline - time.monotonic()
        if wanted > left:
            message = (
                f"It was not begun: it takes about {time_of(wanted)}, and of "
                f"{arguments.minutes:g} minutes {time_of(max(0.0, left))} were left."
            )
            write(path, Record(old.about, old.data, trouble(message)))
            setting.report(f"{section.name}: {message}")
            status = 1
            continue
        setting.report(f"{section.name}: {section.title}, about {time_of(wanted)}")
        about: dict[str, Any] = {"date": now(), **facts}
        start, usage, alarm = time.monotonic(), Usage.now(), Alarm(left)
        try:
            with alarm:
                data = _measured(section, setting)
        except KeyboardInterrupt:
            if not alarm.rang:
                setting.report(f"{section.name}: interrupted; what was measured before is kept")
                return 130
            message = f"It was stopped: after {time_of(left)} the time was up."
        except Exception as error:  # noqa: BLE001 - a section less, not a page less
            traceback.print_exc()
            message = f"It failed: {type(error).__name__}: {first_line(error)}"
        else:
            about["seconds"] = round(time.monotonic() - start, 1)
            about |= usage.until(Usage.now())
            write(path, Record(about, data))
            setting.report(f"{section.name}: measured in {time_of(about['seconds'])}")
            continue
        write(path, Record(old.about, old.data, trouble(message)))
        setting.report(f"{section.name}: {message}")
        status = 1
    return status


def _measured(section: Section, setting: Setting) -> dict[str, Any]:
    """Measure a section; Ctrl-C is Ctrl-C, from wherever it comes.

    Raises:
        KeyboardInterrupt: It was interrupted.
    """
    try:
        return section.measure(setting)
    except BaseExceptionGroup as group:
        # As Trio passes it on from within a nursery.
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from group
        raise


def find_servers() -> tuple[tuple[AnyServer, ...], list[str]]:
    """Return the servers that are here, the relay first, and a sentence about each other."""
    found: list[AnyServer] = []
    missing: list[str] = []
    today = (server for server in TODAY if server not in PEERS)
    candidates: tuple[AnyServer, ...] = (Relay(), *PEERS, *today)
    for server in candidates:
        sentence = server.missing()
        if sentence is None:
            found.append(server)
        else:
            missing.append(sentence)
    return tuple(found), missing


def version(server: AnyServer) -> str:
    """Return what the server says about its version, or that it says nothing."""
    try:
        return server.version()
    except Exception as error:  # noqa: BLE001 - what it does, not how it is called, is measured
        return f"of unknown version ({type(error).__name__})"


def machine() -> dict[str, str]:
    """Describe the machine by what does not change from section to section."""
    return {name: value for name, value in fanout.machine().items() if name != "load before"}


def trouble(message: str) -> dict[str, str]:
    """Return why a section could not be measured, with the date."""
    return {"date": now(), "message": message}


def now() -> str:
    """Return the date and the time, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@attrs.frozen
class Usage:
    """CPU seconds up to a moment."""

    busy: float
    """Of all processes of the machine."""

    stolen: float
    """Those in which the machine, a virtual one, did not have its cores."""

    total: float
    own: float
    """Of this process and of all those it started that have ended."""

    @classmethod
    def now(cls) -> Usage:
        """Look at them."""
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
        own = sum(
            used.ru_utime + used.ru_stime
            for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        a_second = os.sysconf("SC_CLK_TCK")
        return cls(
            busy=(sum(ticks) - idle - ticks[7]) / a_second,
            stolen=ticks[7] / a_second,
            total=sum(ticks) / a_second,
            own=own,
        )

    def until(self, later: Usage) -> dict[str, float]:
        """Return the shares of all cores that "others" took, and that were "stolen"."""
        total = max(later.total - self.total, 1e-9)
        others = (later.busy - self.busy) - (later.own - self.own)
        return {
            "others": round(max(0.0, others) / total, 4),
            "stolen": round((later.stolen - self.stolen) / total, 4),
        }


class Alarm:
    """Ends a block as Ctrl-C would, once the time is up.

    As Ctrl-C, since that is what everybody, Trio included, cleans up after.
    """

    def __init__(self, seconds: float) -> None:
        """Leave the block that many seconds; a millisecond at least."""
        self.rang = False
        self._seconds = max(seconds, 0.001)
        self._before: Any = None

    def __enter__(self) -> None:
        """Begin to count."""
        self._before = signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        """Count no longer."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _ring(self, _signal: int, _frame: object) -> None:
        self.rang = True
        signal.raise_signal(signal.SIGINT)


def reporter(began: float) -> Callable[[str], None]:
    """Return what says a sentence on stderr, with how long it has been."""

    def report(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        say(f"{minutes:2}:{seconds:02} {text}")

    return report


def say(text: str) -> None:
    """Say something on stderr."""
    print(text, file=sys.stderr, flush=True)


# -- Writing ---------------------------------------------------------------------------------------


def write_page(sections: Mapping[str, Section | str], data: Path, out: Path) -> _page.Page:
    """Write the page and its figures from what is kept in ``data``."""
    records = {name: read(data / f"{name}.json") for name in sections}
    page = _page.compose(sections, records)
    out.mkdir(parents=True, exist_ok=True)
    for name, make in page.figures.items():
        figure = out / f"evidence-{name}.svg"
        try:
            _plot.save(make, figure)
        except Exception:  # noqa: BLE001 - a figure less, not a page less
            traceback.print_exc()
            figure.unlink(missing_ok=True)  # one of other figures would be beside the page's
            say(f"the figure {figure.name} could not be drawn")
    path = out / "evidence.md"
    path.write_text(page.text)
    say(str(path))
    return page


if __name__ == "__main__":
    sys.exit(main())
