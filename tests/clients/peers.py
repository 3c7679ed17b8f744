"""Client libraries that others have written, each driven by a small program in its language.

A program is one client. It reads a command a line from its standard input, and writes an event a
line to its standard output, both as JSON:

    connect     port, version, id, clean, keep_alive; if wanted expiry, user, password, will, manual
                (acknowledge nothing), maximum_packet, aliases (that the relay may use), scram
      connack   code, present, assigned, keep_alive
    subscribe   filter, qos; if wanted identifier
      suback    codes
    publish     topic, payload, qos, retain, properties
      puback    code; at QoS 0, when it is sent
    disconnect
      closed
      message   topic, payload, qos, retain, and what the library tells of dup and of properties;
                alias, if the library leaves it to its user to look that up

The programs and the packages that they need are put into `build/clients`, and stay there.
"""

from __future__ import annotations

import fcntl
import functools
import json
import math
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from tests.programs import needs
from tests.transports.peers import SECONDS, RunningRelay

SOURCES: Final = Path(__file__).parent
BUILT: Final = SOURCES.parents[1] / "build" / "clients"

BUILDING: Final = 600
"""Seconds that fetching or compiling one client's packages may take."""

STARTING: Final = 2 * SECONDS
"""Seconds for any event: a JVM starts slowly on a machine that does something else."""

Command = tuple[str, ...]


@attrs.frozen
class Language:
    """How one language's program is made, in its folder below `BUILT`, and started there."""

    name: str
    run: Command
    tools: tuple[str, ...] = ()
    fetch: Command = ()
    """Has the packages brought. If that fails the tests are skipped: they may be out of reach."""
    compile: Command = ()
    """Makes the program of them. If that fails the tests fail."""

    @property
    def folder(self) -> Path:
        return BUILT / self.name

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """Of tests in it: they are long if something has to be brought first."""
        return [pytest.mark.long, needs(*self.tools)] if self.tools else []


