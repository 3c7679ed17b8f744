"""Prometheus's rules, written as readable YAML."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence

from ._rules import Alert, Recording

_HEAD = """\
# Made by `make dashboards` from dashboards/_rules.py; thresholds to review are in the README.
"""
_WIDTH = 100


def rule_file(recordings: Sequence[Recording], alerts: Sequence[Alert]) -> str:
    """Write the rules as one group, evaluated at one instant; recordings come first."""
    lines = [_HEAD + "groups:", "  - name: clearfunds", "    rules:"]
    for recording in recordings:
        lines.append(f"      - record: {recording.name}")
        lines += _literal(8, "expr", recording.expr)
    for alert in alerts:
        lines.append(f"      - alert: {alert.name}")
        lines += _literal(8, "expr", alert.expr)
        if alert.lasts:
            lines.append(f"        for: {alert.lasts}")
        lines += ["        labels:", f"          severity: {alert.severity}"]
        lines.append("        annotations:")
        for name, text in (
            ("summary", alert.summary),
            ("description", alert.description),
            ("runbook", alert.runbook),
        ):
            lines += _folded(10, name, text)
    return "\n".join(lines) + "\n"


def _literal(indent: int, key: str, text: str) -> Iterator[str]:
    yield f"{' ' * indent}{key}: |-"
    for line in text.splitlines():
        yield " " * (indent + 2) + line


def _folded(indent: int, key: str, text: str) -> Iterator[str]:
    """Write one long line, folded between words; YAML makes it one line again."""
    if "\n" in text or "  " in text or text != text.strip():
        msg = f"{json.dumps(text)} is not one line of words with one space in between"
        raise ValueError(msg)
    yield f"{' ' * indent}{key}: >-"
    margin = " " * (indent + 2)
    yield from textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
