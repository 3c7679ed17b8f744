"""pyarrow, if it is installed."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ._errors import MissingError


def arrow(module: str = "pyarrow") -> Any:
    """Return pyarrow, or a module of it.

    Raises:
        MissingError: If it is not installed for this interpreter.
    """
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        msg = (
            f"pyarrow is not installed for {sys.executable}; install it wherever Spark runs "
            'Python, its workers too: pip install "clearfunds[pipeline]"'
        )
        raise MissingError(msg) from exc
