"""Jars from Maven, for servers and connectors written in Java: fetched once, into `build/`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

BUILD = Path(__file__).parents[1] / "build" / "maven"

FETCHING = 600.0
"""Seconds that Maven may take."""


class NoJarsError(Exception):
    """The jars cannot be had; it says why."""


def jars(name: str, *artifacts: str, alone: int = 0) -> list[Path]:
    """Return the jars of artifacts and of all that they need.

    Args:
        name: The folder to keep them in.
        artifacts: Each as GROUP:NAME:VERSION.
        alone: Of how many of the first of them to leave out what they need.

    Raises:
        NoJarsError: They cannot be had.
    """
    folder = BUILD / name
    done = folder / "done"
    wanted = "\n".join(artifacts)
    if not done.exists() or done.read_text() != wanted:
        if shutil.which("mvn") is None:
            raise NoJarsError("there is no mvn on the path: apt-get install maven")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "pom.xml").write_text(_pom(artifacts, alone))
        copy = ("mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime")
        said = subprocess.run(
            [*copy, f"-DoutputDirectory={folder}"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=FETCHING,
            check=False,
        )
        if said.returncode:
            raise NoJarsError(f"Maven cannot fetch {', '.join(artifacts)}: {said.stdout[:300]}")
        done.write_text(wanted)
    return sorted(folder.glob("*.jar"))


def _pom(artifacts: tuple[str, ...], alone: int) -> str:
    needed = ""
    for place, artifact in enumerate(artifacts):
        group, name, version = artifact.split(":")
        nothing = (
            "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId>"
            "</exclusion></exclusions>"
        )
        needed += (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version>{nothing if place < alone else ''}</dependency>"
        )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>clearfunds</groupId><artifactId>jars</artifactId><version>0</version>"
        f"<packaging>pom</packaging><dependencies>{needed}</dependencies></project>"
    )
