"""An environment for the commands of pages."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which `clearfunds` is the command of this Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "clearfunds"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m clearfunds "$@"\n', "utf-8")
    command.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if "CLEARFUNDS" not in name}
    path = f"{folder}:{sysconfig.get_path('scripts')}:{kept['PATH']}"
    # `pip install` installs nothing: it sees that what a page names is there.
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_DRY_RUN": "1"}
    return {**kept, **pip, "PATH": path}
