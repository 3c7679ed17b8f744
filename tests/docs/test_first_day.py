"""docs/first-day.md, from an empty folder to an upgrade: its own commands, in its own order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.shell import blocks_of
from tests.ports import lasting_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "first-day.md"
UNIT = ROOT / "systemd" / "clearfunds.service"
OLD_STORE = ROOT / "tests" / "store" / "data" / "v0_1_0" / "relay.tar.gz"

NEEDED = ("bash", "curl", "openssl", "prometheus")
SECONDS = 240
"""The whole day; it takes 40 s, 20 of which the alert is pending."""

needs_tools = pytest.mark.skipif(
    not all(map(shutil.which, NEEDED)), reason=f"needs {', '.join(NEEDED)}"
)


def live_the_day(folder: Path, first: str, env: dict[str, str]) -> str:
    """Run all blocks in one shell, after `first`; return what they printed."""
    (folder / "dashboards").symlink_to(ROOT / "dashboards")
    script = "\n".join(["set -e", first, *blocks_of(PAGE.name)[1:]])
    for port in ("8883", "9100", "9090"):  # Others may have these.
        script = script.replace(port, str(lasting_port()))
    # The relay that is started again is given a store that version 0.1.0 has written.
    kept = "cp -a store store.before\n"
    assert kept in script
    script = script.replace(kept, f"{kept}rm -r store\ntar -xzf {OLD_STORE}\n")
    file = folder / "day.sh"
    file.write_text(f"{_with_ports_of_prometheus(script)}\n")
    clean = {name: value for name, value in env.items() if not name.startswith("CLEARFUNDS_")}
    printed = folder / "printed"
    with printed.open("wb") as out:
        # A session of its own: nothing that it has started is left if it fails.
        process = subprocess.Popen(
            ["bash", str(file)],
            cwd=folder, env=clean, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        process.wait(SECONDS)
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
        process.wait()
    log = folder / "relay.log"
    text = printed.read_text()
    assert process.returncode == 0, f"{text}\n{log.read_text() if log.exists() else ''}"
    return text


def _with_ports_of_prometheus(script: str) -> str:
    """Let the configuration of Prometheus have the port of this relay's pages."""
    (port,) = set(re.findall(r'http = "127\.0\.0\.1:(\d+)"', script))
    return script.replace("> prometheus.yml", f"| sed s/9100/{port}/ > prometheus.yml")


def check_the_day(folder: Path, out: str) -> None:
    assert "relay.toml: no mistake in [relay]" in out
    assert "user ticker may not publish to 'weather/today'" in out
    assert "bad user name or password" in out
    (culprit,) = re.findall(r'"summary":"(mqtt:\d+/archive/archive) holds up the publishers', out)
    name = culprit.partition("/")[0]
    assert re.search(rf"^{name}/ticker/ticker waits for {culprit}, for ", out, re.MULTILINE)
    assert f"disconnected: {culprit}\n" in out
    assert "policy: drop_oldest\n" in out
    assert f"POST /clients/{culprit}/disconnect" in out
    assert "changed: --limit-items, --subscription-policy" in out
    log = (folder / "relay.log").read_text()
    assert "Traceback" not in log
    assert "ended; all outstanding messages are delivered" in log
    assert "the store in store has been upgraded: " in log


def test_the_unit_runs_the_same_command() -> None:
    (line,) = re.findall(r"^ExecStart=\S+/clearfunds (.*)$", UNIT.read_text(), re.MULTILINE)
    assert line == "relay --config /etc/clearfunds/clearfunds.toml"
    assert PAGE.read_text(encoding="utf-8").count("clearfunds relay --config relay.toml >") == 2


@needs_tools
def test_the_day(tmp_path: Path) -> None:
    """With what is installed here."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    (tmp_path / "venv").symlink_to(Path(sys.executable).parents[1])
    out = live_the_day(tmp_path, "pip() { :; }", env)
    check_the_day(tmp_path, out)


@needs_tools
@pytest.mark.long
def test_the_day_from_an_empty_environment(tmp_path: Path) -> None:
    """With the wheel, in an environment that the page's own first block makes."""
    wheels = tmp_path / "wheels"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "-w",
            str(wheels),
            str(ROOT),
        ],
        check=True,
    )
    env = {**os.environ, "PIP_FIND_LINKS": str(wheels)}
    env.pop("PYTHONPATH", None)
    folder = tmp_path / "day"
    folder.mkdir()
    out = live_the_day(folder, blocks_of(PAGE.name)[0], env)
    assert re.search(r"^clearfunds \d+\.\d+\.\d+$", out, re.MULTILINE)
    check_the_day(folder, out)
