"""What accounting itself costs: in the relay, by operation, beside doing without, and in memory."""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
import threading
import time
import tracemalloc
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import attrs
import trio

from benchmarks import fanout, idle, micro, profiling
from benchmarks.counterfactual import CONSUMERS, SAMPLE_SECONDS, WHOLE, Cost, measure_all
from benchmarks.evidence._plot import BLUE, GREEN, GREY, GRID, ORANGE, PINK, SKY, decades, figure_of
from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import first_line, listed, middle, size_of, table, wrapped
from benchmarks.fanout import REGIMES
from benchmarks.loadgen import GeneratorError, run
from benchmarks.servers import Relay, ServerError, pinned
from clearfunds.accounts import NO_LIMIT, Ledger, commit_run

PASSES: Final = 3
SECONDS: Final = 1.0
PROFILE_SECONDS: Final = 5.0
"""A hundred samples a second, or two: the rest of the time is the kernel's."""
REPEATS: Final = 3
"""Samples of operations and of ways to deliver."""
CONNECTIONS: Final = 1_000
ACCOUNTS: Final = 5_000
LOANS: Final = 20_000
SCRAPES: Final = ("/metrics", "/metrics/detailed")
SCRAPE_SECONDS: Final = 1.0
LOADS: Final = ("pipelined-9", "one-9")

PLAIN: Final = "plain"
OPTIONS: Final = {
    PLAIN: "nobody looks at its pages",
    "scraped": f"{' and '.join(f'`{path}`' for path in SCRAPES)} fetched every second",
    "journal": "`--journal`, as it comes",
    "traces": "`--otel-every 1`: an event a second is followed, its spans exported to nowhere",
}

LOOK_NS: Final = 200.0
"""What a look may cost when funds are clear; as in benchmarks/micro.py."""
LOOK: Final = "ensure_clear_funds(), clear, two limits in a chain of three"


# -- Measuring -------------------------------------------------------------------------------------


def measure(setting: Setting) -> dict[str, Any]:
    """Measure all of it; what cannot be measured is left out, with a sentence."""
    relay = setting.server("relay")
    skipped: list[str] = []
    data: dict[str, Any] = {"profiles": [], "options": [], "idle": None}
    if isinstance(relay, Relay):
        data["profiles"] = profiles(relay, setting, skipped)
        data["options"] = _options(relay, setting, skipped)
        data["idle"] = _idle(relay, setting, skipped)
    else:
        skipped.append("Without the relay there are operations and ways to deliver alone.")
    repeats = REPEATS if setting.scale >= 0.5 else 1
    with pinned(setting.cores.generator):
        data["operations"] = trio.run(_operations, repeats)
        setting.report("cost: operations")
        seconds = max(0.01, SAMPLE_SECONDS * setting.scale)
        costs = trio.run(partial(measure_all, repeats, seconds))
        data["ways"] = [attrs.asdict(each) for each in costs]
        setting.report("cost: deliveries with accounts and without")
    data["memory"] = memory(setting.scale)
    setting.report("cost: memory")
    return {**data, "skipped": skipped}


def profiles(relay: Relay, setting: Setting, skipped: list[str]) -> list[dict[str, Any]]:
    """Sample the relay under load."""
    found: list[dict[str, Any]] = []
    for name in LOADS:
        seconds = max(1.0, PROFILE_SECONDS * setting.scale)
        try:
            profile = fanout.profile(REGIMES[name], relay, seconds, setting.cores)
        except (profiling.ProfileError, ServerError, GeneratorError) as error:
            skipped.append(f"The profile of {name} failed: {first_line(error)}")
            continue
        places = [
            [place.file, place.function, place.is_bookkeeping, count]
            for place, count in profile.samples.most_common()
        ]
        found.append({"regime": name, "user": profile.user, "places": places})
        setting.report(f"cost: profile of {name}: {profile.bookkeeping:.1%} is bookkeeping")
    return found


async def _operations(repeats: int) -> list[dict[str, Any]]:
    """Return nanoseconds of each operation of benchmarks/micro.py that concerns nobody else."""
    ledger = Ledger()
    alone = ledger.open("alone")
    below = micro.open_chain(ledger)
    cases = [
        *micro.looking(alone, below),
        *micro.borrowing(alone, below),
        *micro.fanning_out(ledger, below),
    ]
    return [{"name": case.name, "ns": await micro.measure(case, repeats)} for case in cases]


