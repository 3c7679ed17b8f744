"""`import clearfunds` has what a server needs, and costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import clearfunds

HOMES = ("accounts", "dataspace", "transports", "relay")


@pytest.mark.parametrize("name", clearfunds.__all__)
def test_a_name_is_the_same_as_in_its_folder(name: str) -> None:
    found = getattr(clearfunds, name)
    homes = [import_module(f"clearfunds.{home}") for home in HOMES]
    assert any(getattr(home, name, None) is found for home in homes)
    assert name in dir(clearfunds)


def test_all_of_them_are_known_to_a_type_checker() -> None:
    text = Path(clearfunds.__file__).read_text("utf-8")
    for name in clearfunds.__all__:
        assert f" import {name} as {name}\n" in text


def test_what_is_not_there_is_said() -> None:
    missing = "Loan"
    with pytest.raises(AttributeError, match="module 'clearfunds' has no attribute 'Loan'"):
        getattr(clearfunds, missing)


def test_the_package_alone_imports_neither_trio_nor_attrs() -> None:
    code = "import sys, clearfunds.ranges.client; print({'trio', 'attrs'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert ran.stdout == "set()\n"


def test_help_says_what_to_begin_with() -> None:
    assert clearfunds.__doc__ is not None
    for name in ("Ledger", "Account", "Limit", "Dataspace", "Mailbox", "watch_patience"):
        assert name in clearfunds.__doc__
