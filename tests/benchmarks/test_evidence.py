"""How docs/evidence.md is measured and made: by sections that are made here, and by the real ones.

Figures are not judged (a busy machine would), only that what is said follows from them.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evidence import __main__ as command
from benchmarks.evidence import _sections, fanout
from benchmarks.evidence._data import Record, dumped, read, write
from benchmarks.evidence._page import compose
from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import listed, size_of, table, time_of
from benchmarks.fanout import Cores
from benchmarks.servers import MOCHI, MOSQUITTO, RABBITMQ, AnyServer, Relay

DOCS = Path(__file__).parents[2] / "docs"
ABOUT = {
    "date": "2026-11-22T01:00:00+00:00",
    "seconds": 12.0,
    "scale": 1.0,
    "others": 0.01,
    "stolen": 0.0,
    "machine": {"cpu": "C64", "cores": "2", "kernel": "Linux 6", "python": "P 3", "trio": "0.35"},
    "pinning": "server on core 0, generator on core 1",
    "servers": {"relay": "clearfunds 0.1.0", "nats": "nats-server: v2.9.10"},
    "missing": ["redis is left out: there is no redis-server."],
}


def section(
    name: str, *, key: str = "a", measure: Any = None, seconds: float = 1, drawn: bool = False
) -> Section:
    """Return a section that counts something, which may be at most 2."""

    def measured(setting: Setting) -> dict[str, Any]:
        setting.report(f"{name} is measured")
        return {"found": 1.5 * setting.scale, "skipped": ["Half of it."]}

    def render(data: dict[str, Any]) -> Rendered:
        return Rendered(
            f"{name} found {data['found']}.\n\n![A line](evidence-{name}.svg)",
            {name: picture} if drawn else {},
            (Claim(f"{name}: at most 2", data["found"], 2.0),),
            {"cost": {"relay": f"{data['found']:g}", "nats": "7"}},
        )

    title = f"About {name}"
    return Section(key, name, title, seconds, f"only {name}", measure or measured, render)


def picture() -> Any:
    """Draw a line."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(2, 2))
    figure.subplots().plot([1, 2], [3, 4])
    return figure


def of_version(number: str) -> Callable[[AnyServer], str]:
    """Return what says that any server is of that version."""
    return lambda server: f"{server.name} {number}"


@pytest.fixture(autouse=True)
def _two_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        command, "find_servers", lambda: ((Relay(), MOSQUITTO), ["redis is left out."])
    )
    monkeypatch.setattr(command, "version", of_version("1.2.3"))


def run(tmp_path: Path, *words: str, sections: dict[str, Section | str]) -> tuple[int, str]:
    """Run the command; return its status and the page."""
    folders = (f"--data={tmp_path / 'data'}", f"--out={tmp_path / 'out'}")
    status = command.main([*folders, *words], sections)
    return status, (tmp_path / "out" / "evidence.md").read_text()


def test_what_is_measured_is_kept_and_shown(tmp_path: Path) -> None:
    one, two = section("one", drawn=True), section("two", key="latency")
    status, page = run(tmp_path, sections={"one": one, "two": two, "three": "There is no three."})
    assert status == 0
    kept = json.loads((tmp_path / "data" / "one.json").read_text())
    assert kept["data"] == {"found": 1.5, "skipped": ["Half of it."]}
    assert kept["about"].keys() == ABOUT.keys() | {"shared"}
    assert kept["trouble"] is None
    assert (tmp_path / "out" / "evidence-one.svg").read_text().startswith("<?xml")
    assert "## a. About one\n" in page
    assert "## About two\n" in page
    assert "one found 1.5." in page
    assert "2 of 2 hold." in page
    assert "| one: at most 2 | 1.50 | 2 | held | [a](#one) |" in page
    assert "| the relay | 1.2.3 | 1.5 |" in page
    skipped = page.split("## Skipped")[1]
    assert "- redis is left out.\n" in skipped
    assert "- [a. About one](#one): Half of it.\n" in skipped
    assert "- There is no three.\n" in skipped