def _options(relay: Relay, setting: Setting, skipped: list[str]) -> list[dict[str, Any]]:
    """Put loads on relays with options, interleaved."""
    passes = PASSES if setting.scale >= 0.5 else 1
    seconds = max(0.3, SECONDS * setting.scale)
    found: list[dict[str, Any]] = []
    broken: set[str] = set()
    for number in range(1, passes + 1):
        for regime in LOADS:
            names = list(OPTIONS)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                if name in broken:
                    continue
                try:
                    cost = _with_option(relay, name, regime, seconds, setting)
                except (ServerError, GeneratorError, OSError) as error:
                    broken.add(name)
                    skipped.append(f"The relay with {name}, {regime}: {first_line(error)}")
                    continue
                found.append({"pass": number, "regime": regime, "option": name, "cpu": cost})
        setting.report(f"cost: options, pass {number}")
    return found


def _with_option(relay: Relay, name: str, regime: str, seconds: float, setting: Setting) -> float:
    """Return CPU seconds per million deliveries."""
    options = list(relay.options)
    environment: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="cost-") as scratch:
        if name == "journal":
            options.append(f"--journal={scratch}/journal")
        elif name == "traces":
            options.append("--otel-every=1")
            environment["OTEL_TRACES_EXPORTER"] = "none"
        with (
            _environment(environment),
            with_options(relay, options).running(Path(scratch), setting.cores.server) as running,
            pinned(setting.cores.generator),
            _scraped(running.page if name == "scraped" else ""),
        ):
            load = REGIMES[regime].load(relay, seconds)
            found = run(load, port=running.ports[load.protocol], pid=running.pid)
    if not found.whole:
        raise GeneratorError("not everything arrived")
    return found.cpu_seconds_per_million


def with_options(relay: Relay, options: list[str]) -> Relay:
    """Return the relay with these options."""
    return Relay(relay.name, relay.protocols, relay.windows, tuple(options))


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Generator[None]:
    """Let the processes started inside have these variables, too."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _scraped(page: str) -> Generator[None]:
    """Fetch its metrics every second, for the length of a block; "" is nobody's page."""
    if not page:
        yield
        return
    ended = threading.Event()

    def fetch() -> None:
        for path in SCRAPES:
            with (
                contextlib.suppress(urllib.error.URLError),
                urllib.request.urlopen(page + path, timeout=10) as answer,
            ):
                answer.read()

    def scrape() -> None:
        # Not at once: then a second has one of them, whenever it begins.
        due = time.monotonic() + SCRAPE_SECONDS / 2
        while not ended.wait(max(0.0, due - time.monotonic())):
            due += SCRAPE_SECONDS
            fetch()

    fetch()  # what the first one takes more is not what is looked for
    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _idle(relay: Relay, setting: Setting, skipped: list[str]) -> dict[str, Any] | None:
    """Return KiB of resident memory for an idle connection."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = max(100, round(CONNECTIONS * setting.scale))
    if most != resource.RLIM_INFINITY and most < connections + 200:
        skipped.append(f"Idle connections: {most} descriptors are too few for {connections}.")
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, connections + 200), most))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="cost-") as scratch,
            with_options(relay, [*relay.options, "--log-level=warning"]).running(
                Path(scratch), setting.cores.server
            ) as running,
        ):
            found = idle.measure(running, connections)
    except (ServerError, OSError) as error:
        skipped.append(f"Idle connections: {first_line(error)}")
        return None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    setting.report(f"cost: {connections} idle connections")
    return {"connections": connections, **found}


def memory(scale: float) -> dict[str, float]:
    """Return bytes of Python's own memory for each account, loan and delivery that joined one."""
    accounts = max(500, round(ACCOUNTS * scale))
    loans = max(1_000, round(LOANS * scale))
    ledger = Ledger()
    two = [ledger.open(f"owes-{number}", limit=NO_LIMIT) for number in range(2)]
    box, joined = micro.Box(ledger, "box"), micro.Box(ledger, "joined")
    payload = bytes(200)  # one for all: what is lent is not the loan

    def open_accounts() -> object:
        return [ledger.open(f"mqtt:1883/-/client-{n:06}") for n in range(accounts)]

    def lend() -> object:
        # In turn, so that none joins the one before it.
        for number in range(loans):
            commit_run(two[number % 2], (box,), payload, 1, 200)
        return None

    def join() -> object:
        for _ in range(loans):
            commit_run(two[0], (joined,), payload, 1, 1)
        return None

    return {
        "account": bytes_of(open_accounts) / accounts,
        "loan": bytes_of(lend) / loans,
        "joined": bytes_of(join) / loans,
    }


