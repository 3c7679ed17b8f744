"""The limits that were found, as a file that `clearfunds relay --config` reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from glob import escape
from typing import Final

import attrs

from ._report_words import count, duration, size

_CONNECTION: Final = re.compile(r"(mqtt|syndicate):[^/]*/")
_NAMED_BY_RELAY: Final = re.compile(r"(mqtt:.*/-/)auto-[0-9a-f]{32}", re.DOTALL)
_PEER: Final = re.compile(r"(syndicate:.*/-/.*:)[0-9]+", re.DOTALL)


@attrs.frozen
class Advice:
    """What limit one account should have had."""

    account: str
    holder: str
    """At whom it waits."""
    p99_ms: float
    """How long one in a hundred of its deliveries was held there, or longer."""
    items_per_s: float
    """What was cleared of it there, while it waited too long."""
    bytes_per_s: float
    limit_items: int
    limit_bytes: int
    now_items: int | None = None
    """Its limit, as far as is known."""
    now_bytes: int | None = None
    floor: bool = False
    """Whether the target is not to be had by a limit: it is as low as it may be."""


def pattern(account: str) -> str | None:
    """Return the pattern that will match an account's name when its client comes back.

    None for what is no connection: the server's account, or one for what is at rest. What changes
    from one connection to the next is a wildcard: the port that a Syndicate peer comes from, and
    what is random in an identifier that the relay has chosen for an MQTT client.
    """
    if not _CONNECTION.match(account):
        return None
    if match := _NAMED_BY_RELAY.fullmatch(account):
        return f"{escape(match[1])}auto-{'?' * 32}"
    if match := _PEER.fullmatch(account):
        return f"{escape(match[1])}*"
    return escape(account)


def by_pattern(advices: Sequence[Advice]) -> dict[str, Advice]:
    """Return the advice for each pattern: where several accounts match one, the most generous."""
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
    """Write the file: a list of `account_limit`, with why beside each.

    Args:
        advices: Whose limit is to be another.
        target_ms: What their deliveries are to be held for at most, but for one in a hundred.
        heading: Sentences for the beginning; nothing of others may be in them.
        kept: Accounts that have a limit of their own which is to stay, and that, in events and in
            bytes: without it here, the relay would know nothing of it after its next start.
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
    # As in JSON, but for DEL, which TOML does not take as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
