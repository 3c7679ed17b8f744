"""The measured servers: finding, configuring, starting and stopping each.

Every measurement starts a fresh server with its own defaults, except for its port, its directory
and persistence (off everywhere), on its own core.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 120.0
"""RabbitMQ starts in eight seconds: three of a core's, and three to six in which its MQTT plugin
waits for others to make a cluster with. Where it has to share the core it takes five times that.
One that ends instead is noticed at once."""

STOP_SECONDS = 10.0
JAVA_SECONDS = 60.0
ERLANG_SECONDS = 120.0
"""Those of RabbitMQ; a broker in a JVM ends as slowly as it starts, too."""

SETTLING_SECONDS = 5.0

BUILT = ROOT / "build" / "peers"
"""Where README.md has servers built or unpacked that neither Debian nor PyPI has."""

# First what was built, and what PyPI's packages brought (Debian's nats-server is years older); and
# Debian installs servers where an ordinary user's PATH does not look.
SEARCH_PATH = os.pathsep.join(
    [
        str(BUILT),
        sysconfig.get_path("scripts"),
        os.environ.get("PATH", ""),
        "/usr/local/sbin",
        "/usr/sbin",
        "/sbin",
    ]
)


class ServerError(Exception):
    """A server could not be started, or did not end as it should; the message says why."""


@dataclasses.dataclass(frozen=True)
class Running:
    """A server that accepts connections."""

    ports: Mapping[str, int]
    """Where it listens, by the name of the protocol."""

    pid: int

    page: str = ""
    """The URL of its pages, without a slash at the end; "" if it has none."""

    @property
    def port(self) -> int:
        """The port of the server's own protocol, which is its first."""
        return next(iter(self.ports.values()))


@dataclasses.dataclass(frozen=True)
class Windows:
    """How many messages the generator may have in flight to a server's slowest subscriber.

    A window has to be deep enough that the server is never idle, and no deeper than what it holds
    for a subscriber without dropping messages or cutting the subscriber off.
    """

    few: int
    """With at most nine subscribers."""

    many: int
    """With more."""

    reason: str

    def of(self, subscribers: int) -> int:
        """Return the window for that many subscribers."""
        return self.few if subscribers <= 9 else self.many


DEEP = Windows(
    few=8000,
    many=2000,
    reason="deep enough to keep the server busy; at 100 subscribers 2000 messages in flight to "
    "each are 40 MB already",
)
SHALLOW = Windows(
    few=500,
    many=500,
    reason="mosquitto drops QoS 0 messages for a subscriber that has 1000 of them queued "
    "(max_queued_messages)",
)

UNHURRIED = Windows(
    few=500,
    many=100,
    reason="RabbitMQ and amqtt lose nothing however many are in flight (8000 were tried), but what "
    "they queue costs them: at 8000 a delivery took them up to half as much CPU again as at 500; "
    "and at 100 subscribers a hundred messages keep them busy for most of a second",
)
PATIENT = Windows(
    few=8000,
    many=500,
    reason="the channels are bounded, and who publishes waits: nothing is lost and nothing grows; "
    "at 100 subscribers 500 messages keep it busy for seconds",
)


