"""The loads of Syndicate: their packets, and how results are shown."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from benchmarks.evidence.syndicate import render
from benchmarks.syndicate_loads import LOADS, RELAY, RUST, Sample, ratios, shown, wire
from clearfunds.transports.syndicate import Scanner


@pytest.mark.parametrize("name", LOADS)
def test_the_packets_of_a_load_are_well_formed_and_leave_no_assertion(name: str) -> None:
    packets = LOADS[name].packets(3)
    assert len(packets) >= 5
    for packet in packets:
        data = wire(packet)
        assert Scanner().find_end(data, 0) == len(data)
    assert sum(" <A " in packet for packet in packets) == sum(" <R " in each for each in packets)


def data(relay: float, rust: float | None) -> dict[str, Any]:
    """Return what a measurement gives."""
    servers = {RELAY: relay} if rust is None else {RELAY: relay, RUST: rust}
    samples = [Sample(load, name, us, 1e6 / us) for load in LOADS for name, us in servers.items()]
    return {
        "seconds": 1.0,
        "rust": None if rust is None else "syndicate-server 0.50.1",
        "samples": [attrs.asdict(sample) for sample in samples],
    }


def test_a_budget_holds_or_is_missed() -> None:
    words = {claim.word for claim in render(data(10.0, 10.0)).claims}
    assert words == {"held"}
    assert {claim.word for claim in render(data(90.0, 10.0)).claims} == {"MISSED"}


def test_without_the_rust_server_the_section_says_so() -> None:
    rendered = render(data(10.0, None))
    assert "was not here" in " ".join(rendered.text.split())
    assert {claim.word for claim in rendered.claims} == {"not measured"}


def test_ratios_are_of_the_same_pass() -> None:
    samples = [Sample("state-1", name, us, 1.0) for us, name in [(9.0, RELAY), (3.0, RUST)]]
    samples += [Sample("state-1", name, us, 1.0) for us, name in [(8.0, RELAY), (2.0, RUST)]]
    assert ratios(samples, "state-1") == [3.0, 4.0]
    assert "3.50" in shown(samples, [RELAY, RUST])
