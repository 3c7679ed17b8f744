"""How often the relay is right about why a consumer is slow (tests/relay/why_slow.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import table, wrapped
from benchmarks.servers import from_the_root

TRIES: Final = 20
AT_ONCE: Final = 5
"""Processes at the same time, each with a relay of its own; they mostly wait."""
SECONDS: Final = 300.0
"""For all tries of a cause: twenty times as long as they take."""
CAUSES: Final = {
    "does_not_read": "a process that was stopped (SIGSTOP)",
    "loss": "a link that loses a fifth of all segments",
    "does_not_acknowledge": "a client that reads everything and sends no PUBACK",
}


def measure(setting: Setting) -> dict[str, Any]:
    """Try each cause so often."""
    tries = max(2, round(TRIES * setting.scale))
    found: dict[str, list[dict[str, str]]] = {}
    skipped: list[str] = []
    for cause in CAUSES:
        shares = [len(range(first, tries, AT_ONCE)) for first in range(AT_ONCE)]
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.relay.why_slow", cause, str(share)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=from_the_root(),
            )
            for share in shares if share
        ]  # fmt: skip
        outputs = [each.communicate(timeout=SECONDS) for each in running]
        if any(each.returncode for each in running):
            errors = "".join(error for _, error in outputs).strip()
            skipped.append(f"{cause}: {(errors.splitlines() or ['no reason given'])[-1]}")
            setting.report(f"why: {skipped[-1]}")
            continue
        found[cause] = [json.loads(line) for said, _ in outputs for line in said.splitlines()]
        setting.report(f"why: {cause}: {_right(cause, found[cause])} of {tries}")
    return {"tries": tries, "found": found, "skipped": skipped}


def _right(cause: str, tries: Sequence[Mapping[str, str]]) -> int:
    """Return how often that cause was found, and no other."""
    return sum(list(each) == [cause] for each in tries)


def render(data: dict[str, Any]) -> Rendered:
    """Show how often it was right, and the words."""
    found: Mapping[str, Sequence[Mapping[str, str]]] = data["found"]
    tries = int(data["tries"])
    rows = [
        [
            words,
            f"{_right(cause, found[cause])} of {len(found[cause])}",
            f"*{next((each[cause] for each in found[cause] if cause in each), '-')}*",
        ]
        for cause, words in CAUSES.items()
        if cause in found
    ]
    text = (
        "A subscriber is slow for one of three reasons, and a publisher without an end has to wait "
        f"for it. What the relay's log, pages and `top` say about the reason, {tries} times each; "
        "a try in which another cause was found as well, within two seconds, does not count. "
        "mosquitto, NATS and Redis say nothing of the reason: [b](#stuck) has a line of each log."
    )
    return Rendered(
        f"{wrapped(text)}\n\n{table(('', 'right', 'its words, once'), rows, right=(1,))}",
        claims=tuple(
            Claim(
                f"why it is slow, {words}: wrong answers in {tries}",
                float(len(found[cause]) - _right(cause, found[cause])) if cause in found else None,
                0.0, ",.0f",
            )
            for cause, words in CAUSES.items()
        ),
    )  # fmt: skip


SECTION: Final = Section(
    key="m",
    name="why",
    title="Why a slow consumer is slow",
    seconds=45.0,
    command="python -m benchmarks.evidence --only why",
    measure=measure,
    render=render,
)