@contextlib.contextmanager
def pinned(core: int | None) -> Generator[None]:
    """Let the processes started inside run on ``core`` alone (None: wherever they like).

    A child inherits the affinity of the thread that starts it, and so do all its threads; set
    afterwards, from outside, it would miss the threads that were already there.
    """
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    """Return a TCP port on loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    """Say whether somebody accepts connections on this port of loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def last_lines(log: Path, count: int = 5) -> str:
    """Return the end of a log, to be shown in an error message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])


@dataclasses.dataclass(frozen=True)
class Server:
    """A server program that takes its port on the command line or in a file."""

    name: str
    protocol: str
    program: str
    arguments: Callable[[Path, int], list[str]]
    """From an empty directory and a port to the program's arguments."""

    version_argument: str
    """"": `peers/fetch.py` has noted its version."""

    windows: Windows
    package: str = ""
    """What Debian calls the package it is in."""

    remedy: str = ""
    """How else it is had."""

    stop_seconds: float = STOP_SECONDS
    needs: Path | None = None
    """A folder without which the program is of no use."""

    warmup: float | None = None
    """Seconds of load until it is as fast as it gets; None: what the load has."""

    wildcards: bool = True
    """Whether a subscription may be to a pattern of topics."""

    def speaks(self, protocol: str) -> str | None:
        """Return the protocol to drive it with where the relay is driven with ``protocol``.

        A peer is driven with its own, whatever the relay speaks.
        """
        return self.protocol

    def missing(self) -> str | None:
        """Say in a sentence what is missing to run this server; None if nothing is."""
        found = shutil.which(self.program, path=SEARCH_PATH) is not None
        if found and self.needs is not None and not self.needs.exists():
            return f"{self.name} is left out: there is no {self.needs.name}{self.remedy}."
        if not found:
            remedy = f" (Debian: apt install {self.package})" if self.package else self.remedy
            return f"{self.name} is left out: there is no {self.program} on the PATH{remedy}."
        return None

    def version(self) -> str:
        """Return what the program says about its version."""
        found = shutil.which(self.program, path=SEARCH_PATH) or self.program
        if not self.version_argument:
            return (BUILT / f"{self.name.partition('+')[0]}.version").read_text().strip()
        done = subprocess.run(
            [found, self.version_argument], capture_output=True, text=True, check=False
        )
        return (done.stdout or done.stderr).splitlines()[0].strip()

    @contextlib.contextmanager
    def running(self, scratch: Path, core: int | None) -> Generator[Running]:
        """Start the server, wait until it accepts connections; stop it at the end of the block.

        Raises:
            ServerError: It did not start, or did not end within ``STOP_SECONDS`` of SIGTERM.
        """
        port = free_port()
        found = shutil.which(self.program, path=SEARCH_PATH) or self.program
        command = [found, *self.arguments(scratch, port)]
        with started(self.name, command, scratch, core, stop_seconds=self.stop_seconds) as process:
            wait_until_it_accepts(self.name, process, port)
            yield Running({self.protocol: port}, process.pid)


def wait_until_it_accepts(name: str, process: subprocess.Popen[bytes], port: int) -> None:
    """Return when somebody accepts connections on ``port``.

    Raises:
        ServerError: Nobody did for `START_SECONDS`, or the process ended.
    """
    deadline = time.monotonic() + START_SECONDS
    while not accepts(port):
        if process.poll() is not None:
            raise ServerError(f"{name} ended with {process.returncode} at its start")
        if time.monotonic() > deadline:
            raise ServerError(f"{name} did not accept connections on port {port}")
        time.sleep(0.02)