def bytes_of(make: Callable[[], object]) -> float:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = make()
        found = tracemalloc.get_traced_memory()[0] - before
        del kept
    finally:
        tracemalloc.stop()
    return float(found)


# -- Showing ---------------------------------------------------------------------------------------


@attrs.frozen
class Shares:
    """What a profile comes to; parts are of the relay's CPU time."""

    regime: str
    samples: int
    """Of the user time."""

    kernel: float
    bookkeeping: float
    rest: float
    places: tuple[tuple[str, float], ...]
    """Where it keeps books most, and for which part of the time."""

    others: tuple[tuple[str, float], ...]
    """Where else it is most."""


MOST_PLACES: Final = 4


def shares_of(profile: dict[str, Any]) -> Shares:
    """Add up a profile."""
    places: list[tuple[str, str, bool, int]] = [tuple(each) for each in profile["places"]]
    samples = sum(count for *_, count in places)
    user: float = profile["user"]
    parts: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for file, function, kept, count in places:
        parts[kept][f"`{function}` ({file})"] = user * count / samples

    def most(kept: bool) -> tuple[tuple[str, float], ...]:
        return tuple(sorted(parts[kept].items(), key=lambda each: -each[1])[:MOST_PLACES])

    return Shares(
        profile["regime"],
        samples,
        1 - user,
        sum(parts[True].values()),
        sum(parts[False].values()),
        most(True),
        most(False),
    )


def ratios(options: list[dict[str, Any]], regime: str, option: str) -> list[float]:
    """Return CPU per delivery with an option over that without, pass by pass."""
    found = {(e["option"], e["pass"]): e["cpu"] for e in options if e["regime"] == regime}
    return [
        cost / found[PLAIN, number]
        for (name, number), cost in found.items()
        if name == option and found.get((PLAIN, number))
    ]


def render(data: dict[str, Any]) -> Rendered:
    """Show it in five ways."""
    profiles = [shares_of(each) for each in data["profiles"]]
    ways = [
        Cost(each["way"], each["consumers"], each["burst"], tuple(each["samples"]))
        for each in data["ways"]
    ]
    parts = [
        *_profile_part(profiles, data["options"]),
        *_ways_part(ways),
        *_operations_part(data["operations"]),
        *_options_part(data["options"]),
        *_memory_part(data["memory"], data["idle"]),
    ]
    figures: dict[str, Callable[[], Any]] = {}
    if ways:
        figures["cost"] = partial(_figure, ways, profiles)
    return Rendered("\n\n".join(parts), figures, _claims(profiles, data))


def _profile_part(profiles: list[Shares], options: list[dict[str, Any]]) -> list[str]:
    if not profiles:
        return []
    rows = [
        [
            each.regime,
            f"{each.bookkeeping:.1%}",
            f"{each.kernel:.1%}",
            f"{each.rest:.1%}",
            _listed(each.places),
            _listed(each.others),
            f"{each.samples:,}",
        ]
        for each in profiles
    ]
    head = (
        *("", "bookkeeping", "in the kernel", "the rest"),
        *("of the bookkeeping, most", "of the rest, most", "samples"),
    )
    text = (
        "**In the relay.** Where its CPU time goes under load (`python benchmarks/fanout.py "
        "--profile`). A timer of its user time samples it from within (a sampler from outside, "
        "which has to stop the process to look at it, sees little but system calls in a virtual "
        "machine); a sample counts for the innermost Python function. Bookkeeping is all of "
        "`accounts/`, and all code that hands over and sends, without the kernel's part."
    )
    said: list[str] = []
    for each in profiles:
        found = [e["cpu"] for e in options if (e["regime"], e["option"]) == (each.regime, PLAIN)]
        if found:
            cost = 1e3 * each.bookkeeping * median(found)
            said.append(f"{cost:,.0f} ns with {each.regime}")
    parts = [wrapped(text), table(head, rows, right=(1, 2, 3, 6))]
    if said:
        parts.append(
            wrapped(f"Of the CPU that a delivery takes (below), bookkeeping is {listed(said)}.")
        )
    return parts


def _listed(places: tuple[tuple[str, float], ...]) -> str:
    return "; ".join(f"{name} {part:.1%}" for name, part in places)


