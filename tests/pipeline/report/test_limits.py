"""limits.toml: what is written is what the relay reads."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clearfunds._cli import run
from clearfunds.access import AccountLimits
from clearfunds.accounts import Limit
from clearfunds.pipeline.report._limits import Advice, as_toml, by_pattern, pattern
from clearfunds.relay import RelaySettings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def advice(account: str, items: int = 10, nbytes: int = 2000) -> Advice:
    return Advice(account, "holder", 250.0, 1200.5, 3.4e5, items, nbytes, 10_000, 8 << 20)


def settle(toml: str, folder: Path) -> RelaySettings:
    """Have the relay's command read a file, and return the settings that it would run with."""
    found: list[RelaySettings] = []

    def instead(_: object, settings: RelaySettings, *__: object) -> int:
        found.append(settings)
        return 0

    file = folder / "limits.toml"
    file.write_text(toml, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clearfunds._cli._relay.run_async", instead)
        assert run(["relay", "--config", str(file)]) == 0
    return found[0]


def limits(advices: Sequence[Advice], folder: Path) -> AccountLimits:
    toml = as_toml(advices, target_ms=100, heading=["One.", "Two."])
    return AccountLimits(settle(toml, folder).account_limit, Limit())


NAMES = st.builds(
    "{}{}".format,
    st.sampled_from(["mqtt:1883/-/", "mqtt:/run/r.sock/user/", "syndicate:8001/-/"]),
    st.text(
        st.characters(codec="utf-8") | st.sampled_from("*?[]!=,'\"\\#\n\r\t\x7f😀"),
        min_size=1,
        max_size=8,
    ),
)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(names=st.lists(NAMES, min_size=1, max_size=4, unique=True))
def test_every_name_comes_back_to_its_limit(names: list[str], tmp_path: Path) -> None:
    advices = [advice(name, 10 + place) for place, name in enumerate(names)]
    found = limits(advices, tmp_path)
    for name, wanted in by_pattern(advices).items():
        of_these = [each.account for each in advices if pattern(each.account) == name]
        for account in of_these:
            limit = found.of(account)
            assert (limit.items, limit.bytes) == (wanted.limit_items, wanted.limit_bytes)
    assert found.of("mqtt:1883/-/somebody else altogether") == Limit()


def test_who_has_another_name_the_next_time_has_a_pattern(tmp_path: Path) -> None:
    found = limits(
        [
            advice("syndicate:8001/-/10.0.0.7:50111", 5, 700),
            advice("syndicate:8001/-/10.0.0.7:50112", 3, 900),
            advice(f"mqtt:1883/-/auto-{17:032x}", 9),
        ],
        tmp_path,
    )
    assert found.of("syndicate:8001/-/10.0.0.7:1") == Limit(items=5, bytes=900)
    assert found.of("syndicate:8001/-/10.0.0.8:1") == Limit()
    assert found.of(f"mqtt:1883/-/auto-{3:032x}").items == 9
    assert found.of("mqtt:1883/-/auto-pilot") == Limit()


@pytest.mark.parametrize("account", ["server", "kept", "mqtt/sensor", "readers", "x:1/-/a"])
def test_what_is_no_connection_has_no_limit(account: str, tmp_path: Path) -> None:
    assert pattern(account) is None
    assert settle(as_toml([advice(account)], target_ms=1, heading=[]), tmp_path).account_limit == ()


def test_a_limit_of_its_own_stays(tmp_path: Path) -> None:
    names = [f"mqtt:1883/-/{name}" for name in ("changed", "stays", "open")]
    kept = {names[0]: (50, 6000), names[1]: (70, 8000), names[2]: (90, None), "server": (1, 1)}
    toml = as_toml([advice(names[0], 5, 600)], target_ms=100, heading=[], kept=kept)
    found = AccountLimits(settle(toml, tmp_path).account_limit, Limit())
    assert [found.of(name) for name in names] == [
        Limit(items=5, bytes=600),
        Limit(items=70, bytes=8000),
        Limit(items=90, bytes=None),
    ]
    assert len(settle(toml, tmp_path).account_limit) == 3


def test_why_is_beside_each() -> None:
    toml = as_toml([advice("mqtt:1883/-/a")], target_ms=100, heading=["Made by hand."])
    assert tomllib.loads(toml) == {"relay": {"account_limit": ["mqtt:1883/-/a=10,2000"]}}
    assert toml.startswith("# Made by hand.\n")
    why = "99 % within 250 ms now (wanted: 100 ms); cleared 1,200 events/s and 332 KiB/s while it"
    assert f"  # {why} waited.\n" in toml
