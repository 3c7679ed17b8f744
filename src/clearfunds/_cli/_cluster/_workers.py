"""`clearfunds relay --workers N`: relays on the same ports, which are a cluster on this machine.

1. The parent binds the ports, and does not listen: they are its own as long as it runs, and each
   worker listens there when it has joined the cluster.
2. Workers have the parent's command line, environment and files, with options of their own in place
   of some. Their pages are for the parent only (`_forwarding.py`).
3. A worker that ends by itself, and the NATS server, is started again (`_restarts.py`).
"""

import fcntl
import logging
import os
import secrets
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from clearfunds.cluster import ClusterError, ClusterSettings
from clearfunds.pages import HttpLimits, Request, Response
from clearfunds.relay import Adjusting, RelaySettings
from clearfunds.relay._clustering import name_of_host
from clearfunds.relay._pages import PagesAddress, access_of
from clearfunds.relay._persistence import REPLICATED
from clearfunds.relay._relay import check_relay
from clearfunds.store._directory import LOCK as ONE_STORE
from clearfunds.transports import ListenURLError, TransportError
from clearfunds.transports._listener import Listener, ListenURL, open_listeners

from .._child import program_command
from .._errors import CommandFailedError, UsageError
from .._page import Visitor
from .._reloading import Arguments, Configuration, reload_files, reloads_of
from .._running import run_async, sentence_of, tell
from .._service import Service
from .._sources import PREFIX
from ._course import Course, run_course
from ._crowd_actions import CrowdActions
from ._ending import SIGNALS, Ending
from ._forwarding import ForwardingHandlers
from ._look import Looks
from ._nats import configure_nats_servers, find_nats_server, jetstream_ready
from ._own_options import Value, with_own
from ._pages import ClusterPages, serve_cluster_pages
from ._ports import LOOPBACK
from ._relays import until_it_knows
from ._restarts import Restarting, exposition
from ._worker import Worker

log = logging.getLogger("clearfunds.relay")

_TOKEN_BYTES: Final = 32
# Of a secret that only the parent and its children know: as many as a key of AES-256 has.

_NAME_CHARACTERS: Final = 61
# A relay's name has 64 at most, with the worker's number in it.

_LOCK: Final = "clearfunds-workers"
# The file in --store that the parent locks as long as its workers have their stores beside it.

OWN_OPTIONS: Final = (
    *("workers", "name", "listen", "reuse_port", "http", "http_token", "store", "journal"),
)
# Each worker has others than the user's.

_KNOW_SECONDS: Final = 60.0
# Workers that are ready have heard of each other within one.


@attrs.frozen
class Plan:
    """The wishes of the user."""

    argv: Sequence[str]
    """The command line, with the name of the command."""
    count: int
    """The number of workers."""
    settings: RelaySettings
    """The settings of the relay, with the files that have been read."""
    journal: Path | None
    """The directory of the journals."""
    read_again: Callable[[], Arguments] | None
    """Reads the options again; see `Configuration`."""
    given: Arguments
    """The options."""

    @property
    def store(self) -> Path | None:
        """The directory of the workers' stores; None: they have none, or they lie in JetStream."""
        return None if self.settings.store == REPLICATED else self.settings.store

    @property
    def starts_nats(self) -> bool:
        """Whether the cluster is this machine's alone."""
        return self.settings.cluster is None


def run_workers(plan: Plan) -> int:
    """Run workers until a signal ends them; return the exit status.

    Raises:
        UsageError: The options do not go with several workers, or cannot be served.
        CommandFailedError: A port, a directory or the NATS server is not available, or a process
            ends again and again.
    """
    settings = plan.settings
    name = settings.name or name_of_host()[:_NAME_CHARACTERS]
    try:
        urls = check_relay(settings)
        ClusterSettings("", f"{name}-{plan.count}", settings.cluster_name)
    except ListenURLError as error:
        raise UsageError(str(error)) from error
    except (TransportError, ClusterError) as error:
        raise CommandFailedError(str(error)) from error
    for url in urls:
        _check_that_it_is_shared(url)
    if plan.starts_nats:
        find_nats_server()
    with ExitStack() as stack:
        try:
            if plan.store is not None:
                _take_store(stack, plan.store, plan.count)
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="clearfunds-"))
            workers = Workers(plan, name, urls, Path(scratch))
            return run_async(workers.run)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise CommandFailedError(sentence_of(error)) from error