@contextlib.contextmanager
def started(
    name: str,
    command: list[str],
    scratch: Path,
    core: int | None,
    *,
    piped: bool = False,
    environment: Mapping[str, str] | None = None,
    stop_seconds: float = STOP_SECONDS,
) -> Generator[subprocess.Popen[bytes]]:
    """Run ``command`` with its output in a log (stdout in a pipe, if ``piped``), then end it.

    What ``environment`` holds is added to this process's own.

    Raises:
        ServerError: It cannot be run, or did not end within ``stop_seconds`` of SIGTERM; and those
            of the block, with the end of the log added.
    """
    log = scratch / f"{name}.log"
    with log.open("wb") as output, pinned(core):
        stdout = subprocess.PIPE if piped else output
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=output,
                env={**os.environ, **(environment or {})},
            )
        except OSError as error:
            raise ServerError(f"cannot run {command[0]}: {error}") from error
    try:
        yield process
    except ServerError as error:
        process.kill()
        process.communicate()
        raise ServerError(f"{error}; the end of its log:\n{last_lines(log)}") from error
    except BaseException:
        process.kill()
        process.communicate()
        raise
    process.terminate()
    try:
        process.communicate(timeout=stop_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ServerError(
            f"{name} was still running {stop_seconds:g} s after SIGTERM; "
            f"the end of its log:\n{last_lines(log)}"
        ) from None


@dataclasses.dataclass(frozen=True)
class CommandServer:
    """Any MQTT server, started by a command line in which ``{port}`` stands for its port."""

    command: str
    name: str = "relay"
    protocol: str = "mqtt"
    windows: Windows = DEEP
    wildcards: bool = True

    def speaks(self, protocol: str) -> str | None:
        """Return ``protocol`` if it speaks it, which is so with MQTT alone; else None."""
        return protocol if protocol == self.protocol else None

    def missing(self) -> str | None:
        """Return None: whether the command can be run is seen when it is."""
        return None

    def version(self) -> str:
        """Return the command, which is all that is known about it."""
        return f"started by `{self.command}`"

    @contextlib.contextmanager
    def running(self, scratch: Path, core: int | None) -> Generator[Running]:
        """Start the command; as ``Server.running``."""
        program, *arguments = shlex.split(self.command)

        def with_port(_scratch: Path, port: int) -> list[str]:
            return [word.replace("{port}", str(port)) for word in arguments]

        server = Server(self.name, self.protocol, program, with_port, "", self.windows)
        with server.running(scratch, core) as running:
            yield running


CREDIT_FLOW = ("-m", "experiments.credit_flow")
CLASSIC_PAGING = ("-m", "experiments.classic_paging")
"""What the interpreter runs for a relay with one of these, in place of the package's own."""


class Missing(Protocol):
    """Whatever may be missing here."""

    def missing(self) -> str | None:
        """Say in a sentence what is missing to run it; None if nothing is."""
        ...


MissingT = TypeVar("MissingT", bound=Missing)


def those_here(servers: Iterable[MissingT]) -> list[MissingT]:
    """Return the servers that are here; say on stderr which are not."""
    found: list[MissingT] = []
    for server in servers:
        sentence = server.missing()
        if sentence is None:
            found.append(server)
        else:
            print(sentence, file=sys.stderr)
    return found


def from_the_root(root: Path | None = None) -> dict[str, str]:
    """Return what an interpreter needs in its environment to find a checkout's code from anywhere.

    That is its package, before any that is installed, and `experiments`. ``root`` is of another
    checkout than this one.
    """
    root = root or ROOT
    paths = (str(root / "src"), str(root), os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


@dataclasses.dataclass(frozen=True)
class Relay:
    """The clearfunds relay of this checkout, with its default limits."""

    name: str = "relay"
    protocols: tuple[str, ...] = ("mqtt", "syndicate")
    windows: Windows = DEEP
    options: tuple[str, ...] = ()
    """Further options of ``clearfunds relay``; ``{scratch}`` in them is its empty directory."""

    program: tuple[str, ...] = ("-m", "clearfunds", "relay")
    """What the interpreter runs."""

    wildcards: bool = True
    root: Path | None = None
    """Another checkout to take it from; None: this one."""

    def speaks(self, protocol: str) -> str | None:
        """Return ``protocol`` if it speaks it; else None."""
        return protocol if protocol in self.protocols else None

    def missing(self) -> str | None:
        """Say in a sentence what is missing to run the relay; None if nothing is."""
        check = [sys.executable, "-m", "clearfunds", "relay", "--help"]
        done = subprocess.run(check, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            return f"the relay is left out: `python -m clearfunds relay` does not run ({reason})."
        return None

    def version(self) -> str:
        """Return the version of clearfunds."""
        return f"clearfunds {importlib.metadata.version('clearfunds')}"

    @contextlib.contextmanager
    def running(self, scratch: Path, core: int | None) -> Generator[Running]:
        """Start the relay, and read from its stdout where it listens and when it is ready.

        Raises:
            ServerError: It did not become ready, did not end, or ended with a status but 0.
        """
        listen = [f"--listen={protocol}+tcp://127.0.0.1:0" for protocol in self.protocols]
        command = [sys.executable, *self.program, *listen]
        command += ["--http=127.0.0.1:0"]
        command += [option.replace("{scratch}", str(scratch)) for option in self.options]
        environment = from_the_root(self.root)
        with started(
            self.name, command, scratch, core, piped=True, environment=environment
        ) as process:
            assert process.stdout is not None
            ports, page = self._ports(process.stdout)
            yield Running(ports, process.pid, page)
        if process.returncode != 0:
            raise ServerError(
                f"the relay ended with status {process.returncode} after SIGTERM; "
                f"the end of its log:\n{last_lines(scratch / f'{self.name}.log')}"
            )

    def _ports(self, stdout: IO[bytes]) -> tuple[dict[str, int], str]:
        """Read JSON lines up to ``{"ready": true}``; return ports by protocol, and the pages."""
        found: dict[str, int] = {}
        page = ""
        for line in lines_until(stdout, time.monotonic() + START_SECONDS):
            said: dict[str, Any] = json.loads(line)
            scheme, _, address = str(said.get("listening", "")).partition("://")
            page = str(said.get("http", page)).rstrip("/")
            if scheme.endswith("+tcp"):
                found[scheme.removesuffix("+tcp")] = int(address.rpartition(":")[2])
            if said.get("ready"):
                if missing := [name for name in self.protocols if name not in found]:
                    raise ServerError(f"the relay does not listen for {', '.join(missing)}")
                return {name: found[name] for name in self.protocols}, page
        raise ServerError("the relay did not say that it is ready")


def lines_until(stream: IO[bytes], deadline: float) -> Iterator[bytes]:
    """Yield the lines of a pipe until it ends or time is up."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            data = os.read(stream.fileno(), 65536)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            yield from lines


def configured(file: Path, text: str) -> list[str]:
    """Write a configuration; return the arguments of a server that reads it."""
    file.write_text(text)
    return ["-c", str(file)]


def _mosquitto_arguments(scratch: Path, port: int) -> list[str]:
    return configured(
        scratch / "mosquitto.conf",
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n",
    )


def _nats_arguments(_scratch: Path, port: int) -> list[str]:
    return ["--addr", "127.0.0.1", "--port", str(port)]


KEEPING = "user root\nmax_queued_messages 0\n"
"""mosquitto would drop what a session has queued beyond a thousand messages. Started by root it
would become another user, who cannot write to the directory."""


def _new_mosquitto_arguments(*, durable: bool) -> Callable[[Path, int], list[str]]:
    """Return what gives Debian unstable's mosquitto its own libraries, and a configuration."""

    def arguments(scratch: Path, port: int) -> list[str]:
        (library,) = MOSQUITTO_FOLDER.glob("usr/lib/*/libmosquitto.so.1")
        plugin = library.parent / "mosquitto" / "mosquitto_persist_sqlite.so"
        config = configured(
            scratch / "mosquitto.conf",
            f"listener {port} 127.0.0.1\nallow_anonymous true\n"
            + (f"{KEEPING}persistence_location {scratch}\nplugin {plugin}\n" if durable else ""),
        )
        program = MOSQUITTO_FOLDER / "usr/sbin/mosquitto"
        return ["--library-path", str(library.parent), str(program), *config]

    return arguments


def _durable_mosquitto_arguments(scratch: Path, port: int) -> list[str]:
    return configured(
        scratch / "mosquitto.conf",
        f"listener {port} 127.0.0.1\nallow_anonymous true\n{KEEPING}"
        f"persistence true\npersistence_location {scratch}/\n",
    )


def _nats_mqtt_arguments(scratch: Path, port: int) -> list[str]:
    # Its own port is anything; what is measured is its MQTT server, which needs JetStream.
    return configured(
        scratch / "nats.conf",
        f'server_name: bench\nlisten: "127.0.0.1:-1"\njetstream {{ store_dir: "{scratch}" }}\n'
        f'mqtt {{ listen: "127.0.0.1:{port}" }}\n',
    )


def _rumqttd_arguments(scratch: Path, port: int) -> list[str]:
    # The values of its own example.
    config = configured(
        scratch / "rumqttd.toml",
        "id = 0\n[router]\nid = 0\nmax_connections = 10010\nmax_outgoing_packet_count = 200\n"
        "max_segment_size = 104857600\nmax_segment_count = 10\n"
        f'[v4.1]\nname = "v4-1"\nlisten = "127.0.0.1:{port}"\nnext_connection_delay_ms = 1\n'
        "[v4.1.connections]\nconnection_timeout_ms = 60000\nmax_payload_size = 20480\n"
        "max_inflight_count = 100\ndynamic_filters = true\n",
    )
    return [*config, "-q"]


HIVEMQ_QUEUE = (
    "<mqtt><queued-messages><max-queue-size>10000000</max-queue-size></queued-messages></mqtt>"
)
"""It, too, would drop what a session has queued beyond a thousand messages."""


def _hivemq_arguments(*, durable: bool) -> Callable[[Path, int], list[str]]:
    def arguments(scratch: Path, port: int) -> list[str]:
        for name in ("conf", "data", "extensions"):
            (scratch / name).mkdir()
        mode = "file" if durable else "in-memory"
        (scratch / "conf" / "config.xml").write_text(
            f"<hivemq><listeners><tcp-listener><port>{port}</port>"
            "<bind-address>127.0.0.1</bind-address></tcp-listener></listeners>"
            f"<persistence><mode>{mode}</mode></persistence>{HIVEMQ_QUEUE}"
            "<anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics>"
            "</hivemq>"
        )
        return ["-cp", f"{HIVEMQ_FOLDER / 'lib'}/*:{HIVEMQ_FOLDER}", "HiveMQ", str(scratch)]

    return arguments


def _artemis_arguments(*, durable: bool) -> Callable[[Path, int], list[str]]:
    """Return what runs a broker that Artemis creates: it writes its folder's name into scripts."""

    def arguments(scratch: Path, port: int) -> list[str]:
        broker = scratch / "broker"
        (program,) = ARTEMIS_FOLDER.glob("apache-artemis-*/bin/artemis")
        other = (f"--no-{name}-acceptor" for name in ("amqp", "hornetq", "stomp"))
        identity = ("--user=bench", "--password=bench", "--allow-anonymous", "--silent")
        only = ("--no-web", "--no-autotune")  # it would try how fast the disk is
        command = [str(program), "create", str(broker), *identity, *only, *other]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise ServerError(f"artemis created no broker: {made.stdout}{made.stderr}")
        config = broker / "etc" / "broker.xml"
        text = config.read_text()
        text = re.sub(r'<acceptor name="artemis">.*</acceptor>', "", text)
        text = text.replace("tcp://0.0.0.0:1883", f"tcp://127.0.0.1:{port}")
        if not durable:
            text = text.replace("persistence-enabled>true", "persistence-enabled>false")
        config.write_text(text)
        return [str(broker / "bin" / "artemis"), "run"]

    return arguments


def _mochi_arguments(_scratch: Path, port: int) -> list[str]:
    # Its other listeners cannot be left out; they take any port.
    return ["-tcp", f"127.0.0.1:{port}", "-ws", "127.0.0.1:0", "-info", "127.0.0.1:0"]


def _redis_arguments(scratch: Path, port: int) -> list[str]:
    settings = {"port": str(port), "bind": "127.0.0.1", "dir": str(scratch), "appendonly": "no"}
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return [*words, "--save", ""]


@dataclasses.dataclass(frozen=True)
class PythonServer:
    """An MQTT server in Python: a package's own, or one of ``benchmarks/peers/``.

    It runs under this interpreter, as the relay does.
    """

    name: str
    arguments: Callable[[Path, int], list[str]]
    """From an empty directory and a port to the interpreter's arguments."""

    built_on: str | None
    """The package of PyPI that is measured; None: Python alone."""

    windows: Windows
    wildcards: bool = True
    protocol: str = "mqtt"

    def speaks(self, protocol: str) -> str | None:
        """Return the protocol to drive it with: as ``Server.speaks``."""
        return self.protocol

    def missing(self) -> str | None:
        """Say in a sentence what is missing to run this server; None if nothing is."""
        if self.built_on is None:
            return None
        try:
            importlib.metadata.version(self.built_on)
        except importlib.metadata.PackageNotFoundError:
            return (
                f"{self.name} is left out: the package {self.built_on} is not installed "
                "(pip install 'clearfunds[bench]')."
            )
        return None

    def version(self) -> str:
        """Return the version of what is measured."""
        if self.built_on is None:
            return f"Python {platform.python_version()}"
        return f"{self.built_on} {importlib.metadata.version(self.built_on)}"

    @contextlib.contextmanager
    def running(self, scratch: Path, core: int | None) -> Generator[Running]:
        """Start the server; as ``Server.running``."""
        port = free_port()
        command = [sys.executable, *self.arguments(scratch, port)]
        with started(self.name, command, scratch, core) as process:
            wait_until_it_accepts(self.name, process, port)
            yield Running({self.protocol: port}, process.pid)


def _amqtt_arguments(scratch: Path, port: int) -> list[str]:
    # Its own plugins but for the one that publishes $SYS topics and those that log every packet.
    config = scratch / "amqtt.yaml"
    config.write_text(
        f"listeners: {{default: {{type: tcp, bind: '127.0.0.1:{port}'}}}}\n"
        "plugins:\n"
        "  amqtt.plugins.authentication.AnonymousAuthPlugin: {allow_anonymous: true}\n"
    )
    return ["-m", "amqtt.scripts.broker_script", "-c", str(config)]


def _of_peers(script: str) -> Callable[[Path, int], list[str]]:
    return lambda _scratch, port: [str(PEERS_FOLDER / script), str(port)]


@dataclasses.dataclass(frozen=True)
class RabbitMQ:
    """RabbitMQ with AMQP or its MQTT plugin, as a node of its own that shares nothing.

    Its files lie in the scratch directory, and so does the cookie; Erlang's port mapper (epmd) is
    one of its own and listens, like the node, on loopback alone. It needs no special user.
    """

    windows: Windows
    name: str = "rabbitmq"
    protocol: str = "mqtt"
    wildcards: bool = True

    def speaks(self, protocol: str) -> str | None:
        """Return the protocol to drive it with: as ``Server.speaks``."""
        return self.protocol

    def _script(self) -> str | None:
        # What Debian has in /usr/sbin changes to a user of its own, and needs to be root for that.
        folders = os.pathsep.join(["/usr/lib/rabbitmq/bin", SEARCH_PATH])
        return shutil.which("rabbitmq-server", path=folders)

    def missing(self) -> str | None:
        """Say in a sentence what is missing to run this server; None if nothing is."""
        if self._script() is None or shutil.which("epmd", path=SEARCH_PATH) is None:
            return (
                "rabbitmq is left out: there is no rabbitmq-server, or no Erlang beside it "
                "(Debian: apt install rabbitmq-server)."
            )
        return None

    def version(self) -> str:
        """Return its version, which its folder is named by: to ask it takes seconds."""
        script = Path(self._script() or "").resolve()
        named = [part for part in script.parts if part.startswith("rabbitmq_server-")]
        return f"RabbitMQ {named[0].partition('-')[2]}" if named else "RabbitMQ"

    @contextlib.contextmanager
    def running(self, scratch: Path, core: int | None) -> Generator[Running]:
        """Start a node and its port mapper, wait for its listener; as ``Server.running``."""
        port, distribution, mapper = free_port(), free_port(), free_port()
        if self.protocol == "amqp":
            listeners, plugins = f"listeners.tcp.1 = 127.0.0.1:{port}\n", "[]"
        else:
            plugins = "[rabbitmq_mqtt]"
            listeners = (
                "listeners.tcp = none\n"
                f"mqtt.listeners.tcp.1 = 127.0.0.1:{port}\n"
                "mqtt.allow_anonymous = true\n"
            )
        files = {
            "rabbitmq.conf": f"{listeners}"
            "log.console = true\n"
            "log.console.use_colors = off\n"
            "log.file = false\n",
            "enabled_plugins": f"{plugins}.\n",
            # Without these it would read those in /etc.
            "advanced.config": "[].\n",
            "rabbitmq-env.conf": "",
        }
        for name, text in files.items():
            (scratch / name).write_text(text)
        environment = {
            "HOME": str(scratch),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapper),
            # Erlang in place of the shell script that started it, which would stay to pass on
            # signals: the process that is measured and ended is the node itself.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(scratch / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(scratch / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(scratch / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(scratch / "conf.d"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(scratch / "enabled_plugins"),
            "RABBITMQ_LOG_BASE": str(scratch / "log"),
            "RABBITMQ_MNESIA_BASE": str(scratch / "mnesia"),
            "RABBITMQ_NODENAME": f"clearfunds-{port}@localhost",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        epmd = shutil.which("epmd", path=SEARCH_PATH) or "epmd"
        script = self._script() or "rabbitmq-server"
        with (
            started("epmd", [epmd], scratch, core, environment=environment),
            started(
                self.name,
                [script, "-noinput"],
                scratch,
                core,
                environment=environment,
                stop_seconds=ERLANG_SECONDS,
            ) as process,
        ):
            wait_until_it_accepts(self.name, process, port)
            # It listens before it has finished, and what is left would be counted as the load's.
            deadline = time.monotonic() + SETTLING_SECONDS
            log = scratch / f"{self.name}.log"
            while b"startup complete" not in log.read_bytes() and time.monotonic() < deadline:
                time.sleep(0.02)
            yield Running({self.protocol: port}, process.pid)


PEERS_FOLDER = Path(__file__).resolve().parent / "peers"

MOSQUITTO = Server(
    "mosquitto", "mqtt", "mosquitto", _mosquitto_arguments, "-h", SHALLOW, package="mosquitto"
)
MOSQUITTO_FOLDER = BUILT / "mosquitto-new"
HIVEMQ_FOLDER = BUILT / "hivemq"
ARTEMIS_FOLDER = BUILT / "artemis"
FETCH = " (python benchmarks/peers/fetch.py {})"
NATS = Server(
    "nats",
    "nats",
    "nats-server",
    _nats_arguments,
    "--version",
    DEEP,
    remedy=" (pip install 'clearfunds[bench]')",
)
MOCHI = Server(
    "mochi",
    "mqtt",
    "mochi",
    _mochi_arguments,
    "",
    UNHURRIED,
    remedy=FETCH.format("mochi"),
)
REDIS = Server(
    "redis", "redis", "redis-server", _redis_arguments, "--version", DEEP, package="redis-server"
)
_LOADER = str(MOSQUITTO_FOLDER / "usr/lib64/ld-linux-x86-64.so.2")
MOSQUITTO_NEW = Server(
    "mosquitto-new",
    "mqtt",
    _LOADER,
    _new_mosquitto_arguments(durable=False),
    "",
    SHALLOW,
    remedy=FETCH.format("mosquitto-new"),
)
RUMQTTD = Server(
    "rumqttd",
    "mqtt",
    "rumqttd",
    _rumqttd_arguments,
    "",
    UNHURRIED,
    remedy=FETCH.format("rumqttd"),
)
HIVEMQ = Server(
    "hivemq",
    "mqtt",
    "java",
    _hivemq_arguments(durable=False),
    "",
    UNHURRIED,
    remedy=FETCH.format("hivemq"),
    stop_seconds=JAVA_SECONDS,
    needs=HIVEMQ_FOLDER,
    warmup=5.0,
)
ARTEMIS = Server(
    "artemis",
    "mqtt",
    "sh",
    _artemis_arguments(durable=False),
    "",
    UNHURRIED,
    remedy=FETCH.format("artemis"),
    stop_seconds=JAVA_SECONDS,
    needs=ARTEMIS_FOLDER,
    warmup=5.0,
)

DURABLE = (
    dataclasses.replace(
        MOSQUITTO, name="mosquitto+autosave", arguments=_durable_mosquitto_arguments
    ),
    dataclasses.replace(
        MOSQUITTO_NEW, name="mosquitto-new+sqlite", arguments=_new_mosquitto_arguments(durable=True)
    ),
    dataclasses.replace(
        NATS, name="nats+jetstream", protocol="mqtt", arguments=_nats_mqtt_arguments
    ),
    dataclasses.replace(HIVEMQ, name="hivemq+file", arguments=_hivemq_arguments(durable=True)),
    dataclasses.replace(
        ARTEMIS, name="artemis+journal", arguments=_artemis_arguments(durable=True)
    ),
)
"""The same with persistence as each has it by default when it is switched on."""

RABBITMQ = RabbitMQ(UNHURRIED)
RABBITMQ_AMQP = RabbitMQ(UNHURRIED, protocol="amqp")
"""The same program, by the protocol that is its own."""

AMQTT = PythonServer("amqtt", _amqtt_arguments, "amqtt", UNHURRIED)
BROADCASTER = PythonServer(
    "broadcaster", _of_peers("broadcaster_server.py"), "broadcaster", DEEP, wildcards=False
)
TRIO = PythonServer("trio", _of_peers("accepting_server.py"), "trio", DEEP)
"""What Trio costs for a client that connects."""
BARE = PythonServer("bare", _of_peers("routing_server.py"), None, DEEP)
"""What Python and the kernel cost, whatever a server does beside routing."""
CHANNEL = PythonServer("channel", _of_peers("channel_server.py"), "trio", PATIENT)

BROKERS = (MOSQUITTO, NATS, REDIS)
"""The servers compared with the relay by default: they start fast, and budgets name them."""

PEERS = (*BROKERS, RABBITMQ, AMQTT, BROADCASTER, CHANNEL)

TODAY = (MOSQUITTO, MOSQUITTO_NEW, NATS, MOCHI, RUMQTTD, HIVEMQ, ARTEMIS, BARE)
"""Those compared under many publishers, the fast ones first; and what Python alone costs."""

AnyServer = Server | CommandServer | Relay | PythonServer | RabbitMQ
