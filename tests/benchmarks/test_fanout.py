"""benchmarks/fanout.py as a user runs it: what it prints, what it writes, how it exits.

Figures are not judged here (a busy machine would), only that they are there and that the verdicts
follow from them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import profiling
from benchmarks.servers import CommandServer

FOLDER = Path(__file__).parents[2] / "benchmarks"
SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="the load generator is compiled, and there is no cc here"
)
needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto", path=SBIN) is None, reason="mosquitto is not installed"
)


def fanout(*options: str, folder: Path = FOLDER, **environment: str) -> tuple[int, str, str]:
    """Run it; return its exit status, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, str(folder / "fanout.py"), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


QUICK = ("--passes=1", "--seconds=0.2", "--regimes=pipelined-1")


@needs_compiler
@needs_mosquitto
def test_a_run_prints_a_table_and_writes_every_sample(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    status, printed, complaint = fanout(*QUICK, "--servers=mosquitto", f"--json={path}")
    assert status == 0, complaint
    (row,) = [line for line in printed.splitlines() if line.startswith("| pipelined-1 | mosquitto")]
    assert row.endswith("| 0 |"), "nothing is lost"
    written: dict[str, Any] = json.loads(path.read_text())
    (sample,) = written["samples"]
    assert (sample["number"], sample["regime"], sample["server"]) == (1, "pipelined-1", "mosquitto")
    assert sample["measurement"]["delivered"] > 0
    assert "mosquitto version" in written["servers"]["mosquitto"]
    assert {"cpu", "cores", "kernel", "python", "trio"} <= written["machine"].keys()
    assert {budget["verdict"] for budget in written["budgets"]} == {"not measured"}


@needs_compiler
@needs_mosquitto
def test_a_check_of_nothing_does_not_pass() -> None:
    status, _, complaint = fanout(*QUICK, "--servers=mosquitto", "--check")
    assert status == 1
    assert "no budget could be judged" in complaint


@pytest.mark.long
@needs_compiler
@needs_mosquitto
def test_a_missed_budget_is_named_and_fails_the_check() -> None:
    # mosquitto in the relay's place takes as much CPU as mosquitto: far more than it may.
    program = shutil.which("mosquitto", path=SBIN)
    options = (*QUICK, "--servers=relay,mosquitto", f"--relay-command={program} -p {{port}}")
    status, printed, complaint = fanout(*options, "--check")
    assert status == 1
    assert "budget missed: pipelined-1, x mosquitto" in complaint
    assert "| pipelined-1 | at most 0.08 x mosquitto |" in printed
    assert "MISSED" in printed
    status, printed, complaint = fanout(*options)
    assert status == 0, f"without --check a miss is only shown: {complaint}"
    assert "MISSED" in printed


@pytest.mark.long
@needs_compiler
@needs_mosquitto
def test_the_relay_is_driven_with_syndicate_and_its_peers_with_their_own_protocol(
    tmp_path: Path,
) -> None:
    path = tmp_path / "results.json"
    options = ("--regimes=syndicate-9,syndicate-random-9", "--servers=relay,mosquitto")
    status, printed, complaint = fanout(*QUICK[:2], *options, f"--json={path}")
    assert status == 0, complaint
    samples: list[dict[str, Any]] = json.loads(path.read_text())["samples"]
    assert {(sample["regime"], sample["server"]) for sample in samples} == {
        (regime, server)
        for regime in ("syndicate-9", "syndicate-random-9")
        for server in ("relay", "mosquitto")
    }
    for sample in samples:
        assert sample["measurement"]["delivered"] > 0
        assert sample["measurement"]["lost"] == 0
    (row,) = [line for line in printed.splitlines() if line.startswith("| syndicate-9 | at most")]
    assert "0.15 x mosquitto" in row
    assert "not measured" not in row


@needs_compiler
@needs_mosquitto
def test_another_server_in_the_relays_place_is_not_driven_with_syndicate() -> None:
    program = shutil.which("mosquitto", path=SBIN)
    options = ("--servers=relay,mosquitto", f"--relay-command={program} -p {{port}}")
    status, printed, complaint = fanout(*QUICK[:2], "--regimes=syndicate-1", *options)
    assert status == 0, complaint
    assert "relay is left out of syndicate-1: it does not speak the protocol." in complaint
    assert "| syndicate-1 | mosquitto |" in printed
    assert "| syndicate-1 | relay |" not in printed


@needs_compiler
def test_a_server_that_does_not_start_is_reported_and_fails_the_run() -> None:
    status, _, complaint = fanout(*QUICK, "--servers=relay", "--relay-command=false {port}")
    assert status == 1
    assert "pass 1, pipelined-1, relay: relay ended with 1 at its start" in complaint


def test_without_a_compiler_it_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for source in (*FOLDER.glob("*.py"), *FOLDER.glob("*.c")):
        shutil.copy(source, folder)
    status, printed, complaint = fanout(folder=folder, CC="", PATH="/nowhere")
    assert (status, printed) == (1, "")
    assert "no C compiler" in complaint
    assert "Traceback" not in complaint


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--regimes=pipelined-7", "pipelined-7 is not one of pipelined-1, "),
        ("--servers=kafka", "kafka is not one of relay, mosquitto"),
        ("--passes=0", "at least 1"),
        ("--seconds=-1", "not positive"),
    ],
)
def test_a_wrong_option_is_refused(option: str, complaint: str) -> None:
    status, _, said = fanout(option)
    assert status == 2
    assert complaint in said