def test_a_section_by_itself_leaves_the_others_and_says_in_what_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections: dict[str, Section | str] = {"one": section("one"), "two": section("two", key="b")}
    run(tmp_path, sections=sections)
    path = tmp_path / "data" / "one.json"
    old = json.loads(path.read_text())
    old["about"] |= {"date": "2020-02-02T00:00:00+00:00"}
    old["about"]["servers"]["mosquitto"] = "mosquitto 0.9"
    old["about"]["machine"]["cpu"] = "Z80"
    path.write_text(json.dumps(old))
    monkeypatch.setattr(command, "version", of_version("2.0"))
    status, page = run(tmp_path, "--only=two", "--scale=2", sections=sections)
    assert status == 0
    assert json.loads(path.read_text()) == old
    blocks = page.split('<a id="two"></a>')
    assert "It is of 2020-02-02." in blocks[0]
    assert "It was another machine: Z80, " in blocks[0]
    assert "It was with the relay 1.2.3 and mosquitto 0.9." in blocks[0]
    assert "two found 3.0." in blocks[1]
    assert "were 2 of what they should be" in blocks[1]
    assert "1 of 2 hold, 1 is missed." in page
    assert "| two: at most 2 | 3.00 | 2 | **MISSED** |" in page
    with_check, _ = run(tmp_path, "--render", "--check", sections=sections)
    assert with_check == 1


def test_it_is_said_when_the_machine_was_not_idle() -> None:
    data = {"found": 1}
    for others, stolen, share in ((0.01, 0.02, None), (0.2, 0.05, "25%")):
        about = ABOUT | {"others": others, "stolen": stolen}
        page = compose({"one": section("one")}, {"one": Record(about, data)}).text
        assert (f"something else took {share} of the cores" in page) is (share is not None)
        assert ("**The machine was not idle** during 1 of 1" in page) is (share is not None)


def test_a_section_that_fails_is_noted_and_what_there_was_of_it_is_kept(tmp_path: Path) -> None:
    def fail(_: Setting) -> dict[str, Any]:
        msg = "no room\nand more"
        raise OSError(msg)

    good, bad = section("good"), section("bad", key="b", measure=fail)
    status, page = run(tmp_path, sections={"bad": bad, "good": good})
    assert status == 0
    assert "**Not measured.** It failed: OSError: no room. (" in page
    assert "good found 1.5." in page
    run(tmp_path, "--only=bad", sections={"bad": section("bad", key="b"), "good": good})
    status, page = run(tmp_path, "--check", sections={"bad": bad, "good": good})
    assert status == 1
    assert "bad found 1.5." in page
    assert "**What is shown is older than the last attempt**: It failed: OSError: no room." in page


def test_a_section_that_cannot_be_shown_is_noted(tmp_path: Path) -> None:
    def measured(_: Setting) -> dict[str, Any]:
        return {"lost": 1}

    status, page = run(tmp_path, sections={"one": section("one", measure=measured)})
    assert status == 0
    assert "**Not measured.** What was measured cannot be shown: KeyError: 'found'" in page


def test_quick_has_directories_of_its_own_few_servers_and_five_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = (Relay(), MOSQUITTO, RABBITMQ, MOCHI)
    nothing: list[str] = []
    monkeypatch.setattr(command, "find_servers", lambda: (here, nothing))
    monkeypatch.setattr(command, "QUICK", tmp_path / "quick")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    seen: list[Setting] = []

    def measured(setting: Setting) -> dict[str, Any]:
        seen.append(setting)
        return {"found": 1}

    sections: dict[str, Section | str] = {
        "one": section("one", measure=measured),
        "long": section("long", key="b", seconds=6200),
    }
    assert command.main(["--quick"], sections) == 0
    page = (tmp_path / "quick" / "evidence.md").read_text()
    assert "one found 1." in page
    assert "and of 5 minutes" in page
    assert (tmp_path / "quick" / "data" / "one.json").exists()
    assert not (tmp_path / "docs").exists()
    (setting,) = seen
    assert setting.scale == command.QUICK_SCALE
    assert [server.name for server in setting.servers] == ["relay", "mosquitto"]
    assert [server.name for server in setting.today] == ["relay", "mosquitto", "mochi"]


def test_a_section_is_not_begun_when_it_would_not_end_in_time(tmp_path: Path) -> None:
    sections: dict[str, Section | str] = {
        "long": section("long", seconds=600),
        "short": section("short", key="b"),
    }
    _, page = run(tmp_path, "--minutes=1", sections=sections)
    assert "**Not measured.** It was not begun: it takes about 10 min, and of 1 minutes" in page
    assert "short found 1.5." in page


