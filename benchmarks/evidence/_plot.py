"""What the figures of docs/evidence.md have in common.

They look as those of queue_plots.py: on a light card, in colours that everybody can tell apart, a
mark and dashes of its own for each server. The same data give the same file.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from benchmarks.queue_plots import (
    BLUE,
    CARD,
    GREEN,
    GRID,
    INK,
    MIB,
    ORANGE,
    PINK,
    STYLE,
    figure_of,
    module,
    save,
    styled,
    thousands,
)

__all__ = [
    "BLUE",
    "CARD",
    "GREEN",
    "GREY",
    "GRID",
    "INK",
    "MIB",
    "ORANGE",
    "PINK",
    "SKY",
    "STYLE",
    "STYLES",
    "VIOLET",
    "YELLOW",
    "Style",
    "decades",
    "figure_of",
    "module",
    "save",
    "style_of",
    "styled",
    "thousands",
]

YELLOW, SKY, GREY, VIOLET = "#e69f00", "#56b4e9", "#57606a", "#6f42c1"


@attrs.frozen
class Style:
    """How a server's line is drawn."""

    color: str
    marker: str
    linestyle: Any
    linewidth: float = 1.4

    def line(self, **more: Any) -> dict[str, Any]:
        """Return what ``plot`` takes for it."""
        style: dict[str, Any] = {
            "color": self.color,
            "marker": self.marker,
            "linestyle": self.linestyle,
            "linewidth": self.linewidth,
            "markersize": 4,
        }
        return style | more


STYLES: Final = {
    "relay": Style(BLUE, "o", "-", 2.0),
    "polling": Style(BLUE, "h", (0, (2, 1)), 2.0),
    "mosquitto": Style(ORANGE, "s", (0, (5, 1.5))),
    "mosquitto-new": Style(ORANGE, "p", (0, (3, 1.5))),
    "mochi": Style(PINK, "d", (0, (4, 1, 1, 1))),
    "rumqttd": Style(GREY, "X", (0, (2, 2))),
    "hivemq": Style(YELLOW, "<", (0, (7, 2))),
    "artemis": Style(SKY, ">", (0, (3, 1, 1, 1, 1, 1))),
    "nats": Style(GREEN, "^", (0, (1, 1))),
    "redis": Style(PINK, "D", (0, (4, 1, 1, 1))),
    "rabbitmq": Style(YELLOW, "v", (0, (7, 2))),
    "amqtt": Style(SKY, "P", (0, (3, 1, 1, 1, 1, 1))),
    "broadcaster": Style(GREY, "X", (0, (2, 2))),
    "channel": Style(VIOLET, "*", (0, (6, 1, 2, 1))),
    "bare": Style(INK, "+", (0, (1, 2))),
}


def style_of(server: str) -> Style:
    """Return how the server is drawn in every figure."""
    return STYLES.get(server, Style(INK, ".", "-"))


def decades(axis: Any) -> None:
    """Label a logarithmic axis (``axes.xaxis``) with 1, 2, 5, 10, ... in plain numbers."""
    ticker = module("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=20))
    axis.set_minor_formatter(ticker.NullFormatter())
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(_plain))


def _plain(value: float, _: int) -> str:
    return f"{value:,.10g}"