def _check_that_it_is_shared(url: ListenURL) -> None:
    """Raise UsageError for a listener that several processes cannot serve as one would."""
    why = ""
    if url.transport == "unix":
        why = "only TCP ports can be shared"
    elif url.protocol != "mqtt":
        # Neither assertions nor logs of ranges go from one relay of a cluster to another.
        why = "its clients meet only on one and the same relay"
    if why:
        msg = f"workers cannot share {url}: {why}; give it to another relay, without --workers"
        raise UsageError(msg)


def _take_store(stack: ExitStack, store: Path, count: int) -> None:
    """Make the directory of the workers' stores, and lock it for the length of `stack`.

    Raises:
        UsageError: It is the store of a single relay.
        CommandFailedError: Another process has it.
        OSError: It cannot be written.
    """
    if (store / ONE_STORE).exists():
        msg = (
            f"--store {store} is the store of a single relay: for --workers, move it to "
            f"{store / 'worker-1'}, or give another directory"
        )
        raise UsageError(msg)
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(store / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    stack.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        msg = f"--store {store} is in use by the workers of another relay"
        raise CommandFailedError(msg) from error
    served = {f"worker-{number}" for number in range(1, count + 1)}
    for path in sorted(store.glob("worker-*")):
        if path.name not in served:
            log.warning(
                "%s is not served: there were more workers when it was written",
                path,
                extra={"event": "store_not_served", "path": str(path)},
            )


class Workers:
    """The workers of one relay, from their start to their end.

    Args:
        plan: The wishes of the user.
        name: The beginning of their names.
        urls: Their listeners.
        scratch: A directory that only this user can read.
    """

    def __init__(self, plan: Plan, name: str, urls: Sequence[ListenURL], scratch: Path) -> None:
        self._plan = plan
        self._urls = urls
        self._scratch = scratch
        self._token_file = scratch / "token"
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._token_file.touch(mode=0o600)
        self._token_file.write_text(f"{token}\n")
        visitor = Visitor(f"Bearer {token}")
        self._workers = [
            Worker(f"{name}-{number}", visitor=visitor, link=f"{name}-{number}")
            for number in range(1, plan.count + 1)
        ]
        self._nats = Restarting("nats-1")
        self._looks = Looks(self._workers)
        self._state = "starting"
        self._service = Service.from_environment()

    async def run(self) -> int:
        """Run them until a signal ends them; return the exit status."""
        with ExitStack() as bound:
            listeners = await self._bind(bound)
            return await run_course(
                partial(self._start, [str(listener.url) for listener in listeners]),
                grace=self._plan.settings.grace,
                signals=SIGNALS,
                at_end=self._at_end,
                at_once=self._at_once,
            )

    async def _start(self, listening: Sequence[str], course: Course) -> None:
        await course.beside.start(self._pass_on_hang_ups, course.beside)
        course.beside.start_soon(self._service.keep_alive)
        http = await self._serve_pages(course)
        env = {**os.environ}
        if self._plan.starts_nats:
            # Not on the command line, which everybody can read.
            env[f"{PREFIX}RELAY_CLUSTER"] = await self._start_nats(course)
        for number, worker in enumerate(self._workers, 1):
            own = self._own_options(worker.name, number, listening)
            worker.command = program_command(with_own(self._plan.argv, own))
            start = partial(worker.start, course.relays, env)
            course.until_end.start_soon(worker.processes.run, course.ending, start)
        await self._until_ready()
        for url in listening:
            tell(listening=url)
        if http is not None:
            tell(http=http)
        tell(ready=True)
        self._service.ready(", ".join((*listening, http or "no pages")))
        self._state = "ready"

    async def _bind(self, stack: ExitStack) -> list[Listener]:
        """Bind the ports for the length of `stack`.

        Raises:
            ListenError: One is not available.
        """
        bound: list[Listener] = []
        for url in self._urls:
            if url.port:  # Another program that shares the port would get half of the clients.
                for listener in await open_listeners(url):
                    listener.close()
            bound += map(stack.enter_context, await open_listeners(url, shared=True))
        return bound

    def _own_options(self, name: str, number: int, listening: Sequence[str]) -> dict[str, Value]:
        settings, folder = self._plan.settings, f"worker-{number}"
        own: dict[str, Value] = {
            "workers": "1",
            "name": name,
            "listen": listening,
            "reuse-port": None,
            "http": f"{LOOPBACK}:0",
            "http-token": str(self._token_file),
        }
        if self._plan.store is not None:
            own["store"] = str(self._plan.store / folder)
        if self._plan.journal is not None:
            own["journal"] = str(self._plan.journal / folder)
        if settings.memory_alarm is not None and settings.memory_alarm <= 1:
            own["memory-alarm"] = f"{settings.memory_alarm / self._plan.count:.6f}"
        return own

    async def _start_nats(self, course: Course) -> str:
        """Start the NATS server, and again when it has ended; return its URL."""
        directory = self._plan.store or self._scratch
        token = secrets.token_hex(_TOKEN_BYTES)
        servers = configure_nats_servers(1, directory, token)
        start = partial(servers[0].start, course.servers)
        course.until_end.start_soon(self._nats.run, course.ending, start)
        await jetstream_ready(servers)
        self._nats.has_started = True
        return servers[0].url

    async def _until_ready(self) -> None:
        """Wait until the workers take connections, and know each other."""
        for worker in self._workers:
            await worker.until_ready()
        with trio.move_on_after(_KNOW_SECONDS):
            for worker in self._workers:
                await until_it_knows(worker, len(self._workers) - 1)
            return
        msg = f"the workers do not know each other after {_KNOW_SECONDS:g} s"
        raise CommandFailedError(msg)

    async def _serve_pages(self, course: Course) -> str | None:
        settings = self._plan.settings
        if settings.http is None:
            return None
        address = PagesAddress.parse(settings.http)
        processes = [worker.processes for worker in self._workers]
        if self._plan.starts_nats:
            processes.append(self._nats)
        pages = ClusterPages(self._looks, lambda: exposition(processes))
        own = {**pages.handlers(), "/healthz": self._healthz, "/readyz": self._readyz}
        return await serve_cluster_pages(
            course.beside,
            ForwardingHandlers(own, self._workers),
            address,
            access_of(settings, address),
            actions=CrowdActions(self._workers),
            limits=HttpLimits(connections=settings.max_http_connections),
            tls=settings.tls if address.secure else None,
        )

    async def _healthz(self, request: Request) -> Response:
        return Response.sentence(200, "The relay is alive.")

    async def _readyz(self, request: Request) -> Response:
        """Say whether the relay takes connections: one worker is enough for that."""
        there = sum(worker.addresses.is_ready for worker in self._workers)
        status = 200 if self._state == "ready" and there else 503
        count = f"{there} of {len(self._workers)} workers take connections"
        return Response.sentence(status, f"The relay is {self._state}: {count}.")

    async def _pass_on_hang_ups(
        self, nursery: trio.Nursery, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """At SIGHUP, read the files of the page again, and let the workers read theirs."""
        settings = self._plan.settings
        is_secure = settings.http is not None and PagesAddress.parse(settings.http).secure
        tls = settings.tls if is_secure else None
        own = attrs.evolve(settings, passwords=None, tokens=None, acl=None, tls=tls)
        # Each worker puts the options into force, and says so; what it has of its own is said here.
        plan = self._plan
        configuration = Configuration(
            plan.read_again, plan.given, Adjusting(settings), only=OWN_OPTIONS
        )
        with trio.open_signal_receiver(signal.SIGHUP) as signals:
            task_status.started()
            async for _ in signals:
                with self._service.reloading():
                    await configuration.reload()
                    reload_files(reloads_of(own))
                    for worker in self._workers:
                        nursery.start_soon(worker.hang_up)

    def _at_end(self, ending: Ending) -> None:
        self._state = "stopping"
        self._service.stopping()
        why = "" if ending.fault is None else f"{ending.fault}; "
        log.info("%sending the workers%s", why, ", then NATS" * self._plan.starts_nats)

    def _at_once(self) -> None:
        log.warning("a second signal: ending at once, without delivering outstanding messages")