def test_a_section_that_does_not_end_is_stopped_when_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(_: Setting) -> dict[str, Any]:
        time.sleep(60)
        return {}

    monkeypatch.setattr(command, "WRITING_SECONDS", 0.0)
    stuck = section("stuck", measure=hang, seconds=0.01)
    status, page = run(tmp_path, "--minutes=0.003", sections={"stuck": stuck})
    assert status == 0
    assert "It was stopped: after 1" in page


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        # As out of a Trio nursery within another.
        BaseExceptionGroup("", [BaseExceptionGroup("", [KeyboardInterrupt()])]),
    ],
    ids=["plain", "nursery"],
)
def test_ctrl_c_leaves_what_was_measured(tmp_path: Path, error: BaseException) -> None:
    def interrupt(_: Setting) -> dict[str, Any]:
        raise error

    sections: dict[str, Section | str] = {
        "one": section("one"),
        "two": section("two", key="b", measure=interrupt),
        "three": section("three", key="c"),
    }
    status, page = run(tmp_path, sections=sections)
    assert status == 130
    assert "one found 1.5." in page
    assert "three found" not in page


def test_before_anything_is_measured_there_is_a_page_that_says_so(tmp_path: Path) -> None:
    status, page = run(tmp_path, "--render", sections={"one": section("one")})
    assert status == 0
    assert "Nothing has been measured yet." in page
    assert "**Not measured.** It has not been measured yet." in page


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--only=two", "two is not one of one"),
        ("--only=", "none given"),
        ("--scale=0", "not positive"),
    ],
)
def test_a_wrong_option_is_refused(
    option: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main([option], {"one": section("one")})
    assert complaint in capsys.readouterr().err


def test_the_same_data_give_the_same_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write(tmp_path / "data" / "one.json", Record(ABOUT, {"found": 1}))
    drawn: list[str] = []
    for _ in range(2):
        run(tmp_path, "--render", sections={"one": section("one", drawn=True)})
        drawn.append((tmp_path / "out" / "evidence-one.svg").read_text())
    assert drawn[0] == drawn[1]


def test_a_claim_says_what_became_of_it() -> None:
    assert Claim("", 2.0, 2.0).word == "held"
    assert Claim("", 2.1, 2.0).word == "MISSED"
    assert Claim("", None, 2.0).word == "not measured"


def test_what_is_kept_is_json_with_a_line_for_each_row(tmp_path: Path) -> None:
    data: Any = {"rows": [[1, 2.5, None, "é"], [3, math.inf, math.nan, True]], "of": {}, "no": []}
    assert dumped(data) == (
        '{\n "rows": [\n  [1, 2.5, null, "\\u00e9"],\n  [3, null, null, true]\n ],\n'
        ' "of": {},\n "no": []\n}'
    )
    path = tmp_path / "new" / "one.json"
    write(path, Record(ABOUT, {"found": (1, {"a": [2]})}))
    assert read(path) == Record(ABOUT, {"found": [1, {"a": [2]}]})
    assert read(tmp_path / "none.json") == Record()


def test_words() -> None:
    assert listed([], none="none") == "none"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert [time_of(s) for s in (2e-5, 0.25, 4.2, 130, 240)] == [
        "20 µs", "250 ms", "4.2 s", "2 min 10 s", "4 min",
    ]  # fmt: skip
    assert [size_of(n) for n in (5, 2048, 3 << 20, 5 << 30)] == ["5 B", "2 KiB", "3 MiB", "5 GiB"]
    assert table(["a", "b"], [["1", "2"]], right=[1]).split("\n")[1] == "| - | -: |"


# -- The sections that there are -------------------------------------------------------------------


def sample(server: str, regime: str, number: int, cpu: float, **more: Any) -> dict[str, Any]:
    """Return a measurement as fanout.py keeps it."""
    measurement = {
        "deliveries_per_second": 2e6, "cpu_seconds_per_million": cpu, "cpu_seconds": cpu,
        "cpu_user_seconds": cpu / 2, "cpu_system_seconds": cpu / 2, "server_share": 0.9,
        "generator_share": 0.5, "generator_queued": 0.0, "server_queued": 0.0, "seconds": 1.0,
        "published": 10, "delivered": 1_000_000, "lost": 0, "surplus": 0, "reordered": 0,
        "altered": 0, "subscribers_closed": 0, "publisher_closed": False, "rss_before_mb": 1.0,
        "rss_peak_mb": 5.0,
    }  # fmt: skip
    return {
        "number": number, "regime": regime, "server": server, "measurement": measurement | more
    }  # fmt: skip


def test_costs_are_shown_as_ratios_within_a_pass_and_held_against_what_is_wanted() -> None:
    samples = [
        *(sample("relay", "pipelined-9", n, 0.1 * n) for n in (1, 2, 3)),
        *(sample("nats", "pipelined-9", n, 0.2 * n, generator_share=0.97) for n in (1, 2, 3)),
        sample("mosquitto", "pipelined-9", 1, 3.0, lost=4),
        sample("relay", "one-9", 1, 13.0),
        sample("mosquitto", "one-9", 1, 10.0),
    ]
    data = {"passes": 3, "passes_one": 7, "seconds": 1.2, "samples": samples, "failures": []}
    rendered = fanout.render(json.loads(json.dumps(data)))
    words: dict[str, Any] = {c.text: (c.word, c.found) for c in rendered.claims}
    text = " ".join(rendered.text.split())
    assert words["CPU per delivery, pipelined, nine subscribers: at most 0.8 x NATS's"] == (
        "held",
        pytest.approx(0.5),
    )
    assert words["CPU per delivery, pipelined, nine subscribers: at most 0.025 x mosquitto's"] == (
        "MISSED",
        pytest.approx(0.1 / 3),
    )
    single = "CPU per delivery, one message in flight, nine subscribers: at most 1.2 x mosquitto's"
    assert words[single] == ("MISSED", pytest.approx(1.3))
    assert {word for word, found in words.values() if found is None} == {"not measured"}
    assert len(words) == 8
    assert "| the relay | 0.20 (0.10-0.30) | 13.00 |" in text
    assert "| x NATS | 0.50 | - |" in text
    assert "**Not everything arrived** from mosquitto (N=9); from the others" in text
    assert "With NATS the generator had no time left" in text
    assert rendered.beside["CPU s per M deliveries, N=9"]["relay"] == "0.20"
    assert rendered.figures.keys() == {"fanout"}


@pytest.mark.parametrize("name", _sections.NAMES)
def test_every_section_is_there(name: str) -> None:
    found = _sections.load(name)
    assert isinstance(found, Section), found
    assert found.name == name
    assert found.command == f"python -m benchmarks.evidence --only {name}"
    assert found.key == name or len(found.key) == 1


def test_all_sections_fit_into_40_minutes() -> None:
    found = [_sections.load(name) for name in _sections.NAMES]
    seconds = sum(each.seconds for each in found if isinstance(each, Section))
    assert seconds < 40 * 60 - command.WRITING_SECONDS
    keys = [each.key for each in found if isinstance(each, Section) and len(each.key) == 1]
    assert keys == sorted(set(keys))


def test_a_section_that_is_not_there_or_cannot_be_loaded_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _sections.load("none") == "The section `none` has not been written yet."
    monkeypatch.setitem(sys.modules, "benchmarks.evidence.fanout", None)
    assert str(_sections.load("fanout")).startswith("The section `fanout` ")


def test_the_page_is_what_the_data_give() -> None:
    page = DOCS / "evidence.md"
    if not page.exists():
        pytest.skip("docs/evidence.md has not been made yet")
    sections = {name: _sections.load(name) for name in _sections.NAMES}
    records = {name: read(DOCS / "data" / "evidence" / f"{name}.json") for name in sections}
    composed = compose(sections, records)
    assert page.read_text() == composed.text, "python -m benchmarks.evidence --render"
    for name in composed.figures:
        assert (DOCS / f"evidence-{name}.svg").exists(), name
        assert f"](evidence-{name}.svg)" in composed.text, name


@pytest.mark.long
def test_a_real_section_at_a_small_scale(tmp_path: Path) -> None:
    if MOSQUITTO.missing():
        pytest.skip("mosquitto is not installed")
    reported: list[str] = []
    setting = Setting((Relay(), MOSQUITTO), Cores.choose(), reported.append, 0.05)
    data = fanout.SECTION.measure(setting)
    write(tmp_path / "fanout.json", Record(ABOUT, data))
    rendered = fanout.SECTION.render(read(tmp_path / "fanout.json").data or {})
    assert len(reported) == len(data["samples"]) + len(data["failures"])
    words = [claim.word for claim in rendered.claims]
    assert words.count("not measured") == 5, "those beside NATS, which was not asked for"
    assert len(words) == 8
    assert "| the relay |" in rendered.text
