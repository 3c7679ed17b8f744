"""Prometheus's text format, written piece by piece.

prometheus_client writes a whole page at once, which suits pages of constant size. A page with a
line for each account must let the loop run in between.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# NUL ends the input of Prometheus's lexer, at any place.
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"', "\0": "\ufffd"})
_escaped: Final = re.compile(r'[\\\n"\0]').search


@attrs.frozen
class Family:
    """One metric: its name, its type (gauge or counter), and its description."""

    name: str
    """As in the samples: a counter's ends with `_total`."""
    documentation: str
    kind: str = "gauge"
    labels: tuple[str, ...] = ()

    def head(self) -> str:
        """The two lines before its samples."""
        text = self.documentation.replace("\\", "\\\\").replace("\n", "\\n")
        return f"# HELP {self.name} {text}\n# TYPE {self.name} {self.kind}\n"

    def sample(self, labels: str, value: float) -> str:
        """One line, with labels from `format_labels`."""
        return f"{self.name}{labels} {format_value(value)}\n"


def format_labels(labels: Mapping[str, str]) -> str:
    """Write labels, escaped, with their braces."""
    return "{%s}" % ",".join(  # noqa: UP031 - braces around braces are hard to read
        [f'{name}="{escape(value)}"' for name, value in labels.items()]
    )


def escape(value: str) -> str:
    """Write a label's value, without its quotes."""
    # Few names need escaping, and checking takes a quarter of the time.
    return value.translate(_ESCAPES) if _escaped(value) else value


def format_value(value: float) -> str:
    """Write a number in the form that Go parses."""
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
