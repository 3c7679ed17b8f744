"""Servers that keep journals, HDFS and S3; and a Spark cluster."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import attrs
import pyspark
import pytest

from benchmarks.maven import NoJarsError, jars
from tests.ports import lasting_port

HOST: Final = "127.0.0.1"
SPARK: Final = Path(str(pyspark.__file__)).parent

HADOOP: Final = "3.5.0"
"""That of Spark 4.3."""
AWS: Final = "2.35.4"

STARTING: Final = 300.0
"""Seconds that a server may take to start beside other tests."""


def fetched(name: str, *artifacts: str, alone: int = 0) -> list[Path]:
    """Return jars; where they cannot be had, the test is skipped with the reason."""
    try:
        return jars(name, *artifacts, alone=alone)
    except NoJarsError as error:
        pytest.skip(str(error))


def hdfs_jars() -> list[Path]:
    """Return the jars of HDFS's own test cluster, and of Hadoop's command line."""
    hadoop = "org.apache.hadoop:hadoop-client"
    return fetched(
        "hdfs",
        f"{hadoop}-minicluster:{HADOOP}",
        f"{hadoop}-api:{HADOOP}",
        f"{hadoop}-runtime:{HADOOP}",
        # The cluster is made for tests, and does not say that it needs these.
        "org.junit.jupiter:junit-jupiter-api:5.13.4",
        "org.mockito:mockito-core:4.11.0",
        "org.slf4j:slf4j-simple:1.7.36",
    )


def s3_jars() -> list[Path]:
    """Return the jars of Hadoop's file system `s3a`, without the half gigabyte of all of AWS."""
    aws = "software.amazon.awssdk"
    return fetched(
        "s3a",
        f"org.apache.hadoop:hadoop-aws:{HADOOP}",
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
        f"{aws}:s3:{AWS}",
        f"{aws}:s3-transfer-manager:{AWS}",
        f"{aws}:sts:{AWS}",
        alone=2,
    )


@attrs.frozen
class Store:
    """A server that keeps files.

    Attributes:
        url: Where a journal goes.
        settings: What Hadoop, and so Spark, has to be told to reach it.
        jars: What it needs besides.
    """

    url: str
    settings: dict[str, str] = attrs.field(factory=dict[str, str])
    jars: list[Path] = attrs.field(factory=list[Path])

    def put(self, folder: Path) -> None:
        """Copy a folder there."""
        conf = folder.parent / "conf"
        conf.mkdir()
        told = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in self.settings.items()
        )
        (conf / "core-site.xml").write_text(f"<configuration>{told}</configuration>")
        path = ":".join(map(str, [conf, *self.jars, SPARK / "jars" / "*"]))
        shell = ["java", "-cp", path, "org.apache.hadoop.fs.FsShell"]
        done = subprocess.run(
            [*shell, "-put", str(folder), self.url],
            capture_output=True,
            text=True,
            timeout=STARTING,
            check=False,
        )
        assert not done.returncode, done.stderr

    def options(self) -> list[str]:
        """Return what `clearfunds report` has to be told to reach it."""
        told = [f"spark.hadoop.{name}={value}" for name, value in self.settings.items()]
        if self.jars:
            told.append(f"spark.jars={','.join(map(str, self.jars))}")
        return [word for each in told for word in ("--spark-conf", each)]


@contextlib.contextmanager
def process(command: list[str], folder: Path, ready: Callable[[], bool]) -> Generator[None]:
    """Run a server in a folder, from when it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    said = folder / "said.txt"
    with said.open("w") as out:
        running = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + STARTING
        while not ready():
            assert running.poll() is None, said.read_text()[-2000:]
            assert time.monotonic() < deadline, said.read_text()[-2000:]
            time.sleep(0.2)
        yield
    finally:
        running.terminate()
        running.wait(60)


def answers(url: str, method: str = "GET") -> bool:
    """Whether an HTTP server says yes to a request."""
    request = urllib.request.Request(url, method=method)
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5):
        return True
    return False


@contextlib.contextmanager
def hdfs(folder: Path) -> Generator[Store]:
    """Run HDFS: a name node and a data node."""
    port = lasting_port()
    path = ":".join(map(str, hdfs_jars()))
    manager = "org.apache.hadoop.test.MiniDFSClusterManager"
    written = folder / "written"
    options = ["-format", "-nnport", str(port), "-datanodes", "1", "-writeDetails", str(written)]
    with process(["java", "-cp", path, manager, *options], folder, written.exists):
        yield Store(f"hdfs://{HOST}:{port}/journal")


@contextlib.contextmanager
def s3(folder: Path) -> Generator[Store]:
    """Run an object store with a bucket: SeaweedFS, or moto if there is only that."""
    port = lasting_port()
    if shutil.which("weed") is not None:
        ports = {name: str(lasting_port()) for name in ("master", "volume", "filer")}
        given = [f"-{name}.port={number}" for name, number in ports.items()]
        kept = [f"-dir={folder}", f"-ip={HOST}", "-s3", f"-s3.port={port}", "-volume.max=8"]
        command = ["weed", "server", *kept, *given]
    elif shutil.which("moto_server") is not None:
        command = ["moto_server", "-H", HOST, "-p", str(port)]
    else:
        pytest.skip("there is no weed (SeaweedFS) and no moto_server on the path")
    server = f"http://{HOST}:{port}"
    with process(command, folder, lambda: answers(f"{server}/journals", "PUT")):
        settings = {
            "fs.s3a.endpoint": server,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": "any",
            "fs.s3a.secret.key": "secret",
        }
        yield Store("s3a://journals/journal", settings, s3_jars())


@contextlib.contextmanager
def standalone(folder: Path) -> Generator[str]:
    """Run a Spark cluster of its own: a master and two workers; give the master's URL."""
    run = str(SPARK / "bin" / "spark-class")
    port, page = lasting_port(), lasting_port()
    url = f"spark://{HOST}:{port}"
    deploy = "org.apache.spark.deploy"
    where = ["--host", HOST, "--port", str(port), "--webui-port", str(page)]
    with contextlib.ExitStack() as stack:
        state = f"http://{HOST}:{page}/json/"
        master = [run, f"{deploy}.master.Master", *where]
        stack.enter_context(process(master, folder / "master", lambda: answers(state)))
        for number in range(2):
            here = folder / f"worker-{number}"
            own = ["--host", HOST, "--cores", "1", "--memory", "512m", "--work-dir", str(here)]
            worker = [run, f"{deploy}.worker.Worker", *own, "--webui-port", "0", url]
            stack.enter_context(process(worker, here, lambda: True))
        deadline = time.monotonic() + STARTING
        while _alive(state) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield url


def _alive(state: str) -> int:
    with urllib.request.urlopen(state, timeout=5) as answer:
        said: bytes = answer.read()
        return said.count(b'"ALIVE"') - 1