WAYS: Final = ("loans", "queues", "channels", "runs", "lists")


def _ways_part(ways: list[Cost]) -> list[str]:
    if not ways:
        return []
    by = {(each.way, each.burst, each.consumers): each for each in ways}
    rows: list[list[str]] = []
    for burst in sorted({each.burst for each in ways}):
        for consumers in CONSUMERS:
            cells = [by.get((way, burst, consumers)) for way in WAYS]
            rows.append(
                [
                    f"{burst}",
                    f"{consumers}",
                    *("-" if cell is None else middle(cell.samples, ".2f") for cell in cells),
                    _times(by, "loans", "queues", burst, consumers),
                    _times(by, "loans", "channels", burst, consumers),
                    _times(by, "runs", "lists", burst, consumers),
                ]
            )
    head = (
        *("burst", "N", *WAYS),
        *("loans / queues", "loans / channels", "runs / lists"),
    )
    text = (
        "**Without accounts.** One publisher and N consumers, tasks of one process, no sockets: a "
        "burst of messages is published, and each consumer takes all there is "
        "(`benchmarks/counterfactual.py`). *Loans*: a turn (a transaction) for each message, a "
        "mailbox for each consumer. *Queues*: the same routes, but a plain deque for each, "
        "unbounded, and nothing records who blocks whom. *Channels*: a Trio memory channel for "
        "each, bounded by the number of its messages. *Runs*: loans, where a burst is one run, as "
        "when the relay reads many messages at once. *Lists*: plain queues of such runs. CPU "
        "seconds per million deliveries. (A turn is more than accounting: it happens as a whole or "
        "not at all, and *loans* includes that.)"
    )
    said = _ways_said(by)
    picture = "![CPU per delivery with accounts and without](evidence-cost.svg)"
    return [wrapped(text), table(head, rows, right=range(len(head))), said, picture]


def _times(
    by: dict[tuple[str, int, int], Cost], way: str, other: str, burst: int, consumers: int
) -> str:
    ours, theirs = by.get((way, burst, consumers)), by.get((other, burst, consumers))
    return "-" if ours is None or theirs is None else f"{ours.median / theirs.median:.1f}"


def _ways_said(by: dict[tuple[str, int, int], Cost]) -> str:
    def span(way: str, other: str) -> str:
        found = [
            cost.median / by[other, burst, consumers].median
            for (name, burst, consumers), cost in by.items()
            if name == way and (other, burst, consumers) in by
        ]
        return f"{min(found):.1f} to {max(found):.1f} times" if found else "-"

    return wrapped(
        f"So a delivery by a turn and a loan of its own costs {span('loans', 'queues')} what a "
        f"plain queue does and {span('loans', 'channels')} what a channel does; one of a run "
        f"{span('runs', 'lists')} what it does without accounts."
    )


def _operations_part(operations: list[dict[str, Any]]) -> list[str]:
    rows = [[each["name"], middle(each["ns"], ",.0f")] for each in operations]
    text = (
        "**By operation.** Nanoseconds of CPU (`python benchmarks/micro.py`), each with the empty "
        "loop. To repay is to settle."
    )
    return [wrapped(text), table(("operation", "ns"), rows, right=(1,))]


def _options_part(options: list[dict[str, Any]]) -> list[str]:
    if not options:
        return []
    rows: list[list[str]] = []
    for name, meaning in OPTIONS.items():
        cells: list[str] = []
        for regime in LOADS:
            found = [e["cpu"] for e in options if (e["regime"], e["option"]) == (regime, name)]
            cells += [
                middle(found, ".3f"),
                "1" if name == PLAIN else middle(ratios(options, regime, name), ".2f"),
            ]
        rows.append([f"{name}: {meaning}", *cells])
    head = [""]
    for regime in LOADS:
        head += [f"{regime}: CPU s per M", "ratio"]
    text = (
        "**Observability.** The relay with each observer of its accounts at full use; ratios are "
        "to the plain one in the same pass."
    )
    return [wrapped(text), table(head, rows, right=range(1, len(head)))]


