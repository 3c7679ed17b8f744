"""Which sections there are, in the order of the page."""

from __future__ import annotations

import importlib
from typing import Final

from benchmarks.evidence._section import Section

NAMES: Final = (
    "fanout",
    "latency",
    "stuck",
    "overload",
    "sweeps",
    "backlog",
    "fairness",
    "flow",
    "cost",
    "scaling",
    "growth",
    "recovery",
    "topics",
    "metastable",
    "why",
    "syndicate",
    "many",
    "durable",
    "tls",
)


def load(name: str) -> Section | str:
    """Return a section, or a sentence about why there is none.

    One that cannot be imported is no reason to measure none of the others.
    """
    module = f"benchmarks.evidence.{name}"
    try:
        section: Section = importlib.import_module(module).SECTION
    except ModuleNotFoundError as error:
        if error.name == module:
            return f"The section `{name}` has not been written yet."
        return f"The section `{name}` needs {error.name}, which is not installed."
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the others are not
        return f"The section `{name}` cannot be loaded: {type(error).__name__}: {error}"
    return section