def test_a_profile_is_of_the_relays_user_time(tmp_path: Path) -> None:
    env = "/env/lib/site-packages/"
    samples = [
        ["/src/clearfunds/transports/mqtt/server/_runs.py", "find_run", 50],
        ["/src/clearfunds/accounts/_account.py", "Account.borrow", 30],
        ["/src/clearfunds/transports/_outlet.py", "Outlet.hold", 10],
        [env + "trio/_core/_run.py", "unrolled_run", 6],
        [env + "clearfunds/accounts/_account.py", "Account.borrow", 4],
    ]
    output = tmp_path / "samples.json"
    output.write_text(json.dumps({"user": 1.0, "system": 3.0, "samples": samples}))
    found = profiling.read(output)
    assert found.user == 0.25
    assert found.bookkeeping == pytest.approx(0.11)
    assert found.rows() == [
        ["12.5%", "find_run", "transports/mqtt/server/_runs.py", ""],
        ["8.5%", "Account.borrow", "accounts/_account.py", "yes"],
        ["2.5%", "Outlet.hold", "transports/_outlet.py", "yes"],
        ["1.5%", "unrolled_run", "trio/_core/_run.py", ""],
    ]


def test_what_has_no_sampler_is_not_profiled(tmp_path: Path) -> None:
    with pytest.raises(profiling.ProfileError, match="not the channel"):
        profiling.sampled(CommandServer("server {port}", name="the channel"), tmp_path / "samples")
    with pytest.raises(profiling.ProfileError, match="has left no samples"):
        profiling.read(tmp_path / "samples")
    (tmp_path / "samples").write_text('{"user": 0.0, "system": 0.1, "samples": []}')
    with pytest.raises(profiling.ProfileError, match="was idle"):
        profiling.read(tmp_path / "samples")


@pytest.mark.long
@needs_compiler
def test_the_relay_samples_itself() -> None:
    """Nearly all of its time goes where a fan-out goes; how much exactly is the machine's.

    Of some dozens of samples a busy machine may take none in a function that has 7 % of the time.
    """
    status, out, said = fanout("--profile", "--seconds=2")
    assert status == 0, said
    assert "## relay, pipelined-9:" in out
    # A third of the time that is not the kernel's.
    assert "| equal_headers | transports/mqtt/server/_runs.py |  |" in out
    for row in (
        "| commit_and_send | transports/_direct_send.py |",
        "| Account.pass_run | accounts/_account.py |",
    ):
        assert row not in out or f"{row} yes |" in out
    assert "Bookkeeping of debt: " in out
