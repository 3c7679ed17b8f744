"""The container files: what they say is there, and runs; without an engine for containers, too."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cli.conftest import RelayUnderTest

    StartRelay = Callable[..., RelayUnderTest]

ROOT = Path(__file__).parents[2]
ENGINE: Final = next(filter(shutil.which, ("podman", "docker")), None)
GRAFANA: Final = ROOT / "container" / "grafana"


def instructions() -> Iterator[tuple[str, str]]:
    """Yield the instructions of the Containerfile."""
    for line in (ROOT / "Containerfile").read_text().splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


def words(instruction: str) -> list[str]:
    """Return the list of an instruction that stands there once."""
    (found,) = [rest for word, rest in instructions() if word == instruction]
    listed: list[str] = json.loads(found[found.index("[") :])
    return listed


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return loaded


def test_the_relay_of_the_image_runs_and_is_healthy(
    start_relay: StartRelay, tmp_path: Path
) -> None:
    assert words("ENTRYPOINT") == ["clearfunds"]
    command = words("CMD")
    assert command[0] == "relay"
    (volume,) = [rest for word, rest in instructions() if word == "VOLUME"]
    relay = start_relay(
        *(
            word.replace("0.0.0.0:9100", "127.0.0.1:0")
            .replace("://0.0.0.0", "://127.0.0.1:0")
            .replace(volume, str(tmp_path))
            for word in command[1:]
        )
    )
    *_, (kind, url) = [item for line in relay.ready() for item in line.items()]
    assert kind == "http"
    assert (tmp_path / "store").is_dir()
    program, *check = words("HEALTHCHECK")
    assert program == "python"
    here = [word.replace("http://127.0.0.1:9100", url) for word in check]
    assert here != check
    assert is_healthy(here)
    relay.process.terminate()
    assert relay.wait() == 0
    assert not is_healthy(here)


def is_healthy(check: list[str]) -> bool:
    done = subprocess.run([sys.executable, *check], capture_output=True, timeout=30, check=False)
    return not done.returncode


def test_nobody_in_it_is_root() -> None:
    users = [rest for word, rest in instructions() if word == "USER"]
    assert users
    assert users[-1].isdecimal()
    assert users[-1] != "0"
    assert dict(instructions())["STOPSIGNAL"] == "SIGTERM"


def test_what_is_mounted_is_there() -> None:
    services = compose()["services"]
    assert set(services) == {"relay", "load", "prometheus", "grafana"}
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), source
            else:
                assert source in compose()["volumes"]


def test_every_port_is_open_to_this_machine_alone() -> None:
    exposed = set(dict(instructions())["EXPOSE"].split())
    published: set[str] = set()
    for service in compose()["services"].values():
        for port in service.get("ports", ()):
            assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port), port
            published.add(port.rpartition(":")[2])
        assert ("ports" in service) != (service.get("network_mode") == "service:relay")
    assert exposed <= published
    targets = re.findall(r'targets: \["(.*?)"\]', (ROOT / "dashboards/prometheus.yml").read_text())
    assert set(targets) == {"127.0.0.1:9100"}  # the relay, in the network that they share
    (source,) = yaml.safe_load((GRAFANA / "datasource.yml").read_text())["datasources"]
    assert source["url"] == "http://127.0.0.1:9090"
    assert source["url"].rpartition(":")[2] in published


def test_grafana_finds_the_dashboards() -> None:
    grafana = compose()["services"]["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    (provider,) = yaml.safe_load((GRAFANA / "dashboards.yml").read_text())["providers"]
    assert mounts["./dashboards"] == provider["options"]["path"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == Path(provider["options"]["path"])
    assert json.loads((ROOT / "dashboards" / home.name).read_text())["title"]


def test_the_load_has_options_that_there_are(tmp_path: Path) -> None:
    command = compose()["services"]["load"]["command"]
    # Nobody listens there: that is all that may be wrong.
    command[command.index("mqtt://127.0.0.1")] = "mqtt://127.0.0.1:1"
    done = subprocess.run(
        [sys.executable, "-m", "clearfunds", *command],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "127.0.0.1" in done.stderr


@pytest.mark.long
@pytest.mark.skipif(ENGINE is None, reason="neither podman nor docker is here: no image was built")
def test_the_image_is_built_and_runs() -> None:
    assert ENGINE is not None
    built = subprocess.run(
        [ENGINE, "build", "-q", "-f", "Containerfile", "."],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if built.returncode and re.search("dial|registry|pull", built.stderr):
        pytest.skip(f"no base image: {built.stderr.strip().splitlines()[-1]}")
    assert built.returncode == 0, built.stderr
    image = built.stdout.strip().splitlines()[-1]
    said = subprocess.run(
        [ENGINE, "run", "--rm", image, "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith("clearfunds ")