def _memory_part(memory: dict[str, float], idle_: dict[str, Any] | None) -> list[str]:
    rows = [
        ["an account", size_of(memory["account"])],
        ["a loan, without its payload", size_of(memory["loan"])],
        ["a delivery that joins the loan before it", size_of(memory["joined"])],
    ]
    if idle_ is not None:
        rows += [
            [f"an idle connection of the relay ({idle_['connections']:,})",
             size_of(1024 * idle_["connected"])],
            ["the same with a subscription", size_of(1024 * idle_["subscribed"])],
        ]  # fmt: skip
    text = (
        "**In memory.** Python's objects by `tracemalloc`; connections by the growth of the "
        "process's resident memory (`python benchmarks/idle.py`)."
    )
    return [wrapped(text), table(("", "each"), rows, right=(1,))]


def _claims(profiles: list[Shares], data: dict[str, Any]) -> tuple[Claim, ...]:
    shares = {each.regime: each.bookkeeping for each in profiles}
    looks = [median(e["ns"]) for e in data["operations"] if e["name"] == LOOK]
    connected = data["idle"]["connected"] if data["idle"] is not None else None
    most = profiling.BOOKKEEPING_SHARE
    return (
        Claim(
            f"pipelined, nine subscribers: bookkeeping is at most {most:.0%} of the relay's CPU",
            shares.get("pipelined-9"), most, ".3f",
        ),
        Claim(
            f"to look whether funds are clear, when they are: at most {LOOK_NS:.0f} ns",
            looks[0] if looks else None, LOOK_NS, ".0f",
        ),
        Claim(
            f"an idle connection takes at most {idle.BUDGET_KIB:g} KiB of the relay",
            connected, idle.BUDGET_KIB, ".1f",
        ),
    )  # fmt: skip


COLOURS: Final = {"loans": BLUE, "queues": ORANGE, "channels": GREEN, "runs": SKY, "lists": PINK}


def _figure(ways: list[Cost], profiles: list[Shares]) -> Any:
    bursts = sorted({each.burst for each in ways})
    panels = len(bursts) + bool(profiles)
    figure = figure_of(3.1 * panels, 3.0)
    axes: list[Any] = list(figure.subplots(1, panels, squeeze=False).flat)
    for axis, burst in zip(axes, bursts, strict=False):
        some = [each for each in ways if each.burst == burst]
        names = [name for name in WAYS if burst > 1 or name not in WHOLE]
        width = 0.84 / len(names)
        for place, name in enumerate(names):
            found = {each.consumers: each for each in some if each.way == name}
            at = [n + (place - (len(names) - 1) / 2) * width for n in range(len(CONSUMERS))]
            heights = [found[n].median if n in found else 0 for n in CONSUMERS]
            axis.bar(at, heights, width=0.92 * width, color=COLOURS[name], label=name)
        axis.set_yscale("log")
        axis.set_ylim(min(each.median for each in some) / 2, 3 * max(each.median for each in some))
        decades(axis.yaxis)
        axis.set_axisbelow(True)
        axis.grid(visible=False, axis="x")
        axis.set_xticks(range(len(CONSUMERS)), [f"N={n}" for n in CONSUMERS])
        one = "one by one" if burst == 1 else f"bursts of {burst}"
        axis.set_title(f"CPU s per million, {one}", loc="left")
        axis.legend(loc="upper right", fontsize=7, ncols=2)
    if profiles:
        _profile_bars(axes[-1], profiles)
    return figure


def _profile_bars(axis: Any, profiles: list[Shares]) -> None:
    places = range(len(profiles))
    bottom = [0.0] * len(profiles)
    for text, colour, parts in (
        ("bookkeeping", BLUE, [each.bookkeeping for each in profiles]),
        ("the rest", GREY, [each.rest for each in profiles]),
        ("the kernel", GRID, [each.kernel for each in profiles]),
    ):
        heights = [100 * part for part in parts]
        axis.bar(places, heights, bottom=bottom, width=0.6, color=colour, label=text)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for place, each in enumerate(profiles):
        axis.annotate(f"{each.bookkeeping:.1%}", (place, 101), ha="center", fontsize=8, color=BLUE)
    axis.set_xticks(places, [each.regime for each in profiles])
    axis.set_title("% of the relay's CPU time", loc="left")
    axis.grid(visible=False, axis="x")
    axis.set_axisbelow(True)
    axis.set_ylim(0, 140)
    axis.legend(loc="upper center", ncols=3, fontsize=7, columnspacing=0.8)


SECTION: Final = Section(
    key="h",
    name="cost",
    title="What accounting itself costs",
    seconds=90,
    command="python -m benchmarks.evidence --only cost",
    measure=measure,
    render=render,
)
