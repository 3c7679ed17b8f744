"""`python -m experiments.credit_flow` and `python -m experiments.classic_paging`, as processes."""

from __future__ import annotations

import dataclasses
import urllib.request
from pathlib import Path

import pytest

from benchmarks.servers import CLASSIC_PAGING, CREDIT_FLOW, Relay
from experiments.credit_flow.__main__ import main

RELAY = Relay(protocols=("mqtt",))


def metrics_of(relay: Relay, directory: Path) -> str:
    with (
        relay.running(directory, None) as running,
        urllib.request.urlopen(f"{running.page}/metrics") as page,
    ):
        return str(page.read().decode())


def test_a_relay_with_credit_flow_has_its_own_options_and_metrics(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    options = ("--credit-reader-outlet=20,10", "--journal", str(journal))
    relay = dataclasses.replace(RELAY, program=CREDIT_FLOW, options=options)
    text = metrics_of(relay, tmp_path)
    assert 'clearfunds_credit_processes{process="store",state="running"} 1.0' in text
    assert "clearfunds_journal_" in text, "of what runs beside it, too"


def test_a_relay_with_classic_paging_runs_as_any_other(tmp_path: Path) -> None:
    options = (f"--store={tmp_path / 'store'}",)
    relay = dataclasses.replace(RELAY, program=CLASSIC_PAGING, options=options)
    assert "clearfunds_credit_" not in metrics_of(relay, tmp_path)


def test_the_help_lists_the_options_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert "--credit-reader-outlet INITIAL,MORE_AFTER" in told
    assert "4000,800" in told
    assert "--limit-items" in told


@pytest.mark.parametrize("value", ["400", "400,", "a,b", "200,400", "-1,0", "4,2,1", "none"])
def test_credit_that_is_none_is_told_of_in_one_line(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([f"--credit-reader-outlet={value}"])
    assert exit_.value.code == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "INITIAL,MORE_AFTER" in told or "must not be" in told


def test_limits_that_nobody_would_wait_for_end_the_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--account-limit", "a=1"]) == 1
    assert "limits have no effect with credit flow" in capsys.readouterr().err
