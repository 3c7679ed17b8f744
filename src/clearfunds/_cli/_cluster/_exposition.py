"""Merging expositions of several relays into one, as Prometheus's federation does.

Each sample gets the label `relay`; one that it has already is renamed to `exported_relay`, as
Prometheus renames it. All samples of a metric stand together, below one HELP and one TYPE line.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

import re
from collections.abc import Mapping
from typing import Final

import attrs

from clearfunds.pages._exposition import Family, format_labels

LABEL: Final = "relay"
"""The label that names the relay of a sample."""

UP: Final = Family(
    "clearfunds_cluster_relay_up", "Whether the relay has answered: 1, else 0.", labels=(LABEL,)
)
"""The metric that is about the relays and not from them."""

_EXPORTED: Final = f"exported_{LABEL}"

_HEAD: Final = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*)(?: .*)?")
_SAMPLE: Final = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*",?)*)\})?'
    r"( [^ ]+(?: [^ ]+)?)"
)
_SUFFIXES: Final = ("", "_bucket", "_sum", "_count")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)(="(?:[^"\\]|\\.)*")')


@attrs.define
class _Metric:
    """The lines of one metric."""

    heads: dict[str, str] = attrs.field(factory=dict[str, str])
    samples: list[str] = attrs.field(factory=list[str])


def merge(expositions: Mapping[str, str | None]) -> str:
    """Return one exposition of all relays.

    A line that is neither a sample nor HELP or TYPE is left out.

    Args:
        expositions: The exposition of each relay, by the relay's name; None: it does not answer.
    """
    metrics: dict[str, _Metric] = {}
    for relay, text in expositions.items():
        _add(metrics, relay, text or "")
    lines = [
        UP.head(),
        *(
            UP.sample(format_labels({LABEL: relay}), int(text is not None))
            for relay, text in expositions.items()
        ),
    ]
    for metric in metrics.values():
        lines += (f"{line}\n" for line in (*metric.heads.values(), *metric.samples))
    return "".join(lines)


def _add(metrics: dict[str, _Metric], relay: str, text: str) -> None:
    own = format_labels({LABEL: relay})[1:-1]
    current = ""
    for line in text.split("\n"):
        if head := _HEAD.fullmatch(line):
            kind, current = head.groups()
            metrics.setdefault(current, _Metric()).heads.setdefault(kind, line)
        elif sample := _SAMPLE.fullmatch(line):
            name, labels, value = sample.groups()
            # A histogram's samples have longer names than the metric that they belong to.
            metric = current if name.removeprefix(current) in _SUFFIXES else name
            line = f"{name}{{{own}{_others(labels or '')}}}{value}"
            metrics.setdefault(metric, _Metric()).samples.append(line)


def _others(labels: str) -> str:
    return "".join(
        f",{_EXPORTED if name == LABEL else name}{value}" for name, value in _LABEL.findall(labels)
    )


def sum_of(name: str, text: str) -> float:
    """Return the sum of a metric's samples in an exposition; 0 if there are none."""
    values = (
        sample[3].split()[0]
        for line in text.split("\n")
        if line.startswith(name) and (sample := _SAMPLE.fullmatch(line)) and sample[1] == name
    )
    return sum(map(float, values))
