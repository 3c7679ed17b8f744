"""Build or unpack the servers that neither Debian's stable release nor PyPI has, into build/peers.

    python benchmarks/peers/fetch.py                    # all of them
    python benchmarks/peers/fetch.py mochi rumqttd

Each comes through the ordinary client of its registry: `go install`, `cargo install`, `mvn`, and
`apt-get` (Debian unstable's mosquitto with the libraries it was built for, unpacked and not
installed). Nothing outside build/peers changes, but for the caches of these clients.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

BUILT: Final = Path(__file__).resolve().parents[2] / "build" / "peers"

MOCHI: Final = "v2.7.9"
RUMQTTD: Final = "0.20.0"
HIVEMQ: Final = "2025.5"
ARTEMIS: Final = "2.40.0"


def run(*command: str | Path, **environment: str) -> None:
    """Show a command and run it.

    Raises:
        subprocess.CalledProcessError: It failed; what it said stands on stderr.
        FileNotFoundError: There is no such program.
    """
    print(f"fetch: {' '.join(map(str, command))}", file=sys.stderr)
    subprocess.run(list(map(str, command)), check=True, env={**os.environ, **environment})


def mochi() -> str:
    """Build mochi with Go."""
    with tempfile.TemporaryDirectory() as folder:
        module = f"github.com/mochi-mqtt/server/v2/cmd@{MOCHI}"
        run("go", "install", module, GOBIN=folder)
        shutil.move(Path(folder) / "cmd", BUILT / "mochi")
    return f"mochi {MOCHI}"


def rumqttd() -> str:
    """Build rumqttd with Cargo."""
    with tempfile.TemporaryDirectory() as folder:
        # Not --locked: one of those libraries does not compile any more (Rust 1.95).
        run("cargo", "install", "rumqttd", f"--version={RUMQTTD}", "--root", folder)
        shutil.move(Path(folder) / "bin" / "rumqttd", BUILT / "rumqttd")
    return f"rumqttd {RUMQTTD}"


def mosquitto() -> str:
    """Unpack the mosquitto of Debian unstable, with all its libraries."""
    target = BUILT / "mosquitto-new"
    mirror = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Component: main"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    if not mirror:
        raise RuntimeError("no source of Debian's packages is known here: run `apt-get update`")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True)
        (folder / "sources").write_text(f"deb {mirror[0]} sid main\n")
        (folder / "status").touch()  # as if nothing were installed: all libraries come along
        apart = {
            "Dir::Etc::sourcelist": folder / "sources",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            "APT::Sandbox::User": "root",
        }
        options = [f"-o{name}={value}" for name, value in apart.items()]
        run("apt-get", *options, "-qq", "update")
        quiet = ("-qq", "-y", "--no-install-recommends", "--download-only")
        run("apt-get", *options, *quiet, "install", "mosquitto")
        packages = sorted((folder / "cache" / "archives").glob("*.deb"))
        shutil.rmtree(target, ignore_errors=True)
        for package in packages:
            run("dpkg", "-x", package, target)
    (libraries,) = {file.parent for file in target.glob("usr/lib/*/libmosquitto.so.1")}
    run("/sbin/ldconfig", "-n", libraries)
    (version,) = (p.name.split("_")[1] for p in packages if p.name.startswith("mosquitto_"))
    return f"mosquitto {version.partition('-')[0]}"


def hivemq() -> str:
    """Take HiveMQ CE and its libraries from Maven, and compile what starts it."""
    target = BUILT / "hivemq"
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "pom.xml"
        project.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>clearfunds</groupId><artifactId>peer</artifactId><version>1</version>"
            "<packaging>pom</packaging><dependencies><dependency><groupId>com.hivemq</groupId>"
            "<artifactId>hivemq-community-edition-embedded</artifactId>"
            f"<version>{HIVEMQ}</version></dependency></dependencies></project>"
        )
        goal = "dependency:copy-dependencies"
        run("mvn", "-q", "-B", "-f", project, goal, f"-DoutputDirectory={target / 'lib'}")
    source = Path(__file__).with_name("HiveMQ.java")
    run("javac", "-cp", f"{target / 'lib'}/*", "-d", target, source)
    return f"HiveMQ CE {HIVEMQ}"


def artemis() -> str:
    """Take Artemis from Maven."""
    target = BUILT / "artemis"
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        artifact = f"org.apache.activemq:apache-artemis:{ARTEMIS}:zip:bin"
        run("mvn", "-q", "-B", "dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false")
        where = f"-DoutputDirectory={folder}"
        run("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", where)
        (archive,) = Path(folder).glob("*.zip")
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(target)
    (target / f"apache-artemis-{ARTEMIS}" / "bin" / "artemis").chmod(0o755)
    return f"Artemis {ARTEMIS}"


PEERS: Final[dict[str, Callable[[], str]]] = {
    "mochi": mochi,
    "mosquitto-new": mosquitto,
    "hivemq": hivemq,
    "artemis": artemis,
    "rumqttd": rumqttd,
}


def main() -> int:
    """Fetch what was asked for; say what could not be had, and go on with the next."""
    parser = argparse.ArgumentParser(description="Build or unpack servers into build/peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)} (all)")
    names: list[str] = parser.parse_args().names or list(PEERS)
    if unknown := [name for name in names if name not in PEERS]:
        parser.error(f"{unknown[0]} is not one of {', '.join(PEERS)}")
    BUILT.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in names:
        try:
            version = PEERS[name]()
        except (OSError, RuntimeError, ValueError, subprocess.CalledProcessError) as error:
            print(f"fetch: {name} could not be had: {error}", file=sys.stderr)
            failed = True
            continue
        (BUILT / f"{name}.version").write_text(f"{version}\n")
        print(f"fetch: {version}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