JVM: Final = ("java", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", "classes:lib/*")

PYTHON: Final = Language("python", (sys.executable, "client.py"))
JAVASCRIPT: Final = Language(
    "javascript",
    ("node", "client.js"),
    ("node", "npm"),
    ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"),
)
GO: Final = Language(
    "go",
    ("./client",),
    ("go",),
    ("go", "mod", "download"),
    ("go", "build", "-o", "client", "."),
)
RUST: Final = Language(
    "rust",
    ("target/debug/five",),
    ("cargo",),
    ("cargo", "fetch"),
    ("cargo", "build", "--quiet", "--offline"),
)
GO_311: Final = attrs.evolve(GO, name="go311")
RUST_311: Final = attrs.evolve(RUST, run=("target/debug/three",))
JAVA: Final = Language(
    "java",
    (*JVM, "Five"),
    ("java", "javac", "mvn"),
    ("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"),
    ("javac", "-cp", "lib/*", "-d", "classes", "Five.java", "Proof.java", "Three.java"),
)
JAVA_311: Final = attrs.evolve(JAVA, run=(*JVM, "Three"))


@attrs.frozen
class Kind:
    """One library in one version of the protocol."""

    language: Language
    version: int
    can: frozenset[str] = frozenset()
    """Of `FEATURES`, those that it has."""

    def __str__(self) -> str:
        return f"{self.language.name}-{self.version}"


FEATURES: Final = frozenset({"dup", "identifiers", "aliases", "anonymous", "scram"})
"""Which not all libraries have: they tell of DUP, of subscription identifiers, let their user
choose a topic alias, connect without an identifier, have hooks for AUTH."""

KINDS: Final = (
    Kind(PYTHON, 5, FEATURES - {"scram"}),
    Kind(PYTHON, 4, frozenset({"dup"})),
    Kind(JAVASCRIPT, 5, FEATURES - {"scram"}),
    Kind(JAVASCRIPT, 4, frozenset({"dup"})),
    Kind(GO, 5, FEATURES),
    Kind(GO_311, 4, frozenset({"dup"})),
    Kind(RUST, 5, FEATURES - {"scram"}),
    Kind(RUST_311, 4, frozenset({"dup"})),
    Kind(JAVA, 5, frozenset({"anonymous", "scram"})),
    Kind(JAVA_311, 4),
)


def parameters(version: int | None = None, *features: str) -> list[Any]:
    """Return the kinds that speak a version and have features, each with its marks."""
    return [
        pytest.param(
            kind,
            id=str(kind),
            marks=[]
            if kind.language is PYTHON
            else [pytest.mark.long, needs(*kind.language.tools)],
        )
        for kind in KINDS
        if version in {None, kind.version} and kind.can.issuperset(features)
    ]


@contextmanager
def _alone(language: Language) -> Generator[None]:
    """Keep other processes that run tests from building it at the same time."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / f"{language.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: Command, folder: Path) -> str | None:
    """Run a command; what it has written, if it fails."""
    if not command:
        return None
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILDING, check=False
    )
    return f"{' '.join(command)}: {done.stdout}{done.stderr}" if done.returncode else None


@functools.cache
def built(language: Language) -> str | None:
    """Build a program, unless it has been; why its packages cannot be had, if they cannot.

    Raises:
        AssertionError: They can, but it cannot be compiled.
    """
    source, folder = SOURCES / language.name, language.folder
    files = sorted(path for path in source.rglob("*") if path.is_file())
    wanted = "".join(path.read_text() for path in files)
    with _alone(language):
        made = folder / ".made"
        if made.exists() and made.read_text() == wanted:
            return None
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        if (missing := _run(language.fetch, folder)) is not None:
            return missing
        failure = _run(language.compile, folder)
        assert failure is None, failure
        made.write_text(wanted)
    return None


class Client:
    """A client, which does what it is told; its events are kept until they are asked for."""

    def __init__(self, kind: Kind, process: trio.Process) -> None:
        self.kind = kind
        self.process = process
        self.events: list[dict[str, Any]] = []
        self.unread = b""

    async def do(self, what: str, **more: Any) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(json.dumps({"do": what} | more).encode() + b"\n")

    async def event(self, what: str) -> dict[str, Any]:
        """Wait for the next event of this kind."""
        with trio.fail_after(STARTING):
            while True:
                for event in self.events:
                    if event["event"] == what:
                        self.events.remove(event)
                        return event
                await self._read()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        more = await self.process.stdout.receive_some()
        assert more, f"{self.kind} has ended; before: {self.events}"
        *lines, self.unread = (self.unread + more).split(b"\n")
        self.events += [json.loads(line) for line in lines]

    async def connect(self, relay: RunningRelay, name: str = "c", **more: Any) -> dict[str, Any]:
        """Connect, and return what it was told; a clean session, unless something else is said."""
        said = {"version": self.kind.version, "clean": True, "keep_alive": 60} | more
        await self.do("connect", port=relay.port, id=name, **said)
        return await self.event("connack")

    async def subscribe(self, topics: str, qos: int = 1, **more: Any) -> list[int]:
        """Subscribe, and return the codes."""
        await self.do("subscribe", filter=topics, qos=qos, **more)
        codes: list[int] = (await self.event("suback"))["codes"]
        return codes

    async def send(
        self, topic: str, payload: str = "x", qos: int = 1, *, retain: bool = False, **more: Any
    ) -> None:
        """Have a message published."""
        said = {"topic": topic, "payload": payload, "qos": qos, "retain": retain}
        await self.do("publish", properties=more, **said)

    async def publish(self, *arguments: Any, **more: Any) -> int:
        """Publish a message, and return the code of the answer."""
        await self.send(*arguments, **more)
        code: int = (await self.event("puback"))["code"]
        return code

    async def message(self) -> dict[str, Any]:
        return await self.event("message")

    async def payloads(self, number: int) -> list[str]:
        """Return what the next messages say."""
        return [(await self.message())["payload"] for _ in range(number)]

    async def disconnect(self) -> None:
        await self.do("disconnect")
        await self.event("closed")

    async def kill(self) -> None:
        """End the process as it is, without a DISCONNECT."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def started(kind: Kind) -> AsyncGenerator[Client]:
    """Start a client that is not connected yet; it is killed in the end."""
    process = await trio.lowlevel.open_process(
        kind.language.run,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=kind.language.folder,
    )
    client = Client(kind, process)
    assert process.stdin is not None
    assert process.stdout is not None
    async with process.stdin, process.stdout:
        try:
            yield client
        finally:
            process.kill()
            with trio.CancelScope(shield=True, deadline=math.inf):
                await process.wait()


@asynccontextmanager
async def joined(
    relay: RunningRelay, kind: Kind, name: str = "c", **more: Any
) -> AsyncGenerator[Client]:
    """Start a client and connect it."""
    async with started(kind) as client:
        assert (await client.connect(relay, name, **more))["code"] == 0
        yield client
