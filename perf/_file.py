"""Scenarios from a TOML file: each `[[scenario]]` is one; a list of values makes a run for each."""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import attrs

from ..sockets import trouble_with_file
from ..transports import parse_size
from ..transports.mqtt import without_password
from ._errors import ScenarioError
from ._profile import Profile
from ._scenario import TLS_FILES, Scenario, parse_stalls
from ._sizes import Sizes

MAX_RUNS: Final = 1_000
"""Limit for one file: lists multiply."""

_PARSED: Final[Mapping[str, Callable[[str], Any]]] = {
    "size": Sizes.parse,
    "rate": Profile.parse,
    "slow_stalls": parse_stalls,
    "receive_buffer": parse_size,
}
"""Fields that are written as text, or as the number alone."""

_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("name", "uri", "mqtt", "topic", "filter", "clock", *TLS_FILES), (str,)),
    **dict.fromkeys(
        ("publishers", "subscribers", "topics", "qos", "subscriber_qos", "in_flight"), (int,)
    ),
    **dict.fromkeys(("prefetch", "ack_every", "slow", "processes", "seed"), (int,)),
    **dict.fromkeys(
        ("ack_interval", "delay", "slow_delay", "ramp", "seconds", "drain", "reconnect"),
        (int, float),
    ),
}

_NONE: Final = "none"


def _value(name: str, given: object) -> Any:
    """Convert the value of a field for `Scenario`.

    Raises:
        ScenarioError: It has the wrong type.
    """
    if given == _NONE and name in ("rate", "reconnect"):
        return None
    if name in _PARSED and isinstance(given, str | int | float) and not isinstance(given, bool):
        try:
            return _PARSED[name](str(given))
        except ScenarioError:
            raise
        except ValueError as error:
            msg = f"{name}: {error}"
            raise ScenarioError(msg) from error
    if name == "mqtt" and given == 5:  # People write it as a number; 3.1.1 is none.
        return "5"
    if name == "tls_insecure":
        if not isinstance(given, bool):
            msg = f"{name} = {given!r}: it must be true or false"
            raise ScenarioError(msg)
        return given
    kinds = _KINDS.get(name, (str,))
    if isinstance(given, bool) or not isinstance(given, kinds):
        wanted = " or a ".join("text" if k is str else "number" for k in kinds[:1])
        msg = f"{name} = {given!r}: it must be a {wanted}"
        raise ScenarioError(msg)
    if name in ("qos", "subscriber_qos") and given not in (0, 1, 2):
        msg = f"{name} = {given!r}: there are 0, 1 and 2"
        raise ScenarioError(msg)
    if name == "mqtt" and given not in ("3.1.1", "5"):
        msg = f'mqtt = {given!r}: there are "3.1.1" and "5"'
        raise ScenarioError(msg)
    if name == "clock" and given not in ("monotonic", "wall"):
        msg = f'clock = {given!r}: there are "monotonic" and "wall"'
        raise ScenarioError(msg)
    return given


def _told(name: str, given: object) -> str:
    """Return a value for the name of a run, without a password or a folder: reports show it."""
    if name == "uri":
        return without_password(str(given))
    return Path(str(given)).name if name in TLS_FILES else str(given)


def scenarios_of(table: Mapping[str, object]) -> list[Scenario]:
    """Return the scenarios of one table: one for each combination of its lists.

    The name of each has its values of these lists.

    Raises:
        ScenarioError: A field is unknown, or has an invalid value.
    """
    fields = [field.name for field in attrs.fields(Scenario)]
    values: dict[str, list[object]] = {}
    varied: list[str] = []
    for key, given in table.items():
        name = "uri" if key == "url" else key.replace("-", "_")
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1)
            instead = f"; did you mean {close[0]}?" if close else ""
            msg = f"a scenario has no field {key}{instead}"
            raise ScenarioError(msg)
        if name in values:
            raise ScenarioError(f"{key} is given twice, by another spelling: give it once")
        if isinstance(given, list):
            if not cast("list[object]", given):
                msg = f"{key} = []: a list has a run for each of its values"
                raise ScenarioError(msg)
            values[name] = cast("list[object]", given)
            varied.append(name)
        else:
            values[name] = [given]
    made: list[Scenario] = []
    for chosen in itertools.product(*values.values()):
        if len(made) >= MAX_RUNS:
            msg = f"lists that make more than {MAX_RUNS} runs"
            raise ScenarioError(msg)
        one = {name: _value(name, given) for name, given in zip(values, chosen, strict=True)}
        if varied:
            told = dict(zip(values, chosen, strict=True))
            which = ", ".join(f"{name}={_told(name, told[name])}" for name in varied)
            one["name"] = f"{one.get('name', 'perf')}: {which}"
        made.append(Scenario(**one))
    return made


def read_scenarios(file: Path) -> list[Scenario]:
    """Read a file of scenarios.

    Raises:
        ScenarioError: It does not exist, is no TOML, or has an invalid scenario.
    """
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ScenarioError(trouble_with_file(file, error)) from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{file} is not in UTF-8: save it in that") from error
    except ValueError as error:
        msg = f"{file} is not TOML: {error}; correct it there"
        raise ScenarioError(msg) from error
    found: Any = tables.pop("scenario", None)
    if tables:
        msg = f"{file}: {next(iter(tables))} is not known; scenarios are tables [[scenario]]"
        raise ScenarioError(msg)
    if not isinstance(found, list) or not cast("list[object]", found):
        msg = f"{file}: no [[scenario]] in it"
        raise ScenarioError(msg)
    made: list[Scenario] = []
    for place, table in enumerate(cast("list[object]", found), 1):
        try:
            if not isinstance(table, dict):
                msg = f"{table!r} is no table; scenarios are tables [[scenario]]"
                raise ScenarioError(msg)
            made += scenarios_of(cast("dict[str, object]", table))
        except ScenarioError as error:
            msg = f"{file}: scenario {place}: {error}"
            raise ScenarioError(msg) from error
    return made
