"""Programs that some tests need: without them these are skipped, and say so."""

from __future__ import annotations

import shutil

import pytest


def needs(*programs: str) -> pytest.MarkDecorator:
    """Return the mark of tests that need all of these."""
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
