"""The recommended limits, as a file for `clearfunds relay --config`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from glob import escape
from typing import Final

import attrs

from clearfunds._html import count, duration, size

_CONNECTION: Final = re.compile(r"(mqtt|syndicate):[^/]*/")
_NAMED_BY_RELAY: Final = re.compile(r"(mqtt:.*/-/)auto-[0-9a-f]{32}", re.DOTALL)
_PEER: Final = re.compile(r"(syndicate:.*/-/.*:)[0-9]+", re.DOTALL)


@attrs.frozen
class Advice:
    """The limit that one account should have had."""

    account: str
    holder: str
    """The holder at which its messages wait."""
    p99_ms: float
    """The 99th percentile of hold times there."""
    items_per_s: float
    """The rate at which the holder cleared its messages, while holds were too long."""
    bytes_per_s: float
    limit_items: int
    limit_bytes: int
    now_items: int | None = None
    """Its present limit; None if unknown."""
    now_bytes: int | None = None
    floor: bool = False
    """Whether the limit is as low as it may be, and misses the target."""


def pattern(account: str) -> str | None:
    """Return the pattern that will match an account's name when its client comes back.

    Return None for an account that is no connection: the server's, or one for stored messages.
    The parts that change with each connection become wildcards: a Syndicate peer's port, and the
    random part of a client identifier that the relay has assigned to an MQTT client.
    """
    if not _CONNECTION.match(account):
        return None
    if match := _NAMED_BY_RELAY.fullmatch(account):
        return f"{escape(match[1])}auto-{'?' * 32}"
    if match := _PEER.fullmatch(account):
        return f"{escape(match[1])}*"
    return escape(account)


def by_pattern(advices: Sequence[Advice]) -> dict[str, Advice]:
    """Return the advice for each pattern; if several accounts match it, the highest limit."""
    found: dict[str, Advice] = {}
    for advice in advices:
        key = pattern(advice.account)
        if key is None:
            continue
        other = found.get(key)
        if other is not None:
            advice = attrs.evolve(
                advice,
                floor=advice.floor or other.floor,
                p99_ms=max(advice.p99_ms, other.p99_ms),
                items_per_s=max(advice.items_per_s, other.items_per_s),
                bytes_per_s=max(advice.bytes_per_s, other.bytes_per_s),
                limit_items=max(advice.limit_items, other.limit_items),
                limit_bytes=max(advice.limit_bytes, other.limit_bytes),
            )
        found[key] = advice
    return found


def as_toml(
    advices: Sequence[Advice],
    *,
    target_ms: float,
    heading: Sequence[str],
    kept: Mapping[str, tuple[int | None, int | None]] | None = None,
) -> str:
    """Return the text of the file: a list of `account_limit`, with a reason for each.

    Args:
        advices: The limits to change.
        target_ms: The target for the 99th percentile of hold times.
        heading: Sentences for the beginning; they must hold no text from peers.
        kept: Accounts whose own limit stays, with that limit in events and bytes: without it here,
            the relay would not set it after its next start.
    """
    found = by_pattern(advices)
    stays = {
        key: limit
        for account, limit in (kept or {}).items()
        if (key := pattern(account)) is not None
    }
    lines = [f"# {line}" for line in heading]
    lines += ["", "[relay]", "account_limit = ["]
    for key, advice in found.items():
        why = (
            f"99 % within {duration(advice.p99_ms / 1e3)} now (wanted: "
            f"{duration(target_ms / 1e3)}); cleared {count(advice.items_per_s)} events/s and "
            f"{size(advice.bytes_per_s)}/s while it waited."
        )
        if advice.floor:
            why += " Lower would cost throughput; this may not be enough."
        limit = _basic_string(f"{key}={advice.limit_items},{advice.limit_bytes}")
        lines += [f"  # {why}", f"  {limit},"]
    for key, (items, nbytes) in stays.items():
        if key not in found:
            amounts = ",".join("none" if each is None else str(each) for each in (items, nbytes))
            lines += ["  # As it is now.", f"  {_basic_string(f'{key}={amounts}')},"]
    lines.append("]")
    return "\n".join(lines) + "\n"


def _basic_string(text: str) -> str:
    # As in JSON, except that TOML needs DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
