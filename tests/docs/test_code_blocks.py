"""Code in the docs is code: Python compiles, configuration is accepted, JSON and YAML are read.

Other tests run the programs and the commands: test_every_block.py lists them.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from clearfunds._cli import run
from clearfunds.perf import read_scenarios
from tests.docs.blocks import fenced

ROOT: Final = Path(__file__).parents[2]
FILES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "dashboards/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
AST: Final = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST


def blocks(language: str) -> list[Any]:
    return [
        pytest.param(code, id=f"{path.stem}-{number}")
        for path in FILES
        for number, (named, code) in enumerate(fenced(path), 1)
        if named == language
    ]


def test_there_are_some() -> None:
    assert len(blocks("python")) > 30
    assert len(blocks("toml")) > 5


def test_every_block_is_of_a_language_that_is_looked_at_here() -> None:
    languages = {language for path in FILES for language, _ in fenced(path)}
    assert languages <= {"python", "toml", "json", "yaml", "sh", "console", "text"}


@pytest.mark.parametrize("code", blocks("python"))
def test_python_compiles(code: str) -> None:
    compile(code, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("code", blocks("python"))
def test_python_imports_what_there_is(code: str) -> None:
    # pyspark is not imported here: other tests run its blocks in processes of their own.
    for node in ast.walk(compile(code, "block", "exec", flags=AST)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clearfunds"):
            module = importlib.import_module(str(node.module))
            for name in node.names:
                assert hasattr(module, name.name), f"{node.module} has no {name.name}"


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_can_be_read(text: str) -> None:
    assert yaml.safe_load(text)


@pytest.mark.parametrize("text", blocks("json"))
def test_json_can_be_read(text: str) -> None:
    # What is left out is written as dots; lines are folded.
    assert json.loads(re.sub(r",?\s*\.\.\.\s*(?=[\]}])", "", text))


@pytest.mark.parametrize("text", blocks("toml"))
def test_a_configuration_is_accepted(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = tomllib.loads(text)
    file = tmp_path / "clearfunds.toml"
    file.write_text(text, "utf-8")
    if "scenario" in tables:
        assert read_scenarios(file)
        return
    # Files that it names are not here; whether their options are right shows without them.
    for name in ("passwords", "acl", "tls-certificate", "tls-key", "tls-client-ca", "http-token"):
        for spelling in (name, name.replace("-", "_")):
            text = re.sub(rf"(?m)^{spelling} = .*\n", "", text)
    text = text.replace("mqtts://", "mqtt://")
    found: list[object] = []

    def instead(_: object, settings: object, __: object) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr("clearfunds._cli._relay.run_async", instead)
    monkeypatch.setattr("clearfunds._cli._relay.spare_the_collector", lambda: None)
    file.write_text(text, "utf-8")
    assert run(["relay", "--config", str(file)]) == 0, capsys.readouterr().err
    assert found
